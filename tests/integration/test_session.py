"""A session held by one thread, against real servers: what is kept, what is lost, and what is survived."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, Delete, Exists, GetData
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.session import Ensemble, Reply, Session
from tests.conftest import Deployment
from tests.zookeeper import Ensemble as Servers
from tests.zookeeper import Server, free_port

EPHEMERAL = 1


def turn(session: Session, limit: float) -> None:
    """One round of the loop, `limit` seconds at most."""
    poller = select.poll()
    if session.wait:
        poller.register(*session.wait)
    seconds = max(0.0, min(session.deadline - now(), limit))
    session.turn(bool(poller.poll(seconds * 1000 + 1)))


def run(session: Session, until: Callable[[], object], seconds: float = 30.0) -> None:
    """Runnable until something holds."""
    deadline = now() + seconds
    while not until():
        assert now() < deadline, f"not within {seconds:g} s"
        turn(session, 0.1)


def ask(session: Session, operation: Any) -> Reply:
    replies: list[Reply] = []
    session.request(operation, replies.append)
    run(session, lambda: replies)
    return replies[0]


def opened(server: Server, timeout: float = 4.0, **more: Any) -> Session:
    session = Session(Ensemble([("127.0.0.1", server.port)]), timeout, **more)
    run(session, lambda: session.open)
    return session


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on a port of its own that does `serve` with each connection, in a thread."""
    server = socket.create_server(("127.0.0.1", free_port()))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def test_a_session_is_attached_to(zookeeper: Server, zk: KazooClient, deployment: Deployment) -> None:
    """Who comes with its id and password has the session with all that it owns."""
    path = f"{deployment.path}/mine"
    first = opened(zookeeper)
    ask(first, Create(path, b"", OPEN_ACL_UNSAFE, EPHEMERAL))
    first.abandon()
    second = opened(zookeeper, session_id=first.id, password=first.password)
    assert (second.id, second.former) == (first.id, set())
    assert zk.exists(path).ephemeralOwner == second.id
    second.close()
    run(second, lambda: second.closed)
    assert zk.exists(path) is None


def test_the_timeout_is_the_servers(zookeeper: Server) -> None:
    """What the server makes of the timeout is read back: 20 ticks of half a second are its most."""
    session = opened(zookeeper, timeout=60.0)
    assert session.timeout == 10.0
    session.abandon()


def test_an_idle_session_lives_on(zookeeper: Server, zk: KazooClient) -> None:
    """Pings keep it longer than its timeout, and there are three in one timeout, not more."""
    opens: list[int] = []
    session = opened(zookeeper, timeout=2.0, on_open=lambda: opens.append(1))
    before, begun = zookeeper.packets(), now()
    run(session, lambda: now() - begun > 4.0)
    assert len(opens) == 1, "the connection was given up meanwhile"
    # Six of ours; the test's own client and the question account for a few more.
    assert zookeeper.packets() - before < 12
    session.close()
    run(session, lambda: session.closed)


def test_requests_are_answered_in_order(zookeeper: Server, deployment: Deployment) -> None:
    """Requests are sent without waiting for replies; errors come as replies."""
    session = opened(zookeeper)
    path = f"{deployment.path}/one"
    replies: list[Reply] = []
    for operation in (
        Create(path, b"data", OPEN_ACL_UNSAFE, 0),
        Create(path, b"data", OPEN_ACL_UNSAFE, 0),
        GetData(path, False),
        Exists(f"{path}/none", False),
    ):
        session.request(operation, replies.append)
    run(session, lambda: len(replies) == 4)
    assert replies[0].value == path and replies[2].value[0] == b"data"
    assert isinstance(replies[1].error, NodeExistsError) and isinstance(replies[3].error, NoNodeError)
    session.abandon()


def test_a_watch_fires(zookeeper: Server, zk: KazooClient, deployment: Deployment) -> None:
    """An event comes with the path, under the chroot as it was asked for."""
    events: list[str] = []
    ensemble = Ensemble([("127.0.0.1", zookeeper.port)], chroot=deployment.prefix)
    session = Session(ensemble, 4.0, on_event=events.append)
    run(session, lambda: session.open)
    ask(session, Exists(f"/{deployment.id}/new", True))
    zk.create(f"{deployment.path}/new")
    run(session, lambda: events)
    assert events == [f"/{deployment.id}/new"]
    session.abandon()


