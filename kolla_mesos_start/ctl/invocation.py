"""One run of `kolla_mesos_ctl`: options, deployment, connection and two consoles.

Options have the names of the agent's variables, which are their defaults: in a shell in which an agent could
start, no option is needed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.prompt import Confirm
from rich.segment import Segment
from rich.text import Text

from kolla_mesos_start import settings
from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.text import NotThere, escaped, existing
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.definition.strings import bad_segment
from kolla_mesos_start.errors import AgentError, BadEnvironment, BadUsage, listed
from kolla_mesos_start.files.permissions import world_readable
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.znodes import Znodes

CONNECT_TIMEOUT = 10.0  # seconds; a person waits
# The agent's variable for each option.
VARIABLES = {
    "hosts": "KOLLA_ZK_HOSTS",
    "prefix": "KOLLA_SYSTEM_PREFIX",
    "auth_file": "KOLLA_ZK_AUTH_FILE",
    "ca": "KOLLA_ZK_CA",
    "cert": "KOLLA_ZK_CERT",
    "key": "KOLLA_ZK_KEY",
}
FILES = ("auth_file", "ca", "cert", "key")
# The agent's variables that the tool reads, besides those that begin with ZK.
ZK = "KOLLA_ZK_"
KEPT = ("KOLLA_SYSTEM_PREFIX", "KOLLA_MISSING_VARIABLES")
ZOOKEEPERS_OWN = "zookeeper"  # a znode below the root of each ensemble
DEPLOYMENT = "KOLLA_DEPLOYMENT"


class Unnamed(BadUsage):
    """No deployment was named."""


class BadConnection(BadEnvironment):
    """Bad values of the connection options, or of their variables."""

    subject = "connection"


class OutputConsole(Console):
    """A console that takes no text for markup, and sends no escape sequence but its own."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Called for everything that is printed."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """Called for a string: Text would drop some control characters."""
        return super().render_str(escaped(text), **options)

    def on_broken_pipe(self) -> None:
        """Called while the error is handled. Leave it to `main`: rich would exit with a status of its own."""
        raise


