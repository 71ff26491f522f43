"""What every subcommand of `kolla_mesos_ctl` is given: options, deployment, connection, two consoles.

The options have the names of the agent's variables, which are their defaults, so that a shell in which an
agent could start needs no option at all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Callable, NamedTuple

from kazoo.client import KazooClient
from rich.console import Console

from kolla_mesos_start import settings
from kolla_mesos_start.definition.forms import bad_segment
from kolla_mesos_start.errors import AgentError, BadEnvironment, BadUsage, listed
from kolla_mesos_start.files.permissions import world_readable
from kolla_mesos_start.operator.deployment import container_variables
from kolla_mesos_start.operator.ensemble import connection
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.operator.terminal.suggestions import NotThere, nearest
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.identity import connected_as

CONNECT_TIMEOUT = 10.0  # seconds; a person waits for it
# Which of the agent's variables an option overrides.
VARIABLES = {
    "hosts": "KOLLA_ZK_HOSTS",
    "prefix": "KOLLA_SYSTEM_PREFIX",
    "auth_file": "KOLLA_ZK_AUTH_FILE",
    "ca": "KOLLA_ZK_CA",
    "cert": "KOLLA_ZK_CERT",
    "key": "KOLLA_ZK_KEY",
}
FILES = ("auth_file", "ca", "cert", "key")
# Which of the agent's variables count here.
ZK = "KOLLA_ZK_"
KEPT = ("KOLLA_SYSTEM_PREFIX", "KOLLA_MISSING_VARIABLES")
ZOOKEEPERS_OWN = "zookeeper"  # below the root of each ensemble
DEPLOYMENT = "KOLLA_DEPLOYMENT"


class Unnamed(BadUsage):
    """No deployment was named."""


class BadConnection(BadEnvironment):
    """Bad values of the options that say how to reach ZooKeeper, or of the variables that they stand for."""

    subject = "connection"


class OutputConsole(Console):
    """rich would exit with a status of its own where whoever read has gone; `main` knows a better one."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise


