"""A long outage of ZooKeeper: sessions survive if the server keeps them, and lost ones are replaced.

The first tests share one outage, which is longer than every session timeout here: after a restart, a server
counts each timeout from its start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.agent.test_presence import sessions
from tests.conftest import Deployment, connected, made
from tests.support.agents import Agent, Containers
from tests.support.instances import INSTANCE_DATA, Site
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

OUTAGE = 30.0  # seconds; in the benchmarks
BACK = 1.5  # seconds; the last of eight is back by then on a machine that has nothing else to do
SOON = 25.0  # seconds; an agent that has missed something looks again after thirty
SUPERVISE = {"KOLLA_START_MODE": "supervise"}
AGAIN = "connected to ZooKeeper again"
WAITS, RUNS, ENDS, LATER = "infra/waits", "openstack/runs", "openstack/ends", "infra/later"
SLEEPS = {"command": "sleep 1000", "ready": {"alive": 0}}


class Outage(NamedTuple):
    """What happened in it. `waiting` and `running` are the eight agents; `ephemerals`: session and czxid of
    each one, by its path, before and after."""

    waiting: Sequence[Agent]
    running: Sequence[Agent]
    ephemerals: Sequence[Mapping[str, tuple[int, int]]]
    probes: Sequence[int]
    """what `health --ready` said of those that run, in the outage"""
    ended: Agent
    """whose daemon has ended in the outage"""
    left: Mapping[int, str]
    """what was left of that then"""
    serves: float
    """seconds since the epoch"""

    @property
    def back(self) -> Sequence[float]:
        """For how long the server had served when each agent was back, seconds."""
        return [came_back(agent) - self.serves for agent in (*self.waiting, *self.running)]


def came_back(agent: Agent) -> float:
    """When an agent, or its registrar, has said that it is connected again: seconds since the epoch."""
    line = next(line for line in agent.said.splitlines() if AGAIN in line)
    return datetime.fromisoformat(line.partition("Z ")[0] + "+00:00").timestamp()


def ephemerals(zk: KazooClient, *sites: Site) -> dict[str, tuple[int, int]]:
    """Session and czxid of each member and each ready instance."""
    found = {}
    for site in sites:
        paths = [f"{site.party}/{member}" for member in site.members]
        paths += [f"{site.daemon()}/ready/{instance}" for instance in site.instances()]
        for path in paths:
            stat = zk.exists(path)
            found[path] = (stat.ephemeralOwner, stat.czxid)
    return found


@pytest.fixture(scope="module")
def outage(shared_zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """One for all these tests."""
    with gone_through(
        shared_zookeeper, tmp_path_factory.mktemp("c"), 10.0, KOLLA_ZK_SESSION_TIMEOUT="6"
    ) as outage:
        yield outage


@contextlib.contextmanager
def gone_through(
    server: Server, directory: Path, seconds: float = OUTAGE, **environ: str
) -> Iterator[Outage]:
    """Eight agents go through it: four that wait, three with registrars, one that supervises."""
    with contextlib.ExitStack() as stack:
        stack.callback(server.mend)
        zk = stack.enter_context(contextlib.contextmanager(connected)(server))
        deployment = stack.enter_context(contextlib.contextmanager(made)(server, zk))
        containers = Containers(directory, deployment.environ)
        stack.callback(containers.end)
        publish(deployment, WAITS, {"service": {"daemon": {**SLEEPS, "dependencies": ["db/daemon"]}}})
        for service in (RUNS, ENDS):
            publish(deployment, service, {"service": {"daemon": SLEEPS}})
        waits, runs = Site(deployment, zk, WAITS), Site(deployment, zk, RUNS)
        waiting = [containers.start(WAITS, f"wait{number}", **environ) for number in range(4)]
        running = [containers.start(RUNS, f"run{number}", **environ) for number in range(3)]
        running.append(containers.start(RUNS, "run3", **SUPERVISE, **environ))
        ended = containers.start(ENDS, **environ)
        waits.await_members(4)
        runs.await_instances(4)
        Site(deployment, zk, ENDS).await_instances(1)
        for agent in waiting:
            agent.says("waits for db/daemon")
        for agent in (*running, ended):
            eventually(lambda agent=agent: agent.state == "ready", "the probes know it")  # type: ignore[misc]
        before = ephemerals(zk, waits, runs)
        server.kill()
        over = time.monotonic() + seconds
        ended.end()
        eventually(lambda: not ended.registrar, "the registrar ends with its daemon", seconds=seconds - 1)
        left = ended.processes
        probes = [agent.health("--ready").returncode for agent in running]
        eventually(lambda: time.monotonic() >= over, "the outage is over", seconds=seconds + 5)
        server.launch_server()
        eventually(lambda: server.mode, "the server serves", every=0.01)
        serves = time.time()
        for agent in (*waiting, *running):
            agent.says(AGAIN)
        eventually(lambda: zk.connected, "the test is connected again")
        after = ephemerals(zk, waits, runs)
        ready = f"{deployment.path}/status/global/db/daemon/ready/one"
        zk.create(ready, INSTANCE_DATA, ephemeral=True, makepath=True)
        yield Outage(waiting, running, [before, after], probes, ended, left, serves)


def test_sessions_survive_the_outage(outage: Outage) -> None:
    """Members and instances are the same znodes of the same sessions."""
    before, after = outage.ephemerals
    assert len(before) == 4 + 4 + 4
    assert after == before
    assert not [agent.said for agent in outage.waiting if "expired" in agent.said]


def test_agents_reconnect_as_soon_as_the_server_is_back(outage: Outage) -> None:
    """The back-off has not grown past its limit."""
    print("back after", *(f"{seconds:.2f} s" for seconds in outage.back))
    assert max(outage.back) < 5 * BACK


def test_daemons_do_not_notice_the_outage(outage: Outage) -> None:
    """The probes report them as ready during the outage and after it."""
    assert outage.probes == [0] * 4
    assert all(agent.running and agent.state == "ready" for agent in outage.running)


def test_a_daemon_that_ends_in_an_outage_leaves_no_registrar(outage: Outage) -> None:
    """It tries to close the session as long as that can exist, and then ends."""
    assert outage.left == {}
    assert outage.ended.state == "ended the daemon has ended"


def test_agents_that_wait_continue_after_the_outage(outage: Outage) -> None:
    """Every watch is set again."""
    for agent in outage.waiting:
        eventually(lambda agent=agent: agent.state == "ready", "it continues")  # type: ignore[misc]


def test_a_new_session_sees_changes_during_the_outage(
    zookeeper: Server, deployment: Deployment, containers: Containers, zk: KazooClient, link: Link
) -> None:
    """A definition published while the session expires; a supervised daemon is registered again."""
    environ = {"KOLLA_ZK_HOSTS": link.hosts, "KOLLA_ZK_SESSION_TIMEOUT": "2"}
    publish(deployment, RUNS, {"service": {"daemon": SLEEPS}})
    runs = Site(deployment, zk, RUNS)
    # A session that is touched in that moment may be missing in one answer of the server.
    others = set().union(*(sessions(zookeeper) for _ in range(5)))
    later = containers.start(LATER, **environ)
    running = containers.start(RUNS, **environ, **SUPERVISE)
    later.says("is not published yet")
    runs.await_instances(1)
    before = ephemerals(zk, runs)
    eventually(lambda: len(sessions(zookeeper) - others) == 2, "each has a session")
    theirs = sessions(zookeeper) - others
    link.kill()
    publish(deployment, LATER, {"commands": {"go": {"command": "true"}}})
    eventually(lambda: not theirs & sessions(zookeeper), "both sessions have expired")
    link.launch()
    assert later.ends(SOON) == 0
    later.says("session has expired")
    runs.await_instances(1)
    after = ephemerals(zk, runs)
    assert after.keys() == before.keys() and len(after) == 2
    assert not theirs & {session for session, _ in after.values()}
    assert running.running


def test_health_says_that_zookeeper_is_waited_for(
    deployment: Deployment, containers: Containers, link: Link
) -> None:
    """Beside a dependency, and not that a command runs which has ended; afterwards as before."""
    waits = {"command": "true", "dependencies": ["infra/none"]}
    publish(deployment, "web", {"commands": {"first": waits}})
    ends = {"command": "until test -e end; do sleep 0.05; done", "run_once": True}
    publish(deployment, "api", {"commands": {"sync": ends}})
    waiting, running = (containers.start(name, KOLLA_ZK_HOSTS=link.hosts) for name in ("web", "api"))
    eventually(lambda: waiting.state.startswith("waiting web/first waits for infra/none"), "it waits")
    eventually(lambda: running.state == "bootstrapping api/sync", "it runs")
    link.kill()
    eventually(lambda: "no connection to ZooKeeper; as last known: web/first" in waiting.state, "it says so")
    (running.directory / "end").touch()
    eventually(lambda: running.state.startswith("waiting for an answer of ZooKeeper"), "it says so")
    link.launch()
    eventually(lambda: waiting.state.startswith("waiting web/first waits for infra/none"), "it waits again")
    assert running.ends() == 0
