"""A connection or a session that ends in the middle of what an agent or the tool does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.tree.published import stamp
from kolla_mesos_start.tree.status import StatusTree
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.client import Client
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.view import data_of
from kolla_mesos_start.zookeeper.wire import Create
from tests.conftest import Deployment
from tests.server.test_session import servers
from tests.support.secured import password
from tests.support.waiting import LIMIT

DEFINITION = b'{"name": "infra/db", "commands": {"sync": {"command": "true"}}}'


class Expiring(Client):
    """A client whose session ends right before its first contender is created, if `expires`."""

    expires = False

    def attempt(self, operation: Any, what: str, meanwhile: Callable[[], object] | None = None) -> Any:
        if isinstance(operation, Create) and self.expires:
            self.expires = False
            other = KazooClient(self.hosts, client_id=(self.session.id, password(self.session.id)))
            other.start()
            other.stop()  # It closes the session of both.
            other.close()
        return super().attempt(operation, what, meanwhile)

    def __init__(self, hosts: str) -> None:
        super().__init__(servers(hosts), 10.0, OPEN_ACL_UNSAFE, Loop())
        self.hosts = hosts


@pytest.fixture
def client(deployment: Deployment) -> Iterator[Expiring]:
    client = Expiring(deployment.hosts)
    client.connect(30.0)
    yield client
    client.close()


def test_one_contender_is_enough_if_the_session_expires_while_it_is_created(
    zk: KazooClient, deployment: Deployment, client: Expiring
) -> None:
    """With a second one, a container would wait behind itself, and block all others."""
    lock = f"{deployment.path}/lock"
    first = zk.create(f"{lock}/other__lock__", b"", ephemeral=True, sequence=True, makepath=True)
    queues = Queues(client, "web1")
    client.expires = True
    before = client.session.id
    assert queues.turn(lock) is None
    assert client.session.id != before
    assert queues.turn(lock) is None
    again = Queues(client, "web1")  # After the definition has changed.
    assert again.turn(lock) is None
    client.loop.wait(lambda: not client.ephemerals.discarding, now() + LIMIT)
    assert len(zk.get_children(lock)) == 2
    zk.delete(first)
    client.watches.watch(queues.queries(lock))
    client.loop.wait(client.watches.fresh)
    contender = queues.turn(lock)
    assert contender and contender == again.turn(lock) and zk.exists(contender)


def test_a_definition_does_not_change_by_an_outage(
    zk: KazooClient, deployment: Deployment, client: Expiring
) -> None:
    """It is read again first: a start that failed during an outage ends with its own reason."""
    znodes = Znodes(deployment.prefix, deployment.id, "infra/db", "web1")
    zk.create(znodes.definition, DEFINITION, makepath=True)
    query = data_of(znodes.definition)
    client.watches.kept = frozenset([query])
    client.watches.watch(())
    client.loop.wait(client.watches.fresh)
    read = stamp(client.watches.results[query])
    graph = keys.build(load(DEFINITION), "infra/db", lambda text: text.text)
    tree = StatusTree(client, znodes, graph, 1, {znodes.definition: read})
    for changed in (None, znodes.definition):
        assert client.session._socket
        client.session._socket.shutdown(socket.SHUT_RDWR)
        client.loop.wait(lambda: not client.connected)
        if changed:
            zk.set(znodes.definition, b"{}")
        assert tree.changed() == changed
