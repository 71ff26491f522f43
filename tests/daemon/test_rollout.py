"""What keeps an instance from refreshing. The rest of it is shown by real ones, in test_refresh.py."""

from __future__ import annotations

import pytest

from kolla_mesos_start.daemon.rollout import Slot, blocking_reason

BUSY, FAILED = Slot("a", "", 10, False, 0), Slot("b", "it failed", 10, False, 0)
OLD = Slot("c", "it failed long ago", 5, True, 0)


@pytest.mark.parametrize(
    ("slots", "width", "change", "expected", "stuck"),
    [
        ([], 1, 7, "", False),
        ([BUSY], 1, 7, "1 of at most 1 instances refresh now", False),
        ([BUSY], 1, 99, "1 of at most 1 instances refresh now", False),
        ([BUSY], 2, 7, "", False),
        ([FAILED], 5, 7, "it failed: no other instance", True),
        ([FAILED], 5, 11, "", False),
        ([FAILED], 5, 10, "", False),
        ([OLD], 1, 7, "", False),
        ([OLD, BUSY], 1, 7, "1 of at most 1", False),
        ([OLD, BUSY, FAILED], 9, 7, "it failed: no other instance", True),
    ],
)
def test_why_an_instance_can_not_refresh(
    slots: list[Slot], width: int, change: int, expected: str, stuck: bool
) -> None:
    """As many as the width, and a failure that is not older than what is to be applied."""
    found, found_stuck = blocking_reason(slots, width, change)
    assert found.startswith(expected) and bool(found) == bool(expected)
    assert found_stuck == stuck
