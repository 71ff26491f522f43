"""The critical path of a start, and how it is drawn."""

from __future__ import annotations

import re

import pytest

from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import WIDTH, Finished, Need, TimelineStep

# A database for 2 s, a schema for 1 s that one of two replicas makes, the replicas, a task beside them.
DATABASE = TimelineStep("database/daemon", "db-1", (), 0.0, 2.0)
SCHEMA = TimelineStep("api/schema", "web-1", (Need("database/daemon"),), 2.5, 3.5)
FIRST = TimelineStep("api/daemon", "web-1", (Need("api/schema"),), 4.0, 5.0)
SECOND = TimelineStep("api/daemon", "web-2", (Need("api/schema"),), 4.0, 6.0)
TASK = TimelineStep("tidy/tidy", "db-1", (Need("database/daemon"),), 2.0, 3.0)
STEPS = [FIRST, SECOND, TASK, SCHEMA, DATABASE]


def test_the_critical_path_goes_back_from_the_last_step() -> None:
    assert critical_path.critical_path(STEPS) == [DATABASE, SCHEMA, SECOND]
    assert critical_path.overhead(STEPS, 0.0) == pytest.approx(1.0)


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
def test_a_need_is_satisfied_by_the_nth_step(need: Need, satisfied_by: str) -> None:
    """In the order of their ends; on one host if the need names it."""
    third = TimelineStep("api/daemon", "web-3", (Need("api/schema"),), 4.0, 6.5)
    front = TimelineStep("front/daemon", "edge", (need,), 7.0, 8.0)
    steps = [front, third, *STEPS]
    assert [step.container for step in critical_path.needed(front, Finished(steps))] == [
        f"api@{satisfied_by}"
    ]
    assert [step.host for step in critical_path.critical_path(steps)] == [
        "db-1",
        "web-1",
        satisfied_by,
        "edge",
    ]


def test_a_step_with_several_needs_waits_for_the_last() -> None:
    early, late = Need("tidy/tidy"), Need("api/daemon", count=2)
    front = TimelineStep("front/daemon", "edge", (early, late), 6.2, 8.0)
    assert critical_path.needed(front, Finished([*STEPS, front])) == [TASK, SECOND]
    assert critical_path.earliest_start(front, Finished([*STEPS, front]), 0.0) == SECOND.finished


def test_each_container_has_a_lane() -> None:
    """It waits, runs, is ready or gone; the critical path is marked."""
    lines = critical_path.draw(STEPS, 0.0).splitlines()
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
    lines = critical_path.draw(STEPS, 0.0, columns).splitlines()
    assert len(lines[1]) == 16 + lane
    assert max(map(len, lines)) <= max(columns, 60)


def test_no_step_waits_for_one_that_ended_later() -> None:
    """The database was started again: nothing is left of its first start."""
    again = DATABASE._replace(started=40.0, finished=42.0)
    steps = [FIRST, SECOND, SCHEMA, again]
    assert critical_path.needed(SCHEMA, Finished(steps)) == []
    assert critical_path.waiting(SCHEMA, Finished(steps), 0.0) is None
    assert critical_path.waiting(SCHEMA, Finished([DATABASE, SCHEMA]), 0.0) == pytest.approx(0.5)
    lines = critical_path.draw(steps, 0.0).splitlines()
    assert "  api/schema (web-1)       2.50   3.50         1.00" in lines
    assert not any(line.startswith("the whole start") for line in lines)
    slightly = DATABASE._replace(finished=SCHEMA.started + 0.01)
    assert critical_path.needed(SCHEMA, Finished([slightly])) == [slightly]
    assert critical_path.waiting(SCHEMA, Finished([slightly]), 0.0) == 0


def test_a_step_that_ran_again_is_not_on_the_critical_path() -> None:
    """It is marked, and has no wait."""
    again = SECOND._replace(started=40.0, finished=42.0, again="started again")
    steps = [DATABASE, SCHEMA, FIRST, again]
    assert critical_path.critical_path(steps) == [DATABASE, SCHEMA, FIRST]
    assert critical_path.critical_path([again]) == []
    lines = critical_path.draw(steps, 0.0).splitlines()
    assert lines[-1] == "  api/daemon (web-2)      40.00  42.00         2.00  started again"
    assert re.search(r"^  api@web-2 {60,70}\++$", "\n".join(lines), re.MULTILINE)


def test_what_a_daemon_did_before_it_was_ready_again_is_not_shown_as_waiting() -> None:
    """It was ready for most of the time: its restart has replaced what was known."""
    again = FIRST._replace(started=40.0, finished=42.0, again="ready again")
    lines = critical_path.draw([DATABASE, SCHEMA, again], 0.0).splitlines()
    (lane,) = (line for line in lines if line.startswith("  api@web-1"))
    assert re.fullmatch(r"  api@web-1 +\.+#+ +\++", lane)


def test_a_presence_is_not_shown_as_a_command() -> None:
    present = TimelineStep("database/.party", "db-1", (), 0.0, 0.3)
    lines = critical_path.draw(
        [present, TimelineStep("api/daemon", "web-1", (Need("database/.party"),), 0.5, 1.0)], 0.0
    )
    assert "* database is present (db-1)   0.00   0.30  0.00   0.30\n" in lines
    assert ".party" not in lines
