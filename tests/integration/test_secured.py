"""A deployment on a secured ensemble of three servers: each service has its own certificate, and no more.

What holds on a server without TLS is tested elsewhere. Here it has to hold while leaders die, sessions expire
and certificates are replaced.
"""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from kolla_mesos_start.errors import NoConnection
from kolla_mesos_start.operator import connection
from kolla_mesos_start.settings import parse
from tests.conftest import connected
from tests.secured import Secured
from tests.waiting import eventually


def test_everybody_is_known_by_a_certificate(secured: Secured, secured_zk: KazooClient) -> None:
    """Whoever has none can't connect, and nobody gets what is another's."""
    path = "/of-web"
    secured_zk.create(path, b"", acl=[make_acl("x509", "CN=web", all=True)])
    for name, may in (("web", True), ("db", False)):
        for client in connected(secured, **secured.options(name)):
            if may:
                assert client.get(path)[0] == b""
            else:
                with pytest.raises(NoAuthError):
                    client.get(path)
    assert [server.mode for server in secured.servers].count("leader") == 1
    secured_zk.delete(path)
    (ca, *_) = secured.environment("web").values()
    environ = {"KOLLA_ZK_HOSTS": secured.hosts, "KOLLA_APP_ID": "/a/b", "KOLLA_ZK_CONNECT_TIMEOUT": "1"}
    with pytest.raises(NoConnection, match="wants a client certificate"):
        connection.connect(parse({**environ, "KOLLA_ZK_CA": ca}))


def test_a_session_can_be_ended_from_outside(secured: Secured, secured_zk: KazooClient) -> None:
    """Only its id has to be known; its owner opens another one."""
    before, _ = secured_zk.client_id
    secured.expire(before)
    eventually(lambda: secured_zk.client_id and secured_zk.client_id[0] not in (0, before), "another session")
