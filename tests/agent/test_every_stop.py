"""Every stop counts: a stop or a published change at every phase of a restart, a refresh and a drain.

Each test holds one daemon in one phase, lets one event happen there, and releases it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import PROGRAM, Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import publish
from tests.support.waiting import LIMIT, eventually

SERVICE = "site/web"
LONG = 600.0  # seconds: a test that waits so long has failed
# Ends with 7 after SIGTERM; not while `slow` exists. If `linger` exists, it leaves a process behind that
# ignores SIGTERM while that exists.
DAEMON = """
import os, signal, time
def read():
    with open("web.conf") as file:
        return file.read()
def note(name, text):
    with open(name, "a") as file:
        file.write(text + "\\n")
def heard(number, frame):
    note("heard", signal.Signals(number).name + " " + read())
    if number == signal.SIGTERM:
        while os.path.exists("slow"):
            time.sleep(0.02)
        if os.path.exists("linger") and os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            while os.path.exists("linger"):
                time.sleep(0.02)
            os._exit(0)
        os._exit(7)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, heard)
note("started", read())
while True:
    signal.pause()
"""
CHECK = ["sh", "-c", "while [ -e held ]; do sleep 0.05; done", "sh", "{}"]
BEFORE_STOP = "echo run >>stopped; while [ -e busy ]; do sleep 0.05; done"
RESTART, HUP = {"restart": True}, {"signal": "HUP"}


class Life:
    """One daemon that follows its file."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient) -> None:
        self._deployment, self._containers = deployment, containers
        self.site = Site(deployment, zk, SERVICE)
        self.on_change: dict[str, Any] = RESTART

    def publish(self, text: str) -> None:
        file = {"dest": f"{self._containers.directory}/0-web1/web.conf", "check": CHECK}
        daemon = {
            "command": [sys.executable, "-I", "-S", "-c", DAEMON],
            "ready": {"alive": 0},
            "stop_grace": LONG,
            "before_stop": {"command": BEFORE_STOP, "timeout": LONG},
            "on_change": self.on_change,
            "files": {"web.conf": file},
        }
        definition = {"service": {"daemon": daemon}}
        publish(self._deployment, SERVICE, definition, files={"web.conf": text})

    def start(self, mode: str = "supervise") -> Agent:
        """A container whose daemon runs "one"."""
        self.publish("one")
        agent = self._containers.start(SERVICE, KOLLA_START_MODE=mode)
        eventually(lambda: lines(agent, "started"), "the daemon has started")
        agent.says("the daemon is ready")
        self.site.await_instances(1)
        return agent


@pytest.fixture
def life(deployment: Deployment, containers: Containers, zk: KazooClient) -> Life:
    return Life(deployment, containers, zk)


def lines(agent: Agent, name: str) -> list[str]:
    path = agent.directory / name
    return path.read_text().splitlines() if path.exists() else []


