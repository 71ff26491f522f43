"""What is shown of each container, and how it fits a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.up.progress import (
    ProgressRow,
    ProgressView,
    Size,
    fit,
    merge,
    row,
    terminal,
)

WAITING = ProgressRow(
    "front@edge-1",
    "waiting",
    "daemon waits for api/daemon: 0 of 3 instances ready, worker/daemon: 0 of 1 instances ready",
    101.5,
    101.0,
)


def test_a_log_line_says_since_when() -> None:
    """When it began to say so."""
    line = WAITING.log_line(100.0, 13)
    assert line.startswith("     1.50 s  front@edge-1  waiting ")
    assert line.endswith(WAITING.text)


def test_the_lines_of_a_log_have_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """However long a name is."""
    rows = [WAITING, WAITING._replace(name="keystone_catalog@controller-1")]
    ProgressView(lambda: rows, 100.0, live=False).show()
    first, second = capsys.readouterr().out.splitlines()
    assert first.index("waiting") == second.index("waiting")


@pytest.mark.parametrize(
    ("columns", "lines", "expected"),
    [
        (
            120,
            24,
            [
                "  front@edge-1 waiting         3.0 s  daemon for api/daemon: 0 of 3, worker/daemon: 0 of 1",
                "  db@db-1      ready          10.0 s",
            ],
        ),
        (
            80,
            24,
            [
                "  front@edge-1 waiting         3.0 s",
                "      daemon for api/daemon: 0 of 3, worker/daemon: 0 of 1",
                "  db@db-1      ready          10.0 s",
            ],
        ),
        (
            40,
            24,
            [
                "  front@edge-1 waiting         3.0 s",
                "      daemon for api/daemon: 0 of 3,",
                "      worker/daemon: 0 of 1",
                "  db@db-1      ready          10.0 s",
            ],
        ),
        # Its first lines would scroll away, and be drawn again below them, for ever.
        (
            50,
            3,
            [
                "  front@edge-1 waiting         3.0 s  daemon for ",
                "  db@db-1      ready          10.0 s",
            ],
        ),
        (40, 2, ["  1 of 2 are up"]),
    ],
)
def test_a_view_fits_the_terminal(columns: int, lines: int, expected: list[str]) -> None:
    """For how long each is in its stage, and for what; below it where there is no room beside it."""
    ready = ProgressRow("db@db-1", "ready", "", 94.0, 94.0)
    assert fit([WAITING, ready], 104.0, Size(columns, lines)) == expected


def test_a_hundred_containers_fit_a_terminal() -> None:
    """What is up is counted; of the others as many as there is room for."""
    ready = [ProgressRow(f"db@db-{number}", "ready", "", 94.0, 94.0) for number in range(60)]
    waiting = [WAITING._replace(name=f"front@edge-{number}") for number in range(40)]
    shown = fit([*ready, *waiting], 104.0, Size(80, 24))
    assert len(shown) == 23
    assert (shown[0], shown[-1]) == ("  60 of 100 are up", "  and 19 more")
    assert shown[1].startswith("  front@edge-0  waiting         3.0 s  daemon for api/daemon")
    assert fit(ready, 104.0, Size(80, 24)) == ["  60 of 60 are up"]


@pytest.mark.parametrize(
    ("term", "lines", "columns", "expected"),
    [
        ("xterm", 30, 100, Size(100, 30)),
        # A serial line knows no size.
        ("vt100", 0, 0, Size(80, 24)),
        ("dumb", 30, 100, None),
        ("", 30, 100, None),
    ],
)
def test_a_view_needs_a_terminal(
    monkeypatch: pytest.MonkeyPatch, term: str, lines: int, columns: int, expected: Size | None
) -> None:
    """One on which the cursor can be moved; anything else gets a line for each change."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    monkeypatch.setenv("TERM", term)
    with os.fdopen(theirs, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert terminal() == expected
    os.close(ours)


def test_a_view_shows_how_long_a_container_has_been_waiting() -> None:
    """Also if what it waits for changes meanwhile; a new stage starts from 0."""
    before = WAITING._replace(
        text="daemon waits for api/daemon: 1 of 3 instances ready", since=103.0, began=103.0
    )
    assert merge(WAITING, before).began == WAITING.began
    assert merge(WAITING, before).since == 103.0
    assert merge(WAITING, WAITING._replace(since=109.0, began=109.0)) == WAITING
    assert merge(WAITING, before._replace(stage="starting")).began == 103.0


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, ("begins", "")),
        ("waiting api/daemon waits for api/schema: running", ("waiting", "daemon waits for schema: running")),
        ("starting api/daemon is started, not ready yet", ("starting", "not ready yet")),
        ("starting", ("starting", "not ready yet")),
        ("starting Connection refused", ("starting", "Connection refused")),
        ("ready", ("ready", "")),
        # The last word of the one before it.
        ("ended the daemon has ended", ("begins", "")),
    ],
)
def test_a_row_is_what_the_containers_probes_read(
    tmp_path: Path, state: str | None, expected: tuple[str, str]
) -> None:
    """Without the role, which its name has already."""
    container = LocalContainer("jobs/api", "web-1", tmp_path / "api", tmp_path / "run", {})
    if state is not None:
        container.run_dir.mkdir()
        (container.run_dir / "state").write_text(f"{state}\n")
    assert row(container)[:3] == ("api@web-1", *expected)


def test_a_row_ignores_the_state_of_a_previous_run(tmp_path: Path) -> None:
    """A container that was killed together with its registrar has left an old state."""
    container = LocalContainer("jobs/api", "web-1", tmp_path / "api", tmp_path / "run", {})
    container.run_dir.mkdir()
    (container.run_dir / "state").write_text("ready\n")
    container.started_at = time.time() + 1.0
    assert row(container)[:4] == ("api@web-1", "begins", "", container.started_at)
