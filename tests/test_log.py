"""Log lines in both formats, the last line, and the termination log."""

from __future__ import annotations

import calendar
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from kolla_mesos_start.errors import CommandFailed, DependenciesNotSatisfied
from kolla_mesos_start.log import TERMINATION_LOG_LIMIT, Ending, configure, ending, last_line

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
log = logging.getLogger("kolla_mesos_start.wait")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The process has one logging configuration; each test leaves it as it was."""
    loggers = [logging.getLogger(name) for name in (None, "kazoo", "kolla_mesos_start")]
    levels = [logger.level for logger in loggers]
    handlers = loggers[0].handlers[:]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels):
        logger.setLevel(level)


def logged(level: str = "info", *, json_lines: bool = False) -> io.StringIO:
    """The stream of a log that was just configured."""
    stream = io.StringIO()
    configure(level, json_lines, stream)
    return stream


def test_a_text_line_has_time_level_and_logger() -> None:
    """For people: time, level, logger, message."""
    stream = logged()
    log.info("waits on %s", "mariadb/daemon")
    assert re.fullmatch(TIME + r" INFO kolla_mesos_start\.wait: waits on mariadb/daemon\n", stream.getvalue())


def test_times_are_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of containers in different time zones can be put in order."""
    monkeypatch.setenv("TZ", "FAR-9")
    time.tzset()
    try:
        stream = logged()
        log.info("now")
    finally:
        monkeypatch.undo()
        time.tzset()
    logged_at = calendar.timegm(time.strptime(stream.getvalue()[:19], "%Y-%m-%dT%H:%M:%S"))
    assert abs(logged_at - time.time()) < 600


def test_a_json_line_is_one_object() -> None:
    """For a log collector: the same four fields, one object a line."""
    stream = logged(json_lines=True)
    log.warning("two\nlines, %s", "ünicode")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    assert found == {
        "level": "WARNING",
        "logger": "kolla_mesos_start.wait",
        "message": "two\nlines, ünicode",
    }


@pytest.mark.parametrize("control", ["\n", "\r", "\x1b[2K", "\x00", "\x7f", "\x85", "\x9b2K", "\u2028"])
@pytest.mark.parametrize("json_lines", [False, True])
def test_a_control_character_in_a_message_is_escaped(control: str, json_lines: bool) -> None:
    """A name that another container has written can neither make a line of its own nor hide one."""
    stream = logged(json_lines=json_lines)
    log.info("host %s", f"a{control}2026-11-21T03:30:00.123Z INFO all is well")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert "all is well" in line


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_traceback_is_kept(json_lines: bool) -> None:
    """A defect of the agent is logged with its place, in both formats."""
    stream = logged(json_lines=json_lines)
    try:
        raise RuntimeError("a defect")
    except RuntimeError:
        log.exception("ended")
    assert "test_log.py" in stream.getvalue()
    assert "RuntimeError: a defect" in stream.getvalue()


LEVELS = [
    # level, logger, the lowest level that is written
    ("debug", "kolla_mesos_start.wait", logging.DEBUG),
    ("info", "kolla_mesos_start.wait", logging.INFO),
    ("error", "kolla_mesos_start.wait", logging.ERROR),
    ("debug", "kazoo.client", logging.WARNING),
    ("info", "kazoo.protocol.connection", logging.WARNING),
    ("error", "kazoo.client", logging.ERROR),
    ("debug", "another_library", logging.WARNING),
]


def test_equal_lines_of_a_library_are_logged_every_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an outage kazoo logs every second that it can't connect. The agent's own lines are never dropped."""
    stream = logged()
    instant = time.monotonic()
    for later, reason in ((0, "refused"), (1, "refused"), (2, "reset"), (29, "refused"), (31, "refused")):
        monkeypatch.setattr(time, "monotonic", lambda later=later: instant + later)
        logging.getLogger("kazoo.client").warning("dropped: %s", reason)
        log.info("still waiting")
    lines = [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()]
    assert [line for line in lines if line != "waiting"] == ["refused", "reset", "refused"]
    assert lines.count("waiting") == 5


@pytest.mark.parametrize(("level", "name", "lowest"), LEVELS)
def test_the_level_is_the_agents_own(level: str, name: str, lowest: int) -> None:
    """Kazoo stays at WARNING even under `debug`: its debug lines hold data and passwords."""
    logged(level)
    assert logging.getLogger(name).getEffectiveLevel() == lowest


def test_configuring_again_leaves_no_second_handler() -> None:
    """The agent logs before it knows the format that was asked for; still each line is written once."""
    first = logged()
    second = logged(json_lines=True)
    log.info("once")
    assert not first.getvalue()
    assert len(second.getvalue().splitlines()) == 1


@pytest.mark.parametrize("json_lines", [False, True])
def test_the_last_line_and_the_termination_log_hold_the_same_object(tmp_path: Path, json_lines: bool) -> None:
    """A program can read from either why the agent ended."""
    stream = logged("error", json_lines=json_lines)
    termination_log = tmp_path / "termination-log"
    termination_log.write_text("what an earlier container left, and longer than a line" * 10)
    error = CommandFailed("exit status 3", command="keystone/db_sync")
    last_line(ending("bootstrap", error), str(termination_log))
    assert json.loads(stream.getvalue().splitlines()[-1]) == {
        "stage": "bootstrap",
        "command": "keystone/db_sync",
        "reason": "exit status 3",
        "retriable": True,
        "status": 1,
    }
    assert termination_log.read_text() == stream.getvalue().splitlines()[-1]


def test_a_long_reason_is_cut_but_logged_in_full_before(tmp_path: Path) -> None:
    """The object fits the termination log and stays valid; nothing is lost from the log."""
    stream = logged()
    reason = "missing: " + ", ".join(f"variable_{n}" for n in range(1000))
    last_line(ending("wait", DependenciesNotSatisfied(reason)), str(tmp_path / "log"))
    whole, last = stream.getvalue().splitlines()
    assert whole.endswith(f"ERROR kolla_mesos_start.log: {reason}")
    cut = json.loads(last)
    assert reason.startswith(cut["reason"][: -len("...")])
    assert TERMINATION_LOG_LIMIT - 100 < len(last) <= TERMINATION_LOG_LIMIT
    assert (tmp_path / "log").read_text() == last


@hypothesis.given(st.text(), st.integers(min_value=1, max_value=5000))
def test_any_reason_fits_the_termination_log(reason: str, times: int) -> None:
    """A character may take six or twelve bytes in JSON; no more is cut than necessary."""
    short = Ending("wait", None, reason * times, True, 75).short()
    assert len(str(short)) <= TERMINATION_LOG_LIMIT
    if short.reason != reason * times:
        assert len(str(short)) > TERMINATION_LOG_LIMIT - 12


def test_a_termination_log_that_can_not_be_written_does_not_hide_the_reason(tmp_path: Path) -> None:
    """The warning comes first, and the last line stays the last."""
    stream = logged()
    last_line(Ending("read", None, "why", False, 65), f"{tmp_path}/none/log")
    warning, last = stream.getvalue().splitlines()
    assert "No such file or directory; set KOLLA_TERMINATION_LOG" in warning
    assert json.loads(last)["reason"] == "why"


def test_without_a_termination_log_the_last_line_is_all(tmp_path: Path) -> None:
    """Outside Kubernetes there is only the log."""
    stream = logged()
    last_line(Ending("read", None, "why", False, 65), None)
    assert json.loads(stream.getvalue()) == {
        "stage": "read",
        "command": None,
        "reason": "why",
        "retriable": False,
        "status": 65,
    }
