"""A tap in the line between an agent and its server: a test acts between two requests of the agent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Callable

from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, Server

# ZooKeeper's numbers for what can be asked, and for what nobody has asked for.
EXISTS, GET_DATA, GET_CHILDREN = 3, 4, 8
EVENT = -1


class Tap:
    """Passes everything on, but acts once, right before a certain question about `path` is asked.

    All that was asked before has been answered by then, and nothing that is asked later has arrived.
    """

    def __init__(
        self, server: Server, path: str, action: Callable[[], None], question: int = GET_DATA
    ) -> None:
        self._server = server
        self._path = path.encode()
        self._question = struct.pack(">i", question)
        self._action = action
        self.acted = False
        self._asked = self._answered = 0
        self._listener = socket.create_server((HOST, 0))
        self.hosts = f"{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._server.port))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pump in self._pumps():
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _pumps(self) -> Sequence[Callable[[socket.socket, socket.socket], None]]:
        """The two directions of a new connection."""
        self._asked = self._answered = 0
        return self._ask, self._answer

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(client):
                # The path stands behind two numbers and its own length.
                if packet[8:12] == self._question and packet[16:-1] == self._path:
                    self._act()
                self._asked += 1
                server.sendall(packet)
        server.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(server):
                self._answered += packet[4:8] != struct.pack(">i", EVENT)
                client.sendall(packet)
        client.close()

    def _act(self) -> None:
        if not self.acted:
            self.acted = True
            eventually(lambda: self._answered == self._asked, "all that was asked is answered")
            self._action()


def read_packet(source: socket.socket) -> bytes:
    """The next packet, its length before it; empty at the end."""
    length = _exactly(source, 4)
    return length + _exactly(source, *struct.unpack(">i", length)) if length else b""


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data
