"""What a fault costs: an outage, a lost leader, a stop, a holder that is killed."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time

import psutil

from drills.benchmarks.bench import Bench
from drills.benchmarks.costs import MEGABYTE, await_ready, bare_python
from drills.benchmarks.events import PAUSE, changed, said
from drills.benchmarks.starts import SERVICE
from drills.benchmarks.table import Row
from tests.agent.test_outage import AGAIN, BACK, OUTAGE, RUNS, SLEEPS, SUPERVISE, WAITS, gone_through
from tests.conftest import connected, made
from tests.support.agents import Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble, Server

EACH = 4  # agents of a kind
LEADERS = 10  # that are killed


def faults(bench: Bench) -> list[Row]:
    """Sessions over an outage, back from a killed leader, a supervised stop, the next claim after kill -9."""
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # The clients here lose their servers too.
    return [*_outage(bench), *_leader_killed(bench), *_supervised(bench), *_holder_killed(bench)]


def _outage(bench: Bench) -> list[Row]:
    data, containers = bench.directory / "away", bench.directory / "o"
    quiet = contextlib.redirect_stdout(None)  # It is a test's, and shows what all have said.
    with quiet, Server(data) as server, gone_through(server, containers) as outage:
        before, after = outage.ephemerals
        lost = {owner for owner, _ in before.values()} - {owner for owner, _ in after.values()}
        back = outage.back
    title = f"outage of {OUTAGE:.0f} s, {len(back)} agents"
    note = (
        "four wait, three are registrars, one supervises; the server is killed, and counted from the moment"
        " at which it serves again; the column on the right is kazoo with its defaults"
    )
    return [
        Row(f"{title}: sessions lost", "", [len(lost)], 0, peer="7 of 8"),
        Row(f"{title}: the last one back", " s", [max(back)], BACK, peer="33 s", note=note),
    ]


def _leader_killed(bench: Bench) -> list[Row]:
    """By the stamps that they write themselves."""
    took: dict[str, list[float]] = {WAITS: [], RUNS: []}
    election = []
    with contextlib.ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(bench.directory / "ensemble"))
        zk = stack.enter_context(contextlib.contextmanager(connected)(ensemble))
        deployment = stack.enter_context(contextlib.contextmanager(made)(ensemble, zk))
        containers = Containers(bench.directory / "l", deployment.environ)
        stack.callback(_end_quietly, containers)
        daemon = {**SLEEPS, "dependencies": ["db/daemon"]}
        with contextlib.redirect_stdout(None):
            publish(deployment, WAITS, {"service": {"daemon": daemon}})
            publish(deployment, RUNS, {"service": {"daemon": SLEEPS}})
        agents = {
            service: [containers.start(service, f"{number}") for number in range(EACH)] for service in took
        }
        Site(deployment, zk, WAITS).await_members(EACH)
        Site(deployment, zk, RUNS).await_instances(EACH)
        for _ in range(LEADERS):
            time.sleep(1 + PAUSE)  # Whoever loses a connection that is younger is more patient.
            leader = ensemble.leader
            others = [server for server in ensemble.servers if server is not leader]
            begun = time.time()
            leader.kill()
            eventually(lambda: any(server.mode == "leader" for server in others), "another", every=0.005)  # noqa: B023
            election.append((time.time() - begun) * 1000)
            for service, ours in agents.items():
                for agent in ours:
                    eventually(lambda: said(agent, AGAIN) > begun, "it is back")  # noqa: B023
                    took[service].append((said(agent, AGAIN) - begun) * 1000)
            ensemble.mend()
    note = (
        f"{EACH} agents that wait and {EACH} registrars, {LEADERS} leaders of three servers; the floor is"
        " the election: until a server says that it leads; the column on the right is kazoo with its defaults"
    )
    return [
        Row("leader killed: an agent that waits is back", " ms", took[WAITS], 500, election, "600 ms", note),
        Row("leader killed: a registrar is back", " ms", took[RUNS], 500, election, "600 ms"),
    ]


def _supervised(bench: Bench) -> list[Row]:
    """A stop, and what stays resident until then."""
    deployment = bench.deployment(SERVICE, daemon={"stop_grace": 0.2})
    site = Site(deployment, bench.zk, SERVICE)
    took, rss = [], []
    for _ in range(10):
        agent = bench.start(deployment, SERVICE, **SUPERVISE)
        await_ready(bench, deployment, agent)
        rss.append(psutil.Process(agent.pid).memory_info().rss / MEGABYTE)
        took.append(_withdrawn_after(bench, site, agent))
        bench.end(agent)
    note = "the process that is the daemon's parent"
    return [
        Row("supervise: SIGTERM to readiness withdrawn", " ms", took, 50, peer="a session timeout"),
        Row("supervise: resident memory", " MB", rss, 16, [bare_python() for _ in range(5)], "26 MB", note),
    ]


def _withdrawn_after(bench: Bench, site: Site, agent: Agent) -> float:
    gone: list[float] = []
    (instance,) = site.instances()
    bench.zk.exists(f"{site.daemon()}/ready/{instance}", watch=lambda event: gone.append(time.time()))
    time.sleep(PAUSE)
    begun = time.time()
    agent.signal(signal.SIGTERM)
    eventually(lambda: gone, "it is withdrawn")
    return (gone[0] - begun) * 1000


def _holder_killed(bench: Bench) -> list[Row]:
    """By the server's stamp on the claim."""
    timeout = {"KOLLA_ZK_SESSION_TIMEOUT": "4"}
    once = {"command": ["/bin/sh", "-c", f"{bench.marks.leave}; exec sleep 1000"], "run_once": True}
    took = []
    for _ in range(5):
        deployment = bench.deployment(SERVICE, {"once": once}, daemon=None)
        holder = bench.start(deployment, SERVICE, **timeout)
        bench.marks.take()
        other = bench.start(deployment, SERVICE, **timeout)
        other.says("is running it")
        begun = time.time()
        os.kill(holder.pid, signal.SIGKILL)
        bench.marks.take()
        role = SERVICE.rsplit("/", 1)[-1]
        took.append(changed(bench, f"{deployment.path}/status/global/{role}/once/detail") - begun)
        bench.end(holder, other)
    note = "the floor is the session timeout: nobody but the server knows of the end of a killed agent"
    return [Row("kill -9 of a holder to the next claim", " s", took, 6, (4.0,), note=note)]


def _end_quietly(containers: Containers) -> None:
    """It shows what they have said, which is for a test."""
    with contextlib.redirect_stdout(None):
        containers.end()
