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

from tests.agents import Containers, restarted
from tests.conftest import Deployment
from tests.operator_tools.trees import definition, one_time
from tests.publishing import publish
from tests.tool import TOOL, environ, tool

SLEEP = {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0.1}}}}


def test_it_ends_when_all_are_up(deployment: Deployment, containers: Containers) -> None:
    """On the event: nobody polls, and the last one that comes ends it."""
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


def test_some_are_enough_if_only_they_are_asked_for(deployment: Deployment, containers: Containers) -> None:
    """Also fewer instances than are wanted."""
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
        (
            {"commands": {"x": one_time("tow/y")}},
            "one/x",
            "no service has the role 'tow' (did you mean 'two'?)",
        ),
        (SLEEP, "one/x", "one has no 'x'"),
    ],
)
def test_it_ends_early_with_the_cause(
    deployment: Deployment, containers: Containers, one: Mapping[str, Any], needs: str, cause: str
) -> None:
    """Of what nothing will mend; long before its time is over."""
    publish(deployment, "one", one)
    publish(deployment, "two", {"commands": {"y": one_time(needs)}})
    for name in ("one", "two"):
        containers.start(name, "h1")
    begun = time.monotonic()
    assert cause in tool(deployment, "wait", "two", "--timeout", "50", status=1)
    assert time.monotonic() - begun < 45


def test_a_container_that_ended_early_ends_it(zk: KazooClient, deployment: Deployment) -> None:
    """Not one that is worth another start."""
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


def test_what_is_restarted_in_vain_ends_it(deployment: Deployment, containers: Containers) -> None:
    """Whether or not the next start is under way; each kind of end is told once."""
    publish(deployment, "web", {"service": {"daemon": {"command": "sleep {{ seconds }}"}}})
    with restarted(containers.start("web", "h1")):
        said = tool(deployment, "wait", "--timeout", "50", status=1)
    assert said.count("web/daemon on h1 ended in stage render\n") == 1
    assert said.count("missing: seconds") == 1
    assert "ROOT CAUSE  web/daemon on h1 ended" in said


def test_a_daemon_that_ends_each_time_is_waited_for_and_named(
    deployment: Deployment, containers: Containers
) -> None:
    """Another start may do; until the time is over."""
    publish(deployment, "web", {"service": {"daemon": {"command": "false"}}})
    with restarted(containers.start("web", "h1")):
        said = tool(deployment, "wait", "--timeout", "8", status=75)
    assert said.count("web/daemon on h1 ended before it was ready\n") == 1
    assert "ROOT CAUSE  web/daemon on h1 ended " in said and said.count("after its start") == 1
    assert "start it again" not in said


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_daemon_that_ends_and_that_nobody_starts_again_ends_it(
    deployment: Deployment, containers: Containers, mode: str
) -> None:
    """There is no launcher: nothing will change. Its parent knows the exit status; else that is said."""
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


def test_what_is_mended_soon_does_not_end_it(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Definitions are published one after the other."""
    publish(deployment, "web", definition("db/daemon"))
    containers.start("web", "h1").says("waits")
    later = threading.Timer(1, lambda: publish(deployment, "db", SLEEP))
    later.start()
    said = tool(deployment, "wait", "--timeout", "6", status=75)
    later.join()
    assert "no container of db was ever started" in said


@pytest.mark.parametrize(("words", "status"), [(["web=x"], 64), (["--timeout", "-1"], 64), (["webb"], 66)])
def test_a_wrong_word_is_told(deployment: Deployment, words: list[str], status: int) -> None:
    publish(deployment, "web", SLEEP)
    tool(deployment, "wait", *words, status=status)


def test_nothing_published_is_not_up(deployment: Deployment) -> None:
    assert "publish them first" in tool(deployment, "wait", status=66)
