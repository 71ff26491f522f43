"""A proxy before a ZooKeeper server, in a thread, that answers some requests with an error of its choice.

Such a request is not applied: the server gets one that reads `/` in its place.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from tests.support.lossy_proxy import HOST, OPERATION, XID

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL, GET_CHILDREN, SYNC = range(1, 10)
GET_CHILDREN2, CHECK, MULTI, AUTH, CLOSE = 12, 13, 14, 100, -11
AUTH_XID, PING = -4, 11
READ_ROOT = struct.pack("!ii", EXISTS, 1) + b"/\0"


class Lie(NamedTuple):
    """Answer requests of this kind that contain `text` with the error `code`: for a transaction, that of its
    first operation if it is `inner`, else of the whole."""

    kind: int
    code: int
    inner: bool = False
    text: bytes = b""


class FalseReplies:
    """`lie`: the present one; `requests` counts those that came, by kind."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.lie: Lie | None = None
        self.requests: Counter[int] = Counter()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> FalseReplies:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    @property
    def hosts(self) -> str:
        return f"{HOST}:{self.port}"

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        _end(*self._sockets)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, work: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):  # the end
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._target))
                self._sockets += [client, server]
                lies: dict[bytes, bytes] = {}
                self._start(partial(self._ask, client, server, lies))
                self._start(partial(self._answer, server, client, lies))

    def _ask(self, client: socket.socket, server: socket.socket, lies: dict[bytes, bytes]) -> None:
        for number, frame in enumerate(_frames(client)):
            if number:  # The first one connects.
                frame = self._changed(frame, lies)
            with suppress(OSError):
                server.sendall(frame)
        _end(client, server)

    def _changed(self, frame: bytes, lies: dict[bytes, bytes]) -> bytes:
        """What the server gets in place of a request."""
        (kind,) = struct.unpack("!i", frame[OPERATION])
        self.requests[kind] += 1
        lie = self.lie
        if not lie or lie.kind != kind or lie.text not in frame:
            return frame
        inner = kind == MULTI and lie.inner
        body = struct.pack("!qi", 0, 0 if inner else lie.code)
        lies[frame[XID]] = body + (results(frame, lie.code) if inner else b"")
        return frame if kind == AUTH else struct.pack("!i", 4 + len(READ_ROOT)) + frame[XID] + READ_ROOT

    def _answer(self, server: socket.socket, client: socket.socket, lies: dict[bytes, bytes]) -> None:
        for number, frame in enumerate(_frames(server)):
            if number and frame[XID] in lies:
                body = frame[XID] + lies.pop(frame[XID])
                frame = struct.pack("!i", len(body)) + body
            with suppress(OSError):
                client.sendall(frame)
        _end(client, server)


def _end(*connections: socket.socket) -> None:
    for each in connections:
        with suppress(OSError):  # It has ended.
            each.shutdown(socket.SHUT_RDWR)


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Each packet with its length before it, until the connection ends."""
    with suppress(OSError), connection.makefile("rb") as file:
        while len(length := file.read(4)) == 4:
            yield length + file.read(int.from_bytes(length, "big"))


def results(frame: bytes, code: int) -> bytes:
    """Those of a transaction whose first operation failed with `code`, and the others because of it."""
    codes = [code, *(-2 for _ in range(len([*_kinds(frame)]) - 1))]
    failed = b"".join(struct.pack("!i?ii", -1, False, each, each) for each in codes)
    return failed + struct.pack("!i?i", -1, True, -1)


def _kinds(frame: bytes) -> Iterator[int]:
    """The kinds of the operations of a transaction."""
    at = OPERATION.stop
    while True:
        kind, done, _ = struct.unpack_from("!i?i", frame, at)
        at += 9
        if done:
            return
        yield kind
        at = _skip(frame, at)  # the path
        if kind in (CREATE, SET_DATA):
            at = _skip(frame, at)  # the data
        if kind == CREATE:
            (entries,) = struct.unpack_from("!i", frame, at)
            at += 4
            for _ in range(entries):
                at = _skip(frame, _skip(frame, at + 4))
        at += 4  # flags or version


def _skip(frame: bytes, at: int) -> int:
    """Past a string."""
    length: int = struct.unpack_from("!i", frame, at)[0]
    return at + 4 + max(0, length)
