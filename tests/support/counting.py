"""A line to the server that counts what goes over it, connection by connection."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Callable, NamedTuple

from tests.support.tap import Tap, read_packet
from tests.support.zookeeper import Server

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


class Line(Tap):
    """`connections` are the requests of each client that came, in order."""

    def __init__(self, server: Server) -> None:
        self.connections: list[list[Request]] = []
        super().__init__(server, "", lambda: None)

    def _pumps(self) -> Sequence[Callable[[socket.socket, socket.socket], None]]:
        self.connections.append([])
        return partial(self._count, self.connections[-1]), self._answer

    def _count(self, requests: list[Request], client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(client):
                requests.append(_request(packet) if requests else Request(CONNECT, ""))
                server.sendall(packet)
        server.close()


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
