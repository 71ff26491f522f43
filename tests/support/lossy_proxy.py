"""A proxy before a ZooKeeper server that breaks one connection around one transaction; else it just carries.

python lossy_proxy.py LISTEN TARGET NUMBER request|reply [PID | own TEXT]        ports of 127.0.0.1

The transaction of this number, counted over all connections, loses its `request` (the server
never gets it) or its `reply` (it is applied, but nobody hears of it). Its connection is closed;
PID, the server itself, is killed together with the reply. With `own`, only transactions that
contain TEXT are counted, and the proxy ends with the loss: nobody can connect to it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

HOST = "127.0.0.1"
MULTI = (14).to_bytes(4, "big")
XID, OPERATION = slice(4, 8), slice(8, 12)


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Each packet with its length before it, until the connection ends."""
    while True:
        try:
            length = await reader.readexactly(4)
            yield length + await reader.readexactly(int.from_bytes(length, "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return


class Proxy:
    """What is to be lost, and how many transactions have come so far."""

    def __init__(self, target: int, number: int, loses: str, kills: int, text: bytes, ends: bool) -> None:
        self.target = target
        self.number = number
        self.loses = loses
        self.kills = kills
        self.text = text
        self.ends = ends
        self.seen = 0
        self.lost = b""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join one accepted connection to the server, until either end closes or something is lost."""
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.close()
            return
        ways = [self.requests(reader, server_writer), self.replies(server_reader, writer)]
        await asyncio.wait([asyncio.create_task(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        writer.close()
        server_writer.close()

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for frame in frames(reader):
            if frame[OPERATION] == MULTI and self.text in frame:
                self.seen += 1
                if self.seen == self.number:
                    if self.loses == "request":
                        self.end()
                        return
                    self.lost = frame[XID]
            writer.write(frame)

    async def replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for frame in frames(reader):
            if self.lost and frame[XID] == self.lost:
                self.lost = b""
                if self.kills:
                    os.kill(self.kills, signal.SIGKILL)
                self.end()
                return
            writer.write(frame)

    def end(self) -> None:
        if self.ends:
            os.kill(os.getpid(), signal.SIGKILL)


async def serve(listen: int, proxy: Proxy) -> None:
    """Carry until the process is ended."""
    await asyncio.start_server(proxy.carry, HOST, listen)
    await asyncio.Event().wait()


if __name__ == "__main__":
    port, target, number, loses, *more = sys.argv[1:]
    ends = more[:1] == ["own"]
    kills, text = (0, more[1].encode()) if ends else (int(more[0]) if more else 0, b"")
    asyncio.run(serve(int(port), Proxy(int(target), int(number), loses, kills, text, ends)))
