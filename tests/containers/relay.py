"""A way to ZooKeeper by an address and port of our choice, for containers that know no other.

python relay.py ADDRESS PORT TARGET     to the port TARGET of 127.0.0.1
"""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.tcp_proxy import carry
from tests.support.waiting import eventually
from tests.support.zookeeper import Process, Server


class Relay(Process):
    """Leads from `port` of `address` to `server`; it listens when it is made."""

    def __init__(self, server: Server, address: str, port: int, log: Path) -> None:
        super().__init__((sys.executable, __file__, address, str(port), str(server.port)), log)
        self.hosts = f"{address}:{port}"
        self.launch()
        eventually(lambda: _listens(address, port), f"{self.hosts} leads to ZooKeeper; {self.said()}")


def _listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


async def _serve(address: str, port: str, target: str) -> None:
    server = await asyncio.start_server(partial(carry, target=int(target)), address, int(port))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
