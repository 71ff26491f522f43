"""The lease: which renewals are proved, and the deadline that follows."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolla_mesos_start.commands.lease import Lease
from kolla_mesos_start.tree.states import Detail

NEVER = float("-inf")

Event = tuple[str, float]


def lease_after(timeout: float, events: Sequence[Event]) -> Lease:
    """A lease after these events: `("proven", sent)` or `("acknowledged", sent)`."""
    lease = Lease(timeout)
    for what, sent in events:
        getattr(lease, what)(sent)
    return lease


@pytest.mark.parametrize(
    ("timeout", "events", "proven_at"),
    [
        (8.0, [], NEVER),
        (8.0, [("proven", 100.0)], 100.0),
        # An older proof does not move the deadline back.
        (8.0, [("proven", 100.0), ("proven", 90.0)], 100.0),
        # One reply proves nothing: a follower that is cut off from its leader may have sent it.
        (8.0, [("acknowledged", 100.0)], NEVER),
        (8.0, [("proven", 100.0), ("acknowledged", 101.0)], 100.0),
        # Two replies prove the first of them, if it is at least T/4 older.
        (8.0, [("acknowledged", 100.0), ("acknowledged", 101.9)], NEVER),
        (8.0, [("acknowledged", 100.0), ("acknowledged", 102.0)], 100.0),
        (8.0, [("acknowledged", 100.0), ("acknowledged", 107.0)], 100.0),
        # The youngest renewal that is old enough counts.
        (8.0, [("acknowledged", 100.0 + n) for n in range(6)], 103.0),
        (8.0, [("acknowledged", 100.0), ("acknowledged", 101.0), ("acknowledged", 109.0)], 101.0),
        # A renewal counts only if it is younger than the last proof.
        (8.0, [("proven", 105.0), ("acknowledged", 100.0), ("acknowledged", 104.0)], 105.0),
        (8.0, [("proven", 100.0), ("acknowledged", 101.0), ("acknowledged", 104.0)], 101.0),
    ],
)
def test_the_deadline_counts_from_what_has_been_proved(
    timeout: float, events: Sequence[Event], proven_at: float
) -> None:
    """The youngest proof plus the session timeout, minus the margin."""
    assert lease_after(timeout, events).deadline == pytest.approx(proven_at + timeout - 0.4)


@pytest.mark.parametrize(
    ("timeout", "margin"), [(2.0, 0.3), (4.0, 0.3), (6.0, 0.3), (10.0, 0.5), (20.0, 1.0), (40.0, 2.0)]
)
def test_the_kill_comes_a_margin_before_the_expiry(timeout: float, margin: float) -> None:
    """A twentieth of the timeout, and 0.3 s at least."""
    lease = lease_after(timeout, [("proven", 100.0)])
    assert lease.margin == pytest.approx(margin)
    assert lease.deadline == pytest.approx(100.0 + timeout - margin)


@pytest.mark.parametrize(("timeout", "tolerated"), [(2.0, 0.5), (4.0, 0.55), (10.0, 0.6), (40.0, 0.6)])
def test_more_than_half_the_timeout_of_silence_is_tolerated(timeout: float, tolerated: float) -> None:
    """With a renewal every T/6 a leader election passes unnoticed."""
    lease = Lease(timeout)
    renewals = [100.0 + n * lease.renewal_interval for n in range(60)]
    for sent in renewals:
        lease.acknowledged(sent)
    assert lease.deadline - renewals[-1] >= tolerated * timeout


@given(
    timeout=st.floats(2, 40),
    sent=st.lists(st.floats(0, 1000), max_size=30).map(sorted),
    connected_at=st.none() | st.floats(0, 1000),
)
def test_the_deadline_always_follows_the_rule(
    timeout: float, sent: Sequence[float], connected_at: float | None
) -> None:
    """The rule, computed in another way; the deadline never moves back."""
    lease = Lease(timeout)
    proofs = [NEVER]
    if connected_at is not None:
        lease.proven(connected_at)
        proofs.append(connected_at)
    before = lease.deadline
    for count, last in enumerate(sent, 1):
        lease.acknowledged(last)
        proofs += [early for early in sent[:count] if early <= last - timeout / 4]
        assert lease.deadline == max(proofs) + timeout - lease.margin
        assert lease.deadline >= before
        before = lease.deadline


@pytest.mark.parametrize("character", ["a", "é", "\0"])
def test_the_detail_of_an_attempt_is_small(character: str) -> None:
    """At most 4 KiB, with at most 1 KiB of the message."""
    detail = Detail(message=character * 5000, generation=character * 5000)
    assert len(detail.encoded()) <= 4096
    told = json.loads(Detail(message=character * 5000).encoded())["message"]
    assert 512 <= len(told.encode()) <= 1024
