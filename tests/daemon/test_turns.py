"""What keeps an instance from refreshing. The rest of it is shown by real ones, in test_refresh.py."""

from __future__ import annotations

import pytest

from kolla_mesos_start.daemon.turns import Slot, in_the_way

BUSY, FAILED = Slot("a", "", 10, False, 0), Slot("b", "it failed", 10, False, 0)
OLD = Slot("c", "it failed long ago", 5, True, 0)


@pytest.mark.parametrize(
    ("slots", "width", "change", "expected"),
    [
        ([], 1, 7, ""),
        ([BUSY], 1, 7, "1 of at most 1 instances refresh now"),
        ([BUSY], 1, 99, "1 of at most 1 instances refresh now"),
        ([BUSY], 2, 7, ""),
        ([FAILED], 5, 7, "it failed: no other instance"),
        ([FAILED], 5, 11, ""),
        ([FAILED], 5, 10, ""),
        ([OLD], 1, 7, ""),
        ([OLD, BUSY], 1, 7, "1 of at most 1"),
        ([OLD, BUSY, FAILED], 9, 7, "it failed: no other instance"),
    ],
)
def test_what_is_in_the_way(slots: list[Slot], width: int, change: int, expected: str) -> None:
    """As many as the width, and a failure that is not older than what is to be applied."""
    found = in_the_way(slots, width, change)
    assert found.startswith(expected) and bool(found) == bool(expected)
