"""A server that never answers a `sync` and goes on, as one may after an election (ZOOKEEPER-1863)."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from tests.integration.test_one_time import SHORT, Site
from tests.integration.test_one_time import site as site
from tests.tap import Tap, read_packet
from tests.zookeeper import Server

SYNC = struct.pack(">i", 9)


class Swallow(Tap):
    """Passes everything on, but the reply to the first `sync`."""

    xid = b""

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(client):
                if packet[8:12] == SYNC and not self.xid:
                    self.xid = packet[4:8]
                server.sendall(packet)
        server.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(server):
                if not self.acted and packet[4:8] == self.xid and len(packet) > 8:
                    self.acted = True
                    continue
                client.sendall(packet)
        client.close()


def test_a_sync_that_is_never_answered_costs_a_connection(zookeeper: Server, site: Site) -> None:
    """The agent connects again, and goes on."""
    swallow = Swallow(zookeeper, "", lambda: None)
    try:
        site.publish(sync=site.once(gate=None))
        agent = site.start(**SHORT, KOLLA_ZK_HOSTS=swallow.hosts)
        assert agent.ends() == 0
    finally:
        swallow.close()
    assert swallow.acted