class Invocation:
    """One run of the tool. `out` is for what was asked for, `err` for all that is said beside it."""

    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str], stack: ExitStack) -> None:
        self.options, self.environ = options, environ
        self.out = OutputConsole(highlight=False, soft_wrap=True)
        self.err = OutputConsole(stderr=True, highlight=False, soft_wrap=True)
        self._stack = stack
        self._client: OperatorClient | None = None

    @property
    def as_json(self) -> bool:
        """Whether data is to be printed for a program."""
        return getattr(self.options, "format", "text") == "json"

    def print_json(self, data: Any) -> None:
        """Print `data` as one JSON document."""
        self.out.out(json.dumps(data, indent=2))

    @property
    def settings(self) -> Settings:
        """How to reach ZooKeeper, and which deployment. Raises BadEnvironment or BadUsage."""
        given = getattr(self.options, "deployment", None) or self.environ.get(DEPLOYMENT, "")
        if bad_segment(given):
            if not given:
                raise Unnamed(f"give --deployment, or set {DEPLOYMENT}: the first part of KOLLA_APP_ID")
            raise BadUsage(
                f"--deployment: expected a name that can be one segment of a znode's path, found {given!r}"
            )
        return self._settings(given)

    def _settings(self, deployment: str) -> Settings:
        kept = {name: value for name, value in self.environ.items() if name in KEPT or name.startswith(ZK)}
        # What describes a container is of no meaning here.
        kept.update(KOLLA_APP_ID=f"/{deployment}/operator", KOLLA_HOSTNAME="operator")
        kept.update(connection_options(self.options))
        if not kept.get("KOLLA_ZK_HOSTS"):
            raise BadUsage("give --hosts, or set KOLLA_ZK_HOSTS: h1:2181,h2:2181[/chroot]")
        try:
            found = settings.parse(kept)
        except BadEnvironment as error:
            raise BadConnection([self._as_given(issue) for issue in error.issues]) from error
        return found if found.connect_timeout else found._replace(connect_timeout=CONNECT_TIMEOUT)

    def _as_given(self, issue: str) -> str:
        """With the option where it was an option, not with the variable that it stands for."""
        for option, name in VARIABLES.items():
            if getattr(self.options, option, None):
                issue = re.sub(rf"\b{name}\b", _flag(option), issue)
        return issue

    @property
    def given(self) -> Mapping[str, str]:
        """What containers find in KOLLA_VARIABLES_DIR, as far as it is known here."""
        return container_variables.variables(self.environ)

    @property
    def znodes(self) -> Znodes:
        """The paths of the deployment; those of a service after `_replace(service_name=...)`."""
        found = self.settings
        return Znodes(found.prefix, found.deployment_id, "", "")

    @property
    def client(self) -> OperatorClient:
        """The connection, made when it is first used, and closed at the end."""
        if self._client is None:
            settings = self.settings
            self._warn_of_open_files()
            self._client = connection.connect(settings)
            self._stack.callback(connection.close, self._client)
        return self._client

    def _warn_of_open_files(self) -> None:
        """Of those that say who we are, or hold the key to it."""
        for variable, path, mode in world_readable({**self.environ, **connection_options(self.options)}):
            text = (
                f"warning: {variable}: every user of this host can read {path} (mode {mode:04o}), and then do"
                f" in ZooKeeper what you may: chmod 600 {path}"
            )
            self.err.print(self._as_given(text), markup=False)

    def identity_hint(self) -> str:
        """For the end of a message: what an operator has to know who looks for a right that is missing."""
        is_connected = self._client is not None and self._client.connected
        return connected_as(connection.known_as(self._client)) if is_connected else ""

    def require_deployment(self) -> Znodes:
        """The paths of a deployment that is there. NotThere names the nearest one."""
        znodes, found = self.znodes, self.settings
        nodes = connection.read(self.client, [znodes.deployment, "/"])
        if found.chroot and nodes["/"] is None:
            raise NotThere(f"the chroot {found.chroot} does not exist: correct --hosts or KOLLA_ZK_HOSTS")
        if nodes[znodes.deployment] is None:
            below = f", below the chroot {found.chroot}" if found.chroot else ""
            others = _deployments(self.client, found.prefix)
            raise NotThere(
                f"there is no deployment at {znodes.deployment}{below}{nearest(znodes.deployment_id, others)}"
            )
        return znodes

    def list_deployments(self) -> str:
        """The deployments, for the end of a message that asks for one; nothing where that can't be known."""
        try:
            found = self._settings("operator")._replace(connect_timeout=connection.QUIET)
            client = connection.connect(found)
            self._stack.callback(connection.close, client)
            names = _deployments(client, found.prefix)
        except AgentError:  # What was asked for comes first: with it, this is said too.
            return ""
        where = f"{found.prefix or '/'} of ZooKeeper at {found.hosts}{found.chroot}"
        return f"; below {where} there {f'are: {listed(names)}' if names else 'is none'}"


class Subcommand(NamedTuple):
    """One word of the tool. `run` returns the exit status; what goes wrong it raises as AgentError."""

    description: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], object]
    run: Callable[[Invocation], int]


def _deployments(client: KazooClient, prefix: str) -> list[str]:
    above = prefix or "/"
    names = connection.children(client, [above])[above]
    return [name for name in names if prefix or name != ZOOKEEPERS_OWN]


def connection_options(options: argparse.Namespace) -> dict[str, str]:
    """What the options for the connection say, by the agent's variables. BadUsage for an empty one."""
    found = {}
    for option, name in VARIABLES.items():
        value = getattr(options, option, None)
        if value == "":
            raise BadUsage(f"{_flag(option)} is empty: give its value, or leave it out to use {name}")
        if value is not None:
            # A person names a file from where he stands, a variable is for any directory.
            found[name] = os.path.abspath(value) if option in FILES else value
    return found


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def add_format(parser: argparse._ActionsContainer) -> None:
    """The option of all that print data."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")