class Line(NamedTuple):
    """A line: `text` with a style, then `rest` without one."""

    text: str
    style: str = ""
    rest: str = ""

    def cut(self, width: int) -> Text:
        """One line, cut to the width."""
        shown = self.whole()
        shown.truncate(width, overflow="ellipsis")
        return shown

    def folded(self, width: int) -> Text:
        """The line folded to the width; the continuation lines are indented to where `rest` begins."""
        indent = min(len(self.text), width * 9 // 10)
        folded = textwrap.wrap(escaped(self.rest), max(width - indent, 1), break_on_hyphens=False)
        if len(folded) < 2:
            return self.whole()
        return Text.assemble((self.text, self.style), f"\n{' ' * indent}".join(folded))

    def whole(self) -> Text:
        """The whole line, for a file or a pipe."""
        text = self.text if self.rest else self.text.rstrip()
        return Text.assemble((escaped(text), self.style), escaped(self.rest))


def joined(lines: Iterable[Text]) -> Text:
    return Text("\n").join(lines)


def show(out: Console, lines: Iterable[Line]) -> None:
    """Print the lines, folded on a terminal."""
    out.print(joined(line.folded(out.width) if out.is_terminal else line.whole() for line in lines))


DECLINED = 1  # exit status


class Invocation:
    """One run of the tool. Requested data goes to `out`, notes and warnings to `err`."""

    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str], stack: ExitStack) -> None:
        self.options, self.environ = options, environ
        self.out, self.err = OutputConsole(), OutputConsole(stderr=True)
        self._stack = stack
        self._client: OperatorClient | None = None
        self.limit = math.inf  # seconds for an answer, if that is less than KOLLA_ZK_CONNECT_TIMEOUT

    @property
    def as_json(self) -> bool:
        """Whether to print data for a program."""
        return getattr(self.options, "format", "text") == "json"

    def print_json(self, data: Any) -> None:
        """Print `data` as one JSON document."""
        self.out.out(json.dumps(data, indent=2))

    # -- the deployment ---------------------------------------------------------------------------

    def load(self, *, is_local: bool = False) -> Source:
        """Read DIR. A command that `is_local` needs no name: the default is that of the directory."""
        default = self.options.directory.resolve().name if is_local else ""
        return source.load(self.options, self._deployment_name(default), self.given)

    def _deployment_name(self, default: str = "") -> str:
        name: str = getattr(self.options, "deployment", None) or self.environ.get(DEPLOYMENT) or default
        if not name:
            raise Unnamed(f"give --deployment, or set {DEPLOYMENT}: the first part of KOLLA_APP_ID")
        wrong = bad_segment(name)
        if wrong:
            raise BadUsage(f"--deployment: {wrong}, found {name!r}")
        return name

    @property
    def given(self) -> Mapping[str, str]:
        """The variables of KOLLA_VARIABLES_DIR, which containers find there too."""
        return source.container_variables(self.environ)

    @property
    def znodes(self) -> Znodes:
        """The paths of the deployment; those of a service after `_replace(service_name=...)`."""
        found = self.settings
        return Znodes(found.prefix, found.deployment_id, "", "")

    def require_deployment(self) -> Znodes:
        """The paths of the deployment, which must exist. NotThere names the nearest one."""
        znodes, found = self.znodes, self.settings
        nodes = connection.read(self.client, [znodes.deployment, "/"])
        if found.chroot and nodes["/"] is None:
            raise NotThere(f"the chroot {found.chroot} does not exist: correct --hosts or KOLLA_ZK_HOSTS")
        if nodes[znodes.deployment] is None:
            below = f", below the chroot {found.chroot}" if found.chroot else ""
            others = existing(znodes.deployment_id, _deployments(self.client, found.prefix))
            raise NotThere(f"there is no deployment at {znodes.deployment}{below}{others}")
        return znodes

    def list_deployments(self) -> str:
        """The existing deployments, to end a message that asks for one; empty if they can't be read."""
        try:
            found = self._settings("operator")._replace(connect_timeout=connection.QUIET)
            client = connection.connect(found)
            self._stack.callback(client.close)
            names = _deployments(client, found.prefix)
        except AgentError:  # The missing name is reported first.
            return ""
        where = f"{found.prefix or '/'} of ZooKeeper at {found.hosts}{found.chroot}"
        return f"; below {where} there {f'are: {listed(names)}' if names else 'is none'}"

    # -- the connection ---------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The connection and the deployment. Raises BadEnvironment or BadUsage."""
        return self._settings(self._deployment_name())

    def _settings(self, deployment: str) -> Settings:
        kept = {name: value for name, value in self.environ.items() if name in KEPT or name.startswith(ZK)}
        # The agent's parser needs a container, which the tool has not.
        kept.update(KOLLA_APP_ID=f"/{deployment}/operator", KOLLA_HOSTNAME="operator")
        kept.update(connection_options(self.options))
        if not kept.get("KOLLA_ZK_HOSTS"):
            raise BadUsage("give --hosts, or set KOLLA_ZK_HOSTS: h1:2181,h2:2181[/chroot]")
        try:
            found = settings.parse(kept, names=self._names())
        except BadEnvironment as error:
            raise BadConnection(error.issues) from error
        return found._replace(connect_timeout=min(found.connect_timeout or CONNECT_TIMEOUT, self.limit))

    def _names(self) -> Mapping[str, str]:
        """The option for each variable whose value was given by an option."""
        given = {option: name for option, name in VARIABLES.items() if getattr(self.options, option, None)}
        return {name: _flag(option) for option, name in given.items()}

    @property
    def client(self) -> OperatorClient:
        """The connection. It is opened at the first use, and closed at the end."""
        if self._client is None:
            found = self.settings
            self._warn_of_readable_files()
            self._client = connection.connect(found)
            self._stack.callback(self._client.close)
        return self._client

    def _warn_of_readable_files(self) -> None:
        """Warn of credentials and keys that every user can read."""
        names = self._names()
        for variable, path, mode in world_readable({**self.environ, **connection_options(self.options)}):
            text = (
                f"warning: {names.get(variable, variable)}: every user of this host can read {path} (mode"
                f" {mode:04o}), and then has your rights in ZooKeeper: chmod 600 {path}"
            )
            self.err.print(text)

    def confirmed(self, what: str) -> bool:
        """Ask on the terminal, unless --yes is given. Raises BadUsage if there is no terminal."""
        if self.options.yes:
            return True
        if sys.stdin is None or not sys.stdin.isatty():
            raise BadUsage(f"{what}? There is no terminal to ask: give --yes; nothing was changed")
        # A string would be taken for markup. The end of the input stands for the default.
        if Confirm.ask(Text(what), console=self.err, default=False, stream=self):  # type: ignore[call-overload]
            return True
        self.err.print("nothing was changed")
        return False

    def readline(self) -> str:
        """A line of standard input. The session stays alive while it is awaited."""
        if self._client is not None:
            loop, stdin = self._client.loop, sys.stdin.fileno()
            ready: list[bool] = []
            loop.listen(stdin, lambda: ready.append(True))
            loop.wait(lambda: ready)
            loop.ignore(stdin)
        return sys.stdin.readline().rstrip("\n")

    def identity_hint(self) -> str:
        """Our identity, to end a message about a missing right."""
        client = self._client
        return client.session.servers.hint if client is not None and client.connected else ""


def _deployments(client: OperatorClient, prefix: str) -> list[str]:
    above = prefix or "/"
    names = connection.children(client, [above])[above]
    return [name for name in names if prefix or name != ZOOKEEPERS_OWN]


def connection_options(options: argparse.Namespace) -> dict[str, str]:
    """The values of the connection options, by the agent's variables. BadUsage for an empty one."""
    found = {}
    for option, name in VARIABLES.items():
        value = getattr(options, option, None)
        if value == "":
            raise BadUsage(f"{_flag(option)} is empty: give its value, or leave it out to use {name}")
        if value is not None:
            # Relative to the current directory; a variable is valid in any directory.
            found[name] = os.path.abspath(value) if option in FILES else value
    return found


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
