"""Which events two looks at a deployment show."""

from __future__ import annotations

from typing import Any

import pytest

from kolla_mesos_start.ctl.live.events import DeploymentEvent, EventReader, Look, between
from kolla_mesos_start.ctl.zk.event_record import Entry, encode
from tests.ctl.trees import NOW, ZNODES, container, definition, one_time, ready, view

SET = Entry(NOW - 50, "alice on web1", "set", ("web",), ("web/variables/size",), 1)
LATER = NOW + 60


def look(tree: dict[str, Any], now: float = NOW) -> Look:
    reader = EventReader(ZNODES)
    return reader.look(view(reader, tree, make=lambda found: reader.look(found, now)), now)


NOTHING = look({})


def kinds(found: list[DeploymentEvent]) -> list[str]:
    return [each.kind for each in found]


def texts(found: list[DeploymentEvent]) -> list[str]:
    return [each.text for each in found]


def test_the_same_state_shows_nothing_new() -> None:
    tree = {"web": definition(), **ready("web", "1")}
    assert between(look(tree), look(tree, LATER)) == []


def test_readiness_is_lost_and_the_reason_may_come_later() -> None:
    """A container leaves the ready instances a moment before it says why."""
    tree: dict[str, Any] = {"web": definition(), **ready("web", "1")}
    before = look(tree)
    del tree["status/global/web/daemon/ready/1"]
    lost = look(tree, LATER)
    (event,) = between(before, lost)
    assert (event.at, event.kind, event.text) == (LATER, "unready", "web/daemon on web1 is no longer ready")
    tree["web/.containers/1"] = container("unready", "tcp 80: refused", since=LATER)
    why = look(tree, LATER + 1)
    assert texts(between(lost, why)) == ["web/daemon on web1 is not ready: tcp 80: refused"]
    assert texts(between(before, why)) == ["web/daemon on web1 is no longer ready: tcp 80: refused"]
    tree.update(ready("web", "1"))
    assert kinds(between(why, look(tree))) == ["ready"]


def test_a_container_that_disappears_is_gone() -> None:
    before = look({"web": definition(), **ready("web", "1")})
    (event,) = between(before, look({"web": definition()}, LATER))
    assert (event.at, event.kind) == (LATER, "gone")
    assert event.text == "web on web1: its container is gone; it was ready"


def test_refreshes_begin_fail_and_end() -> None:
    tree: dict[str, Any] = {"web": definition(), **ready("web", "1")}
    looks = [look(tree)]
    for code, reason in (
        ("refresh-running", "its files"),
        ("refresh-failed", "no x"),
        ("refresh-running", "again"),
        ("", ""),
    ):
        tree["web/.containers/1"] = container("ready", reason, code=code)
        looks.append(look(tree))
    found = [event for pair in zip(looks, looks[1:]) for event in between(*pair)]
    assert kinds(found) == ["refreshing", "refresh failed", "refreshing", "refreshed"]


def test_each_attempt_and_each_result_is_one_event() -> None:
    detail = {"attempt": 1, "claim": "a", "host": "h1", "started": NOW, "state": "running"}
    tree: dict[str, Any] = {
        "job": definition(commands={"sync": one_time()}, daemon=False),
        "status/global/job/sync": "running",
        "status/global/job/sync/detail": detail,
    }
    first = look(tree)
    assert texts(between(NOTHING, first)) == ["job/sync on h1: attempt 1 has begun"]
    tree["status/global/job/sync"] = "retry"
    tree["status/global/job/sync/detail"] = {
        **detail,
        "finished": NOW + 1,
        "state": "retry",
        "message": "exit status 1",
    }
    second = look(tree)
    assert texts(between(first, second)) == ["job/sync on h1: attempt 1 failed: exit status 1"]
    tree["status/global/job/sync"] = "done"
    tree["status/global/job/sync/detail"] = {
        **detail,
        "claim": "b",
        "attempt": 2,
        "finished": NOW + 2,
        "state": "done",
    }
    assert kinds(between(second, look(tree))) == ["running", "done"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"taken_back": "root on vm"}, ["running", "done"]),
        ({"adopted": "root on vm"}, []),
        ({"adopted": "root on vm", "taken_back": "root on vm"}, []),
    ],
)
def test_a_record_that_an_operator_has_written_is_no_attempt(
    written: dict[str, str], expected: list[str]
) -> None:
    detail = {"attempt": 1, "claim": "a", "host": "h1", "started": NOW - 90, "finished": NOW - 80}
    tree: dict[str, Any] = {
        "job": definition(commands={"sync": one_time()}, daemon=False),
        "status/global/job/sync": "waiting",
        "status/global/job/sync/detail": {
            **detail,
            **written,
            "state": "done",
            "message": "... by root on vm",
        },
    }
    found = between(NOTHING, look(tree))
    assert kinds(found) == expected
    assert not [each for each in found if "by root" in each.text]


@pytest.mark.parametrize(
    ("message", "words"),
    [("done", "is done"), ("done (exit status 3)", "is done (exit status 3)"), ("", "is done")],
)
def test_a_result_is_said_once(message: str, words: str) -> None:
    detail = {"attempt": 1, "host": "h1", "started": NOW, "finished": NOW, "state": "done"}
    tree: dict[str, Any] = {
        "job": definition(commands={"sync": one_time()}, daemon=False),
        "status/global/job/sync": "done",
        "status/global/job/sync/detail": {**detail, "message": message},
    }
    assert texts(between(NOTHING, look(tree)))[1] == f"job/sync on h1: attempt 1 {words}"


def test_a_new_entry_is_shown_once() -> None:
    tree = {"web": definition(), ".events": encode([SET]).decode()}
    before = look(tree)
    more = Entry(NOW, "bob on web2", "publish", (), ("a", "b", "c", "d"), 70)
    tree[".events"] = encode([SET, more]).decode()
    (event,) = between(before, look(tree))
    assert event.text == "bob on web2: publish a, b, c and 1 more (70 in all)"
    assert event.data() == {
        "at": NOW,
        "kind": "publish",
        "text": event.text,
        "services": [],
        "by": "bob on web2",
        "names": ("a", "b", "c", "d"),
        "total": 70,
        "detail": "",
    }


def test_a_cause_comes_before_its_effect() -> None:
    """A new service, whose command has run and whose daemon is ready; another start has failed."""
    tree = {
        "web": definition(commands={"sync": one_time()}),
        **ready("web", "1"),
        "status/global/web/sync": "done",
        "status/global/web/sync/detail": {"host": "web1", "started": 7.25, "finished": 7.5, "state": "done"},
        "status/h2/web/ended": {"stage": "render", "command": "web/daemon", "reason": "no x", "status": 78},
    }
    found = between(NOTHING, look(tree, LATER))
    assert kinds(found) == ["running", "done", "failed", "started", "ready"]
    assert found[2].text == "web/daemon on h2 ended in stage render, exit status 78: no x"
    assert {(each.at, each.services) for each in found} == {(LATER, ("web",))}
