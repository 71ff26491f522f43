"""Which events two looks at a deployment show."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kolla_mesos_start.ctl.live.events import NOTHING, DeploymentEvent, EventReader, Look, between
from kolla_mesos_start.ctl.zk.event_record import Entry, encode
from tests.ctl.trees import NOW, ZNODES, container, definition, one_time, ready, view

SET = Entry(NOW - 50, "alice on web1", "set", ("web",), ("web/variables/size",), 1)
LATER = NOW + 60


def look(
    tree: dict[str, Any],
    now: float = NOW,
    changed: float = NOW,
    times: Mapping[str, float] = MappingProxyType({}),
) -> Look:
    reader = EventReader(ZNODES)
    return reader.look(view(reader, tree, times, changed=changed), now)


def kinds(found: list[DeploymentEvent]) -> list[str]:
    return [each.kind for each in found]


def texts(found: list[DeploymentEvent]) -> list[str]:
    return [each.text for each in found]


def test_the_first_look_shows_what_the_state_says_at_its_time() -> None:
    tree = {
        ".events": encode([SET]).decode(),
        "web": definition(commands={"sync": one_time()}),
        **ready("web", "1"),
        "web/.containers/1": container("ready", host="h1"),
        "status/global/web/sync": "done",
        "status/global/web/sync/detail": {
            "attempt": 2,
            "claim": "c",
            "host": "h1",
            "started": NOW - 30,
            "finished": NOW - 10,
            "state": "done",
        },
        "status/h2/web/ended": {"stage": "render", "command": "web/daemon", "reason": "no x", "status": 78},
        "status/h3/web/ended": {"stage": "bootstrap", "reason": "exit status 1", "status": 1},
    }
    found = between(NOTHING, look(tree))
    assert [(each.at, each.kind, each.text) for each in found] == [
        (NOW - 50, "set", "alice on web1: set web/variables/size"),
        (NOW - 20, "running", "web/sync on h1: attempt 2 has begun"),
        (NOW, "started", "web on h1: a container has started"),
        (NOW, "done", "web/sync on h1: attempt 2 is done"),
        (NOW, "failed", "web/daemon on h2 ended in stage render, exit status 78: no x"),
        (NOW, "failed", "web on h3 ended in stage bootstrap: exit status 1"),
        (NOW, "ready", "web/daemon on h1 is ready"),
    ]
    assert all(each.services == ("web",) for each in found)


def test_the_same_state_shows_nothing_new() -> None:
    tree = {"web": definition(), **ready("web", "1")}
    assert between(look(tree), look(tree, LATER, changed=LATER)) == []


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
    """The real attempt before it keeps its times."""
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
    assert [each.at for each in found] == [NOW - 90, NOW - 80][: len(expected)]
    assert not [each for each in found if "by root" in each.text]


def test_a_cause_comes_before_its_effect() -> None:
    """Containers write their times in whole seconds, and that they exist up to a second late."""
    own, state, instance = "web/.containers/1", "status/global/web/sync", "status/global/web/daemon/ready/1"
    tree = {
        "web": definition(commands={"sync": one_time()}),
        **ready("web", "1"),
        state: "done",
        f"{state}/detail": {"host": "web1", "started": 7.25, "finished": 7.5, "state": "done"},
    }
    found = between(NOTHING, look(tree, times={own: NOW + 0.5, state: NOW + 0.5, instance: NOW + 0.75}))
    assert [(each.at, each.kind) for each in found] == [
        (NOW + 0.25, "started"),
        (NOW + 0.25, "running"),
        (NOW + 0.5, "done"),
        (NOW + 0.75, "ready"),
    ]


@pytest.mark.parametrize("written", [0.75, 1.5])
def test_the_last_write_of_a_container_has_a_more_accurate_time(written: float) -> None:
    """It is the one for its stage: up to a second later, and in milliseconds."""
    tree: dict[str, Any] = {"job": definition(commands={"sync": one_time()}, daemon=False)}
    tree["job/.containers/1"] = container("waiting", since=NOW - 9)
    before = look(tree, changed=NOW - 9)
    tree["job/.containers/1"] = container("finished", since=NOW)
    (event,) = between(before, look(tree, times={"job/.containers/1": NOW + written}))
    assert (event.kind, event.at) == ("finished", NOW + written)


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


def test_an_action_reads_as_a_sentence() -> None:
    restart = Entry(NOW, "root on vm", "restart", ("web",), ("web/daemon",), 1, "on h1, h2")
    tree = {"web": definition(), ".events": encode([restart]).decode()}
    assert texts(between(NOTHING, look(tree))) == ["root on vm: restart web/daemon on h1, h2"]


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
