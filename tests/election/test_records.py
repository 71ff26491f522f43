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
    (records.decode_decision, Decision(3, "a", "g", 5, {"a": "g:5", "b": "none"}, "formed", True)),
    (records.decode_decision, Decision(1, "a", None, None, {"a": "none"}, "bootstrapping", False)),
    (records.decode_member, Member(2, "left-out")),
    (records.decode_candidate, Candidate("", 2**64 - 1, "id")),
    (records.decode_candidate, Candidate(None, None)),
    (records.decode_running, Running(1, "first", "starting", "id")),
    (records.decode_override, Override(2, "a", ["b"], ["c"])),
    (records.decode_override, Override(2)),
]
KINDS = {each.__name__: each for each, _ in EXAMPLES}


@pytest.mark.parametrize(("decode", "record"), EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_record_is_read_as_it_was_written(decode: Any, record: Any) -> None:
    """As JSON with the fields by name."""
    found = decode("/z", encode(record))
    assert json.loads(encode(found)) == json.loads(encode(record))


def test_a_formed_decision_has_formed_a_cluster() -> None:
    """Also if the field is missing."""
    data = b'{"epoch": 1, "winner": "a", "group": null, "value": null, "positions": {}, "state": "formed"}'
    assert records.decode_decision("/z", data).formed
    assert not records.decode_decision("/z", data.replace(b'"formed"', b'"bootstrapping"')).formed


@pytest.mark.parametrize("decode", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000, b" " * 70_000])
def test_garbage_is_an_error_that_names_the_znode(decode: Any, data: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(BadRecord, match=r"^/k/election/x: .*correct or delete this znode"):
        decode("/k/election/x", data)


BAD: list[tuple[Any, dict[str, Any]]] = [
    (records.decode_member, {"epoch": 0}),
    (records.decode_member, {"epoch": True}),
    (records.decode_member, {"epoch": 1.5}),
    (records.decode_member, {"epoch": 2**60}),
    (records.decode_member, {"state": "here"}),
    (records.decode_member, {"state": ["joined"]}),
    (records.decode_candidate, {"group": None}),
    (records.decode_candidate, {"group": "a:b"}),
    (records.decode_candidate, {"group": "a\n"}),
    (records.decode_candidate, {"value": None}),
    (records.decode_candidate, {"value": -1}),
    (records.decode_candidate, {"value": 2**64}),
    (records.decode_candidate, {"value": "5"}),
    (records.decode_candidate, {"id": 5}),
    (records.decode_running, {"role": "second"}),
    (records.decode_running, {"state": "up"}),
    (records.decode_decision, {"winner": "a/b"}),
    (records.decode_decision, {"winner": "a\x1b[2J"}),
    (records.decode_decision, {"winner": None}),
    (records.decode_decision, {"positions": []}),
    (records.decode_decision, {"positions": {"a": 5}}),
    (records.decode_decision, {"positions": {"a": "\n"}}),
    (records.decode_decision, {"state": "done"}),
    (records.decode_decision, {"formed": 1}),
    (records.decode_override, {"winner": ""}),
    (records.decode_override, {"without": "b"}),
    (records.decode_override, {"without": [1]}),
    (records.decode_override, {"accept_empty": ["a/b"]}),
]
VALID: dict[Any, Any] = {
    records.decode_member: Member(1, "joined"),
    records.decode_candidate: Candidate("g", 5),
    records.decode_running: Running(1, "join", "ready"),
    records.decode_decision: Decision(1, "a", "g", 5, {"a": "g:5"}, "formed", True),
    records.decode_override: Override(1, "a"),
}


@pytest.mark.parametrize(("decode", "change"), BAD, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_wrong_field_is_named(decode: Any, change: dict[str, Any]) -> None:
    """One wrong field makes the whole record invalid: half a decision is none."""
    valid = VALID[decode]._asdict()
    decode("/z", json.dumps(valid).encode())
    with pytest.raises(BadRecord, match=f"^/z: .*{next(iter(change))}"):
        decode("/z", json.dumps({**valid, **change}).encode())


def test_fields_of_a_newer_agent_are_ignored() -> None:
    """An upgrade goes host by host."""
    assert records.decode_member("/z", b'{"epoch": 1, "state": "joined", "more": 1}') == Member(1, "joined")
