"""How new the data of a host are, and the records below an `election` znode, as JSON. Pure.

The last line that the position command prints is one of these:

GROUP:NUMBER    data of the cluster GROUP
NUMBER          data, without the name of a cluster
none            no data

Other hosts write them: a record that is not valid is a BadRecord, which names its znode.
"""

from __future__ import annotations

import json

from kolla_mesos_start.definition.strings import bad_segment
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree import codec
from kolla_mesos_start.tree.codec import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")

MAX_RECORD = 65536  # bytes
MAX_HOSTS = 1000
MAX_TEXT = 1024  # characters
MAX_EPOCH = 2**53

MAX_LINE = 128  # bytes
MAX_NUMBER = 2**64 - 1
NONE = "none"
UNGROUPED = ""
EXPECTED = "expected GROUP:NUMBER, NUMBER or none as the last line of its output, at most 128 bytes"

BOOTSTRAPPING, FORMED = "bootstrapping", "formed"  # of a decision
JOINING, JOINED, LEFT_OUT = "joining", "joined", "left-out"  # of a member
FIRST, JOIN = "first", "join"  # the role of a running host
STARTING, READY = "starting", "ready"  # its state


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


class BadRecord(Exception):
    """A znode does not hold what it should: its path, and what is wrong."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}; correct or delete this znode")
        self.path, self.what = path, what


class Decision(NamedTuple):
    """The decision of an epoch. `group` and `value` are the winner's: None if it had no data.

    `positions`: those of all candidates, as printed. `formed`: whether a cluster was formed in this epoch or
    in an earlier one; then `group` is its group, or None while that is unknown. `attempts`: how often the
    winner has been elected in a row without becoming ready in between, this decision included.
    """

    epoch: int
    winner: str
    group: str | None
    value: int | None
    positions: Mapping[str, str]
    state: str
    formed: bool
    attempts: int = 1


class Member(NamedTuple):
    """A host that must be present at the next decision. `epoch` is that of its last transition."""

    epoch: int
    state: str


class Candidate(NamedTuple):
    """A host that waits for a decision. `id` tells its container from another one on the same host."""

    group: str | None
    value: int | None
    id: str = ""

    @property
    def position(self) -> Position:
        return Position(self.group, self.value)


class Running(NamedTuple):
    """A host whose daemon runs, or is about to be started. `id`: see Candidate."""

    epoch: int
    role: str
    state: str
    id: str = ""


class Override(NamedTuple):
    """The operator's override for the decision of one epoch; it is void for any other.

    `winner`: None leaves the choice to the election. `without`: absent hosts that are not waited for.
    `accept_empty`: hosts that may be empty although they should have data.
    """

    epoch: int
    winner: str | None = None
    without: Sequence[str] = ()
    accept_empty: Sequence[str] = ()


class Membership(NamedTuple):
    """What the registrar of a daemon needs for an election; it is no znode.

    `top`: the election's znode; `container`: the id of this container; `values`: what templates see. Times
    are in seconds.
    """

    top: str
    host: str
    container: str
    role: str
    epoch: int
    start_timeout: float | None
    give_up: float
    stop_grace: float
    values: Mapping[str, str]


def encode(record: Decision | Member | Candidate | Running | Override) -> bytes:
    """The JSON of a record."""
    return json.dumps(record._asdict()).encode()


def decode(kind: type[T], path: str, data: bytes) -> T:
    """The record of this kind in the znode at `path`. Raises BadRecord."""
    try:
        fields = codec.decode(data, FIELDS[kind], MAX_RECORD)
    except codec.Invalid as invalid:
        raise BadRecord(path, str(invalid)) from None
    # A cluster that was formed without data has neither; no position has only one of them.
    if (fields.get("group") is None) != (fields.get("value") is None):
        raise BadRecord(path, "group and value: expected both, or null for both")
    if kind is Decision:
        fields["formed"] = fields.get("formed", False) or fields["state"] == FORMED
    return kind(**fields)


def _is_host(value: Any) -> bool:
    return (
        isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable() and not bad_segment(value)
    )


def _are_hosts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_HOSTS and all(map(_is_host, value))


def _is_epoch(value: Any) -> bool:
    return type(value) is int and 0 < value < MAX_EPOCH


def _is_group(value: Any) -> bool:
    return value in (None, "") or (isinstance(value, str) and len(value) <= MAX_TEXT and is_group(value))


def _is_value(value: Any) -> bool:
    return value is None or (type(value) is int and is_number(str(value)))


def _are_positions(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _are_hosts(list(value))
        and all(
            isinstance(each, str) and len(each) <= MAX_TEXT and each.isprintable() for each in value.values()
        )
    )


def _required(fits: Callable[[Any], bool], expected: str) -> Field:
    return Field(fits, expected, True)


def _one_of(*words: str) -> Field:
    return _required(lambda value: isinstance(value, str) and value in words, " or ".join(words))


EPOCH = _required(_is_epoch, "the number of an epoch, from 1")
HOSTS = Field(_are_hosts, "a list of hosts")
GROUP = _required(_is_group, "the name of a group, or null")
VALUE = _required(_is_value, "a number of at most 64 bits, or null")
ID = Field(lambda value: isinstance(value, str) and len(value) <= MAX_TEXT, "the id of a container")
FIELDS: Mapping[type, Mapping[str, Field]] = {
    Decision: {
        "epoch": EPOCH,
        "winner": _required(_is_host, "the name of a host"),
        "group": GROUP,
        "value": VALUE,
        "positions": _required(_are_positions, "the position of each host"),
        "state": _one_of(BOOTSTRAPPING, FORMED),
        "formed": Field(lambda value: isinstance(value, bool), "true or false"),
        "attempts": Field(_is_epoch, "a number, from 1"),
    },
    Member: {"epoch": EPOCH, "state": _one_of(JOINING, JOINED, LEFT_OUT)},
    Candidate: {"group": GROUP, "value": VALUE, "id": ID},
    Running: {
        "epoch": EPOCH,
        "role": _one_of(FIRST, JOIN),
        "state": _one_of(STARTING, READY),
        "id": ID,
    },
    Override: {
        "epoch": EPOCH,
        "winner": Field(lambda value: value is None or _is_host(value), "the name of a host, or null"),
        "without": HOSTS,
        "accept_empty": HOSTS,
    },
}
