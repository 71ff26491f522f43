"""Which ephemerals are made or removed: the decisions, as tables."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.tree.presence import FORMER, NOBODY, OURS, STEPS, STRANGER, UNKNOWN, whose, with_since


@pytest.mark.parametrize(
    ("owner", "former", "held", "expected"),
    [
        (None, set(), False, NOBODY),
        (None, set(), True, NOBODY),
        (7, set(), True, OURS),
        (7, set(), False, OURS),
        (5, {5}, True, FORMER),
        (5, {5}, False, FORMER),
        (3, set(), False, FORMER),
        (3, {5}, True, STRANGER),
        (0, set(), True, STRANGER),
    ],
)
def test_whose(owner: int | None, former: set[int], held: bool, expected: str) -> None:
    """In session 7: what we never had is a previous run's; what was taken from us is somebody else's."""
    assert whose(owner, 7, former, held) == expected


@pytest.mark.parametrize("wanted", [True, False])
def test_steps(wanted: bool) -> None:
    """Every case is decided; nothing of a stranger's is touched, and nothing is done blindly."""
    steps = {who: STEPS[wanted, who] for who in (UNKNOWN, NOBODY, OURS, FORMER, STRANGER)}
    assert steps[UNKNOWN] == "look" and steps[STRANGER] == "rest" and steps[FORMER] == "delete"
    assert (steps[NOBODY], steps[OURS]) == (("create", "rest") if wanted else ("rest", "delete"))
    assert len(STEPS) == 10


@pytest.mark.parametrize("data", [b"{}", b" { } ", b'{"host": "h"}', b'{"a": {"b": "}"}}\n'])
def test_since(data: bytes) -> None:
    """The time is one more member of the JSON object, in UTC."""
    assert json.loads(with_since(data, 0.9)) == {**json.loads(data), "since": "1970-01-01T00:00:00Z"}
