"""Agents that wait for something outside of their deployment."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.agents import Containers
from tests.conftest import Deployment
from tests.integration.test_waiting import one_command_for_all, ran, write
from tests.link import Link
from tests.peer import BROKEN, OK, RESET, SILENT, Peer
from tests.publishing import publish
from tests.tool import tool
from tests.waiting import eventually
from tests.zookeeper import HOST

GO = "echo go >> ran"


@pytest.fixture
def peer() -> Iterator[Peer]:
    """What the agents wait for; it refuses until it is started."""
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
def test_a_command_runs_once_it_answers(
    zk: KazooClient, deployment: Deployment, containers: Containers, peer: Peer, kind: str
) -> None:
    """It is said what is waited for, and why in vain; of a URL only the host and the port."""
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


def test_what_is_said_first_is_all_that_is_waited_for(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Not only what has answered before all others."""
    peer.start()
    wanted = [external("tcp", "127.0.0.2:1"), "db/sync", external("http", peer.url)]
    publish(deployment, "web", one_command_for_all(*wanted))
    agent = containers.start("web")
    agent.says(
        "INFO kolla_mesos_start.wait: web/go waits for external tcp 127.0.0.2:1: Connection refused, "
        f"db/sync: not started, external http {peer.tcp}: no answer yet\n"
    )


