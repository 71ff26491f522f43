"""`kolla_mesos_ctl`: its command line and its exit statuses.

The table lists all subcommands; the module of each one adds its arguments.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from io import TextIOWrapper
from textwrap import fill
from typing import Any, NamedTuple, NoReturn, TextIO

from kolla_mesos_start import __version__, log
from kolla_mesos_start.ctl.text import guarded, nearest, wrapped
from kolla_mesos_start.errors import (
    AccessDenied,
    AgentError,
    BadUsage,
    CannotWrite,
    Issues,
    WrongCredential,
    where,
)
from kolla_mesos_start.processes import hide_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.ctl.subcommand import Subcommand

PROGRAM = "kolla_mesos_ctl"
DESCRIPTION = "Publish, watch, explain and repair the deployments of kolla_mesos_start."
EPILOG = """\
KOLLA_ZK_HOSTS, KOLLA_SYSTEM_PREFIX, KOLLA_ZK_AUTH_FILE, KOLLA_ZK_CA, KOLLA_ZK_CERT and KOLLA_ZK_KEY
have the same meaning as for the agent; KOLLA_DEPLOYMENT is the deployment. Options have precedence. They
can be given before or after the command. `kolla_mesos_ctl COMMAND --help` has an example of each.
"""


class ListedCommand(NamedTuple):
    """A row of the table of subcommands. `at` is its module in `commands`, and its function there, if that
    has another name.

    The module is imported only when it is used: all modules together take a quarter of a second.
    """

    name: str
    summary: str
    at: str

    def load(self) -> Subcommand:
        """Import it. NotInstalled names a package that is missing."""
        module, _, name = self.at.partition(".")
        with _installed():
            found: Subcommand = getattr(import_module(f"{__package__}.commands.{module}"), name or self.name)
            return found


SUBCOMMANDS = (
    ListedCommand("validate", "find everything that is wrong in a directory", "publish"),
    ListedCommand("schema", "print the JSON Schema of a definition, for editors", "publish"),
    ListedCommand("diff", "show what publishing a directory would change", "publish"),
    ListedCommand("publish", "write a directory of definitions, files and variables to ZooKeeper", "publish"),
    ListedCommand("status", "show what each service and each container is doing", "status"),
    ListedCommand(
        "explain", "explain why a deployment is not up: root causes, and what each blocks", "explain"
    ),
    ListedCommand("wait", "block until services are up and run the published state", "wait"),
    ListedCommand("events", "print what operators did, and with --follow what changes", "history"),
    ListedCommand("timeline", "show how a start went, and its critical path", "history"),
    ListedCommand("metrics", "serve the state of a deployment for Prometheus", "metrics"),
    ListedCommand("graph", "print the dependencies between commands and daemons", "explain"),
    ListedCommand("restart", "restart the daemons of a service", "variables"),
    ListedCommand("rerun", "make a one-time command run once more", "one_time"),
    ListedCommand("adopt", "record a one-time command as done without running it", "one_time"),
    ListedCommand("elect", "show which host bootstraps a cluster, or decide it after a loss", "elect"),
    ListedCommand("get", "print the value of a variable as an agent would find it", "variables"),
    ListedCommand("set", "set a variable, also for one service, or for it on a host", "variables.set_"),
    ListedCommand("unset", "remove a variable, also of one service, or of it on a host", "variables"),
    ListedCommand("remove", "remove a service: its definition, variables, files and status", "removal"),
    ListedCommand("reset", "remove the records of containers: one-time commands run again", "removal"),
    ListedCommand(
        "snapshot", "save definitions, variables, files and completed commands to one file", "snapshot"
    ),
    ListedCommand("restore", "restore a snapshot, here or in another ensemble", "snapshot"),
    ListedCommand("up", "run the whole deployment of a directory on this machine, to try it out", "up"),
    ListedCommand("manifests", "make the files with which a launcher starts a deployment", "manifests"),
    ListedCommand(
        "import", "make a deployment's directory from kolla-ansible's playbooks", "importing.import_"
    ),
    ListedCommand("completion", "print a script for completion in a shell", "completion"),
)


class NotInstalled(AgentError):
    """A package of the operator's tool is missing."""

    status = 1


@contextmanager
def _installed() -> Iterator[None]:
    """NotInstalled names a package that an import misses. Commands import late what few of them need."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if not missing.name or missing.name.startswith("kolla_mesos_start"):
            raise
        raise NotInstalled(
            f"the package {missing.name} is missing: pip install 'kolla_mesos_start[operator]'"
        ) from missing


# Never suggested, because they delete something: users follow suggestions without reading the help.
DELETING = ("--prune", "--force", "--winner", "--without", "--forget", "--accept-empty")


class Help(argparse.HelpFormatter):
    """Fits the width of the terminal; a paragraph with an indented line, such as an example, is unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._paragraph(each, width) for each in text.strip("\n").split("\n\n"))

    def _paragraph(self, text: str, width: int) -> str:
        is_laid_out = text.startswith(" ") or "\n " in text
        # Options and paths must not be split.
        return text if is_laid_out else fill(text, width, break_on_hyphens=False, break_long_words=False)


