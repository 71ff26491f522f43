"""A private ZooKeeper server of Debian's package, on the loopback interface.

What lives here: how to start one. It is for a few minutes on one machine: it starts quickly and
is small, and what it holds is lost with the power.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from pathlib import Path

from kolla_mesos_start.errors import AgentError

HOST = "127.0.0.1"
JAVA = (
    "java",
    "-Xmx256m",
    # What is wanted is a server that starts quickly and is small, not one that is fast after a minute.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # It would leave a file in /tmp.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # kill -9 of a process loses nothing that the kernel has: nobody here needs the disk's own word.
    "-Dzookeeper.forceSync=no",
    "-cp",
    "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar",
)
SERVER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
DEFAULTS: Mapping[str, object] = {
    "tickTime": 500,
    "initLimit": 20,
    "syncLimit": 10,
    "clientPortAddress": HOST,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "maxClientCnxns": 0,
}


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens.

    It lies below the range from which the kernel gives ports to outgoing connections: there a
    client that keeps trying a dead server can be given that very port, and then talks to itself,
    or keeps the server from coming back.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(10000, max(lowest, 10100))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
    raise AgentError(f"no free TCP port found on {HOST}")


def configure(path: Path, settings: Mapping[str, object]) -> None:
    """Write a zoo.cfg: `settings` are added to DEFAULTS, or replace them."""
    lines = {**DEFAULTS, **settings}
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def ask(port: int, word: str, seconds: float = 10.0) -> str:
    """The server's answer to one of ZooKeeper's four-letter words; empty where there is none."""
    try:
        with socket.create_connection((HOST, port), timeout=seconds) as connection:
            connection.sendall(word.encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return ""
    return answer.decode(errors="replace")
