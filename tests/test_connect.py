"""Connections of the agent that break while they are made leave no descriptor open."""

from __future__ import annotations

import gc
import select
import socket
import ssl
from typing import Any

import pytest

from kolla_mesos_start import probes
from kolla_mesos_start.zookeeper.connect import Task
from tests.peer import RESET, Peer


def test_a_server_that_resets_before_tls_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises an error for a connected socket that is reset when it is wrapped, and leaves it open."""
    wrap = ssl.SSLContext.wrap_socket

    def wrap_late(context: ssl.SSLContext, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        poller = select.poll()
        poller.register(sock, 0)  # POLLHUP and POLLERR always are reported.
        assert poller.poll(60_000), "neither unconnected nor reset"
        return wrap(context, sock, **options)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap_late)
    peer = Peer(RESET).start()
    try:
        task = Task(probes.http(f"https://{peer.tcp}/"))
        task.run(True)
        while not task.ended:
            poller = select.poll()
            poller.register(*task.interest or (-1, 0))
            poller.poll(60_000)
            task.run(True)
    finally:
        peer.stop()
    assert isinstance(task.error, OSError)  # It keeps the frames alive in which the socket was made.
    sockets = [found for found in gc.get_objects() if isinstance(found, ssl.SSLSocket)]
    assert [found for found in sockets if found.fileno() >= 0] == []
