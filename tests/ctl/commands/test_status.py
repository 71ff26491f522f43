"""How a deployment is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kolla_mesos_start.ctl.commands import status
from kolla_mesos_start.ctl.live.model import LiveDeployment
from kolla_mesos_start.ctl.text import lasting
from tests.ctl.trees import NOW, container, definition, deployment, one_time, ready
from tests.support.large import znodes

REASON = "tcp 8080: connection refused by whoever is there, again and again and again and again"


@pytest.fixture(scope="module")
def large() -> LiveDeployment:
    """A thousand containers in a hundred services."""
    return deployment({path: json.loads(data) if data.startswith("{") else data for path, data in znodes()})


def shown(tree: dict[str, Any], width: int = 80, height: int = 24) -> list[str]:
    return status.fitting(deployment(tree), NOW, width, height).plain.splitlines()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (5.9, "5 s"), (130, "2 min 10 s"), (120, "2 min"), (3600, "1 h"), (90061, "1 d 1 h")],
)
def test_how_long_is_said_in_two_units(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_what_is_not_up_comes_first_and_says_why() -> None:
    tree = {
        "a": definition(),
        **ready("a", "1"),
        "z/web": definition(instances=2),
        "z/web/.containers/1": container("unready", "http: 503", since=NOW - 75, definition="3e7"),
        "status/h2/web/ended": {
            "stage": "render",
            "command": "web/daemon",
            "reason": "missing: x",
            "status": 78,
        },
        "job": definition(commands={"sync": one_time()}, daemon=False),
        "status/global/job/sync": "error",
        "status/global/job/sync/detail": {"attempt": 3, "host": "h1", "message": "exit status 1"},
        "none": definition(),
        "bad": "{",
        "empty/variables/x": "1",
    }
    assert shown(tree)[:2] == ["site: 1 of 6 services up; 1 container needs a restart", ""]
    assert [line.split(maxsplit=1)[0] for line in shown(tree) if line[:1].isalpha()] == [
        *("site:", "bad", "empty", "job", "none", "z/web", "a")
    ]
    text = " ".join(" ".join(shown(tree, width=200)).split())
    for words in (
        "z/web 0 of 2 ready, 0 of 1 current (restart needed: web1 for 0 s) 1 unready",
        "web1 unready 1 min 15 s older definition (restart it) http: 503",
        "h2 ended 0 s web/daemon: missing: x (the agent's exit status: 78)",
        "sync error 0 s attempt 3 on h1: exit status 1",
        "- absent no container was ever started",
        "bad unreadable: bad JSON",
        "empty no definition is published",
    ):
        assert words in text


def test_a_roll_out_shows_how_far_it_is() -> None:
    """Ready with the older definition is not what was published; every znode here has the zxid 1000."""
    tree = {
        "web": definition(instances=2),
        **ready("web", "1", "2"),
        "web/.containers/1": container("ready", definition="3e7", host="h1"),
        "web/.containers/2": container("ready", definition="3e7", host="h2", generation="5"),
    }
    assert shown(tree)[2:] == [
        "web  2 of 2 ready, 0 of 2 current (restart needed: h1, h2 for 0 s)",
        "  h1  ready  0 s  older definition (restart it)",
        "  h2  ready  0 s  5, older definition (restart it)",
    ]
    tree["web/.containers/2"] = container("ready", definition="3e8", host="h2", generation="6")
    assert shown(tree)[2:] == [
        "web  2 of 2 ready, 1 of 2 current (restart needed: h1 for 0 s)",
        "  h1  ready  0 s  older definition (restart it)",
        "  h2  ready  0 s  6, current",
    ]
    tree["web/.containers/1"] = container("ready", definition="3e8", host="h1", generation="6")
    assert shown(tree)[2:] == ["web  2 of 2 ready", "  h1  ready  0 s  6", "  h2  ready  0 s  6"]


def test_who_looks_for_what_was_published_sees_files_that_do_not_follow() -> None:
    """All is up, so that nothing else would show it at a glance."""
    tree = {"web": definition(), **ready("web", "1")}
    for code, head in (
        ("refresh-failed", "; 1 container with older files, see explain"),
        ("refresh-running", "; 1 container refreshing"),
    ):
        tree["web/.containers/1"] = container("ready", code=code)
        assert shown(tree)[0] == f"site: 1 of 1 services up{head}"


def test_the_stage_of_a_container_agrees_with_ready_of_wanted() -> None:
    """It joins or leaves the ready instances a moment before it says so."""
    tree = {
        "web": definition(instances=2),
        **ready("web", "1"),
        "web/.containers/1": container("starting", "tcp 80: refused", host="h1"),
        "web/.containers/2": container("ready", host="h2"),
    }
    assert shown(tree)[2:] == [
        "web  1 of 2 ready  1 ready, 1 unready",
        "  h1  ready    0 s",
        "  h2  unready  0 s",
    ]


def test_hosts_are_in_the_order_of_their_numbers() -> None:
    tree: dict[str, Any] = {"web": definition(instances=3)}
    for number in (10, 9, 1):
        tree[f"web/.containers/{number}"] = container("waiting", host=f"node-{number}")
    assert [line.split()[0] for line in shown(tree) if line.startswith("  ")] == [
        "node-1",
        "node-9",
        "node-10",
    ]


def test_where_there_is_no_room_for_containers_it_says_what_most_of_them_do() -> None:
    """Of those that are not ready: they keep their service from being up."""
    reason = "web/daemon waits for db/daemon: 0 of 1 instances ready"
    tree: dict[str, Any] = {"web": definition(instances=30), "db": definition(), **ready("web", *"56789")}
    for number in range(3):
        tree[f"web/.containers/w{number}"] = container("waiting", reason, host=f"h{number}")
    tree["web/.containers/s"] = container("starting", "web/daemon: tcp 80: refused", host="x")
    assert shown(tree, width=120, height=6)[2:] == [
        "db   0 of 1 ready  no container was ever started",
        f"web  5 of 30 ready  5 ready, 3 waiting, 1 starting: {reason}",
    ]


def test_long_reasons_are_folded_where_there_is_room() -> None:
    """And cut where there is none; a line never is longer than the terminal is wide."""
    tree: dict[str, Any] = {"web": definition(), "web/.containers/1": container("starting", REASON)}
    assert " ".join(" ".join(shown(tree)).split()).endswith(REASON)
    cut = shown(tree, height=4)
    assert len(cut) == 4 and cut[-1].endswith("…")
    assert all(len(line) <= width for width in (20, 40, 80) for line in shown(tree, width=width, height=4))


@pytest.mark.parametrize(("width", "height", "said"), [(80, 24, 7), (200, 50, 10)])
def test_of_very_many_services_those_that_do_not_merely_wait_are_said_first(
    large: LiveDeployment, width: int, height: int, said: int
) -> None:
    """As many as there is room for; the others are names in columns, in the order of their numbers."""
    lines = status.fitting(large, NOW, width, height).plain.splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + said]] == [f"s{20 + number}" for number in range(said)]
    assert lines[2].startswith("s20  0 of 10 ready  10 starting: s20/daemon: command check, exit status")
    assert lines[2 + said] == ""
    assert lines[3 + said].split()[::2][:3] == [f"s{20 + said + number}" for number in range(3)]
    assert next(line for line in lines if "10/10" in line).split()[::2][:3] == ["s0", "s1", "s2"]


@pytest.mark.parametrize("height", [10, 24, 50, 110, 2000])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_thousand_containers_fit(large: LiveDeployment, width: int, height: int) -> None:
    """With as much of them as there is room for."""
    lines = status.fitting(large, NOW, width, height).plain.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0] == "site: 20 of 100 services up"
    if height == 2000:
        assert sum(line.startswith("  h") for line in lines) == 1000


def test_one_host_shows_only_what_is_there() -> None:
    """As many instances are wanted as there are containers."""
    tree = {
        "a": definition(instances=2),
        **ready("a", "1", "2"),
        "a/.containers/1": container("ready", host="h1"),
        "a/.containers/2": container("ready", host="h2"),
        "b": definition(instances=3),
        "b/.containers/1": container("waiting", host="h1"),
        "b/.containers/2": container("waiting", host="h3"),
        "c": definition(),
        "status/h1/c/ended": {"stage": "render", "command": "c/daemon", "reason": "missing: x", "status": 78},
        "d": definition(),
    }
    services = deployment(tree).services
    on_host = {name: each.on_host("h1") for name, each in services.items() if "h1" in each.hosts}
    assert {name: (each.ready, each.wanted, each.is_up) for name, each in on_host.items()} == {
        "a": (1, 1, True),
        "b": (0, 1, False),
        "c": (0, 1, False),
    }
    assert [each.host for service in on_host.values() for each in service.containers] == ["h1", "h1"]
