"""A link to a server that a test can cut: an agent behind it is in an outage, the test is not."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.zookeeper import HOST, Process, Server, free_port

PROXY = Path(__file__).with_name("tcp_proxy.py")


class Link(Process):
    """A way to `server`, by a port of its own.

    `kill()` closes every connection over it, and refuses new ones until `launch()`; `freeze()`
    leaves them open and silent until `thaw()`.
    """

    def __init__(self, server: Server, log: Path) -> None:
        port = free_port()
        super().__init__((sys.executable, str(PROXY), f"{port}:{server.port}"), log)
        self.hosts = f"{HOST}:{port}"
        self.launch()
