"""From a publication until all containers run it: the output of `status`, `explain` and `wait`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from tests.agent.test_refresh import DAEMON, Web, fleet, heard, refreshed
from tests.agent.test_refresh import web as web
from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import TOOL, environ, run_ctl, tool
from tests.support.waiting import eventually

REDIS = "infra/redis"


def redis(on_change: dict[str, Any] | None = None, **daemon: Any) -> dict[str, Any]:
    """A daemon whose file holds a secret."""
    whole = {"command": "sleep 600", "ready": {"alive": 0}, "on_change": on_change, **daemon}
    files = {"redis.conf": {"dest": "{{ directory }}/redis.conf"}}
    return {"service": {"daemon": {**whole, "files": files}}}


def start_redis(deployment: Deployment, containers: Containers, definition: dict[str, Any]) -> None:
    """Publish it, and start one container."""
    shared = {"redis_password": "old", "other": "1", "directory": str(containers.directory)}
    publish(deployment, REDIS, definition, files={"redis.conf": "pass {{ redis_password }}"}, shared=shared)
    containers.start(REDIS, "h1")
    tool(deployment, "wait", "--timeout", "50")


def status(deployment: Deployment) -> dict[str, Any]:
    """The first container in `status --format json`."""
    said = json.loads(tool(deployment, "status", "--format", "json"))
    container: dict[str, Any] = said["services"][0]["containers"][0]
    return container


# -- outdated containers ---------------------------------------------------------------------------


def test_a_rotated_secret_makes_its_containers_outdated(
    deployment: Deployment, containers: Containers
) -> None:
    """By name, never by value; variables that the service does not use make nothing outdated."""
    start_redis(deployment, containers, redis())
    tool(deployment, "set", "other", "2")
    assert status(deployment)["stale"] is False
    tool(deployment, "set", "redis_password", "r0tated")
    container = status(deployment)
    assert (container["stale"], container["older"]) == (True, ["variable redis_password"])
    assert (container["needs_restart"], container["refresh"]) == (True, None)
    said = tool(deployment, "status")
    assert "site: 1 of 1 services up; 1 container needs a restart" in said
    assert "older variable redis_password (restart it)" in said
    explained = tool(deployment, "explain", status=1)
    assert "ROOT CAUSE  redis/daemon on h1 runs an older variable redis_password (changed " in explained
    begun = time.monotonic()
    waited = tool(deployment, "wait", "--timeout", "50", status=1)
    assert time.monotonic() - begun < 30
    assert "redis/daemon on h1 runs an older variable redis_password" in waited
    assert not any("r0tated" in each for each in (said, explained, waited))
    agent = containers._agents[0]
    agent.end()
    containers.start(REDIS, "h1").says("the daemon is ready")
    tool(deployment, "wait", "--timeout", "30")
    assert status(deployment)["stale"] is False


def test_variables_are_read_when_the_command_may_run(deployment: Deployment, containers: Containers) -> None:
    """The definition was read before."""
    publish(deployment, "db", {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0}}}})
    shared = {"redis_password": "old", "directory": str(containers.directory)}
    files = {"redis.conf": "pass {{ redis_password }}"}
    publish(deployment, REDIS, redis(dependencies=["db/daemon"]), files=files, shared=shared)
    agent = containers.start(REDIS, "h1")
    agent.says("waits")
    tool(deployment, "set", "redis_password", "new")
    containers.start("db", "h1").says("ready")
    agent.says("the daemon is ready")
    tool(deployment, "wait", "--timeout", "30")
    assert (containers.directory / "redis.conf").read_text() == "pass new"


# -- a rollout -----------------------------------------------------------------------------------------


def test_wait_waits_for_refreshes(web: Web, deployment: Deployment) -> None:
    web.set(greeting="hello")
    web.publish("{{ greeting }}", {"check": "while [ -e hold ]; do sleep 0.05; done"})
    agents = [web.start(host) for host in ("w1", "w2")]
    (agents[0].directory / "hold").touch()
    tool(deployment, "set", "greeting", "held")
    argv = [sys.executable, str(TOOL), "wait", "--timeout", "50"]
    with subprocess.Popen(argv, env=environ(deployment), stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert "refreshing" in waiting.stdout.readline()
        refreshed(agents[1])
        eventually(lambda: "1 container refreshing" in tool(deployment, "status"), "one of them is done")
        assert waiting.poll() is None
        (agents[0].directory / "hold").unlink()
        waiting.stdout.read()
    assert waiting.returncode == 0
    assert all(heard(agent) == ["SIGHUP held"] for agent in agents)
    tool(deployment, "set", "greeting", "new")
    tool(deployment, "wait", "--timeout", "50")
    assert all(heard(agent)[1:] == ["SIGHUP new"] for agent in agents)
    assert not status(deployment)["stale"]


def test_wait_ends_early_if_a_refresh_fails(web: Web, deployment: Deployment) -> None:
    web.publish("old")
    web.start()
    web.publish("{{ nowhere }}")
    begun = time.monotonic()
    said = tool(deployment, "wait", "--timeout", "50", status=1)
    assert time.monotonic() - begun < 40
    assert "the refresh of its files failed: missing: nowhere" in said


def test_a_change_that_needs_a_restart_is_reported(web: Web, deployment: Deployment) -> None:
    """Its files are new already."""
    web.publish("old")
    agent = web.start()
    web.publish("new", env={"A": "b"})
    said = tool(deployment, "wait", "--timeout", "50", status=1)
    assert heard(agent) == ["SIGHUP new"]
    assert "web/daemon on web1 runs an older definition, file web.conf (changed " in said
    assert "restart it" in said


def test_a_daemon_that_its_new_files_break_stops_the_rollout(web: Web, deployment: Deployment) -> None:
    """The first one dies of them; `wait` and `explain` name it."""
    dying = DAEMON.replace(
        'with open("heard"',
        'if open("web.conf").read() == "poison":\n        os._exit(1)\n    with open("heard"',
    )
    command = [sys.executable, "-I", "-S", "-c", dying]
    agents = fleet(web, "old", 1, command=command)
    web.publish("poison", instances=3, width=1, command=command)
    said = tool(deployment, "wait", "web", "--timeout", "15", status=75)
    (dead,) = (host for host, agent in agents.items() if not agent.running)
    words = f"web/daemon on {dead}: its container is gone; "
    assert words in said
    explained = tool(deployment, "explain", status=1).splitlines()
    assert explained[0].startswith(f"ROOT CAUSE  {words}")


# -- JSON -----------------------------------------------------------------------------------------


def test_wait_reports_its_outcome_as_json(deployment: Deployment, containers: Containers) -> None:
    start_redis(deployment, containers, redis())
    assert tool(deployment, "wait", "--quiet", "--timeout", "30") == ""
    found = json.loads(tool(deployment, "wait", "--format", "json", "--timeout", "30"))
    assert (found["outcome"], found["missing"], found["causes"]) == ("up", [], [])
    tool(deployment, "set", "redis_password", "new")
    found = json.loads(run_ctl(deployment, "wait", "--format", "json").stdout)
    assert (found["outcome"], found["missing"]) == ("restart", ["redis"])
    assert found["restart"] == [
        {"service": REDIS, "host": "h1", "id": status(deployment)["id"], "older": ["variable redis_password"]}
    ]
    publish(deployment, "never", redis())
    found = json.loads(
        tool(deployment, "wait", "never", "--format", "json", "--quiet", "--timeout", "1", status=75)
    )
    assert (found["outcome"], found["missing"]) == ("timeout", ["never"])
    assert found["causes"][0]["kind"] == "absent"
