"""The private ZooKeeper server: it serves, keeps its data, and says why it has ended."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start import settings
from kolla_mesos_start.ctl.up.private_zookeeper import HOST, PrivateZooKeeper, free_port
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.errors import AgentError
from tests.support.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrivateZooKeeper]:
    """A server in a directory whose name zoo.cfg could not hold; not started yet."""
    (tmp_path / "q 'ü\\-").mkdir()
    server = PrivateZooKeeper(tmp_path / "q 'ü\\-" / "zookeeper")
    yield server
    server.kill()


def operator_of(server: PrivateZooKeeper) -> OperatorClient:
    own = {"KOLLA_APP_ID": "/site/operator", "KOLLA_HOSTNAME": "here", **server.environ}
    return connection.connect(settings.parse(own))


def client_of(server: PrivateZooKeeper) -> KazooClient:
    """A client without a credential."""
    client = KazooClient(server.hosts)
    client.start(timeout=30)
    return client


def test_it_serves_and_keeps_its_data_and_its_port(server: PrivateZooKeeper) -> None:
    """Also when it was killed; before its start and after its end it does not serve."""
    assert not server.serves
    assert not server.has_ended
    for number in range(2):
        server.start()
        eventually(lambda: server.serves, "it serves")
        client = client_of(server)
        assert (client.exists("/kept") is not None) == bool(number)
        client.ensure_path("/kept")
        client.stop()
        client.close()
        server.kill()
        assert server.has_ended
        assert not server.serves


def test_it_is_not_used_if_somebody_else_was_faster(server: PrivateZooKeeper) -> None:
    """What was written before it was secured could be anything."""
    server.start()
    eventually(lambda: server.serves, "it serves")
    other, operator = client_of(server), operator_of(server)
    other.create("/kolla")
    with pytest.raises(AgentError, match="somebody else has written /kolla to the private ZooKeeper"):
        server.secure(operator)
    other.stop()
    other.close()
    operator.close()


def test_its_last_lines_say_why_it_has_ended(server: PrivateZooKeeper) -> None:
    """A port that is taken, for example."""
    with socket.create_server((HOST, server.port)):
        server.start()
        eventually(lambda: server.has_ended, "it ends")
    lines = server.last_lines().splitlines()
    assert lines[0] == f"the end of {server.log}:"
    assert "Address already in use" in "".join(lines)


def test_a_free_port_is_never_one_that_the_kernel_gives_to_connections() -> None:
    """And no process listens on it."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert max(ports) < max(lowest, 10100)
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deployments that start at the same time would often share one: no program listens there yet.

    A port is free again when the process that had it has ended.
    """
    draw = "import sys; from kolla_mesos_start.ctl.up.private_zookeeper import free_port"
    program = f"{draw}; print(free_port(), flush=True); sys.stdin.read()"
    with subprocess.Popen((sys.executable, "-c", program), stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout
        theirs = int(other.stdout.readline())
        mine, excluded = free_port(), theirs + 1
        drawn = iter([theirs, mine, excluded, *range(20000, 21000)])
        monkeypatch.setattr("random.randrange", lambda low, high: next(drawn))
        assert free_port({excluded}) not in {theirs, mine, excluded}
        other.communicate()
    drawn = iter([theirs])
    assert free_port() == theirs