class ToolParser(argparse.ArgumentParser):
    """argparse with the agent's exit status for bad usage, and without abbreviated options."""

    def __init__(self, **others: Any) -> None:
        # In some commands --host would be an abbreviation of --hosts, in others an option.
        super().__init__(allow_abbrev=False, **others)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown options here: argparse leaves them to the parser of the whole command line."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            meant = nearest(option, self._option_string_actions)
            if any(repr(each) in meant for each in DELETING):
                meant = ""
            self.error(f"unknown: {' '.join(unknown)}{meant}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            meant = nearest(value, action.choices) or f": choose from {', '.join(action.choices)}"
            raise argparse.ArgumentError(action, f"{value!r} is unknown{meant}")

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"{message}; see {self.prog} --help")


class CommandParser(ToolParser):
    """The parser of one subcommand. Its arguments are added when it is used."""

    def __init__(self, listed: ListedCommand, **others: Any) -> None:
        super().__init__(**others)
        self._listed = listed

    def fill(self) -> None:
        """Add the arguments and the help."""
        self._listed.load().add_to(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self.fill()
        return super().parse_known_args(args, namespace)


def main() -> NoReturn:
    """Run the command line, and exit."""
    # At its very end Python takes handlers away, and the signal's own status would replace ours.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    hide_memory()  # A core file (Ctrl-\) would contain secrets.
    # A closed stream is None, and a connection would get its descriptor.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # The locale may lack characters.
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)
    logging.basicConfig(format=f"{PROGRAM}: %(message)s")
    log.OUTPUT.program, log.OUTPUT.level = PROGRAM, log.LEVELS.index("warning")
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except Issues as error:
        fail([f"{error.subject}: {issue}" for issue in error.issues], error.status)
    except AgentError as error:
        fail([error.reason], error.status)
    except KeyboardInterrupt:
        fail(["stopped by SIGINT"], 128 + signal.SIGINT)
    except BrokenPipeError:
        _discard(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        _discard(sys.stdout)
        fail(
            [f"{error.filename or 'standard output'} can't be written: {error.strerror}"], CannotWrite.status
        )
    except Exception as defect:
        lines = where(defect)
        fail([*lines, f"this is a defect of {PROGRAM}: please report it with these lines"], AgentError.status)
    _exit(status)


def _exit(status: int) -> NoReturn:
    _end_at_ctrl_c()  # All output is written.
    sys.exit(status)


def _end_at_ctrl_c() -> None:
    """From now on, Ctrl-C ends the tool silently: nothing is left that may not be interrupted."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null: flushing it at the exit would fail with another status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(argv: Sequence[str]) -> int:
    """Run one subcommand; its exit status."""
    options = parser().parse_args(argv)
    from kolla_mesos_start.ctl.invocation import Invocation, Unnamed
    from kolla_mesos_start.ctl.zk.connection import INTERRUPTS  # --help needs neither.

    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.default_int_handler):
        # Before, Ctrl-C ends the imports silently.
        signal.signal(signal.SIGINT, INTERRUPTS.handle)
    with ExitStack() as stack:
        invocation = Invocation(options, os.environ, stack)
        try:
            with _installed():
                status: int = options.run(invocation)
        except Unnamed as error:
            raise BadUsage(f"{error.reason}{invocation.list_deployments()}") from error
        except AccessDenied as error:
            if not isinstance(error, WrongCredential):
                error.reason += invocation.identity_hint()
            raise
        return status


def fail(lines: Iterable[str], status: int) -> NoReturn:
    _end_at_ctrl_c()
    try:
        for line in lines:
            text = f"{PROGRAM}: {line}"
            if sys.stderr.isatty():
                text = wrapped(text, shutil.get_terminal_size().columns)
            print(text, file=sys.stderr)
    except OSError:
        _discard(sys.stderr)
    _exit(status)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    common = _common()
    found = ToolParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        parents=[common],
        formatter_class=Help,
    )
    found.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    words = found.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for each in SUBCOMMANDS:
        parents: Any = [common]
        words.add_parser(each.name, help=each.summary, listed=each, parents=parents, formatter_class=Help)
    found.set_defaults(whole_parser=parser)  # for `completion`
    return found


def _common() -> ToolParser:
    """The options that can be given before the command's name and after it."""
    # A missing option must not hide one before the command.
    common = ToolParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("connection")
    group.add_argument("--deployment", metavar="ID", help="the first part of KOLLA_APP_ID")
    group.add_argument("--hosts", metavar="HOSTS", help="the ZooKeeper servers: h1:2181,h2:2181[/chroot]")
    group.add_argument("--prefix", metavar="PATH", help="the root of all deployments; default: /kolla")
    group.add_argument("--auth-file", metavar="FILE", help="a file with one scheme:credential in each line")
    group.add_argument("--ca", metavar="FILE", help="the CAs of the ensemble, for TLS")
    group.add_argument("--cert", metavar="FILE", help="the client's certificate, for TLS")
    group.add_argument("--key", metavar="FILE", help="the key of the certificate")
    return common
