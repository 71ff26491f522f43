"""The agent in its own pid namespace, as process 1 or below the image's init, in both modes.

In each case, a stop ends the container, no zombie is left, and the runtime sees the status of the contract.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.publishing import publish
from tests.support.waiting import eventually

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
LAUNCHERS = {
    "directly": NAMESPACE,
    "dumb-init": (*NAMESPACE, "dumb-init", "--"),
    "dumb-init --single-child": (*NAMESPACE, "dumb-init", "--single-child", "--"),
}
MODES = ["exec", "supervise"]
TERMINATED = 128 + signal.SIGTERM
# Creates a file, and exits with 7 on SIGTERM.
OBEYS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [15])
open("runs", "w").close()
signal.sigwait([15])
os._exit(7)
"""
# Twenty grandchildren whose parents end before them.
FORKS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent: time.sleep(0.001)
        os._exit(0)
    os.wait()
"""

Start = Callable[..., Agent]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LAUNCHERS)
def start(deployment: Deployment, containers: Containers, mode: str, request: pytest.FixtureRequest) -> Start:
    """Starts a container in a pid namespace of its own."""

    def start(commands: dict[str, Any] | None = None, daemon: Sequence[str] = (), **environ: str) -> Agent:
        service = {"service": {"daemon": {"command": daemon, "ready": {"alive": 0}}}} if daemon else {}
        publish(deployment, "web", {"commands": commands or {}, **service})
        return containers.start("web", under=LAUNCHERS[request.param], KOLLA_START_MODE=mode, **environ)

    return start


def python(source: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", source]


def stop(agent: Agent, signum: int = signal.SIGTERM) -> None:
    """A signal to the container's process 1, as the runtime sends it."""
    (first,) = psutil.Process(agent.pid).children()
    first.send_signal(signum)


def runs(agent: Agent) -> None:
    eventually(Path(agent.directory, "runs").exists, "it runs")


def zombies(agent: Agent) -> list[int]:
    found = []
    for process in psutil.Process(agent.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # It has been reaped just now.
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def test_a_stop_ends_a_container_that_waits(start: Start) -> None:
    agent = start({"go": {"command": "true", "dependencies": ["db/sync"]}})
    agent.says("waits for db/sync")
    stop(agent)
    assert agent.ends() == TERMINATED


@pytest.mark.parametrize("name", ["QUIT", "WINCH", "USR1", "RTMIN+3"])
def test_the_stop_signal_of_an_image_ends_a_container_that_waits(start: Start, name: str) -> None:
    """QUIT does so without the setting."""
    environ = {} if name == "QUIT" else {"KOLLA_STOP_SIGNAL": name}
    agent = start({"go": {"command": "true", "dependencies": ["db/sync"]}}, **environ)
    agent.says("waits for db/sync")
    signum = signal.SIGRTMIN + 3 if name == "RTMIN+3" else signal.Signals[f"SIG{name}"]
    stop(agent, signum)
    assert agent.ends() == 128 + signum


def test_the_stop_signal_of_an_image_is_passed_to_the_running_command(start: Start) -> None:
    agent = start({"go": {"command": python(OBEYS.replace("15", "10"))}}, KOLLA_STOP_SIGNAL="USR1")
    runs(agent)
    stop(agent, signal.SIGUSR1)
    assert agent.ends() == 128 + signal.SIGUSR1
    assert "web/go: exit status 7" in agent.said


def test_a_stop_is_passed_to_the_running_command(start: Start) -> None:
    """The agent waits for its end, and ends as stopped."""
    agent = start({"go": {"command": python(OBEYS)}})
    runs(agent)
    stop(agent)
    assert agent.ends() == TERMINATED
    assert "web/go: exit status 7" in agent.said


def test_the_exit_status_is_that_of_the_daemon(start: Start) -> None:
    """Also if the agent uses the same status itself."""
    assert start(daemon=["sh", "-c", "exit 75"]).ends() == 75


def test_the_grandchildren_of_a_command_are_reaped(start: Start) -> None:
    """The command has ended when they have; no zombie is left while the agent runs on."""
    agent = start({"go": {"command": python(FORKS)}}, daemon=python(OBEYS))
    runs(agent)
    eventually(lambda: not zombies(agent), "no zombie is left")
    stop(agent)
    assert agent.ends() == 7


def test_the_grandchildren_of_the_daemon_are_reaped(
    start: Start, mode: str, request: pytest.FixtureRequest
) -> None:
    """By the agent or by the init; a daemon that is process 1 has to do it itself."""
    agent = start(daemon=python(FORKS + OBEYS))
    runs(agent)
    alone = mode == "exec" and request.node.callspec.params["start"] == "directly"
    eventually(lambda: len(zombies(agent)) == 20 * alone, "they are reaped")
    stop(agent)
    assert agent.ends() == 7
