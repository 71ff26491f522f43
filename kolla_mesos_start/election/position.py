"""How new the data of a host are: the last line that the position command prints. Pure.

GROUP:NUMBER    data of the cluster GROUP
NUMBER          data, without the name of a cluster
none            no data
"""

from __future__ import annotations

from kolla_mesos_start.records import NamedTuple

MAX_LINE = 128  # bytes
MAX_NUMBER = 2**64 - 1
NONE = "none"
UNGROUPED = ""
EXPECTED = "expected GROUP:NUMBER, NUMBER or none as the last line of its output, at most 128 bytes"


class Position(NamedTuple):
    """A position. `group`: the name of the cluster, UNGROUPED without one. Both are None without data."""

    group: str | None = None
    value: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the host has no data."""
        return self.value is None

    def __str__(self) -> str:
        if self.value is None:
            return NONE
        return f"{self.group}:{self.value}" if self.group else str(self.value)


def parse(line: str) -> Position:
    """The position that a line is. Raises ValueError, which does not show the line, for any other line."""
    group, colon, number = line.rpartition(":")
    if line == NONE:
        return Position()
    if len(line) > MAX_LINE or not is_number(number) or (colon and not is_group(group)):
        raise ValueError(EXPECTED)
    return Position(group or UNGROUPED, int(number))


def last_line(output: bytes) -> str:
    """The last line of an output, or of the end of one."""
    lines = (output[:-1] if output.endswith(b"\n") else output).rpartition(b"\n")
    return lines[2].decode("utf-8", "replace")


def is_group(text: str) -> bool:
    """Whether the text can be the name of a cluster."""
    return text != "" and text.isascii() and text.isprintable() and ":" not in text


def is_number(text: str) -> bool:
    """Whether the text is a number of at most 64 bits."""
    digits = text.isascii() and text.isdigit()
    return digits and len(text) <= MAX_LINE and int(text) <= MAX_NUMBER
