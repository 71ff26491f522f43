"""A connection to a server that a test can cut: agents that use it have an outage, the test has none."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.zookeeper import HOST, Process, Server, free_port

PROXY = Path(__file__).with_name("tcp_proxy.py")


class Link(Process):
    """A proxy to `server` with its own port.

    `kill()` closes every connection over it, and refuses new ones until `launch()`; `freeze()`
    leaves them open and silent until `thaw()`.
    """

    def __init__(self, server: Server, log: Path) -> None:
        port = free_port()
        super().__init__((sys.executable, str(PROXY), f"{port}:{server.port}"), log)
        self.hosts = f"{HOST}:{port}"
        self.launch()
