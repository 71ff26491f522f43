"""When the files of a running daemon are refreshed."""

from __future__ import annotations

import marshal
import os
import signal

import pytest

from kolla_mesos_start.daemon.handoff import Refreshed, plain
from kolla_mesos_start.daemon.refresher import (
    QUIET,
    SHORT_QUIET,
    ending,
    quiet_after,
    read_report,
    retry_after,
)

READY = "/kolla/site/status/global/api/daemon/ready"
KNOWN = {(READY, True), (f"{READY}/1", False), ("/kolla/site/variables/port", False)}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((READY, True), SHORT_QUIET),
        ((f"{READY}/1", False), SHORT_QUIET),
        (("/kolla/site/variables/port", False), QUIET),
    ],
)
def test_a_changed_instance_is_refreshed_sooner_than_a_publication(
    key: tuple[str, bool], expected: float
) -> None:
    """A publication has many znodes; load balancers should learn of an instance soon."""
    assert quiet_after(key, KNOWN) == expected


@pytest.mark.parametrize(("killed", "seconds"), [(0, 1), (1, 2), (5, 32), (6, 60), (10_000, 60)])
def test_a_refresh_that_is_killed_repeatedly_is_tried_with_increasing_delay(
    killed: int, seconds: float
) -> None:
    """It costs a full agent each time."""
    assert retry_after(killed) == seconds


def test_an_incomplete_report_counts_as_none() -> None:
    """A kill may cut it off at any byte."""
    whole = marshal.dumps(plain(Refreshed({("/a", True): 1}, "no")))
    for size in range(len(whole) + 1):
        report = os.memfd_create("report")
        os.write(report, whole[:size])
        found = read_report(report)
        assert found == (Refreshed({("/a", True): 1}, "no") if size == len(whole) else None)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "it was killed by signal 9 (is the memory limit of the container too low?)"),
        (-signal.SIGSEGV, "it was killed by signal 11"),
        (70, "kolla_mesos_start refresh ended with status 70"),
    ],
)
def test_the_reason_of_a_refresh_without_a_report_says_how_it_ended(status: int, words: str) -> None:
    """The kernel's OOM killer sends SIGKILL."""
    assert ending(status) == words
