"""A web service whose answer is the name of its host.

web.py PORT
"""

import asyncio
import os
import signal
import sys

HOST = os.environ["KOLLA_HOSTNAME"] + "\n"


class Web:
    def __init__(self):
        self.ending = asyncio.Event()

    async def connection(self, reader, writer):
        """Answer the requests of one client, one after the other."""
        try:
            keep = True
            while keep:
                request, *_ = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
                keep = request.endswith("HTTP/1.1") and not self.ending.is_set()
                writer.write(self.answer(keep).encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has gone.
        finally:
            writer.close()

    def answer(self, keep):
        connection = "keep-alive" if keep else "close"
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(HOST)}\r\nConnection: {connection}\r\n\r\n{HOST}"

    async def serve(self, port):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ending.set)
        async with await asyncio.start_server(self.connection, port=port):
            await self.ending.wait()


if __name__ == "__main__":
    asyncio.run(Web().serve(int(sys.argv[1])))
