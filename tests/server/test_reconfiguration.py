"""All servers of an ensemble are replaced one by one while agents run, as docs/guide/operate.rst describes.

Agents reach the servers by one name, whose addresses change with each server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.security import make_digest_acl_credential

from kolla_mesos_start.ctl.up import private_zookeeper
from tests.agent.test_one_time import Site as Commands
from tests.agent.test_outage import ephemerals
from tests.conftest import Deployment, connected
from tests.support.agents import Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import publish
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.zookeeper import Server, free_port

NAME = "zookeeper.test"
# Each agent has its own /etc/hosts, which the test changes.
RESOLVES = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')
OLD, NEW = (1, 2, 3), (4, 5, 6)
WAITS, RUNS = "infra/waits", "openstack/runs"


class Member(Server):
    """A server with an address of its own; all have the same port for clients."""

    def __init__(self, ensemble: Replaceable, number: int) -> None:
        self.address = f"127.0.0.{number + 1}"
        self.line = f"{self.address}:{free_port()}:{free_port()}:participant;{self.address}:{ensemble.port}"
        super().__init__(ensemble.directory / str(number), java=ensemble.java, my_id=number)
        self.port = ensemble.port

    def join(self, members: Sequence[Member]) -> None:
        """Start with a configuration of these members and itself."""
        self.settings = {
            "clientPortAddress": self.address,
            "reconfigEnabled": "true",
            "standaloneEnabled": "false",
            **{f"server.{each.my_id}": each.line for each in {*members, self}},
        }
        self.launch_server()

    @property
    def hosts(self) -> str:
        return f"{self.address}:{self.port}"

    def ask(self, word: str, seconds: float = 10.0) -> str:
        return private_zookeeper.ask(self.port, word, seconds, self.address)


class Replaceable:
    """The servers, and the file that resolves their name."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port, self.names = directory, free_port(), directory / "hosts"
        digest = make_digest_acl_credential("super", "secret")
        self.java = (f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest}",)
        self.members = {number: Member(self, number) for number in (*OLD, *NEW)}
        self.current = [self.members[number] for number in OLD]
        self.resolve()

    @property
    def hosts(self) -> str:
        return ",".join(member.hosts for member in self.members.values())

    def resolve(self) -> None:
        """Let the name have the addresses of the current members."""
        # In place: it is mounted.
        self.names.write_text("".join(f"{member.address} {NAME}\n" for member in self.current))

    def start(self) -> None:
        for member in self.current:
            member.join(self.current)
        for member in self.current:
            member.await_serving()

    def replace(self, zk: KazooClient, old: int, new: int) -> None:
        """Add a server, and then remove one."""
        joining, leaving = self.members[new], self.members[old]
        joining.join(self.current)
        joining.await_serving()
        reconfigure(zk, f"server.{new}={joining.line}", None)
        self.current.append(joining)
        self.resolve()
        reconfigure(zk, None, str(old))
        self.current.remove(leaving)
        self.resolve()
        leaving.kill()

    def stop(self) -> None:
        for member in self.members.values():
            member.kill()


def reconfigure(zk: KazooClient, joining: str | None, leaving: str | None) -> None:
    """Change the ensemble. It may elect a leader meanwhile."""

    def changed() -> bool:
        try:
            config, _ = zk.reconfig(joining, leaving, None)
        except KazooException:
            config, _ = zk.retry(zk.get, "/zookeeper/config")
        lines = config.decode().splitlines()
        if joining:
            return joining in lines
        return not any(line.startswith(f"server.{leaving}=") for line in lines)

    eventually(changed, f"{joining or leaving} has joined or left", every=0.5)


@pytest.fixture
def replaceable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaceable]:
    ensemble = Replaceable(tmp_path_factory.mktemp("zk"))
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.stop()


@pytest.fixture
def zk(replaceable: Replaceable) -> Iterator[KazooClient]:
    client = KazooClient(
        replaceable.hosts,
        timeout=20.0,
        auth_data=[("digest", "super:secret")],
        connection_retry={"max_tries": -1, "max_delay": 1.0},
        command_retry={"max_tries": -1, "max_delay": 1.0},
    )
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


def test_agents_follow_when_all_servers_are_replaced(
    replaceable: Replaceable, zk: KazooClient, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Instances stay registered, a one-time command continues, and who waits is woken by the new servers."""
    with ExitStack() as stack:
        deployment = Deployment(replaceable.hosts, "/kolla", "site")
        zk.ensure_path(deployment.path)
        containers = Containers(tmp_path_factory.mktemp("c"), deployment.environ)
        stack.callback(containers.end)

        def start(service: str, host: str) -> Agent:
            return containers.start(
                service,
                host,
                under=(*RESOLVES, str(replaceable.names)),
                KOLLA_ZK_HOSTS=f"{NAME}:{replaceable.port}",
                KOLLA_ZK_SESSION_TIMEOUT="20",
            )

        sleeps = {"command": "sleep 1000", "ready": {"alive": 0}}
        publish(deployment, RUNS, {"service": {"daemon": sleeps}})
        publish(deployment, WAITS, {"service": {"daemon": {**sleeps, "dependencies": ["db/sync"]}}})
        commands = Commands(deployment, zk, containers, tmp_path / "work")
        commands.publish(sync=commands.once())
        runs, waits = Site(deployment, zk, RUNS), Site(deployment, zk, WAITS)
        agents = [start(RUNS, "run1"), start(WAITS, "wait1"), start("infra/db", "web1")]
        runs.await_instances(1)
        waits.await_members(1)
        commands.running()
        before = ephemerals(zk, runs, waits)
        for old, new in zip(OLD, NEW):
            replaceable.replace(zk, old, new)
        after = stack.enter_context(contextmanager(connected)(replaceable.members[NEW[0]]))
        runs, waits = Site(deployment, after, RUNS), Site(deployment, after, WAITS)
        assert ephemerals(after, runs, waits) == before
        commands.let_go()
        waits.await_instances(1)
        assert agents[2].ends() == 0
        assert len(commands.runs()) == 1
        hosts = ",".join(replaceable.members[number].hosts for number in NEW)
        assert "3 of 3 services up" in ctl(deployment._replace(hosts=hosts), "status").stdout
