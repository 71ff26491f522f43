"""How log lines look, that they hold nobody up, and the last of them; read from real pipes."""

from __future__ import annotations

import calendar
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from kolla_mesos_start import log as log_module
from kolla_mesos_start.errors import CommandFailed, DependenciesNotSatisfied
from kolla_mesos_start.log import (
    LAST_LINE_TIMEOUT,
    LEVELS,
    OUTPUT,
    TERMINATION_LOG_LIMIT,
    Ending,
    Logger,
    configure,
    ending,
    last_line,
)
from tests.support.waiting import eventually

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
PIPE_SIZE = 65536  # bytes
END = Ending("read", None, "why", False, 65)
log = Logger("kolla_mesos_start.wait")


class Reader:
    """The reader of the log: a pipe that takes what it takes until it is read."""

    def __init__(self) -> None:
        self.fd, self.writer = os.pipe()

    def read(self) -> str:
        """What has come since the last time."""
        os.set_blocking(self.fd, False)
        heard = b""
        try:
            while part := os.read(self.fd, PIPE_SIZE):
                heard += part
        except BlockingIOError:
            pass
        return heard.decode()

    def lines(self) -> list[str]:
        text = self.read()
        assert text.endswith("\n")
        return text[:-1].split("\n")

    def fill(self, free: int = 0) -> None:
        """Fill the pipe; `free` bytes of it are then read, from a page of their own."""
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"-" * 4095 + b"\n")
        except BlockingIOError:
            pass
        os.set_blocking(self.writer, True)
        assert free == 0 or len(os.read(self.fd, free)) == free

    def leave(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        for fd in {self.fd, self.writer} - {-1}:
            os.close(fd)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Reads the log of this process, which writes text from `info` on. All is as before afterwards."""
    reader = Reader()
    for name, value in {**vars(log_module.Output()), "fd": reader.writer}.items():
        monkeypatch.setattr(OUTPUT, name, value)
    yield reader
    reader.close()


# -- formats and levels ---------------------------------------------------------------------------


def test_a_text_line_has_time_level_logger_and_message(reader: Reader) -> None:
    """What a person reads."""
    log.info("waits on %s for %.0f %%", "mariadb/daemon", 2.7)
    assert re.fullmatch(
        TIME + r" INFO kolla_mesos_start\.wait: waits on mariadb/daemon for 3 %\n", reader.read()
    )


def test_a_json_line_is_one_object(reader: Reader) -> None:
    """What a collector reads: the same four things, a line each."""
    configure("info", True)
    log.warning("two\nlines, %s", "ünicode")
    (line,) = reader.lines()
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    assert found == {
        "level": "WARNING",
        "logger": "kolla_mesos_start.wait",
        "message": "two\nlines, ünicode",
    }


@pytest.mark.parametrize("json_lines", [False, True])
def test_times_are_utc_wherever_the_machine_is(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, json_lines: bool
) -> None:
    """The lines of containers in different time zones can be put in order."""
    configure("info", json_lines)
    monkeypatch.setenv("TZ", "FAR-9")
    time.tzset()
    try:
        before = time.time()
        log.info("now")
        after = time.time()
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    (stamp,) = re.findall(TIME, reader.read())
    instant = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) + float(stamp[19:23])
    assert before - 0.001 <= instant <= after


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_written_from_the_least_one_on(reader: Reader, level: str) -> None:
    """`debug` is for people who look for a defect; without it the log stays short."""
    for least in ("debug", "info", "warning", "error"):
        configure(least, False)
        log.log(level, "least is %s", least)
    wanted = [least for least in LEVELS[:-1] if LEVELS.index(level) >= LEVELS.index(least)]
    written = [line.partition(" ")[2] for line in reader.read().splitlines()]
    name = "kolla_mesos_start.wait"
    assert written == [f"{level.upper()} {name}: least is {least}" for least in wanted]


def test_the_last_configuration_counts(reader: Reader) -> None:
    """The agent logs before it knows the wanted format; each line is written once all the same."""
    configure("debug", False)
    configure("info", True)
    log.debug("no")
    log.info("once")
    (line,) = reader.lines()
    assert json.loads(line)["message"] == "once"


CONTROLS = "\n\r\t\b\x00\x0b\x0c\x1b\x1c\x7f\x85\x9b\u2028\u2029"


@pytest.mark.parametrize("control", CONTROLS, ids=repr)
def test_a_control_character_forges_no_line(reader: Reader, control: str) -> None:
    """Neither in a file nor on a terminal, whose cursor a carriage return or an escape moves."""
    log.info("host %s", f"a{control}2026-11-21T03:30:00.123Z INFO all is well")
    text = reader.read()
    assert len(text.splitlines()) == 1
    assert text[:-1].isprintable()
    assert f"host a{repr(control)[1:-1]}2026" in text


@pytest.mark.parametrize("json_lines", [False, True])
@pytest.mark.parametrize("text", ["\udcff", "\ud800", "\U0001f40d", "\0"])
def test_any_text_can_be_written(reader: Reader, json_lines: bool, text: str) -> None:
    """A file name may hold bytes that are no text; the line says so in ASCII, and nothing is raised."""
    configure("info", json_lines)
    log.info("file %s", text)
    (line,) = reader.lines()
    if json_lines:
        assert json.loads(line)["message"] == f"file {text}"
    else:
        assert line.endswith(text if text.isprintable() else repr(text)[1:-1])


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_message_of_any_length_becomes_a_line_that_can_be_read(reader: Reader, json_lines: bool) -> None:
    """A pipe holds 64 KiB: a longer line would never be whole, and hide all others."""
    configure("info", json_lines)
    log.info("%s", "\n" * 900_000)
    log.info("next")
    first, second = reader.lines()
    assert len(first) < PIPE_SIZE
    assert "... (900000 characters)" in first
    assert "next" in second


# -- nobody reads ---------------------------------------------------------------------------------


def log_within(seconds: float) -> None:
    begun = time.monotonic()
    log.info("a line")
    assert time.monotonic() - begun < seconds


def test_a_full_pipe_blocks_nobody_and_is_counted_once_it_is_read(reader: Reader) -> None:
    """A lock is renewed and a command killed in time, whoever has stopped the collector."""
    reader.fill()
    for _ in range(3):
        log_within(0.5)
    assert OUTPUT.dropped == 3
    assert "a line" not in reader.read()
    log.info("the next")
    log.info("and one more")
    lines = [line.partition(" ")[2] for line in reader.lines()]
    assert lines == [
        "WARNING kolla_mesos_start.log: 3 log lines were dropped",
        "INFO kolla_mesos_start.wait: the next",
        "INFO kolla_mesos_start.wait: and one more",
    ]
    assert OUTPUT.dropped == 0


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_line_that_is_cut_in_the_middle_spoils_no_other(reader: Reader, json_lines: bool) -> None:
    """A line longer than the room in the pipe is begun. What follows is on lines of its own."""
    configure("info", json_lines)
    reader.fill(free=4096)
    log.info("%s", "x" * 10_000)
    assert OUTPUT.dropped == 1
    torn = reader.read().split("\n")[-1]
    assert torn.endswith("xxx") and len(torn) == 4096
    log.info("%s", "y" * 10_000)
    start, warning, line = reader.lines()
    assert start == ""
    if json_lines:
        messages = [json.loads(each)["message"] for each in (warning, line)]
    else:
        messages = [each.partition(": ")[2] for each in (warning, line)]
    assert messages == ["1 log lines were dropped", "y" * 10_000]
    log.info("z")
    assert len(reader.lines()) == 1


def test_a_reader_that_has_gone_changes_nothing(reader: Reader) -> None:
    """EPIPE is no reason for an agent to fail, nor is a descriptor that is closed."""
    reader.leave()
    log_within(0.5)
    last_line(END, None)
    assert OUTPUT.dropped == 1
    os.close(reader.writer)
    reader.writer = -1
    log_within(0.5)
    last_line(END, None)
    assert OUTPUT.dropped == 2


# -- the last line --------------------------------------------------------------------------------


@pytest.mark.parametrize("json_lines", [False, True])
def test_the_last_line_and_the_termination_log_hold_the_same_object(
    reader: Reader, tmp_path: Path, json_lines: bool
) -> None:
    """A machine reads why the agent ended from either, whatever the format and the level."""
    configure("error", json_lines)
    termination_log = tmp_path / "termination-log"
    termination_log.write_text("what an earlier container left, and longer than a line" * 10)
    error = CommandFailed("exit status 3", command="keystone/db_sync")
    last_line(ending("bootstrap", error), str(termination_log))
    (line,) = reader.lines()
    assert json.loads(line) == {
        "stage": "bootstrap",
        "command": "keystone/db_sync",
        "reason": "exit status 3",
        "retriable": True,
        "status": 1,
    }
    assert termination_log.read_text() == line


def test_the_last_line_waits_for_a_slow_reader(reader: Reader) -> None:
    """It is the one that says why the container has ended."""
    reader.fill()
    reading = os.fork()
    if reading == 0:
        time.sleep(LAST_LINE_TIMEOUT / 4)  # A reader that is slow; what is tested does not depend on it.
        os.read(reader.fd, 4096)
        os._exit(0)
    last_line(END, None)
    eventually(lambda: os.waitpid(reading, os.WNOHANG)[0], "the reader has ended")
    assert json.loads(reader.lines()[-1]) == END.fields


@pytest.mark.parametrize("slow", [False, True])
def test_the_last_line_waits_no_longer_than_its_limit(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """An agent that nobody listens to ends all the same, also if a part of the line is taken now and then."""
    monkeypatch.setattr(log_module, "LAST_LINE_TIMEOUT", 0.4)
    reader.fill()
    reading = os.fork() if slow else None
    if reading == 0:
        for _ in range(100):
            time.sleep(0.25)
            os.read(reader.fd, 4096)
        os._exit(0)
    begun = time.monotonic()
    OUTPUT.bare("x" * 50_000)
    took = time.monotonic() - begun
    if reading:
        os.kill(reading, signal.SIGKILL)
        os.waitpid(reading, 0)
    assert 0.4 <= took < 10


def test_a_long_reason_is_cut_but_logged_whole_before(reader: Reader, tmp_path: Path) -> None:
    """The object fits the termination log and stays valid; nothing is lost from the log."""
    reason = "missing: " + ", ".join(f"variable_{n}" for n in range(1000))
    last_line(ending("wait", DependenciesNotSatisfied(reason)), str(tmp_path / "log"))
    whole, last = reader.lines()
    assert whole.endswith(f" ERROR kolla_mesos_start.log: {reason}")
    cut = json.loads(last)
    assert cut["reason"].endswith("...")
    assert reason.startswith(cut["reason"][: -len("...")])
    assert TERMINATION_LOG_LIMIT - 100 < len(last) <= TERMINATION_LOG_LIMIT
    assert (tmp_path / "log").read_text() == last


@hypothesis.given(st.text(), st.integers(min_value=1, max_value=5000))
def test_any_reason_fits_the_termination_log(reason: str, times: int) -> None:
    """Whatever takes six bytes or twelve in JSON is counted so, and no more is cut than must be."""
    end = Ending("wait", None, reason * times, True, 75)
    short = end.short()
    assert len(str(short)) <= TERMINATION_LOG_LIMIT
    if short is end:
        assert len(str(end)) <= TERMINATION_LOG_LIMIT
    else:
        assert len(str(short)) > TERMINATION_LOG_LIMIT - 12
        assert {**short.fields, "reason": ""} == {**end.fields, "reason": ""}


def test_a_termination_log_that_can_not_be_written_does_not_hide_the_reason(
    reader: Reader, tmp_path: Path
) -> None:
    """The warning comes first; the last line is still the last."""
    last_line(END, f"{tmp_path}/none/log")
    warning, last = reader.lines()
    assert f"{tmp_path}/none/log can't be written: No such file or directory" in warning
    assert warning.endswith("set KOLLA_TERMINATION_LOG to a writable file")
    assert json.loads(last)["reason"] == "why"


def test_a_termination_log_that_is_a_fifo_is_not_waited_for(reader: Reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with open(os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)):
        last_line(END, f"{tmp_path}/log")
    warning, last = reader.lines()
    assert f"{tmp_path}/log can't be written: it is not a regular file" in warning
    assert json.loads(last)["reason"] == "why"
