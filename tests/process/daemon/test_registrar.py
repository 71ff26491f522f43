"""What a registrar logs about a daemon that is not ready, and when."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kolla_mesos_start.daemon import registrar as module
from kolla_mesos_start.daemon.registrar import StatusReporter
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.report import Report
from tests.conftest import LogLines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The registrar's clock; its one item is the time."""
    instant = [1000.0]
    monkeypatch.setattr(module, "now", lambda: instant[0])
    return instant


@pytest.fixture
def reporter(tmp_path: Path, clock: list[float]) -> StatusReporter:
    return StatusReporter(Report(StateFile(str(tmp_path), -1)), "shop/daemon", clock[0])


def test_a_daemon_that_is_not_ready_for_long_is_logged(
    reporter: StatusReporter, clock: list[float], log_lines: LogLines
) -> None:
    """After 10 s, then every 30 s, with the last result of the check, until it is ready."""
    reporter.show("unready", "")
    logged = []
    for _ in range(4):
        clock[0] = reporter.deadline - 0.1
        reporter.run(False)
        before = len(log_lines())
        clock[0] += 0.1
        reporter.run(False)
        logged += log_lines()[before:]
        reporter.show("unready", "exit status 69")
    assert [line.message for line in logged] == [
        "the daemon is not ready for 10 s: its first check has not ended",
        "the daemon is not ready for 40 s: exit status 69",
        "the daemon is not ready for 70 s: exit status 69",
        "the daemon is not ready for 100 s: exit status 69",
    ]
    reporter.show("ready", "")
    assert reporter.deadline == math.inf


@pytest.mark.parametrize(("stopped", "level"), [(False, "warning"), (True, "info")])
def test_a_requested_stop_is_not_a_warning(
    reporter: StatusReporter, log_lines: LogLines, stopped: bool, level: str
) -> None:
    """A warning asks for action."""
    reporter.show("ready", "")
    reporter.show("unready", "it is being stopped", stopped=stopped)
    assert log_lines()[-1].level == level


def test_a_daemon_that_is_no_longer_ready_is_logged(
    reporter: StatusReporter, clock: list[float], log_lines: LogLines
) -> None:
    """At once, and then again from that instant."""
    reporter.show("ready", "")
    clock[0] += 500
    reporter.show("unready", "HTTP status 503")
    clock[0] += 10
    reporter.run(False)
    assert [line.message for line in log_lines()] == [
        "the daemon is ready",
        "the daemon is no longer ready: HTTP status 503",
        "the daemon is not ready for 10 s: HTTP status 503",
    ]
    reporter.end()
    assert reporter.deadline == math.inf
