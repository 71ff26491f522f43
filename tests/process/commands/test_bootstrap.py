"""Log lines about a running command."""

from __future__ import annotations

import pytest

from kolla_mesos_start.commands import bootstrap
from kolla_mesos_start.definition.model import Command
from kolla_mesos_start.loop import Loop, now
from tests.conftest import LogLines
from tests.support.waiting import LIMIT
from tests.unit.tree.test_states import one_time


def sync(timeout: float | None) -> Command:
    return one_time()._replace(timeout=timeout)


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_a_long_running_command_is_logged(
    monkeypatch: pytest.MonkeyPatch, log_lines: LogLines, lines: int
) -> None:
    """Every half minute, until it has ended."""
    monkeypatch.setattr(bootstrap, "PROGRESS_INTERVAL", 0.05)
    bootstrap.wait_long(Loop(), sync(9), lambda: len(log_lines()) == lines, now() + LIMIT)
    assert [line.message for line in log_lines()] == [
        "db/sync: has been running for 0 s (timeout 9 s)"
    ] * lines


def test_a_long_running_command_without_a_timeout_is_logged_as_such(
    monkeypatch: pytest.MonkeyPatch, log_lines: LogLines
) -> None:
    """If it hangs, it hangs for ever."""
    monkeypatch.setattr(bootstrap, "PROGRESS_INTERVAL", 0.05)
    bootstrap.wait_long(Loop(), sync(None), lambda: log_lines(), now() + LIMIT)
    said = "db/sync: has been running for 0 s; it has no `timeout`: if it hangs, kill its process there, and"
    assert log_lines()[0].message.startswith(said)


def test_waiting_ends_at_the_limit_of_the_command(log_lines: LogLines) -> None:
    """The caller reports the result."""
    bootstrap.wait_long(Loop(), sync(None), lambda: False, now() + 0.05)
    assert log_lines() == []
