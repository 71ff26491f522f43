"""`kolla_mesos_ctl wait` beside real agents."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.ctl.trees import definition, one_time
from tests.support.agents import Containers, restarted
from tests.support.publishing import publish
from tests.support.tool import TOOL, environ, run_ctl, tool

SLEEP = {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0.1}}}}


def test_wait_ends_when_all_services_are_up(deployment: Deployment, containers: Containers) -> None:
    """At once, after the event of the last one."""
    publish(deployment, "db", SLEEP)
    publish(deployment, "web", {**SLEEP, "commands": {"sync": one_time("db/daemon")}})
    waiting = subprocess.Popen(
        [sys.executable, TOOL, "wait", "--timeout", "100"],
        env=environ(deployment),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    assert "db: 0 of 1 ready" in waiting.stdout.readline()
    containers.start("web", "h1")
    containers.start("db", "h1").says("ready")
    with waiting:
        said = waiting.stdout.read()
    assert waiting.returncode == 0
    assert [line.split(maxsplit=2)[2] for line in said.splitlines()] == [
        "web: 0 of 1 ready",
        "db: 1 of 1 ready",
        "web: 1 of 1 ready",
    ]


def test_wait_for_some_services_or_instances(deployment: Deployment, containers: Containers) -> None:
    service = {**SLEEP["service"], "instances": 3}
    publish(deployment, "a/db", {"service": service})
    publish(deployment, "never", SLEEP)
    containers.start("a/db", "h1").says("ready")
    assert "db: 1 of 1 ready" in tool(deployment, "wait", "db=1", "--timeout", "60")
    said = tool(deployment, "wait", "db", "--timeout", "0.5", status=75)
    assert "not up after" in said
    assert "ROOT CAUSE  1 of 3 containers of a/db exist: start the others" in said
    assert "never" not in said


@pytest.mark.parametrize(
    ("one", "needs", "cause"),
    [
        ({"commands": {"x": {"command": "false"}}}, "one/x", "one/x failed on h1"),
        ({"commands": {"x": one_time("two/y")}}, "one/x", "one/x -> two/y -> one/x"),
    ],
)
def test_wait_ends_early_with_a_cause_that_will_stay(
    deployment: Deployment, containers: Containers, one: Mapping[str, Any], needs: str, cause: str
) -> None:
    publish(deployment, "one", one)
    publish(deployment, "two", {"commands": {"y": one_time(needs)}})
    for name in ("one", "two"):
        containers.start(name, "h1")
    begun = time.monotonic()
    assert cause in tool(deployment, "wait", "two", "--timeout", "50", status=1)
    assert time.monotonic() - begun < 45


def test_wait_ends_if_a_container_ended_and_must_not_be_started_again(
    zk: KazooClient, deployment: Deployment
) -> None:
    publish(deployment, "db", SLEEP)
    ended = {
        "stage": "render",
        "command": "db/daemon",
        "reason": "missing: x",
        "retriable": True,
        "status": 78,
    }
    path = f"{deployment.path}/status/h1/db/ended"
    zk.create(path, json.dumps(ended).encode(), makepath=True)
    assert "missing: x" in tool(deployment, "wait", "--timeout", "4", status=75)
    zk.set(path, json.dumps({**ended, "retriable": False}).encode())
    assert "missing: x" in tool(deployment, "wait", "--timeout", "50", status=1)


@pytest.mark.parametrize("name", ["[/red]", ":smile:"])
def test_a_command_is_shown_by_its_name_whatever_that_means_in_markup(
    zk: KazooClient, deployment: Deployment, name: str
) -> None:
    publish(deployment, "db", SLEEP)
    ended = {"stage": "render", "command": name, "reason": name, "retriable": False, "status": 78}
    zk.create(f"{deployment.path}/status/h1/db/ended", json.dumps(ended).encode(), makepath=True)
    for words in (("wait", "--timeout", "50"), ("status",), ("explain",), ("events",), ("timeline",)):
        said = run_ctl(deployment, *words).stdout
        assert name in said or words[0] in ("events", "timeline")


def test_wait_ends_if_restarts_keep_failing(deployment: Deployment, containers: Containers) -> None:
    """Whether a start runs or not; each kind of end is printed once."""
    publish(deployment, "web", {"service": {"daemon": {"command": "sleep {{ seconds }}"}}})
    with restarted(containers.start("web", "h1")):
        said = tool(deployment, "wait", "--timeout", "50", status=1)
    assert said.count("web/daemon on h1 ended in stage render\n") == 1
    assert said.count("missing: seconds") == 1
    assert "ROOT CAUSE  web/daemon on h1 ended" in said


def test_wait_continues_while_a_daemon_is_started_again(
    deployment: Deployment, containers: Containers
) -> None:
    """It names the daemon, and ends when the time is over."""
    publish(deployment, "web", {"service": {"daemon": {"command": "false"}}})
    with restarted(containers.start("web", "h1")):
        said = tool(deployment, "wait", "--timeout", "8", status=75)
    assert said.count("web/daemon on h1 ended before it was ready\n") == 1
    assert "ROOT CAUSE  web/daemon on h1 ended " in said and said.count("after its start") == 1
    assert "start it again" not in said


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_wait_ends_if_nobody_starts_an_ended_daemon_again(
    deployment: Deployment, containers: Containers, mode: str
) -> None:
    """With its exit status if its parent knows it."""
    publish(deployment, "db", SLEEP)
    publish(deployment, "web", {"service": {"daemon": {"command": ["sh", "-c", "exit 3"]}}})
    containers.start("db", "h1")
    containers.start("web", "h1", KOLLA_START_MODE=mode).ends()
    said = tool(deployment, "wait", "--timeout", "100", status=1)
    (cause,) = (line for line in said.splitlines() if "after its start" in line)
    assert cause.startswith("ROOT CAUSE  web/daemon on h1 ended ")
    assert ("; exit status 3; see the log" in cause) == (mode == "supervise")
    assert ("only its launcher knows its exit status" in cause) == (mode == "exec")
    assert cause.endswith("correct the cause, and start the container again")


def test_wait_continues_if_a_cause_disappears_soon(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """For example between two publications."""
    publish(deployment, "web", definition("db/daemon"))
    containers.start("web", "h1").says("waits")
    later = threading.Timer(1, lambda: publish(deployment, "db", SLEEP))
    later.start()
    said = tool(deployment, "wait", "--timeout", "6", status=75)
    later.join()
    assert "no container of db was ever started" in said


@pytest.mark.parametrize(("words", "status"), [(["web=x"], 64), (["--timeout", "-1"], 64), (["webb"], 66)])
def test_wrong_arguments_are_refused(deployment: Deployment, words: list[str], status: int) -> None:
    publish(deployment, "web", SLEEP)
    tool(deployment, "wait", *words, status=status)


def test_a_deployment_without_services_is_not_up(deployment: Deployment) -> None:
    assert "publish them first" in tool(deployment, "wait", status=66)
