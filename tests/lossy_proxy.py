"""A proxy before a ZooKeeper server that breaks one connection around one transaction; else it just carries.

python lossy_proxy.py LISTEN TARGET NUMBER request|reply [PID]        ports of 127.0.0.1

The transaction of this number, counted over all connections, loses its `request` (the server
never gets it) or its `reply` (it is applied, but nobody hears of it). Its connection is closed;
PID, the server itself, is killed together with the reply.
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

    def __init__(self, target: int, number: int, loses: str, kills: int) -> None:
        self.target = target
        self.number = number
        self.loses = loses
        self.kills = kills
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
            if frame[OPERATION] == MULTI:
                self.seen += 1
                if self.seen == self.number:
                    if self.loses == "request":
                        return
                    self.lost = frame[XID]
            writer.write(frame)

    async def replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for frame in frames(reader):
            if self.lost and frame[XID] == self.lost:
                self.lost = b""
                if self.kills:
                    os.kill(self.kills, signal.SIGKILL)
                return
            writer.write(frame)


async def serve(listen: int, proxy: Proxy) -> None:
    """Carry until the process is ended."""
    await asyncio.start_server(proxy.carry, HOST, listen)
    await asyncio.Event().wait()


if __name__ == "__main__":
    port, target, number, loses, *kills = sys.argv[1:]
    asyncio.run(serve(int(port), Proxy(int(target), int(number), loses, int(kills[0]) if kills else 0)))