def stopping(agent: Agent, *words: str) -> subprocess.Popen[str]:
    """`kolla_mesos_start stop` in its container, once it waits for the answer."""
    client = subprocess.Popen(
        [sys.executable, str(PROGRAM), "stop", *words],
        env=agent.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    receives = Path(f"/proc/{client.pid}/wchan")
    eventually(
        lambda: client.poll() is not None or "recv" in _text(receives) or "unix_stream" in _text(receives),
        "the client has asked",
    )
    return client


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def answer(client: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = client.communicate(timeout=LIMIT)
    return client.returncode, said.strip()


# -- phases: each holds the container in one phase of a restart, by files that `release` removes ---------


def reach(life: Life, agent: Agent, phase: str) -> None:
    holds = {
        "check": ["held"],
        "before_stop": ["busy"],
        "ending": ["slow"],
        "left-over": ["linger"],
        "left-over, refresh": ["linger"],
    }[phase]
    for name in holds:
        (agent.directory / name).touch()
    life.publish("two")
    if phase == "check":
        eventually(lambda: "sleep" in agent.processes.values(), "the check runs")
    elif phase == "before_stop":
        eventually(lambda: lines(agent, "stopped"), "before_stop runs")
    elif phase == "ending":
        eventually(lambda: lines(agent, "heard"), "the daemon ends")
    else:
        agent.says("some of its processes are still running")
    if phase == "left-over, refresh":
        (agent.directory / "held").touch()
        life.publish("three")
        eventually(lambda: "sleep" in agent.processes.values(), "the check runs")


def release(agent: Agent) -> None:
    """The restart goes on, and then the refresh."""
    for name in ("busy", "slow", "linger"):
        (agent.directory / name).unlink(missing_ok=True)
    if (agent.directory / "held").exists():
        if "SIGTERM two" in lines(agent, "heard"):
            eventually(lambda: len(lines(agent, "started")) == 2 or not agent.running, "it goes on")
        (agent.directory / "held").unlink()


PHASES = ["check", "before_stop", "ending", "left-over", "left-over, refresh"]
STOPS = ["SIGTERM", "stop", "stop, its client killed", "stop --no-term, SIGTERM"]


@pytest.mark.parametrize("event", STOPS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_during_a_restart_ends_the_container(life: Life, phase: str, event: str) -> None:
    """The daemon gets one signal, before_stop runs once, and nothing is registered or left."""
    agent = life.start()
    reach(life, agent, phase)
    client = None
    if event.startswith("SIGTERM"):
        agent.signal(signal.SIGTERM)
    else:
        client = stopping(agent, *(["--no-term"] if "--no-term" in event else []))
    if event == "stop, its client killed":
        assert client
        client.kill()
        client.communicate()
    if phase == "check":
        eventually(lambda: lines(agent, "stopped"), "before_stop runs")
    release(agent)
    if event == "stop --no-term, SIGTERM":
        assert client
        assert answer(client) == (0, "drained")
        if phase == "check":
            assert not life.site.instances()
            agent.signal(signal.SIGTERM)
    elif event == "stop":
        assert client
        assert answer(client) == (0, "drained; the daemon has ended")
    assert agent.ends() == 7
    assert [line.split()[0] for line in lines(agent, "heard")] == ["SIGTERM"]
    assert lines(agent, "started") == ["one"]
    assert lines(agent, "stopped") == ["run"]
    assert not life.site.instances()
    eventually(lambda: not agent.processes, "no process is left")
    assert "defect" not in agent.said


@pytest.mark.parametrize("phase", PHASES)
def test_a_change_during_a_restart_arrives(life: Life, phase: str) -> None:
    """And the next one, too."""
    agent = life.start()
    reach(life, agent, phase)
    life.publish("four")
    release(agent)
    eventually(lambda: lines(agent, "started")[-1] == "four", "it runs with the change")
    life.publish("five")
    eventually(lambda: lines(agent, "started")[-1] == "five", "it runs with the next change")
    eventually(lambda: agent.state == "ready", "it is ready")
    life.site.await_instances(1)
    assert "killed" not in agent.said and "refresh of the daemon's files failed" not in agent.said
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 7
    assert len(lines(agent, "stopped")) == agent.said.count("started again") + 1


@pytest.mark.parametrize("mode", ["exec", "supervise"])
@pytest.mark.parametrize("event", ["SIGTERM", "stop", "stop, its client killed"])
def test_a_stop_during_a_refresh_ends_the_container(life: Life, mode: str, event: str) -> None:
    life.on_change = HUP
    agent = life.start(mode)
    (agent.directory / "held").touch()
    life.publish("two")
    eventually(lambda: "sleep" in agent.processes.values(), "the check runs")
    if event == "SIGTERM":
        agent.signal(signal.SIGTERM)
    else:
        client = stopping(agent)
        if event == "stop":
            assert answer(client) == (0, "drained; the daemon has ended")
        else:
            client.kill()
            client.communicate()
    assert agent.ends() == 7
    eventually(lambda: not agent.processes, "no process is left")
    assert not life.site.instances()


@pytest.mark.parametrize("mode", ["exec", "supervise"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_refresh_that_is_interrupted_runs_again(life: Life, mode: str, signum: int) -> None:
    """For example because somebody has signalled all processes."""
    life.on_change = HUP
    agent = life.start(mode)
    (agent.directory / "held").touch()
    life.publish("two")
    eventually(lambda: "sleep" in agent.processes.values(), "the check runs")
    refresh = next(
        pid for pid in agent.processes if b"start refresh" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(refresh, signum)
    eventually(lambda: refresh not in agent.processes, "it has ended")
    (agent.directory / "held").unlink()
    eventually(lambda: lines(agent, "heard") == ["SIGHUP two"], "the change arrives")
