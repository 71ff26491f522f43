"""A TCP proxy as a process of its own: stop the process, and the link is cut without a word to either end.

python tcp_proxy.py LISTEN:TARGET...        ports of 127.0.0.1
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

HOST = "127.0.0.1"
ATTEMPTS = 50
PAUSE = 0.02  # seconds


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either end closes, then close the other."""
    try:
        while True:
            data = await reader.read(65536)
            if not data:
                return
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def connect(target: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a follower does to the leader it has just elected: again for a while, if it is refused.

    The proxy has accepted already, so the follower itself will not; it would vote anew, and the
    leader wait for it until initLimit has passed.
    """
    for _ in range(ATTEMPTS):
        try:
            return await asyncio.open_connection(HOST, target)
        except ConnectionRefusedError:
            await asyncio.sleep(PAUSE)
    return await asyncio.open_connection(HOST, target)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, target: int) -> None:
    """Join one accepted connection to the target port."""
    try:
        target_reader, target_writer = await connect(target)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, target_writer), pump(target_reader, writer))


async def serve(links: list[tuple[int, int]]) -> None:
    """Carry all links until the process is ended."""
    for listen, target in links:
        await asyncio.start_server(partial(carry, target=target), HOST, listen)
    await asyncio.Event().wait()


if __name__ == "__main__":
    pairs = (argument.split(":") for argument in sys.argv[1:])
    asyncio.run(serve([(int(listen), int(target)) for listen, target in pairs]))
