"""A proxy before a ZooKeeper server, in a thread, that answers some requests with an error of its choice.

Such a request is not applied: the server gets one that reads `/` in its place.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from tests.support.lossy_proxy import HOST, OPERATION, XID, frames
from tests.support.waiting import LIMIT

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FalseReplies:
        self._server = self._loop.run_until_complete(asyncio.start_server(self._carry, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread.start()
        return self

    @property
    def hosts(self) -> str:
        return f"{HOST}:{self.port}"

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LIMIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await asyncio.sleep(0.01)  # The last connection may just have been accepted.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(0)  # in which connections are closed

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        with suppress(asyncio.CancelledError):  # at the end of the test
            server_reader, server_writer = await asyncio.open_connection(HOST, self._target)
            writers.append(server_writer)
            lies: dict[bytes, bytes] = {}
            ways = [self._ask(reader, server_writer, lies), self._answer(server_reader, writer, lies)]
            await asyncio.wait([asyncio.create_task(w) for w in ways], return_when=asyncio.FIRST_COMPLETED)
        for each in writers:
            each.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lies: dict[bytes, bytes]
    ) -> None:
        connects = True
        async for frame in frames(reader):
            if connects:
                connects = False
                writer.write(frame)
                continue
            (kind,) = struct.unpack("!i", frame[OPERATION])
            self.requests[kind] += 1
            lie = self.lie
            if lie and lie.kind == kind and lie.text in frame:
                inner = kind == MULTI and lie.inner
                body = struct.pack("!qi", 0, 0 if inner else lie.code)
                lies[frame[XID]] = body + (results(frame, lie.code) if inner else b"")
                if kind != AUTH:
                    frame = struct.pack("!i", 4 + len(READ_ROOT)) + frame[XID] + READ_ROOT
            writer.write(frame)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lies: dict[bytes, bytes]
    ) -> None:
        connects = True
        async for frame in frames(reader):
            if not connects and frame[XID] in lies:
                body = frame[XID] + lies.pop(frame[XID])
                frame = struct.pack("!i", len(body)) + body
            connects = False
            writer.write(frame)


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
