"""The records below an `election` znode, as JSON. Pure.

Other hosts write them: a record that is not valid is a BadRecord, which names its znode.
"""

from __future__ import annotations

import json

from kolla_mesos_start.definition.forms import bad_segment
from kolla_mesos_start.election.position import Position, is_group, is_number
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Accepts = Callable[[Any], bool]

MAX_RECORD = 65536  # bytes
MAX_HOSTS = 1000
MAX_TEXT = 1024  # characters
MAX_EPOCH = 2**53

BOOTSTRAPPING, FORMED = "bootstrapping", "formed"  # of a decision
JOINING, JOINED, LEFT_OUT = "joining", "joined", "left-out"  # of a member
FIRST, JOIN = "first", "join"  # the role of a running host
STARTING, READY = "starting", "ready"  # its state


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


def decode_decision(path: str, data: bytes) -> Decision:
    fields = _fields(path, data, DECISION)
    found = Decision(**{"formed": fields["state"] == FORMED, **fields})
    _check_position(path, found.group, found.value)
    return found._replace(formed=found.formed or found.state == FORMED)


def decode_member(path: str, data: bytes) -> Member:
    return Member(**_fields(path, data, MEMBER))


def decode_candidate(path: str, data: bytes) -> Candidate:
    found = Candidate(**_fields(path, data, CANDIDATE))
    _check_position(path, found.group, found.value)
    return found


def decode_running(path: str, data: bytes) -> Running:
    return Running(**_fields(path, data, RUNNING))


def decode_override(path: str, data: bytes) -> Override:
    return Override(**_fields(path, data, OVERRIDE))


def _check_position(path: str, group: str | None, value: int | None) -> None:
    # A cluster that was formed without data has neither; no position has only one of them.
    if (group is None) != (value is None):
        raise BadRecord(path, "group and value: expected both, or null for both")


def _fields(path: str, data: bytes, table: Mapping[str, tuple[Accepts, str, bool]]) -> dict[str, Any]:
    """The known fields of a JSON object; others are left out, because a newer agent may write them."""
    if len(data) > MAX_RECORD:
        raise BadRecord(path, f"it has more than {MAX_RECORD} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadRecord(path, "it is not a JSON object")
    for name, (accepts, expected, is_required) in table.items():
        if name not in found:
            if is_required:
                raise BadRecord(path, f"{name} is missing: expected {expected}")
        elif not accepts(found[name]):
            raise BadRecord(path, f"{name}: expected {expected}")
    return {name: found[name] for name in table if name in found}


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


def _one_of(*words: str) -> tuple[Accepts, str, bool]:
    return lambda value: value in words if isinstance(value, str) else False, " or ".join(words), True


def _optional(row: tuple[Accepts, str, bool]) -> tuple[Accepts, str, bool]:
    return (*row[:2], False)


# Each field: whether a value fits, what is expected, and whether it is required.
EPOCH = _is_epoch, "the number of an epoch, from 1", True
HOST = _is_host, "the name of a host", True
HOSTS = _are_hosts, "a list of hosts", False
GROUP = _is_group, "the name of a group, or null", True
VALUE = _is_value, "a number of at most 64 bits, or null", True
ID = (lambda value: isinstance(value, str) and len(value) <= MAX_TEXT), "the id of a container", False
DECISION = {
    "epoch": EPOCH,
    "winner": HOST,
    "group": GROUP,
    "value": VALUE,
    "positions": (_are_positions, "the position of each host", True),
    "state": _one_of(BOOTSTRAPPING, FORMED),
    "formed": (lambda value: isinstance(value, bool), "true or false", False),
    "attempts": (_is_epoch, "a number, from 1", False),
}
MEMBER = {"epoch": EPOCH, "state": _one_of(JOINING, JOINED, LEFT_OUT)}
CANDIDATE = {"group": GROUP, "value": VALUE, "id": ID}
RUNNING = {"epoch": EPOCH, "role": _one_of(FIRST, JOIN), "state": _one_of(STARTING, READY), "id": ID}
OVERRIDE = {
    "epoch": EPOCH,
    "winner": (lambda value: value is None or _is_host(value), "the name of a host, or null", False),
    "without": HOSTS,
    "accept_empty": HOSTS,
}
