"""Boot: an agent may start long before ZooKeeper, and must connect as soon as it can."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.server.test_session import forgetful
from tests.support.agents import Agent, Containers
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, Ensemble, Server, free_port

RUNS = {"commands": {"go": {"command": "true"}}}
SOON = 15.0  # seconds; the back-off is at most 1 s


def passes(agent: Agent) -> None:
    assert agent.ends() == 0, agent.said


def tries(agent: Agent, why: str) -> None:
    agent.says("can't connect to ZooKeeper")
    (line,) = (line for line in agent.said.splitlines() if "can't connect to ZooKeeper" in line)
    assert why in line and f"at {agent.environ['KOLLA_ZK_HOSTS']} (" in line
    eventually(lambda: why in agent.health().stdout, "health says why")
    assert agent.health().stdout.startswith("waiting for a connection to ZooKeeper at ")
    assert agent.running
    assert agent.health().returncode == 0


def gives_up(agent: Agent) -> None:
    assert agent.ends(SOON) == 69
    assert "within 1 s (KOLLA_ZK_CONNECT_TIMEOUT)" in agent.ending["reason"]
    assert agent.ending["retriable"]


def test_an_agent_connects_to_a_server_that_starts_later(
    deployment: Deployment, containers: Containers, link: Link
) -> None:
    """Until then it reports that it waits, and its liveness probe succeeds."""
    publish(deployment, "web", RUNS)
    link.kill()
    agent = containers.start("web", KOLLA_ZK_HOSTS=link.hosts)
    tries(agent, "Connection refused")
    link.launch()
    begun = time.monotonic()
    passes(agent)
    assert time.monotonic() - begun < SOON


def test_an_agent_waits_for_an_ensemble_without_a_leader(
    ensemble: Ensemble, ensemble_deployment: Deployment, tmp_path: Path
) -> None:
    """One server of three takes connections and serves nobody; with the second one there is a quorum.

    Who waits no longer than it is told to ends with 69, here as where nobody listens.
    """
    publish(ensemble_deployment, "web", RUNS)
    containers = Containers(tmp_path, ensemble_deployment.environ)
    for server in ensemble.servers[1:]:
        server.kill()
    eventually(lambda: not ensemble.servers[0].mode, "the first serves nobody")
    agent = containers.start("web")
    hasty = containers.start("web", "web2", KOLLA_ZK_CONNECT_TIMEOUT="1")
    try:
        tries(agent, f"{ensemble.servers[0].hosts}: the server closed the connection without an answer")
        gives_up(hasty)
        ensemble.servers[1].launch_server()
        passes(agent)
    finally:
        containers.end()


@pytest.fixture
def silent() -> Iterator[str]:
    """A host that accepts a connection and never sends anything."""
    with socket.create_server((HOST, 0), backlog=16) as listening:
        yield f"{HOST}:{listening.getsockname()[1]}"


def test_dead_and_silent_hosts_only_delay_the_connection(
    deployment: Deployment, containers: Containers, silent: str
) -> None:
    """Hosts that refuse connections, that have unknown names, and one that hangs, in any order."""
    publish(deployment, "web", RUNS)
    dead = f"{HOST}:{free_port()}"
    hosts = ",".join([dead, "nowhere.invalid:2181", silent, deployment.hosts])
    agents = [
        containers.start("web", f"web{number}", KOLLA_ZK_HOSTS=hosts, KOLLA_ZK_SESSION_TIMEOUT="4")
        for number in range(6)
    ]
    for agent in agents:
        passes(agent)


def test_a_server_that_forgets_a_connection_during_its_start_is_tried_again(
    zookeeper: Server, deployment: Deployment, containers: Containers
) -> None:
    """Long before the session timeout."""
    publish(deployment, "web", RUNS)
    with forgetful(zookeeper, forgets=1) as port:
        agent = containers.start("web", KOLLA_ZK_HOSTS=f"{HOST}:{port}", KOLLA_ZK_SESSION_TIMEOUT="20")
        assert agent.ends(SOON) == 0  # measured: 2 s


def test_the_time_limit_also_applies_to_a_host_that_never_answers(
    deployment: Deployment, containers: Containers, silent: str
) -> None:
    """Even in the middle of an attempt, which may take as long as a session timeout."""
    gives_up(containers.start("web", KOLLA_ZK_HOSTS=silent, KOLLA_ZK_CONNECT_TIMEOUT="1"))


def test_a_name_that_does_not_resolve_yet_is_tried_again(
    zookeeper: Server, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """DNS may know a server as late as it starts. The agent has its own /etc/hosts."""
    publish(deployment, "web", RUNS)
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\n")
    bound = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(names))
    agent = containers.start("web", under=bound, KOLLA_ZK_HOSTS=f"zoo.test:{zookeeper.port}")
    agent.says("zoo.test")
    assert agent.running
    with names.open("a") as file:  # The same file: another one in its place would not be seen.
        file.write("127.0.0.1 zoo.test\n")
    passes(agent)


def test_many_agents_reconnect_at_different_instants(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, link: Link
) -> None:
    """The back-off has jitter, to protect a server that starts."""
    publish(deployment, "web", {"commands": {"go": {"command": "true", "dependencies": ["db/sync"]}}})
    agents = [containers.start("web", f"web{n}", KOLLA_ZK_HOSTS=link.hosts) for n in range(8)]
    for agent in agents:
        agent.says("waits for db/sync")
    for _ in range(3):  # A busy machine may stop them all for a moment.
        before = [len(_returns(agent)) for agent in agents]
        link.kill()
        time.sleep(3)  # The back-off grows to its cap.
        link.launch()
        # The server may drop a connection again while it starts: the first one counts.
        returns = [
            eventually(partial(_return, agent, count), "it is back") for agent, count in zip(agents, before)
        ]
        stamps = sorted(filter(None, returns))
        if stamps[-1] - stamps[0] > 0.05:
            break
    assert 0.05 < stamps[-1] - stamps[0] < 10  # cap: 1 s


def _return(agent: Agent, number: int) -> float | None:
    returns = _returns(agent)
    return returns[number] if len(returns) > number else None


def _returns(agent: Agent) -> list[float]:
    """When it was connected again, in seconds of the day."""
    lines = [line for line in agent.said.splitlines() if "connected to ZooKeeper again" in line]
    clocks = (line.split(" ")[0].rstrip("Z").split("T")[1].split(":") for line in lines)
    return [int(hours) * 3600 + int(minutes) * 60 + float(seconds) for hours, minutes, seconds in clocks]
