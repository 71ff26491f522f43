"""Turns the `command` of a definition into an argv: run directly, by `/bin/sh -c`, or sourced by bash.

Pure: nothing is started here. No message repeats a word of the command: it may hold a secret.
"""

from __future__ import annotations

import re

from kolla_mesos_start.records import NamedTuple

EXTEND_START = "kolla_extend_start"
EMPTY = "is empty: expected a program to run"

# Not compiled here, but by re when a command first needs one: not every start does.
_QUOTED = r"""(?s)\\.|'[^']*'|"(?:[^"\\]|\\.)*\""""
_EXEC = r"(?:^|[\s;&|({])exec\s"
_QUOTES = frozenset("\\'\"")
_SHELL_CHARACTERS = frozenset("$`;&|<>()*?[~#\n")
# POSIX's special built-ins (2.14) and `!`: there are no such programs, so they need a shell.
_SHELL_WORDS = {
    *("!", ".", ":", "break", "continue", "eval", "exec", "exit", "export", "readonly"),
    *("return", "set", "shift", "times", "trap", "unset"),
}


class CommandLine(NamedTuple):
    """The argv to execute; `shell` says whether it is the `/bin/sh -c` form of a string."""

    argv: tuple[str, ...]
    shell: bool

    @property
    def lacks_exec(self) -> bool:
        """Whether the shell would stay as the parent of a daemon, because its text has no `exec`."""
        return self.shell and not re.search(_EXEC, self.argv[-1])


def parse(command: str | tuple[str, ...]) -> CommandLine:
    """The argv of a rendered command. Raises ValueError with the reason if that is impossible."""
    if not isinstance(command, str):
        line = CommandLine(command, shell=False)
    elif _needs_shell(command):
        line = CommandLine(("/bin/sh", "-c", command), shell=True)
    else:
        line = CommandLine(_split(command), shell=False)
    if not line.argv or not line.argv[0]:
        raise ValueError(EMPTY)
    return _source(line) if _is_extend_start(line.argv) else line


def problem(command: str | tuple[str, ...]) -> str | None:
    """Why `command` can't be run, or None."""
    try:
        parse(command)
    except ValueError as error:
        return str(error)
    return None


def _needs_shell(text: str) -> bool:
    """Whether `text` uses shell syntax."""
    # A newline at either end separates no commands: a block scalar of YAML ends in one.
    unquoted = (text if _QUOTES.isdisjoint(text) else re.sub(_QUOTED, _mask, text)).strip("\n")
    first = (unquoted.split() or [""])[0]
    return not _SHELL_CHARACTERS.isdisjoint(unquoted) or "=" in first or first in _SHELL_WORDS


def _mask(quoted: re.Match[str]) -> str:
    """The replacement of a quoted part: `$` if a shell would still interpret something in it, else `x`."""
    part = quoted[0]
    # A shell interprets $ and ` in double quotes, and removes a line continuation except in single quotes.
    special = {'"': ("$", "`", "\\\n"), "\\": ("\\\n",), "'": ()}[part[0]]
    return "$" if any(sign in part for sign in special) else "x"


def _split(text: str) -> tuple[str, ...]:
    if text.isprintable() and _QUOTES.isdisjoint(text):
        return tuple(text.split())  # Like shlex: a blank is the only printable white space.
    import shlex  # Few commands need it.

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError("has an unclosed quotation, or ends in a backslash") from error


def _is_extend_start(argv: tuple[str, ...]) -> bool:
    names = [word.rsplit("/", 1)[-1] for word in argv]
    return names == [EXTEND_START] or names == ["bash", EXTEND_START]


def _source(line: CommandLine) -> CommandLine:
    """Source the script, as Kolla's start.sh does, and end at its first error: it is not executable."""
    strict = ("bash", "-o", "errexit", "-o", "pipefail", "-o", "nounset", "-c", '. "$0"')
    return CommandLine((*strict, line.argv[-1]), shell=False)
