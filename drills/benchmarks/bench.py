"""Where everything is measured: a private server, deployments on it, and agents that leave marks.

A mark is a line in a FIFO, written by the first instruction of whatever is waited for. Every agent
is a container of its own, and is ended, its registrar included, outside of what is measured.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import Agent
from tests.support.publishing import Texts, publish
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

FLOORS = Path(__file__).with_name("floors")
HANDSHAKE_TIMEOUT = 60.0  # seconds, for what takes a tenth of one


class Marks:
    """The FIFO."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # For writing too, so that it is never at its end.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.leave = f"echo >{path}"  # what a shell does to leave one

    def take(self, count: int = 1) -> list[float]:
        """When the next `count` marks came, in seconds of the wall clock, which is the server's too."""
        times: list[float] = []
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT
        while len(times) < count:
            if not select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{len(times)} of {count} marks within {HANDSHAKE_TIMEOUT:g} s")
            now = time.time()
            times += [now] * os.read(self._fd, 65536).count(b"\n")
        return times


class Bench:
    """One server, and what runs on it. `replicas`: of each service of a large deployment."""

    def __init__(self, directory: Path, server: Server, zk: KazooClient, replicas: int) -> None:
        self.replicas = replicas
        self.server = server
        self.zk = zk
        self.directory = directory
        self.marks = Marks(directory / "marks")
        self.daemon = ("/bin/sh", "-c", f"{self.marks.leave}; exec sleep 1000")
        self._numbers = itertools.count()
        self._agents: list[Agent] = []

    def deployment(
        self,
        service: str,
        commands: Mapping[str, Any] | None = None,
        *,
        daemon: Mapping[str, Any] | None = MappingProxyType({}),
        files: Texts | None = None,
        variables: Texts | None = None,
    ) -> Deployment:
        """A deployment of its own with one service.

        Its daemon leaves a mark; `daemon` are more keys of it, None makes the service a task.
        """
        deployment = Deployment(self.server.hosts, f"/bench-{next(self._numbers)}", "site")
        self.zk.ensure_path(deployment.path)
        definition: dict[str, Any] = {"commands": commands or {}}
        if daemon is not None:
            definition["service"] = {"daemon": {"command": self.daemon, "ready": {"alive": 0.1}, **daemon}}
        with contextlib.redirect_stdout(io.StringIO()):  # It says what it has created.
            publish(deployment, service, definition, files=files, variables=variables)
        return deployment

    def start(self, deployment: Deployment, service: str, **environ: str) -> Agent:
        """A container on a host of its own."""
        number = next(self._numbers)
        given = deployment.environ(service, **{"KOLLA_HOSTNAME": f"host{number}", **environ})
        agent = Agent(self.directory / f"c{number}", given)
        self._agents.append(agent)
        return agent

    def end(self, *agents: Agent) -> None:
        """End containers, and wait until nothing of them is left."""
        for agent in agents:
            agent.end()
            self._agents.remove(agent)
        for agent in agents:
            eventually(lambda agent=agent: not agent.processes, f"{agent.directory} is left alone")  # type: ignore[misc]

    def close(self) -> None:
        """End what an interruption has left, and say what it has said last."""
        for agent in self._agents:
            print(f"--- {agent.directory.name}: {agent.said[-1000:]}", file=sys.stderr)
        self.end(*self._agents)

    def start_to_mark(self, deployment: Deployment, service: str, **environ: str) -> float:
        """Milliseconds from the spawn of an agent to the first mark in its container."""
        begun = time.time()
        agent = self.start(deployment, service, **environ)
        (marked,) = self.marks.take()
        self.end(agent)
        return (marked - begun) * 1000

    def floor_to_mark(self, *words: str) -> float:
        """The same for a floor that execs the daemon; `words` are its own."""
        begun = time.time()
        with subprocess.Popen(
            [sys.executable, str(FLOORS / "start.py"), *words, *self.daemon],
            env={"PATH": os.environ["PATH"]},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
        ) as process:
            try:
                (marked,) = self.marks.take()
            finally:
                process.kill()
        return (marked - begun) * 1000


def in_turn(times: int, *runs: Callable[[], float]) -> Sequence[Sequence[float]]:
    """What each of `runs` returns, A B A B ..., after a first round that is not counted."""
    rounds = [[run() for run in runs] for _ in range(times + 1)][1:]
    return list(zip(*rounds))


def ratios(measured: Sequence[float], floor: Sequence[float]) -> list[float]:
    """Pair by pair."""
    return [over / under for over, under in zip(measured, floor)]
