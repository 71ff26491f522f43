"""Containers that wait for something outside the deployment; tests/test_wait.py decides when they may run."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.agent.test_waiting import one_command_for_all, ran
from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.link import Link
from tests.support.peer import BROKEN, OK, Peer
from tests.support.publishing import publish
from tests.support.tool import tool
from tests.support.waiting import eventually

GO = "echo go >> ran"


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A server that refuses connections until it is started."""
    peer = Peer()
    yield peer
    peer.stop()


def external(kind: str, value: str, **more: Any) -> dict[str, Any]:
    return {"external": {kind: value}, "interval": 0.2, **more}


def told(zk: KazooClient, deployment: Deployment, service: str = "web") -> str:
    """What its one container says in ZooKeeper."""
    path = f"{deployment.path}/{service}/.containers"
    names = zk.get_children(path) if zk.exists(path) else []
    return str(json.loads(zk.get(f"{path}/{names[0]}")[0])["reason"]) if names else ""


@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_a_command_runs_when_something_outside_answers(
    zk: KazooClient, deployment: Deployment, containers: Containers, peer: Peer, kind: str
) -> None:
    """Log, tree, probes and `explain` say what is missing; of a URL only host and port."""
    wanted = external(kind, peer.tcp if kind == "tcp" else peer.url)
    publish(deployment, "web", one_command_for_all(wanted, command=GO))
    agent = containers.start("web")
    reason = f"web/go waits for external {kind} {peer.tcp}: Connection refused"
    agent.says(reason)
    eventually(lambda: told(zk, deployment) == reason, "others can see it")
    assert agent.state.endswith(reason)
    assert f"external {kind} {peer.tcp}: Connection refused (asked from" in tool(
        deployment, "explain", status=1
    )
    peer.answer = OK
    peer.start()
    assert agent.ends() == 0
    assert ran(agent) == ["go"]
    assert "secret" not in agent.said


def test_host_and_port_can_come_from_variables(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """They are rendered when the definition is read; a name is looked up."""
    peer.start()
    wanted = external("tcp", "{{ host }}:{{ port }}")
    definition = one_command_for_all(wanted, command=GO)
    publish(deployment, "web", definition, shared={"host": "localhost", "port": str(peer.port)})
    assert containers.start("web").ends() == 0


def test_past_the_limit_the_reason_has_the_last_error(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Of a URL only host and port are shown, and no connection stays open."""
    peer.answer = BROKEN
    peer.start()
    publish(deployment, "web", one_command_for_all(external("http", peer.url, timeout=1), command=GO))
    agent = containers.start("web")
    assert agent.ends() == 75
    reason = f"waited 1 s for external http {peer.tcp} (HTTP status 500, for "
    assert agent.ending["reason"].startswith(reason)
    assert "secret" not in agent.said + Path(agent.environ["KOLLA_TERMINATION_LOG"]).read_text()
    eventually(lambda: peer.open == 0, "no connection is left")
    assert ran(agent) == []


def test_a_name_that_does_not_resolve_is_reported(deployment: Deployment, containers: Containers) -> None:
    wanted = external("http", "http://no-such-host.invalid/secret")
    publish(deployment, "web", one_command_for_all(wanted))
    agent = containers.start("web")
    agent.says(
        "waits for external http no-such-host.invalid:80: the name no-such-host.invalid can't be resolved"
    )
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143


# -- signals and outages ----------------------------------------------------------------------------


def test_a_signal_ends_an_agent_that_asks_at_once(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Also before there is an answer; the connection is closed."""
    peer.start()
    publish(deployment, "web", one_command_for_all(external("http", peer.url)))
    agent = containers.start("web")
    agent.says("no answer yet")
    assert peer.open == 1
    agent.signal(signal.SIGTERM)
    assert agent.ends(30) == 143
    eventually(lambda: peer.open == 0, "no connection is left")


def test_a_signal_ends_a_name_look_up(deployment: Deployment, containers: Containers, tmp_path: Path) -> None:
    """It runs in a child, which would wait as long as the name server is silent."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.77\noptions timeout:30\n")
    with_name_server = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec "$@"'
    waiting = {"command": "sleep 600", "dependencies": [external("tcp", "db.example.org:3306")]}
    publish(deployment, "web", {"service": {"daemon": waiting}})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.77", 53))
        agent = containers.start("web", under=("unshare", "-m", "sh", "-c", with_name_server, "sh"))
        agent.says("waits for external tcp db.example.org:3306: no answer yet")
        assert len(agent.processes) == 2
        agent.signal(signal.SIGTERM)
        assert agent.ends(30) == 143
        eventually(lambda: not agent.processes, "nothing is left")


def test_something_outside_is_asked_during_an_outage(
    deployment: Deployment, containers: Containers, peer: Peer, link: Link
) -> None:
    """The command runs when ZooKeeper is back."""
    publish(deployment, "web", one_command_for_all(external("tcp", peer.tcp), command=GO))
    agent = containers.start("web", KOLLA_ZK_HOSTS=link.hosts)
    agent.says("waits for external")
    link.kill()
    agent.says("lost the connection to ZooKeeper")
    peer.start()
    eventually(lambda: len(peer.asked) > 1, "it is asked")
    assert ran(agent) == []
    link.launch()
    assert agent.ends() == 0
    assert ran(agent) == ["go"]


def test_many_questions_do_not_delay_pings(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Names are looked up and servers are silent: a short session stays alive."""
    peer.start()
    hosts = [f"n{number}.invalid:{peer.port}" for number in range(20)]
    wanted = [external("tcp", host) for host in hosts] + [external("http", peer.url, timeout=3)]
    publish(deployment, "web", one_command_for_all(*wanted))
    agent = containers.start("web", KOLLA_ZK_SESSION_TIMEOUT="4")
    assert agent.ends() == 75
    assert "lost the connection" not in agent.said
