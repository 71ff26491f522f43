"""`kolla_mesos_ctl timeline` of a start that real agents have made."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.ctl.trees import one_time
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import tool

SLOW = {"command": "sleep 1", "run_once": True}
FLAKY = {"command": "test -e seen || { touch seen; exit 3; }", "run_once": True, "retries": 1, "delay": 0.1}
SLEEP = {"daemon": {"command": "sleep 600", "ready": {"alive": 0.3}}}


def test_the_timeline_of_a_finished_start(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """The critical path, a retry, and what would have been faster, as text and as a page."""
    publish(deployment, "db", {"commands": {"fill": SLOW}, "service": SLEEP})
    publish(deployment, "tasks", {"commands": {"user": {**FLAKY, "dependencies": ["db/daemon"]}}})
    publish(deployment, "web", {"commands": {"sync": one_time("tasks/user")}, "service": SLEEP})
    agents = [containers.start(service, "h1") for service in ("web", "tasks", "db")]
    assert agents[1].ends() == 0
    for each in (agents[0], agents[2]):
        each.says("the daemon is ready")
    tool(deployment, "wait", "--timeout", "60")
    said = tool(deployment, "timeline")
    marked = [line.split()[1] for line in said.splitlines() if line.startswith("* ")]
    assert marked == ["db/fill", "db/daemon", "tasks/user", "web/sync", "web/daemon"]
    assert "tasks/user (h1): 2 attempts\n" in said
    data = json.loads(tool(deployment, "timeline", "--format", "json"))
    assert data["deployment"] == deployment.id
    assert [each["command"] for each in data["steps"] if each["critical"]] == marked
    user = next(each for each in data["steps"] if each["command"] == "tasks/user")
    assert (user["host"], user["state"], user["attempts"], user["again"]) == ("h1", "done", 2, None)
    assert data["began"] <= user["started"] <= user["finished"]
    page = tmp_path / "start.html"
    assert tool(deployment, "timeline", "--html", str(page)) == f"wrote {page}\n"
    assert page.read_text().count('<button class="bar') == 5
    assert "can't be written" in tool(deployment, "timeline", "--html", "/nowhere/x.html", status=73)


def test_an_operators_actions_do_not_change_when_a_command_ran(
    deployment: Deployment, containers: Containers, zk: KazooClient
) -> None:
    """What was adopted before the start is no part of it; after `rerun`, an attempt keeps its time."""
    commands = {"fill": {"command": "true", "run_once": True}, "old": {"command": "true", "run_once": True}}
    publish(deployment, "db", {"commands": commands})
    tool(deployment, "adopt", "db/old")
    adopted = zk.get(f"{deployment.path}/status/global/db/old/detail")[1].mtime / 1000
    assert containers.start("db", "h1").ends() == 0
    before = json.loads(tool(deployment, "timeline", "--format", "json"))
    assert adopted < before["began"]
    assert min(each["finished"] for each in before["steps"]) >= before["began"]
    tool(deployment, "rerun", "db/fill")
    fill, filled = (
        next(each for each in data["steps"] if each["command"] == "db/fill")
        for data in (before, json.loads(tool(deployment, "timeline", "--format", "json")))
    )
    assert filled["finished"] < fill["finished"] + 0.001  # ZooKeeper has whole milliseconds.


def test_a_deployment_that_has_not_started_has_no_timeline(deployment: Deployment) -> None:
    publish(deployment, "db", {"service": SLEEP})
    assert tool(deployment, "timeline").startswith("nothing has been done yet")


def test_a_restarted_container_is_not_part_of_the_start(
    deployment: Deployment, containers: Containers
) -> None:
    """It is marked, no wait is negative, and the page says so."""
    publish(deployment, "db", {"commands": {"fill": SLOW}, "service": SLEEP})
    warm = {"command": "sleep 0.2", "dependencies": ["db/daemon"]}
    publish(deployment, "web", {"commands": {"warm": warm}, "service": SLEEP})
    agents = [containers.start(*each) for each in (("db", "h1"), ("web", "h1"), ("web", "h2"))]
    for each in agents:
        each.says("the daemon is ready")
    tool(deployment, "wait", "--timeout", "60")
    time.sleep(1)
    for agent in agents[:2]:
        agent.signal(signal.SIGKILL)
        agent.ends()
        agent.log.unlink()
        agent.restart()
        agent.says("the daemon is ready")
        tool(deployment, "wait", "--timeout", "60")
    said = tool(deployment, "timeline")
    rows = [line for line in said.splitlines() if re.search(r"\(h\d\) ", line)]
    assert not any("-" in row for row in rows), said
    again = sorted(row.split()[0] for row in rows if row.endswith("  started again"))
    assert again == ["db/daemon", "web/daemon", "web/warm"]
    assert "This is not one start (db@h1 was started again, web@h1 was started again)" in said
    assert "the whole start" not in said
