"""The records below an `election` znode, and what other hosts may have written there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kolla_mesos_start.election import records
from kolla_mesos_start.election.records import (
    BadRecord,
    Candidate,
    Decision,
    Member,
    Override,
    Running,
    encode,
)

EXAMPLES: list[tuple[Any, Any]] = [
    (records.Decision, Decision(3, "a", "g", 5, {"a": "g:5", "b": "none"}, "formed", True)),
    (records.Decision, Decision(1, "a", None, None, {"a": "none"}, "bootstrapping", False)),
    (records.Member, Member(2, "left-out")),
    (records.Candidate, Candidate("", 2**64 - 1, "id")),
    (records.Candidate, Candidate(None, None)),
    (records.Running, Running(1, "first", "starting", "id")),
    (records.Override, Override(2, "a", ["b"], ["c"])),
    (records.Override, Override(2)),
]
KINDS = {each.__name__: each for each, _ in EXAMPLES}


@pytest.mark.parametrize(("kind", "record"), EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_record_is_read_as_it_was_written(kind: Any, record: Any) -> None:
    """As JSON with the fields by name."""
    found = records.decode(kind, "/z", encode(record))
    assert json.loads(encode(found)) == json.loads(encode(record))


def test_a_formed_decision_has_formed_a_cluster() -> None:
    """Also if the field is missing."""
    data = b'{"epoch": 1, "winner": "a", "group": null, "value": null, "positions": {}, "state": "formed"}'
    assert records.decode(records.Decision, "/z", data).formed
    assert not records.decode(records.Decision, "/z", data.replace(b'"formed"', b'"bootstrapping"')).formed


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000, b" " * 70_000])
def test_garbage_is_an_error_that_names_the_znode(kind: Any, data: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(BadRecord, match=r"^/k/election/x: .*correct or delete this znode"):
        records.decode(kind, "/k/election/x", data)


BAD: list[tuple[Any, dict[str, Any]]] = [
    (records.Member, {"epoch": 0}),
    (records.Member, {"epoch": True}),
    (records.Member, {"epoch": 1.5}),
    (records.Member, {"epoch": 2**60}),
    (records.Member, {"state": "here"}),
    (records.Member, {"state": ["joined"]}),
    (records.Candidate, {"group": None}),
    (records.Candidate, {"group": "a:b"}),
    (records.Candidate, {"group": "a\n"}),
    (records.Candidate, {"value": None}),
    (records.Candidate, {"value": -1}),
    (records.Candidate, {"value": 2**64}),
    (records.Candidate, {"value": "5"}),
    (records.Candidate, {"id": 5}),
    (records.Running, {"role": "second"}),
    (records.Running, {"state": "up"}),
    (records.Decision, {"winner": "a/b"}),
    (records.Decision, {"winner": "a\x1b[2J"}),
    (records.Decision, {"winner": None}),
    (records.Decision, {"positions": []}),
    (records.Decision, {"positions": {"a": 5}}),
    (records.Decision, {"positions": {"a": "\n"}}),
    (records.Decision, {"state": "done"}),
    (records.Decision, {"formed": 1}),
    (records.Override, {"winner": ""}),
    (records.Override, {"without": "b"}),
    (records.Override, {"without": [1]}),
    (records.Override, {"accept_empty": ["a/b"]}),
]
VALID: dict[Any, Any] = {
    records.Member: Member(1, "joined"),
    records.Candidate: Candidate("g", 5),
    records.Running: Running(1, "join", "ready"),
    records.Decision: Decision(1, "a", "g", 5, {"a": "g:5"}, "formed", True),
    records.Override: Override(1, "a"),
}


@pytest.mark.parametrize(("kind", "change"), BAD, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_wrong_field_is_named(kind: Any, change: dict[str, Any]) -> None:
    """One wrong field makes the whole record invalid: half a decision is none."""
    valid = VALID[kind]._asdict()
    records.decode(kind, "/z", json.dumps(valid).encode())
    with pytest.raises(BadRecord, match=f"^/z: .*{next(iter(change))}"):
        records.decode(kind, "/z", json.dumps({**valid, **change}).encode())


def test_fields_of_a_newer_agent_are_ignored() -> None:
    """An upgrade goes host by host."""
    assert records.decode(records.Member, "/z", b'{"epoch": 1, "state": "joined", "more": 1}') == Member(
        1, "joined"
    )
