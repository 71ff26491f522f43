"""`kolla_mesos_ctl`, the operator's one tool: its command line, and how it ends.

What a subcommand does is its own module's business; the table here says which there are.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from textwrap import fill
from typing import Any, NoReturn, TextIO

import shtab

from kolla_mesos_start import __version__
from kolla_mesos_start.errors import AccessDenied, AgentError, BadUsage, CannotWrite, Issues, where
from kolla_mesos_start.hide import hide_memory
from kolla_mesos_start.operator import (
    adopt,
    diff,
    explain,
    graph,
    history,
    publish,
    removal,
    rerun,
    restore,
    schema,
    snapshot,
    status,
    up_directory,
    validate,
    variables,
    wait,
)
from kolla_mesos_start.operator.invocation import Invocation, Subcommand, Unnamed, nearest
from kolla_mesos_start.operator.lines import wrapped
from kolla_mesos_start.operator.manifests import command as manifests

PROGRAM = "kolla_mesos_ctl"
DESCRIPTION = "Publish, watch, explain and repair the deployments of kolla_mesos_start."
EPILOG = """\
KOLLA_ZK_HOSTS, KOLLA_SYSTEM_PREFIX, KOLLA_ZK_AUTH_FILE, KOLLA_ZK_CA, KOLLA_ZK_CERT and KOLLA_ZK_KEY
mean what they mean to the agent, KOLLA_DEPLOYMENT is the deployment; the options win over them, and
stand before or after the command. `kolla_mesos_ctl COMMAND --help` has an example of each.
"""
# Options that delete something are never suggested: a suggestion may be followed without reading the help.
DELETING = ("--prune", "--force", "--absent-hosts")
# What a shell completes an argument with, by its name in the help.
PATHS: dict[object, object] = {
    "FILE": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "DIR2": shtab.DIRECTORY,
    "PLACE": shtab.DIRECTORY,
}


class Help(argparse.HelpFormatter):
    """As wide as the terminal; a paragraph with an indented line, such as an example, stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._paragraph(each, width) for each in text.strip("\n").split("\n\n"))

    def _paragraph(self, text: str, width: int) -> str:
        is_laid_out = text.startswith(" ") or "\n " in text
        # An option, or a path, is typed as it stands.
        return text if is_laid_out else fill(text, width, break_on_hyphens=False, break_long_words=False)


class Parser(argparse.ArgumentParser):
    """argparse, but bad usage has the agent's exit status, and no option stands for a longer one."""

    def __init__(self, **others: Any) -> None:
        # --host would be --hosts where there is no --host, and another thing where there is one.
        super().__init__(allow_abbrev=False, **others)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown here: argparse would leave it to the parser of the whole command line."""
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


def main() -> NoReturn:
    """Do what the command line says, and exit."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # So that Ctrl-C ends the imports without a word.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hide_memory()  # It holds secrets, which a core file of it (Ctrl-\) would hold too.
    logging.basicConfig(format=f"{PROGRAM}: %(message)s")
    # It logs each attempt to connect; `connection` says all that matters.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    # A stream that is closed is None, and its descriptor would become that of a connection.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # What the locale lacks is no reason to end.
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Nothing is left to be said.
    sys.exit(status)


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _discard(stream: TextIO) -> None:
    """Write nothing more to it: what it still holds would fail at the exit, with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(argv: Sequence[str]) -> int:
    """Run one subcommand; its exit status."""
    options = parser().parse_args(argv)
    with ExitStack() as stack:
        invocation = Invocation(options, os.environ, stack)
        try:
            status: int = options.run(invocation)
        except Unnamed as error:
            raise BadUsage(f"{error.reason}{invocation.which_there_are()}") from error
        except AccessDenied as error:
            error.reason += invocation.as_whom()
            raise
        return status


def fail(lines: Iterable[str], status: int) -> NoReturn:
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
    found = Parser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        parents=[common],
        formatter_class=Help,
    )
    found.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _complete_paths(found)
    words = found.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for each in SUBCOMMANDS:
        word = words.add_parser(
            each.name,
            help=each.summary,
            description=each.description,
            epilog=f"example:\n  {each.example}\n",
            parents=[common],
            formatter_class=Help,
        )
        each.add_arguments(word)
        _complete_paths(word)
        word.set_defaults(run=each.run)
    return found


def _common() -> Parser:
    """The options that may stand before the command's name and after it."""
    # An option that is not given must not hide one that stood before the command.
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("connection")
    group.add_argument("--deployment", metavar="ID", help="the first part of KOLLA_APP_ID")
    group.add_argument("--hosts", metavar="HOSTS", help="of ZooKeeper: h1:2181,h2:2181[/chroot]")
    group.add_argument("--prefix", metavar="PATH", help="the root of all deployments, without both /kolla")
    group.add_argument("--auth-file", metavar="FILE", help="one scheme:credential in each line")
    group.add_argument("--ca", metavar="FILE", help="the CAs of the ensemble, for TLS")
    group.add_argument("--cert", metavar="FILE", help="the client's certificate, for TLS")
    group.add_argument("--key", metavar="FILE", help="its key")
    return common


def _complete_paths(word: argparse.ArgumentParser) -> None:
    """Tell shtab which values are paths: their names in the help say so."""
    for action in word._actions:
        if action.metavar in PATHS:
            action.complete = PATHS[action.metavar]  # type: ignore[attr-defined]


def _print_completion(invocation: Invocation) -> int:
    print(shtab.complete(parser(), invocation.options.shell))
    return 0


def _add_shell(word: argparse.ArgumentParser) -> None:
    word.add_argument("shell", choices=("bash", "zsh"))


COMPLETION = Subcommand(
    name="completion",
    summary="what completes this tool's words in a shell",
    description="Print a script that completes the words of this tool.",
    example="""\
. <(kolla_mesos_ctl completion bash)  # in this shell only
  kolla_mesos_ctl completion bash > /etc/bash_completion.d/kolla_mesos_ctl""",
    add_arguments=_add_shell,
    run=_print_completion,
)
SUBCOMMANDS = (
    validate.SUBCOMMAND,
    schema.SUBCOMMAND,
    diff.SUBCOMMAND,
    publish.SUBCOMMAND,
    status.SUBCOMMAND,
    explain.SUBCOMMAND,
    wait.SUBCOMMAND,
    history.SUBCOMMAND,
    graph.SUBCOMMAND,
    rerun.SUBCOMMAND,
    adopt.SUBCOMMAND,
    *variables.SUBCOMMANDS,
    *removal.SUBCOMMANDS,
    snapshot.SUBCOMMAND,
    restore.SUBCOMMAND,
    up_directory.SUBCOMMAND,
    manifests.SUBCOMMAND,
    COMPLETION,
)
