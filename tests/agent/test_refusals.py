"""What agent, registrar and tool do when ZooKeeper refuses something: they say it, and ask with pauses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment, connected, made
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

SERVICE = "infra/db"
MEMBER = f"{'ab' * 16}__party__"
DAEMON = {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}}
WINDOW = 4.0  # seconds in which requests are counted
MOST = 50  # requests a second; without pauses there would be a thousand


def rate(server: Server) -> float:
    """Requests a second that the server receives."""
    before, begun = server.packets(), time.monotonic()
    eventually(lambda: time.monotonic() > begun + WINDOW, "requests are counted")
    return (server.packets() - before) / (time.monotonic() - begun)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that enforces quotas."""
    with Server(tmp_path_factory.mktemp("limited"), java=["-Dzookeeper.enforceQuota=true"]) as server:
        yield server


class Limited(NamedTuple):
    """A deployment on that server, a client, and what starts its containers."""

    server: Server
    zk: KazooClient
    deployment: Deployment
    containers: Containers

    def use_up(self) -> None:
        """From now on nothing can be created."""
        at = f"/zookeeper/quota{self.deployment.path}"
        self.zk.ensure_path(at)
        limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1"
        self.zk.create(f"{at}/zookeeper_limits", limits)
        self.zk.create(f"{at}/zookeeper_stats", b"count=0,bytes=0")


@pytest.fixture
def full(limited: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    for zk in connected(limited):
        for deployment in made(limited, zk):
            containers = Containers(tmp_path_factory.mktemp("c"), deployment.environ)
            yield Limited(limited, zk, deployment, containers)
            containers.end()
            zk.delete(f"/zookeeper/quota{deployment.prefix}", recursive=True)


@pytest.mark.parametrize(
    "place", ["infra/db/.party", "infra/db/.containers", "status/global/db/daemon/ready"]
)
def test_a_child_in_the_place_of_an_ephemeral_is_named_once(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, place: str
) -> None:
    """Nothing else can be done about it: a znode with children can't be replaced."""
    publish(deployment, SERVICE, DAEMON)
    occupied = f"{deployment.path}/{place}/{MEMBER}"
    zk.create(f"{occupied}/child", b"", makepath=True)
    state = containers.directory / "state"
    state.mkdir()
    (state / "registration").write_text(f"{MEMBER}\n")
    agent = containers.start(SERVICE, KOLLA_STATE_DIR=str(state))
    agent.says(f"{occupied} can't be deleted: something is below it: remove that (NotEmptyError); retrying")
    assert rate(zookeeper) < MOST
    assert agent.running and agent.said.count("NotEmptyError") <= 2, (
        "once by the agent, once by its registrar"
    )
    zk.delete(f"{occupied}/child")
    eventually(lambda: zk.exists(occupied).ephemeralOwner, "it is registered", seconds=600)


QUOTA = "its quota is used up: raise it, or remove znodes (QuotaExceededError)"


def test_a_quota_that_is_used_up_ends_agent_and_tool(full: Limited) -> None:
    publish(full.deployment, SERVICE, DAEMON)
    full.use_up()
    agent = full.containers.start(SERVICE)
    assert agent.ends() == 69
    assert f"ZooKeeper refuses it: {QUOTA}" in agent.ending["reason"] and agent.ending["retriable"]
    assert QUOTA in ctl(full.deployment, "set", "new", "1", status=69).stderr


def test_a_registrar_tries_with_pauses_while_a_quota_is_used_up(full: Limited) -> None:
    publish(full.deployment, SERVICE, DAEMON)
    agent = full.containers.start(SERVICE)
    party = f"{full.deployment.path}/{SERVICE}/.party"
    eventually(lambda: agent.state == "ready" and full.zk.get_children(party), "it is registered")
    full.use_up()
    (member,) = full.zk.get_children(party)
    full.zk.delete(f"{party}/{member}")
    agent.says(f"{party}/{member} can't be created: {QUOTA}; retrying")
    assert rate(full.server) < MOST
    assert agent.running and agent.said.count("QuotaExceededError") == 1


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that demands a digest of every client."""
    java = ["-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest"]
    with Server(tmp_path_factory.mktemp("closed"), java=java) as server:
        yield server


def test_a_server_that_demands_an_identity(
    closed: Server, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Agent and tool name the variable to set, and work with it."""
    for zk in connected(closed, auth_data=[("digest", "web:secret")]):
        for deployment in made(closed, zk):
            credential = tmp_path / "credential"
            credential.write_text("digest:web:secret\n")
            credential.chmod(0o400)
            refused = ctl(deployment, "set", "new", "1", status=77).stderr
            assert "enforce.auth.schemes" in refused and "set KOLLA_ZK_AUTH_FILE" in refused
            ctl(deployment, "set", "new", "1", KOLLA_ZK_AUTH_FILE=str(credential))
            containers = Containers(tmp_path_factory.mktemp("c"), deployment.environ)
            agent = containers.start(SERVICE)
            assert agent.ends() == 77
            assert "set KOLLA_ZK_AUTH_FILE or" in agent.ending["reason"] and not agent.ending["retriable"]
            agent = containers.start(SERVICE, KOLLA_ZK_AUTH_FILE=str(credential))
            agent.says("is not published yet")
            containers.end()
