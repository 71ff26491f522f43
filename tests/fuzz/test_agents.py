"""Agents, and the tool, whose server sends rubbish: they end as the README says, or can be stopped."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Callable

import pytest

from tests.conftest import Deployment
from tests.fuzz.inputs import changed
from tests.fuzz.test_wire import REQUESTS, WATCH, WORDS
from tests.support.agents import Agent
from tests.support.replies import CONNECTED, STAT, framed, text
from tests.support.tool import ctl
from tests.support.waiting import eventually

# What a server does with a connection: it reads and sends, for as long as it wants.
Serve = Callable[[socket.socket], None]
ENDS = (1, 64, 65, 69, 73, 75, 76, 77, 78, 126, 127, 143)


def reply(xid: int, body: bytes, error: int = 0) -> bytes:
    return framed(struct.pack("!iqi", xid, 1, error) + body)


def requests(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """The xid and the type of each request."""
    with connection.makefile("rb") as stream:
        while header := stream.read(4):
            body = stream.read(*struct.unpack("!i", header))
            yield struct.unpack_from("!ii", body)


def welcome(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """Open a session; then as `requests`."""
    made = requests(connection)
    next(made)
    connection.sendall(framed(CONNECTED))
    return made


def say(data: bytes) -> Serve:
    """Send this at once."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        for _ in requests(connection):
            pass

    return serve


def answer_all(body: bytes, error: int = 0) -> Serve:
    """Answer every request with this."""

    def serve(connection: socket.socket) -> None:
        for xid, _ in welcome(connection):
            connection.sendall(reply(xid, body, error))

    return serve


def drip(connection: socket.socket) -> None:
    """Send a frame of 64 MB, a byte for each request."""
    made = welcome(connection)
    connection.sendall(struct.pack("!i", 64 << 20))
    for _ in made:
        connection.sendall(b"\0")


def flood(connection: socket.socket) -> None:
    """Send watch events without end."""
    welcome(connection)
    while True:
        connection.sendall(framed(WATCH) * 1000)


def wander(seed: int) -> Serve:
    """Answer each request with something like an answer to some request."""

    def serve(connection: socket.socket) -> None:
        random = Random(seed)
        valid = [body for _, body in REQUESTS]
        for xid, _ in welcome(connection):
            error = random.choice((0, 0, 0, 0, -101, -110, -103, -4, -112, -999))
            connection.sendall(reply(xid, changed(random, valid, WORDS), error))

    return serve


SERVERS: dict[str, Serve] = {
    "HTTP": say(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "SSH": say(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a frame of -1 bytes": say(struct.pack("!i", -1)),
    "a frame of 2 GB": say(struct.pack("!i", 2**31 - 1)),
    "an empty frame": say(struct.pack("!i", 0)),
    "half of a ConnectResponse": say(framed(CONNECTED[:9])),
    "a ConnectResponse with a password of 2 GB": say(framed(CONNECTED[:16] + struct.pack("!i", 2**31 - 1))),
    "a session of 1 ms": say(framed(struct.pack("!iiq", 0, 1, 1) + text(b"p" * 16))),
    "an expired session": say(framed(struct.pack("!iiq", 0, 0, 0) + text(b""))),
    "nothing": say(b""),
    "empty answers": answer_all(b""),
    "data of 2 GB": answer_all(struct.pack("!i", 2**31 - 1) + STAT),
    "no data": answer_all(struct.pack("!i", -1) + STAT),
    "the data []": answer_all(text(b"[]") + STAT),
    "the data {": answer_all(text(b"{") + STAT),
    "an unknown error": answer_all(b"", -999),
    "access denied": answer_all(b"", -102),
    "another xid": say(framed(CONNECTED) + reply(17, STAT)),
    "refused credentials": say(framed(CONNECTED) + reply(-4, b"", -115)),
    "a watch event without a path": say(framed(CONNECTED) + reply(-1, struct.pack("!iii", 99, 99, -1))),
    "a byte at a time": drip,
    "events without end": flood,
    **{f"something like answers {seed}": wander(seed) for seed in range(6)},
}


@contextmanager
def served(serve: Serve) -> Iterator[int]:
    """The port of a server that does this with each connection."""

    def run(connection: socket.socket) -> None:
        with connection, suppress(OSError, StopIteration, struct.error):
            serve(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=run, args=(connection,)))
                threads[-1].start()

    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("name", SERVERS)
def test_an_agent_with_such_a_server(name: str, tmp_path: Path) -> None:
    """Its status is one of the table, and its last line says why; who still waits ends on SIGTERM (143)."""
    with served(SERVERS[name]) as port:
        environ = {
            "KOLLA_ZK_HOSTS": f"127.0.0.1:{port}",
            "KOLLA_APP_ID": "/site/a/b",
            "KOLLA_ZK_CONNECT_TIMEOUT": "0.5",
            "KOLLA_ZK_SESSION_TIMEOUT": "3",
            "KOLLA_WAIT_TIMEOUT": "0.5",
        }
        agent = Agent(tmp_path / "a", environ)
        eventually(lambda: agent.state or not agent.running, "it handles signals")
        try:
            status = agent.ends(3.0)
        except AssertionError:
            agent.signal(signal.SIGTERM)
            status = agent.ends()
    assert status in ENDS, agent.said
    # A slow one may have been about to end, with its last line written, when the signal came.
    assert agent.ending["status"] == status or status == 143, agent.said
    assert agent.ending["status"] in ENDS and agent.ending["reason"], agent.said
    assert "Traceback" not in agent.said


@pytest.mark.parametrize(
    ("name", "status"), [("data of 2 GB", 69), ("empty answers", 69), ("no data", 69), ("access denied", 77)]
)
def test_the_operators_tool_with_such_a_server(name: str, status: int) -> None:
    """It says what is wrong, without a traceback."""
    with served(SERVERS[name]) as port:
        ctl(Deployment(f"127.0.0.1:{port}", "/kolla", "site"), "status", status=status)
