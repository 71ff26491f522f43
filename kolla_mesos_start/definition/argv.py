"""How the `command` of a definition becomes an argv: run directly, by `/bin/sh -c`, or sourced by bash.

Pure: text in, argv out. Nothing here spawns, and no message repeats a word of the command, for it
may hold a secret.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EXTEND_START = "kolla_extend_start"
EMPTY = "is empty: expected a program to run"

# Left to re's own cache: compiled when a command first needs them, not by every start.
_QUOTED = r"""(?s)\\.|'[^']*'|"(?:[^"\\]|\\.)*\""""
_FOR_SHELL = r"[$`;&|<>()*?\[~#\n]"
_EXEC = r"(?:^|[\s;&|({])exec\s"
# POSIX's special built-ins (2.14) and `!`: no such programs exist, so who writes them means a shell.
_SHELL_WORDS = {
    *("!", ".", ":", "break", "continue", "eval", "exec", "exit", "export", "readonly"),
    *("return", "set", "shift", "times", "trap", "unset"),
}


class CommandLine(NamedTuple):
    """What to execute; `shell` if it is the `/bin/sh -c` form of a string."""

    argv: tuple[str, ...]
    shell: bool

    @property
    def lacks_exec(self) -> bool:
        """Whether a shell stays between the agent's process id and the daemon: its text never says `exec`."""
        return self.shell and not re.search(_EXEC, self.argv[-1])


def parse(command: str | tuple[str, ...]) -> CommandLine:
    """The argv of a rendered command. Raises ValueError, whose text says what is wrong."""
    if not isinstance(command, str):
        line = CommandLine(command, shell=False)
    elif _needs_shell(command):
        line = CommandLine(("/bin/sh", "-c", command), shell=True)
    else:
        line = CommandLine(_split(command), shell=False)
    if not line.argv or not line.argv[0]:
        raise ValueError(EMPTY)
    return _sourced(line) if _is_extend_start(line.argv) else line


def complaint(command: str | tuple[str, ...]) -> str | None:
    """What keeps `command` from being run, if anything does."""
    try:
        parse(command)
    except ValueError as error:
        return str(error)
    return None


def _needs_shell(text: str) -> bool:
    """Whether only a shell can give `text` the meaning that its author expects."""
    # Outer newlines separate nothing: a block scalar of YAML ends in one.
    bare = re.sub(_QUOTED, _mark, text).strip("\n")
    first = (bare.split() or [""])[0]
    return bool(re.search(_FOR_SHELL, bare)) or "=" in first or first in _SHELL_WORDS


def _mark(quoted: re.Match[str]) -> str:
    """What stands for a quoted part: harmless, unless a shell looks into it all the same."""
    part = quoted[0]
    # In double quotes $ and ` keep their meaning; a line continuation vanishes anywhere but in single ones.
    seen = {'"': ("$", "`", "\\\n"), "\\": ("\\\n",), "'": ()}[part[0]]
    return "$" if any(sign in part for sign in seen) else "x"


def _split(text: str) -> tuple[str, ...]:
    import shlex  # Not needed where every command is a list.

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError("ends inside a quotation or after a backslash") from error


def _is_extend_start(argv: tuple[str, ...]) -> bool:
    names = [word.rsplit("/", 1)[-1] for word in argv]
    return names == [EXTEND_START] or names == ["bash", EXTEND_START]


def _sourced(line: CommandLine) -> CommandLine:
    """What Kolla's start.sh does with its extension: there it is no program, and it fails loudly."""
    strict = ("bash", "-o", "errexit", "-o", "pipefail", "-o", "nounset", "-c", '. "$0"')
    return CommandLine((*strict, line.argv[-1]), shell=False)