def test_an_outage_is_survived(zookeeper: Server) -> None:
    """A server that is away for a while: requests are told as lost, the session is the same one."""
    opens: list[int] = []
    session = opened(zookeeper, timeout=10.0, on_open=lambda: opens.append(1))
    session_id = session.id
    zookeeper.kill()
    lost: list[Reply] = []
    session.request(Exists("/", False), lost.append)
    run(session, lambda: lost and not session.open)
    assert isinstance(lost[0].error, ConnectionLoss)
    zookeeper.start()
    run(session, lambda: session.open)
    assert (session.id, len(opens)) == (session_id, 2)
    session.abandon()


def test_a_frozen_server_is_left_in_time(ensemble: Servers) -> None:
    """A server that goes silent is left before the session is over, and another one has it then."""
    # Freezing the leader would mean an election, which on a busy machine takes its own time.
    followers = {server.port: server for server in ensemble.followers}
    session = Session(Ensemble([("127.0.0.1", port) for port in followers]), 6.0)
    run(session, lambda: session.open)
    session_id = session.id
    assert session._socket
    frozen = followers[session._socket.getpeername()[1]]
    frozen.freeze()
    run(session, lambda: not session.open)
    run(session, lambda: session.open)
    assert session.id == session_id
    session.close()
    run(session, lambda: session.closed)


def test_an_expired_session_is_replaced(zookeeper: Server) -> None:
    """Whoever finds its session expired has a new one, and knows which it was."""
    first = opened(zookeeper)
    session_id, password = first.id, first.password
    first.close()
    run(first, lambda: first.closed)
    second = opened(zookeeper, session_id=session_id, password=password)
    assert second.id != session_id and second.former == {session_id}
    second.abandon()


def test_closing_an_expired_session_is_the_end(zookeeper: Server) -> None:
    """Who attaches only to close doesn't open a new session for it."""
    first = opened(zookeeper)
    session_id, password = first.id, first.password
    first.close()
    run(first, lambda: first.closed)
    second = Session(Ensemble([("127.0.0.1", zookeeper.port)]), 4.0, session_id=session_id, password=password)
    second.close()
    run(second, lambda: second.closed)
    assert second.id == 0


def test_an_ensemble_made_anew_is_accepted(tmp_path: Path) -> None:
    """A server that has lost all its data, and is thus behind what we have seen, is no dead end."""
    with Server(tmp_path / "server") as server:
        session = opened(server, timeout=2.0)
        for n in range(20):
            ask(session, Create(f"/n{n}", b"", OPEN_ACL_UNSAFE, 0))
        first = session.id
        server.kill()
        for data in (tmp_path / "server" / "version-2").iterdir():
            data.unlink()
        server.start()
        run(session, lambda: session.open and session.id != first)
        session.abandon()


def silent(connection: socket.socket) -> None:
    with connection:
        while connection.recv(1000):
            pass


@contextlib.contextmanager
def forgetful(server: Server, forgets: int) -> Iterator[int]:
    """A way to `server` on a port of its own, where the first connections are never answered."""
    connections = itertools.count()

    def serve(connection: socket.socket) -> None:
        if next(connections) < forgets:
            silent(connection)
            return
        with connection, socket.create_connection(("127.0.0.1", server.port)) as ours:
            back = threading.Thread(target=carry, args=(ours, connection), daemon=True)
            back.start()
            carry(connection, ours)
            ours.shutdown(socket.SHUT_RDWR)
            back.join()

    with listener(serve) as port:
        yield port


def carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def closing(connection: socket.socket) -> None:
    connection.close()


