"""The one way out of the hosts' networks, which the tests themselves make."""

from __future__ import annotations

import gc
import socket

import pytest

from drills.openstack.networks import Network
from tests.support.zookeeper import HOST

ADDRESS = "10.79.0.11"


@pytest.mark.parametrize("connections", [0, 2])
def test_a_relay_carries_and_leaves_nothing_open(connections: int) -> None:
    """At its end all connections are closed; what is left open would fail this test."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with Network("kmr", {"one": ADDRESS}) as network:
            network.relay("one", port)
            with network.inside("one"):
                clients = [socket.create_connection((ADDRESS, port)) for _ in range(connections)]
            ends = [server.accept()[0] for _ in clients]
            for each in clients:
                each.sendall(b"x")
            assert b"".join(each.recv(1) for each in ends) == b"x" * connections
        assert [each.recv(1) for each in clients] == [b""] * connections
    for each in (*clients, *ends):
        each.close()
    gc.collect()
