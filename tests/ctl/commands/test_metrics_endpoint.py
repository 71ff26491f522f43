"""The address of the endpoint."""

from __future__ import annotations

import socket

import pytest

from kolla_mesos_start.ctl.commands import metrics
from kolla_mesos_start.ctl.commands.metrics import Server, address
from kolla_mesos_start.errors import BadUsage, CannotWrite
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, free_port


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9105", ("127.0.0.1", 9105)),
        ("monitor.example.org:1", ("monitor.example.org", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "9105", ":9105", "h", "h:", "h:-1", "h:+1", "h:٣", "::1:9105", "[::1]", "[]:1"],
)
def test_another_address_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(BadUsage, match=r"expected HOST:PORT, such as 127\.0\.0\.1:9105"):
        address(text)


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_has_its_limits(port: str) -> None:
    with pytest.raises(BadUsage, match=f"--listen h:{port}: the port must be 1 to 65535"):
        address(f"h:{port}")


@pytest.mark.parametrize(
    ("host", "why"),
    [("fe80::1%none", "Name or service not known"), ("192.0.2.1", "Cannot assign requested address")],
)
def test_an_address_of_another_machine_is_an_error(host: str, why: str) -> None:
    """A name that does not resolve, and an address that no interface has."""
    remedy = r"give an address of this machine, or 0\.0\.0\.0"
    with pytest.raises(CannotWrite, match=f"--listen {host}:9105: {why}.*: {remedy}"):
        Server(host, 9105)


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a few hundred of them would use up all descriptors, and the connection to ZooKeeper's."""
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT", 0.5)
    port = free_port()
    with Server(HOST, port) as server:
        server.serve(lambda: b"")
        with socket.create_connection((HOST, port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")

            def is_disconnected() -> bool:
                try:
                    client.sendall(b"a")
                except ConnectionError:
                    return True
                return False

            eventually(is_disconnected, "the slow client is disconnected")
        server.shutdown()