def talking(data: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        try:
            connection.sendall(data)
            while connection.recv(1000):
                pass
        except OSError:
            pass  # The other side has had enough of it.
        finally:
            connection.close()

    return serve


@pytest.mark.parametrize(
    "serve",
    [
        silent,
        closing,
        talking(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        talking(b"\xff" * 100_000),
        talking(b"\0\0\0\4abcd"),
        talking(b"\0\0\0\x25" + b"\0" * 37),
        talking(b"\0" * 4),
    ],
    ids=["silent", "closing", "http", "bytes", "short frame", "zeros", "empty frame"],
)
def test_what_isnt_zookeeper_is_left(zookeeper: Server, serve: Callable[[socket.socket], None]) -> None:
    """Another program on a server's port is one that doesn't answer: the next one is tried."""
    with listener(serve) as port:
        session = Session(Ensemble([("127.0.0.1", port)] * 3 + [("127.0.0.1", zookeeper.port)]), 4.0)
        run(session, lambda: session.open)
        session.close()
        run(session, lambda: session.closed)


def test_a_server_that_forgets_a_connection_in_its_start_costs_no_session(zookeeper: Server) -> None:
    """One that begins to start takes connections, and never answers; however long it was away before."""
    with forgetful(zookeeper, forgets=2) as port:
        session = Session(Ensemble([("127.0.0.1", port)]), 6.0)
        session._failures = 100
        begun = now()
        run(session, lambda: session.open)
        assert now() - begun < 6.0  # measured: 1 s for the first one, 2 s for the second
        session.close()
        run(session, lambda: session.closed)


def test_garbage_in_an_open_session(zookeeper: Server) -> None:
    """A connection that breaks down into garbage is made again."""
    spoiled: list[int] = []

    def spoil(connection: socket.socket) -> None:
        with connection, socket.create_connection(("127.0.0.1", zookeeper.port)) as server:
            for source, target in ((connection, server), (server, connection)):
                target.sendall(source.recv(1000))
            if not spoiled:
                spoiled.append(1)
                connection.sendall(b"\0\0\0\3abc")
            while data := connection.recv(1000):
                server.sendall(data)
                connection.sendall(server.recv(1000))

    with listener(spoil) as port:
        session = Session(Ensemble([("127.0.0.1", port)]), 4.0)
        run(session, lambda: spoiled and not session.open)
        run(session, lambda: session.open)
        assert not session.former
        session.close()
        run(session, lambda: session.closed)


def test_out_of_descriptors(zookeeper: Server) -> None:
    """Where no socket can be had it is tried again, until one can be."""
    session = Session(Ensemble([("127.0.0.1", zookeeper.port)]), 4.0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        for _ in range(3):
            session.turn(False)
            assert not session.open and session.wait is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    run(session, lambda: session.open)
    session.abandon()


def test_names_are_resolved_aside(zookeeper: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that doesn't answer keeps nobody waiting but the connection."""
    answer = threading.Event()
    real = socket.getaddrinfo

    def slow(host: bytes, port: int, *args: Any, **more: Any) -> Any:
        if not more.get("flags"):
            answer.wait(30)
            host = b"127.0.0.1"
        return real(host, port, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    session = Session(Ensemble([("zookeeper.example", zookeeper.port)]), 4.0)
    begun = now()
    session.turn(False)
    turn(session, 0.01)
    assert now() - begun < 5 and not session.open
    answer.set()
    run(session, lambda: session.open)
    session.abandon()


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 70 + ".invalid", "bad..name", "ö" * 70, "", "\0"]
)
def test_a_name_that_isnt_one(host: str) -> None:
    """A name that has no address, or can't have one, is tried for ever like any other."""
    session = Session(Ensemble([(host, 2181)]), 4.0)
    failures = 0
    while failures < 2:
        turn(session, 0.1)
        failures = session._failures
    assert not session.open and not session.closed


def test_credentials_are_shown(zookeeper: Server, zk: KazooClient, deployment: Deployment) -> None:
    """A znode that only one user may read is read with its credentials, again after a reconnection."""
    path = f"{deployment.path}/secret"
    zk.create(path, b"data", acl=[make_digest_acl("agent", "password", all=True)])
    ensemble = Ensemble([("127.0.0.1", zookeeper.port)], auth=[("digest", "agent:password")])
    session = Session(ensemble, 10.0)
    for _ in range(2):
        run(session, lambda: session.open)
        assert ask(session, GetData(path, False)).value[0] == b"data"
        assert session._socket
        session._socket.shutdown(socket.SHUT_RDWR)
        run(session, lambda: not session.open)
    run(session, lambda: session.open)
    assert ask(session, Delete(path, -1)).error is None
    session.abandon()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *request.split(), "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL
    )
    return cert, key


@pytest.mark.parametrize("trusted", [True, False])
def test_tls(zookeeper: Server, certificate: tuple[str, str], trusted: bool) -> None:
    """With a CA the connection is TLS, and a server that the CA doesn't vouch for is not talked to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    plain: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", zookeeper.port))
            with server, context.wrap_socket(connection, server_side=True) as secure:
                while data := secure.recv(1000):
                    plain.append(data)
                    server.sendall(data)
                    secure.sendall(server.recv(1000))
        except OSError:
            connection.close()  # Nobody is trusted here.

    with listener(serve) as port:
        ca = certificate[0] if trusted else None
        ensemble = Ensemble([("127.0.0.1", port)], ca=ca, cert=certificate[0], key=certificate[1])
        session = Session(ensemble, 4.0)
        run(session, lambda: session.open or session._failures >= 2)
        assert session.open is trusted and bool(plain) is trusted
        if trusted:
            begun = now()
            run(session, lambda: now() - begun > 3.0)
            assert session.open and not session.former
        session.close()
        run(session, lambda: session.closed)
