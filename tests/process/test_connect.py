"""Connections of the agent that break while they are made leave no descriptor open."""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start import probes
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.zookeeper.connect import Task
from kolla_mesos_start.zookeeper.session import Servers, Session
from tests.support.certificates import HOST, certify
from tests.support.peer import RESET, Peer
from tests.support.waiting import LIMIT


def await_reset(connection: socket.socket) -> None:
    """Return at once if it is not connected."""
    poller = select.poll()
    poller.register(connection, 0)  # POLLHUP and POLLERR are always reported.
    assert poller.poll(LIMIT * 1000), "not reset"


def reset_at_close(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_server_that_resets_before_tls_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises an error for a connected socket that is reset when it is wrapped, and leaves it open."""
    wrap = ssl.SSLContext.wrap_socket

    def wrap_late(context: ssl.SSLContext, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        await_reset(sock)
        return wrap(context, sock, **options)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap_late)
    peer = Peer(RESET).start()
    try:
        task = Task(probes.http(f"https://{peer.tcp}/"))
        task.run(True)
        while not task.ended:
            poller = select.poll()
            poller.register(*task.interest or (-1, 0))
            poller.poll(60_000)
            task.run(True)
    finally:
        peer.stop()
    assert isinstance(task.error, OSError)  # It keeps the frames alive in which the socket was made.
    sockets = [found for found in gc.get_objects() if isinstance(found, ssl.SSLSocket)]
    assert [found for found in sockets if found.fileno() >= 0] == []


ALERT = b"\x15\x03\x03\x00\x02\x02\x2e"  # fatal: certificate unknown


def test_an_alert_in_a_handshake_is_read_though_the_connection_is_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the time the client looks at it."""
    calls: list[int] = []
    shake_hands = ssl.SSLSocket.do_handshake

    def shake_hands_late(connection: ssl.SSLSocket) -> None:
        calls.append(1)
        if len(calls) > 1:
            await_reset(connection)
        shake_hands(connection)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            reset_at_close(connection)
            connection.recv(65536)
            connection.sendall(ALERT)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", shake_hands_late)
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        task = Task(probes.http(f"https://{HOST}:{listener.getsockname()[1]}/"))
        task.run(True)
        while not task.ended:
            poller = select.poll()
            poller.register(*task.interest or (-1, 0))
            poller.poll(LIMIT * 1000)
            task.run(True)
        thread.join()
    assert "certificate unknown" in str(task.error)


def test_why_a_server_refuses_tls_is_found_though_the_connection_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS 1.3 the alert comes after the handshake; sending fails by then."""
    certify(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "server-both.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            reset_at_close(connection)
            with suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(1)

    def flush_late(session: Session, connection: socket.socket) -> None:
        await_reset(connection)
        flush(session, connection)

    flush = Session._flush
    monkeypatch.setattr(Session, "_flush", flush_late)
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "stranger.pem", "stranger.key"))
        session, loop = Session(Servers([listener.getsockname()], ca=ca, cert=cert, key=key), LIMIT), Loop()
        loop.add(session)
        try:
            loop.wait(lambda: session.error, now() + LIMIT)
        finally:
            session.abandon()
            thread.join()
    assert "the server refuses the certificate" in session.error


def test_only_the_name_of_a_digest_is_known_to_be_no_secret() -> None:
    """The identity is shown in errors and by `check`."""
    servers = Servers([("zk", 2181)], auth=[("digest", "web:s3cr3t"), ("bearer", "s3cr3t")])
    assert servers.identity == "digest:web, an identity of scheme bearer"
