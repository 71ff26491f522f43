"""A line to the server that counts what goes over it, connection by connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from tests.support.tap import read_packet
from tests.support.zookeeper import HOST, Server

NAMES = {
    -11: "close",
    1: "create",
    2: "delete",
    3: "exists",
    4: "getData",
    5: "setData",
    8: "getChildren",
    9: "sync",
    11: "ping",
    12: "getChildren2",
    14: "multi",
    15: "create2",
}
CONNECT = "connect"


class Request(NamedTuple):
    """What was asked; `path` is empty where there is none."""

    name: str
    path: str


class Line:
    """`hosts` leads to the server; `connections` are the requests of each client that came, in order."""

    def __init__(self, server: Server) -> None:
        self.connections: list[list[Request]] = []
        self._server = server
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
                requests: list[Request] = []
                self.connections.append(requests)
                threading.Thread(target=self._ask, args=(client, server, requests), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, requests: list[Request]) -> None:
        with suppress(OSError):
            while packet := read_packet(client):
                requests.append(_request(packet) if requests else Request(CONNECT, ""))
                server.sendall(packet)
        server.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        client.close()


def summary(requests: list[Request]) -> str:
    """How many of each kind."""
    return ", ".join(f"{count} {name}" for name, count in Counter(r.name for r in requests).most_common())


def _request(packet: bytes) -> Request:
    """Behind the length stand the request's number and its kind; then mostly a path, after its length."""
    (kind,) = struct.unpack_from(">i", packet, 8)
    name = NAMES.get(kind, str(kind))
    if name in ("ping", "multi", "close"):
        return Request(name, "")
    (length,) = struct.unpack_from(">i", packet, 12)
    return Request(name, packet[16 : 16 + length].decode())