def test_a_limit_sooner_than_any_answer_names_it_too(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    peer.start()
    publish(deployment, "web", one_command_for_all(external("http", peer.url)))
    agent = containers.start("web", KOLLA_WAIT_TIMEOUT="0.1")
    assert agent.ends() == 75
    assert agent.ending["reason"] == f"waited 0 s for external http {peer.tcp} (no answer yet)"


def test_what_answers_at_once_is_not_even_told(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    peer.start()
    publish(deployment, "web", one_command_for_all(external("tcp", peer.tcp), command=GO))
    agent = containers.start("web")
    assert agent.ends() == 0
    assert "waits" not in agent.said
    assert len(peer.asked) == 1


def test_a_name_and_an_address_may_come_from_variables(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """They are rendered when the definition is read; a name is looked up."""
    peer.start()
    wanted = external("tcp", "{{ host }}:{{ port }}")
    definition = one_command_for_all(wanted, command=GO)
    publish(deployment, "web", definition, shared={"host": "localhost", "port": str(peer.port)})
    assert containers.start("web").ends() == 0


@pytest.mark.parametrize(
    ("answer", "kind", "met"),
    [
        (SILENT, "http", "no answer yet"),
        (RESET, "http", "Connection reset by peer"),
        (BROKEN, "http", "HTTP status 500"),
        (b"220 mail\r\n", "http", "the answer is not HTTP"),
        (None, "http", "Connection refused"),
        (None, "tcp", "Connection refused"),
    ],
)
def test_past_its_limit_it_is_named_with_what_was_met(
    deployment: Deployment, containers: Containers, peer: Peer, answer: bytes | None, kind: str, met: str
) -> None:
    if answer is not None:
        peer.answer = answer
        peer.start()
    wanted = external(kind, peer.tcp if kind == "tcp" else peer.url, timeout=1)
    publish(deployment, "web", one_command_for_all(wanted, command=GO))
    agent = containers.start("web")
    assert agent.ends() == 75
    assert agent.ending["reason"].startswith(f"waited 1 s for external {kind} {peer.tcp} ({met}, for ")
    assert agent.ending["retriable"]
    assert "secret" not in agent.said + Path(agent.environ["KOLLA_TERMINATION_LOG"]).read_text()
    eventually(lambda: peer.open == 0, "no connection is left")
    assert ran(agent) == []


def test_a_name_that_does_not_resolve_is_named(deployment: Deployment, containers: Containers) -> None:
    wanted = external("http", "http://no-such-host.invalid/secret")
    publish(deployment, "web", one_command_for_all(wanted))
    agent = containers.start("web")
    agent.says(
        "waits for external http no-such-host.invalid:80: the name no-such-host.invalid can't be resolved"
    )
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143


def test_it_is_asked_again_until_the_turn_has_come(
    zk: KazooClient, deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """What answered may be gone by the time that all else is there."""
    peer.start()
    publish(deployment, "web", one_command_for_all("db/sync", external("tcp", peer.tcp), command=GO))
    agent = containers.start("web")
    agent.says("web/go waits for db/sync: not started")
    eventually(lambda: len(peer.asked) > 2, "it is asked again")
    peer.stop()
    eventually(lambda: "external" in told(zk, deployment), "it is gone")
    write(zk, deployment, {"status/global/db/sync": "done"})
    eventually(lambda: "db/sync" not in told(zk, deployment), "all else is there")
    assert ran(agent) == []
    peer.start()
    assert agent.ends() == 0
    assert ran(agent) == ["go"]


def test_a_lock_is_given_back_while_it_does_not_answer(
    zk: KazooClient, deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """A container that can't reach it must not keep others from the command."""
    definition = one_command_for_all(external("tcp", "{{ peer }}"), command=GO)
    definition["commands"]["go"]["run_once"] = True
    elsewhere = {"web1": {"peer": f"{HOST}:{peer.port}"}, "web2": {"peer": f"127.0.0.2:{peer.port}"}}
    publish(deployment, "web", definition, host_variables=elsewhere)
    cut_off = containers.start("web", "web1")
    cut_off.says("web/go waits for external")
    with socket.create_server(("127.0.0.2", peer.port)):
        other = containers.start("web", "web2")
        assert other.ends() == 0
    assert ran(other) == ["go"]
    peer.start()
    assert cut_off.ends() == 0
    assert ran(cut_off) == []


def test_it_is_left_alone_once_the_command_runs(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Nothing is polled that nothing waits for, and nothing stays open."""
    peer.answer = OK
    peer.start()
    commands = {
        "first": {"command": "touch begun; sleep 1", "dependencies": [external("http", peer.url)]},
        "second": {"command": "touch again"},
    }
    publish(deployment, "web", {"commands": commands})
    agent = containers.start("web")
    assert agent.ends() == 0
    assert max(peer.asked) <= (agent.directory / "begun").stat().st_mtime
    assert len(peer.asked) == 1


def test_what_the_daemon_waits_for_is_not_asked_while_commands_wait(
    zk: KazooClient, deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Its turn is last."""
    peer.start()
    definition = one_command_for_all("db/sync")
    definition["service"] = {
        "daemon": {"command": "sleep 600", "dependencies": [external("tcp", peer.tcp)], "ready": {"alive": 0}}
    }
    publish(deployment, "web", definition)
    agent = containers.start("web")
    agent.says("waits for db/sync")
    assert peer.asked == []
    write(zk, deployment, {"status/global/db/sync": "done"})
    agent.says("the daemon is ready")
    assert len(peer.asked) == 1


# -- signals and outages ----------------------------------------------------------------------------


def test_a_signal_ends_the_agent_at_once(deployment: Deployment, containers: Containers, peer: Peer) -> None:
    """Though there is no answer yet; the connection is closed."""
    peer.start()
    publish(deployment, "web", one_command_for_all(external("http", peer.url)))
    agent = containers.start("web")
    agent.says("no answer yet")
    assert peer.open == 1
    agent.signal(signal.SIGTERM)
    assert agent.ends(5) == 143
    eventually(lambda: peer.open == 0, "no connection is left")


def test_a_signal_ends_a_look_up_too(deployment: Deployment, containers: Containers, tmp_path: Path) -> None:
    """It runs in a child, which would go on for as long as its name server says nothing."""
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
        assert agent.ends(5) == 143
        eventually(lambda: not agent.processes, "nothing is left", seconds=5)


def test_an_outage_of_zookeeper_is_waited_for(
    deployment: Deployment, containers: Containers, peer: Peer, link: Link
) -> None:
    """It goes on being asked; the command runs once ZooKeeper is back."""
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


def test_many_questions_keep_no_session_from_its_pings(
    deployment: Deployment, containers: Containers, peer: Peer
) -> None:
    """Names are looked up, servers say nothing, and a short session lives on meanwhile."""
    peer.start()
    hosts = [f"n{number}.invalid:{peer.port}" for number in range(20)]
    wanted = [external("tcp", host) for host in hosts] + [external("http", peer.url, timeout=5)]
    publish(deployment, "web", one_command_for_all(*wanted))
    agent = containers.start("web", KOLLA_ZK_SESSION_TIMEOUT="4")
    assert agent.ends() == 75
    assert "lost the connection" not in agent.said
