"""What the quickstart shows, its example, and whom it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.operator import directory, timeline
from kolla_mesos_start.operator.containers import Container, end_all, processes_of
from kolla_mesos_start.operator.jobs import EXAMPLE
from kolla_mesos_start.operator.timeline import WIDTH, Need, Step
from kolla_mesos_start.operator.view import Row, Size, after, drawn, row, terminal

# A database for 2 s, a schema for 1 s that one of two replicas makes, the replicas, a task beside them.
DATABASE = Step("database/daemon", "db-1", (), 0.0, 2.0)
SCHEMA = Step("api/schema", "web-1", (Need("database/daemon"),), 2.5, 3.5)
FIRST = Step("api/daemon", "web-1", (Need("api/schema"),), 4.0, 5.0)
SECOND = Step("api/daemon", "web-2", (Need("api/schema"),), 4.0, 6.0)
TASK = Step("tidy/tidy", "db-1", (Need("database/daemon"),), 2.0, 3.0)
STEPS = [FIRST, SECOND, TASK, SCHEMA, DATABASE]

# -- the timeline ---------------------------------------------------------------------------------


def test_the_critical_path_goes_back_from_what_was_finished_last() -> None:
    """Through what each step needed that was finished last."""
    assert timeline.critical_path(STEPS) == [DATABASE, SCHEMA, SECOND]
    assert timeline.lost(STEPS, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("need", "satisfied_by"),
    [
        (Need("api/daemon"), "web-1"),
        (Need("api/daemon", count=2), "web-2"),
        (Need("api/daemon", count=3), "web-3"),
        (Need("api/daemon", host="web-2"), "web-2"),
        # More than there were once all was up: some of them have ended meanwhile.
        (Need("api/daemon", count=9), "web-3"),
    ],
)
def test_a_need_is_satisfied_by_the_last_of_so_many(need: Need, satisfied_by: str) -> None:
    """By the n-th that was finished, whatever their order is; on one host by what was finished there."""
    third = Step("api/daemon", "web-3", (Need("api/schema"),), 4.0, 6.5)
    front = Step("front/daemon", "edge", (need,), 7.0, 8.0)
    steps = [front, third, *STEPS]
    assert [step.container for step in timeline.needed(front, steps)] == [f"api@{satisfied_by}"]
    assert [step.host for step in timeline.critical_path(steps)] == ["db-1", "web-1", satisfied_by, "edge"]


def test_whoever_needs_several_things_waited_for_the_last_of_them() -> None:
    """Two of one kind may be finished after one of another."""
    early, late = Need("tidy/tidy"), Need("api/daemon", count=2)
    front = Step("front/daemon", "edge", (early, late), 6.2, 8.0)
    assert timeline.needed(front, [*STEPS, front]) == [TASK, SECOND]
    assert timeline.due(front, [*STEPS, front], 0.0) == SECOND.finished


def test_each_container_has_a_lane() -> None:
    """It waits, runs, is ready or gone; what decided is marked, in the lanes and in the list."""
    lines = timeline.drawn(STEPS, 0.0).splitlines()
    lanes = {line.split()[0]: line[16:] for line in lines[1:5]}
    sixth = WIDTH // 6
    assert lanes["database@db-1"] == "#" * (2 * sixth + 1) + "=" * (4 * sixth - 1)
    assert lanes["api@web-1"] == "." * 25 + "#" * 11 + "." * 4 + "+" * 11 + "=" * 9
    assert lanes["api@web-2"] == "." * 40 + "#" * 20
    assert lanes["tidy@db-1"] == "." * 20 + "+" * 11
    assert [line.split()[1] for line in lines if line.startswith("* ")] == [
        "database/daemon",
        "api/schema",
        "api/daemon",
    ]
    assert lines[-1] == "the whole start 6.00; the work on its critical path (*) 5.00"


@pytest.mark.parametrize(("columns", "lane"), [(200, 60), (80, 60), (60, 43), (30, 20)])
def test_the_timeline_fits_the_terminal(columns: int, lane: int) -> None:
    """The lanes get what the names leave, and the legend fits where they do."""
    lines = timeline.drawn(STEPS, 0.0, columns).splitlines()
    assert len(lines[1]) == 16 + lane
    assert max(map(len, lines)) <= max(columns, 60)


# -- rows -----------------------------------------------------------------------------------------


WAITING = Row(
    "front@edge-1",
    "waiting",
    "daemon waits for api/daemon: 0 of 3 instances ready, worker/daemon: 0 of 1 instances ready",
    101.5,
    101.0,
)


def test_a_row_of_a_log_tells_since_when() -> None:
    """When it began to say so."""
    assert WAITING.told(100.0).split()[:4] == ["1.50", "s", "front@edge-1", "waiting"]
    assert WAITING.told(100.0).endswith(WAITING.text)


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
        (20, 2, ["  front@edge-1 wait"]),
    ],
)
def test_a_view_fits_the_terminal(columns: int, lines: int, expected: list[str]) -> None:
    """For how long each is in its stage, and for what; below it where there is no room beside it."""
    ready = Row("db@db-1", "ready", "", 94.0, 94.0)
    assert drawn([WAITING, ready], 104.0, Size(columns, lines)) == expected


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
def test_a_view_wants_a_terminal(
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


def test_a_view_tells_how_long_a_container_has_been_waiting() -> None:
    """Also where what it waits for changes meanwhile; a new stage begins anew."""
    before = WAITING._replace(
        text="daemon waits for api/daemon: 1 of 3 instances ready", since=103.0, began=103.0
    )
    assert after(WAITING, before).began == WAITING.began
    assert after(WAITING, before).since == 103.0
    assert after(WAITING, WAITING._replace(since=109.0, began=109.0)) == WAITING
    assert after(WAITING, before._replace(stage="starting")).began == 103.0


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
def test_a_row_is_what_the_container_tells_its_probes(
    tmp_path: Path, state: str | None, expected: tuple[str, str]
) -> None:
    """Without the role, which its name has already."""
    container = Container("jobs/api", "web-1", tmp_path / "api", tmp_path / "run", {})
    if state is not None:
        container.run_dir.mkdir()
        (container.run_dir / "state").write_text(f"{state}\n")
    assert row(container)[:3] == ("api@web-1", *expected)


def test_a_row_says_nothing_of_the_one_before_it(tmp_path: Path) -> None:
    """Who was killed, and its registrar with it, has left a word that nobody takes back."""
    container = Container("jobs/api", "web-1", tmp_path / "api", tmp_path / "run", {})
    container.run_dir.mkdir()
    (container.run_dir / "state").write_text("ready\n")
    container.started_at = time.time() + 1.0
    assert row(container)[:4] == ("api@web-1", "begins", "", container.started_at)


# -- the example ----------------------------------------------------------------------------------


def test_every_dependency_of_the_example_is_there() -> None:
    """The definitions are read without an issue, and name each other rightly."""
    deployment = directory.read(EXAMPLE)
    assert [service.name for service in deployment.services] == [
        "jobs/api",
        "jobs/database",
        "jobs/front",
        "jobs/worker",
    ]
    for service in deployment.services:
        load(service.definition)
        assert service.files


def test_a_second_schema_is_an_error(tmp_path: Path) -> None:
    """Nothing is pretended: were the one-time command run twice, the second run would fail."""
    database = EXAMPLE / "services" / "jobs" / "database" / "files" / "database.py"
    api = EXAMPLE / "services" / "jobs" / "api" / "files" / "api.py"
    statements = f"""
