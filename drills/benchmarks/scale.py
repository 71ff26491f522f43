"""A deployment of thousands of containers on one server and this machine: what it asks, how long it takes.

Everything here shares the processors of one machine, the server too. So the critical path has two parts: the
work of its commands and daemons, and what it costs on the same machine, at each of its events, to tell as
many bare sessions as then have something to do.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from kazoo.client import KazooClient

from drills.benchmarks.bench import FLOORS, Bench
from drills.benchmarks.deployment import GATE, TIMEOUT, level, levels, publish, role
from drills.benchmarks.events import crowd, standing, told
from drills.benchmarks.table import Row
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

SERVICES = 100
WORK = 5.0  # seconds of a one-time command, and of a daemon until it is ready
PROCESSES = 4
SETTLED = 300.0  # seconds until nothing happens any more, at most
SHOWN = 12  # kinds of requests in the note
# A session may be as long as it asks for; and ten thousand come at the same moment.
SETTINGS = {"maxSessionTimeout": TIMEOUT * 1000, "clientPortListenBacklog": 4096}
JAVA = ("-Xmx3g", "-XX:TieredStopAtLevel=4")  # not the small one of a test


class Start(NamedTuple):
    """What was measured of a start, and of its floor. Times in seconds."""

    work: float
    containers: Sequence[Mapping[str, Any]]
    kinds: Counter[str]
    makespan: float
    wake_ups: Sequence[float]
    floors: Sequence[float]
    until_standing: float
    processors: Sequence[float]  # seconds of them: the containers', the server's, and others'


def scale(bench: Bench) -> list[Row]:
    """10,000 containers in chains of six services: requests, makespan over critical path, slowest wake-up."""
    return rows(start(bench.directory, SERVICES, bench.replicas, WORK))


def rows(start: Start) -> list[Row]:
    """The figures."""
    count, told = len(start.containers), sum(start.floors)
    work = len(start.floors) * start.work
    path = work + told
    requests = [each["requests"] for each in start.containers]
    sent, received = (sum(each[way] for each in start.containers) for way in ("sent", "received"))
    most = ", ".join(f"{number / count:.2f} {kind}" for kind, number in start.kinds.most_common(SHOWN))
    title = f"{count} containers"
    asked = (
        f"{sum(requests)} in all, {min(requests)} to {max(requests)} for one container, pings not counted;"
        f" {sent / 1e6:.1f} MB sent and {received / 1e6:.1f} MB received,"
        f" {(sent + received) / count / 1000:.1f} kB for each; most of it, for each: {most}"
    )
    took = (
        f"{start.makespan:.2f} s from the opening of a gate, when all wait, until the last one is ready; the"
        f" critical path is {path:.2f} s: {work:g} s of work (a chain of {len(start.floors)} commands and"
        f" daemons of {start.work:g} s), and {told:.2f} s in which, at each of its events, as many bare"
        f" sessions as then wait are told; {os.cpu_count()} processors, of which the containers had"
        f" {start.processors[0]:.0f} s, the server {start.processors[1]:.0f} s, and others"
        f" {start.processors[2]:.0f} s; before that {start.until_standing:.0f} s for all to start, read, wait"
    )
    woken = (
        "from the server's stamp on what was waited for until the turn comes; the floor is a bare session's"
    )
    return [
        Row(f"{title}: requests of each", "", [sum(requests) / count], 40, note=asked),
        Row(f"{title}: makespan over critical path", "x", [start.makespan / path], 1.3, (1.0,), note=took),
        Row(f"{title}: slowest wake-up", " s", [max(start.wake_ups)], 2, [max(start.floors)], note=woken),
    ]


def start(directory: Path, services: int, each: int, work: float) -> Start:
    """Start `each` containers of so many services, whose commands and daemons take so many seconds."""
    server = Server(directory / "scale", settings=SETTINGS, java=JAVA)
    # Its session, too, has to bear what happens here.
    zk = KazooClient(server.hosts, timeout=TIMEOUT)
    with server, contextlib.ExitStack() as stack:
        zk.start()
        stack.callback(zk.close)
        stack.callback(zk.stop)
        floors = told_in_turn(server, zk, levels(services), services * each)
        return started(directory, server, zk, services, each, work)._replace(floors=floors)


def started(directory: Path, server: Server, zk: KazooClient, services: int, each: int, work: float) -> Start:
    """Without its floor."""
    path = "/scale/site"
    publish(zk, path, services, each)
    words = ("-m", "drills.benchmarks.containers", path, server.hosts, str(services), str(each), str(work))
    begun = time.monotonic()
    with crowd(PROCESSES, *words, str(PROCESSES), str(directory), number=True) as processes:
        all_say(processes, "standing")
        until_standing = time.monotonic() - begun
        settle(server, services * each)
        before = spent(server, processes)
        zk.set(f"{path}/status/global/{GATE}", b"done")
        all_say(processes, "ready")
        after = spent(server, processes)
        settle(server, services * each)
        reports = told(processes, "report\n")
        containers = [container for report in reports for container in report["containers"]]
        opened = changed_at(zk, [f"{path}/status/global/{GATE}"])[0]
        ready = [ready_at(zk, path, number) for number in range(services)]
        made = changed_at(zk, [f"{path}/status/global/{role(number)}/schema" for number in range(services)])
    kinds: Counter[str] = Counter()
    for report in reports:
        kinds.update(dict(report["kinds"]))
    return Start(
        work=work,
        containers=containers,
        kinds=kinds,
        makespan=max(ready) - opened,
        wake_ups=[late for each in containers for late in wake_ups(each, opened, ready, made)],
        floors=(),
        until_standing=until_standing,
        processors=[later - earlier for earlier, later in zip(before, after)],
    )


def wake_ups(
    container: Mapping[str, Any], opened: float, ready: Sequence[float], made: Sequence[float]
) -> list[float]:
    """How long after what it waited for each turn of the container came: the gate, the last instance of
    the service before, or the command that another one ran."""
    number, found = container["number"], []
    for name, asked, came, done in container["turns"]:
        true = ready[number - 1] if level(number) else opened
        if done or name == "daemon":
            true = made[number]
        found.append(came - max(true, asked))
    return found


def told_in_turn(server: Server, zk: KazooClient, levels: int, count: int) -> list[float]:
    """How long it takes until the last of the bare sessions of a level has what it is told, level by level.

    Twice each: that its dependency is satisfied, and that its one-time command is done, where each then
    makes an ephemeral.
    """
    paths = [f"/floor/{level}" for level in range(levels)]
    for path in paths:
        zk.create(path, makepath=True)
    sessions = (str(levels), str(count // PROCESSES), str(TIMEOUT))
    took = []
    with crowd(PROCESSES, str(FLOORS / "levels.py"), server.hosts, "/floor", *sessions) as processes:
        standing(processes)
        for path in paths:
            for word in (b"done", b"go"):
                zk.set(path, word)
                took.append(max(told(processes)) - changed_at(zk, [path])[0])
    return took


def all_say(processes: Sequence[subprocess.Popen[str]], word: str) -> None:
    """Wait until all have said it; one that has ended is noticed at once."""
    silent = {process.stdout: process for process in processes if process.stdout}
    while silent:
        for stream in select.select(list(silent), [], [])[0]:
            assert stream.readline() == f"{word}\n", silent[stream].args
            del silent[stream]


def settle(server: Server, count: int) -> None:
    """Wait until there are pings only."""

    def quiet() -> bool:
        before = server.packets()
        time.sleep(1)
        return server.packets() - before < 20 + 2 * count * 3 / TIMEOUT

    eventually(quiet, "nothing happens any more", seconds=SETTLED)


def spent(server: Server, processes: Sequence[subprocess.Popen[str]]) -> Sequence[float]:
    """Seconds of the processors so far: the containers', the server's, and those of all others."""
    times = [psutil.Process(pid).cpu_times() for pid in (server.pid, *(each.pid for each in processes))]
    its, *ours = [each.user + each.system for each in times]
    everybody = psutil.cpu_times()
    busy = sum(everybody) - everybody.idle - everybody.iowait
    return sum(ours), its, busy - sum(ours) - its


def changed_at(zk: KazooClient, paths: Sequence[str]) -> list[float]:
    """When the server took the last write to each in, by its own stamp."""
    replies = [zk.exists_async(path) for path in paths]
    return [reply.get().mtime / 1000 for reply in replies]


def ready_at(zk: KazooClient, path: str, number: int) -> float:
    """When the last instance of a service became ready."""
    at = f"{path}/status/global/{role(number)}/daemon/ready"
    return max(changed_at(zk, [f"{at}/{name}" for name in zk.get_children(at)]))
