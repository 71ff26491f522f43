"""Until when a holder may be sure of its lock: what was proved when, and when it kills, unless renewed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolla_mesos_start.commands.lease import Lease
from kolla_mesos_start.tree.states import Detail

CLAIMED = 100.0


def lease_after(timeout: float, renewals: Sequence[float]) -> Lease:
    """A lease whose claim was sent at CLAIMED, and that has been renewed with these, by their send times."""
    lease = Lease(timeout, CLAIMED)
    for sent in renewals:
        lease.acknowledged(sent)
    return lease


@pytest.mark.parametrize(
    ("timeout", "renew_after", "kill_after"),
    [(2.0, 0.5, 0.7), (4.0, 1.0, 1.4), (10.0, 2.5, 3.5), (40.0, 10.0, 14.0)],
)
def test_right_after_a_claim(timeout: float, renew_after: float, kill_after: float) -> None:
    """0.4 T less a twentieth: the last ping may be T/3 old, and is reported half a tick later. The first
    renewal comes as soon as it can prove the claim, and in time for that."""
    lease = Lease(timeout, CLAIMED)
    assert lease.renew_at == pytest.approx(CLAIMED + renew_after)
    assert lease.kill_at == pytest.approx(CLAIMED + kill_after)


@pytest.mark.parametrize(
    ("timeout", "renew_after", "kill_after"),
    [
        (2.0, 1 / 3, 1.7),
        (4.0, 2 / 3, 3.7),
        (6.0, 1.0, 5.7),
        (10.0, 10 / 6, 9.5),
        (20.0, 20 / 6, 19.0),
        (40.0, 40 / 6, 38.0),
    ],
)
def test_once_a_pair_has_proved_the_claim(timeout: float, renew_after: float, kill_after: float) -> None:
    """T after the older one of the two, less a twentieth and 0.3 s at least; the next renewal comes T/6 after
    the younger one."""
    sent = CLAIMED + timeout / 4
    lease = lease_after(timeout, [sent])
    assert lease.kill_at == pytest.approx(CLAIMED + kill_after)
    assert lease.renew_at == pytest.approx(sent + renew_after)


UNPROVED = CLAIMED + 0.35 * 8


@pytest.mark.parametrize(
    ("renewals", "kill_at"),
    [
        ([], UNPROVED),
        # Two prove something only if they are T/4 (2 s) apart: then the first one, never the second.
        ([101.9], UNPROVED),
        ([102.0], 107.6),
        ([107.0], 107.6),
        ([101.0, 101.9], UNPROVED),
        ([101.9, 103.8], 107.6),
        ([101.9, 103.9], 109.5),
        # The youngest of those that are old enough.
        ([102.0, 103.4, 104.7], 109.6),
        ([101.0, 102.0, 103.0, 104.0, 105.0], 110.6),
        ([101.0, 109.0], 108.6),
    ],
)
def test_the_lease_counts_from_the_older_one_of_a_pair(renewals: Sequence[float], kill_at: float) -> None:
    """At a timeout of 8 s, whose margin is 0.4 s."""
    assert lease_after(8.0, renewals).kill_at == pytest.approx(kill_at)


@pytest.mark.parametrize(
    ("renewals", "renew_at"),
    [([], 103.0), ([101.0], 104.0), ([103.0], 105.0), ([103.0, 105.0], 107.0), ([103.0, 106.5], 108.5)],
)
def test_the_next_renewal_counts_from_the_last_one(renewals: Sequence[float], renew_at: float) -> None:
    """At a timeout of 12 s: after 3 s while nothing is proved, then after 2 s."""
    assert lease_after(12.0, renewals).renew_at == pytest.approx(renew_at)


@pytest.mark.parametrize(("timeout", "tolerated"), [(2.0, 0.5), (4.0, 0.55), (10.0, 0.6), (40.0, 0.6)])
def test_more_than_half_the_timeout_of_silence_is_tolerated(timeout: float, tolerated: float) -> None:
    """With renewals as they are due, a leader election passes unnoticed."""
    lease = Lease(timeout, CLAIMED)
    sent = CLAIMED
    for _ in range(60):
        sent = lease.renew_at + 0.001
        lease.acknowledged(sent)
    assert lease.kill_at - sent >= tolerated * timeout - 0.01


@given(timeout=st.floats(2, 40), sent=st.lists(st.floats(CLAIMED, 1000), max_size=30).map(sorted))
def test_whatever_comes_the_kill_is_that_of_the_rule(timeout: float, sent: Sequence[float]) -> None:
    """The rule, computed the long way; and it never moves back."""
    lease = Lease(timeout, CLAIMED)
    before = lease.kill_at
    for count, last in enumerate(sent, 1):
        lease.acknowledged(last)
        proofs = [early for early in [CLAIMED, *sent[:count]] if early <= last - timeout / 4]
        if proofs or before > CLAIMED + 0.4 * timeout:
            proved = max(proofs) + timeout - max(0.3, timeout / 20) if proofs else before
            assert lease.kill_at == max(before, proved)
        else:
            assert lease.kill_at == pytest.approx(CLAIMED + 0.35 * timeout)
        assert lease.kill_at >= before
        before = lease.kill_at


@pytest.mark.parametrize("character", ["a", "é", "\0"])
def test_what_stands_beside_a_lock_is_small(character: str) -> None:
    """Whatever is told there: 4 KiB in all, and 1 KiB of a message."""
    detail = Detail(message=character * 5000, generation=character * 5000)
    assert len(detail.encoded()) <= 4096
    told = json.loads(Detail(message=character * 5000).encoded())["message"]
    assert 512 <= len(told.encode()) <= 1024