import sys; sys.path[:0] = [{str(database.parent)!r}, {str(api.parent)!r}]
import api, database
database.FILE = {str(tmp_path / "jobs.sqlite")!r}
database.execute(api.SCHEMA)
database.execute(api.SCHEMA)
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", statements], capture_output=True, text=True, timeout=60
    )
    assert "table jobs already exists" in done.stderr


# -- whom it ends ---------------------------------------------------------------------------------


def test_only_what_runs_in_a_container_is_ended(tmp_path: Path) -> None:
    """Not the shell that somebody has opened in its directory, nor another site's container."""
    ours, theirs = tmp_path / "site", tmp_path / "site-2"
    sleep = ("sleep", "300")
    environ = dict(os.environ)
    with (
        subprocess.Popen(sleep, env={**environ, "KOLLA_RUN_DIR": f"{ours}/web-1/api/run"}) as container,
        subprocess.Popen(sleep, env={**environ, "KOLLA_RUN_DIR": f"{theirs}/web-1/api/run"}) as other,
        subprocess.Popen(sleep, env={**environ, "PWD": f"{ours}/web-1"}) as shell,
    ):
        try:
            assert list(processes_of(ours)) == [container.pid]
            end_all(ours, grace=30.0)
            assert container.wait(30) == -15
            assert (other.poll(), shell.poll()) == (None, None)
        finally:
            for each in (container, other, shell):
                each.kill()


def test_what_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    """SIGTERM first, and after the grace SIGKILL."""
    deaf = "from signal import *; signal(SIGTERM, SIG_IGN); print(flush=True); pause()"
    environ = {**os.environ, "KOLLA_RUN_DIR": f"{tmp_path}/run"}
    with subprocess.Popen([sys.executable, "-c", deaf], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end_all(tmp_path, grace=0.2)
        assert process.wait(30) == -9
