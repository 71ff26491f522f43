"""How quickly a running daemon learns of what is published, what it costs, and many of them in turn."""

from __future__ import annotations

import sys
import time

import psutil

from drills.benchmarks.bench import Bench
from drills.benchmarks.costs import MEGABYTE, bare_python
from drills.benchmarks.starts import SERVICE
from drills.benchmarks.table import Row
from tests.conftest import Deployment
from tests.support.agents import Agent
from tests.support.waiting import eventually

ROUNDS, WIDTH = 7, 5
QUIET = 1.0  # seconds for which nothing may have changed before a refresh begins
# Leaves a mark at its start, and at each signal.
DAEMON = """
import signal, sys
def leave(*signal):
    with open(sys.argv[1], "w") as file:
        file.write("\\n")
signal.signal(signal.SIGHUP, leave)
leave()
while True:
    signal.pause()
"""
AT_ONCE = 10  # containers that are started together: how that goes is measured elsewhere


def refreshing(bench: Bench) -> list[Row]:
    """A published variable that reaches a daemon by a signal, and a hundred instances that take turns."""
    deployment = _deployment(bench, None)
    (agent,) = _started(bench, deployment, 1)
    delays = [_told(bench, deployment, 1) for _ in range(ROUNDS + 1)][1:]
    rss = [float(psutil.Process(agent.registrar).memory_info().rss) / MEGABYTE]
    bench.end(agent)
    one = _in_turn(bench, 1, 1)
    every = _in_turn(bench, bench.replicas, WIDTH)
    ideal = -(-bench.replicas // WIDTH) * one
    return [
        Row("published variable to signal", " ms", [(delay - QUIET) * 1000 for delay in delays], 300),
        Row("memory beside a daemon with on_change", " MB", rss, 11, [bare_python() for _ in rss]),
        Row(
            f"{bench.replicas} instances in turn, over {bench.replicas}/{WIDTH} of one",
            "",
            [every / ideal],
            1.2,
            note=f"one {one:.2f} s, all {every:.1f} s, each with the second in which it must stay ready",
        ),
    ]


def _deployment(bench: Bench, width: int | None) -> Deployment:
    marks = str(bench.directory / "marks")
    daemon = {
        "command": [sys.executable, "-I", "-S", "-c", DAEMON, marks],
        "files": {"config": {"dest": f"{bench.directory}/{{{{ get_hostname() }}}}-{{{{ own }}}}"}},
        "on_change": {"signal": "HUP"},
        **({} if width is None else {"width": width}),
    }
    return bench.deployment(
        SERVICE, daemon=daemon, files={"config": "{{ x }}"}, variables={"x": "0", "own": "config"}
    )


def _started(bench: Bench, deployment: Deployment, count: int) -> list[Agent]:
    """Containers that are ready, each with a file of its own."""
    agents: list[Agent] = []
    for number in range(count):
        path = f"{deployment.path}/{SERVICE}/variables/host{number}/own"
        bench.zk.create(path, f"{number}".encode(), makepath=True)
    while len(agents) < count:
        more = [
            bench.start(deployment, SERVICE, KOLLA_HOSTNAME=f"host{len(agents) + each}")
            for each in range(min(AT_ONCE, count - len(agents)))
        ]
        bench.marks.take(len(more))
        agents += more
    path = f"{deployment.path}/status/global/{SERVICE.rsplit('/', 1)[-1]}/daemon/ready"
    eventually(lambda: len(bench.zk.get_children(path)) == count, "all are ready")
    return agents


def _publish(bench: Bench, deployment: Deployment) -> float:
    begun = time.time()
    path = f"{deployment.path}/{SERVICE}/variables/x"
    bench.zk.set(path, str(begun).encode())
    return begun


def _told(bench: Bench, deployment: Deployment, count: int) -> float:
    """Seconds from a publication until all daemons have got their signals."""
    begun = _publish(bench, deployment)
    told = max(bench.marks.take(count))
    time.sleep(QUIET)  # Until the daemon is known to be ready again.
    return told - begun


def _in_turn(bench: Bench, count: int, width: int) -> float:
    """Seconds from the quiet after a publication until the last instance is ready again."""
    deployment = _deployment(bench, width)
    agents = _started(bench, deployment, count)
    slots = f"{deployment.path}/status/global/{SERVICE.rsplit('/', 1)[-1]}/daemon/refreshes/slots"
    begun = _publish(bench, deployment)
    bench.marks.take(count)
    eventually(lambda: not bench.zk.get_children(slots), "the last turn is over")
    ended = time.time()
    bench.end(*agents)
    return ended - begun - QUIET
