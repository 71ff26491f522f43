"""Sessions with real servers: what is kept, what is lost, and which failures are survived."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Transaction,
)
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from kolla_mesos_start.errors import AccessDenied
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.settings import parse
from kolla_mesos_start.zookeeper import session as session_module
from kolla_mesos_start.zookeeper.client import Client
from kolla_mesos_start.zookeeper.session import Servers, Session
from tests.agent.test_one_time import site as site
from tests.conftest import Deployment, LogLines
from tests.support.agents import Containers
from tests.support.certificates import certify
from tests.support.secured import JAVA as UNDER_TLS
from tests.support.secured import shows
from tests.support.tap import EXISTS, Tap, read_packet
from tests.support.waiting import LIMIT, eventually
from tests.support.zookeeper import HOST, Ensemble, Server, free_port

EPHEMERAL, SEQUENCE = 1, 2
MULTI = 14  # ZooKeeper's number of a transaction


class Reply(NamedTuple):
    """The result of a request."""

    value: Any
    error: KazooException | None


class Replies(list[Reply]):
    """The replies so far; `hear` is what a request wants."""

    def hear(self, value: Any, error: KazooException | None) -> None:
        self.append(Reply(value, error))


def servers(hosts: str, **more: Any) -> Servers:
    """`hosts` as KOLLA_ZK_HOSTS has them."""
    pairs = (each.rpartition(":") for each in hosts.split(","))
    return Servers([(host, int(port)) for host, _, port in pairs], **more)


def at(port: int) -> Servers:
    return servers(f"{HOST}:{port}")


def run(session: Session, until: Callable[[], object], seconds: float = LIMIT) -> None:
    """Run the loop until something holds."""
    loop = Loop()
    loop.add(session)
    assert loop.wait(until, now() + seconds), f"not within {seconds:g} s (last error: {session.error})"


def ask(session: Session, operation: Any) -> Reply:
    replies = Replies()
    session.request(operation, replies.hear)
    run(session, lambda: replies)
    return replies[0]


def connected(to: Servers, timeout: float = 4.0, **more: Any) -> Session:
    session = Session(to, timeout, **more)
    run(session, lambda: session.connected)
    return session


def end(session: Session) -> None:
    session.close()
    run(session, lambda: session.closed)


def connections(session: Session) -> list[int]:
    """The sessions of the connections from now on, one for each."""
    found: list[int] = []
    session.on_connected(lambda: found.append(session.id))
    return found


def create(path: str, data: bytes = b"", flags: int = 0) -> Create:
    return Create(path, data, OPEN_ACL_UNSAFE, flags)


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that runs `serve` for each connection, in a thread."""
    server = socket.create_server((HOST, free_port()))

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


# -- the session ----------------------------------------------------------------------------------------


def test_a_session_can_be_attached_to(zookeeper: Server, zk: KazooClient, deployment: Deployment) -> None:
    """With its id and password, and all that it owns."""
    path = f"{deployment.path}/mine"
    first = connected(servers(zookeeper.hosts))
    ask(first, create(path, flags=EPHEMERAL))
    first.abandon()
    second = connected(servers(zookeeper.hosts), session_id=first.id, password=first.password)
    assert (second.id, second.former, second.sessions) == (first.id, set(), 1)
    assert zk.exists(path).ephemeralOwner == second.id
    end(second)
    assert zk.exists(path) is None


def test_the_timeout_is_the_one_that_the_server_grants(zookeeper: Server) -> None:
    """At most its maxSessionTimeout."""
    session = connected(servers(zookeeper.hosts), timeout=60.0)
    assert session.timeout == 40.0
    session.abandon()


def test_a_znode_without_data_is_empty(zookeeper: Server, deployment: Deployment) -> None:
    """As `create PATH` of zkCli makes it."""
    session = connected(servers(zookeeper.hosts))
    path = f"{deployment.path}/null"
    ask(session, create(path, None))  # type: ignore[arg-type]
    assert ask(session, GetData(path, False)).value[0] == b""
    end(session)


def test_requests_are_answered_in_order(zookeeper: Server, deployment: Deployment) -> None:
    """Requests are sent without waiting for replies; errors come as replies."""
    session = connected(servers(zookeeper.hosts))
    path = f"{deployment.path}/one"
    replies = Replies()
    for operation in (
        create(path, b"data"),
        create(path, b"data"),
        GetData(path, False),
        Exists(f"{path}/none", False),
    ):
        session.request(operation, replies.hear)
    run(session, lambda: len(replies) == 4)
    assert replies[0].value == path and replies[2].value[0] == b"data"
    assert isinstance(replies[1].error, NodeExistsError) and isinstance(replies[3].error, NoNodeError)
    session.abandon()


def test_a_chroot_is_the_root(zookeeper: Server, zk: KazooClient, deployment: Deployment) -> None:
    """For requests, transactions, created paths and events."""
    session = connected(servers(zookeeper.hosts, chroot=deployment.path))
    events: list[str] = []
    session.on_watch(events.append)
    assert ask(session, Exists("/one", True)).error is not None
    assert ask(session, GetChildren("/", True)).value == []
    assert ask(session, create("/one", b"1")).value == "/one"
    assert ask(session, create("/s-", flags=SEQUENCE)).value == "/s-0000000001"
    run(session, lambda: len(events) == 2)
    assert sorted(events) == ["/", "/one"]

    operations = [
        CheckVersion("/one", 0),
        SetData("/one", b"2", -1),
        create("/two"),
        Delete("/s-0000000001", -1),
    ]
    results = ask(session, Transaction(operations)).value
    assert (results[0], results[1].version, results[2], results[3]) == (True, 1, "/two", True)
    assert zk.get(f"{deployment.path}/one")[0] == b"2"
    assert sorted(zk.get_children(deployment.path)) == ["one", "two"]

    assert ask(session, SetData("/", b"root", -1)).error is None
    assert zk.get(deployment.path)[0] == b"root"
    assert ask(session, GetData("/", True)).value[0] == b"root"
    zk.set(deployment.path, b"other")
    run(session, lambda: len(events) == 3)
    assert events[-1] == "/"
    end(session)
    new = connected(servers(zookeeper.hosts, chroot=f"{deployment.path}/new"))
    assert ask(new, create("/")).value == "/"
    assert zk.exists(f"{deployment.path}/new")
    end(new)


def test_an_incomplete_flush_returns_false(
    zookeeper: Server, zk: KazooClient, deployment: Deployment
) -> None:
    """The rest is sent when the server reads again."""
    session = connected(servers(zookeeper.hosts), timeout=10.0)
    path = f"{deployment.path}/large"
    ask(session, create(path))
    again = connections(session)
    zookeeper.freeze()
    replies = Replies()
    for number in range(12):
        session.request(SetData(path, bytes([number]) * 900_000, -1), replies.hear)
    assert not session.flush()
    zookeeper.thaw()
    run(session, lambda: len(replies) == 12)
    assert session.flush() and not again
    assert zk.get(path)[0] == bytes([11]) * 900_000
    session.abandon()


# -- outages --------------------------------------------------------------------------------------------


def test_a_session_survives_an_outage(zookeeper: Server) -> None:
    """Requests are reported as lost; the session is the same."""
    session = connected(servers(zookeeper.hosts), timeout=10.0)
    again = connections(session)
    session_id = session.id
    zookeeper.kill()
    lost = Replies()
    session.request(Exists("/", False), lost.hear)
    run(session, lambda: lost and not session.connected)
    assert isinstance(lost[0].error, ConnectionLoss)
    zookeeper.start()
    run(session, lambda: session.connected and again)
    assert (session.id, again, session.sessions) == (session_id, [session_id], 1)
    session.abandon()


def test_a_frozen_server_is_left_in_time(ensemble: Ensemble) -> None:
    """Another server gets the session before it expires."""
    # Freezing the leader would mean an election, which on a busy machine takes its own time.
    followers = {server.port: server for server in ensemble.followers}
    session = connected(servers(",".join(server.hosts for server in followers.values())), timeout=4.0)
    session_id = session.id
    assert session._socket
    followers[session._socket.getpeername()[1]].freeze()
    run(session, lambda: not session.connected)
    run(session, lambda: session.connected)
    assert (session.id, session.sessions) == (session_id, 1)
    end(session)


def test_an_expired_session_is_replaced(zookeeper: Server) -> None:
    """The client knows the new session and the old one."""
    first = connected(servers(zookeeper.hosts))
    session_id, password = first.id, first.password
    end(first)
    second = connected(servers(zookeeper.hosts), session_id=session_id, password=password)
    assert second.id != session_id
    assert (second.former, second.sessions) == ({session_id}, 2)
    second.abandon()


def test_closing_an_expired_session_opens_no_new_one(zookeeper: Server) -> None:
    first = connected(servers(zookeeper.hosts))
    session_id, password = first.id, first.password
    end(first)
    second = Session(servers(zookeeper.hosts), 4.0, session_id=session_id, password=password)
    end(second)
    assert (second.id, second.sessions) == (0, 1)


def test_a_server_that_has_lost_its_data_is_accepted(tmp_path: Path) -> None:
    """Although it is behind what the client has seen."""
    with Server(tmp_path / "server") as server:
        session = connected(servers(server.hosts), timeout=2.0)
        for n in range(20):
            ask(session, create(f"/n{n}"))
        first, zxid = session.id, session.zxid
        server.kill()
        for data in (tmp_path / "server" / "version-2").iterdir():
            data.unlink()
        server.start()
        run(session, lambda: session.connected and session.id != first)
        assert ask(session, create("/new")).error is None
        assert session.former == {first} and 0 < session.zxid < zxid
        session.abandon()


def test_a_server_that_lags_behind_is_not_used(zookeeper: Server) -> None:
    """Within one session, what was seen of the tree must not be undone."""
    begun = now()
    session = connected(servers(zookeeper.hosts), timeout=2.0, zxid=1 << 40)
    assert now() - begun >= 2.0
    end(session)


class Hush(Tap):
    """Hides from the client that the server has closed the connection."""

    def __init__(self, server: Server) -> None:
        self._clients: list[socket.socket] = []
        super().__init__(server, "", lambda: None)

    def close(self) -> None:
        super().close()
        for client in self._clients:
            client.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        self._clients.append(client)
        with contextlib.suppress(OSError):
            while packet := read_packet(server):
                client.sendall(packet)


def test_a_loop_that_stalled_too_long_drops_the_connection(
    zookeeper: Server, zk: KazooClient, deployment: Deployment
) -> None:
    """What waits in the socket says nothing of a session that may have expired."""
    hush = Hush(zookeeper)
    session = connected(servers(hush.hosts), timeout=2.0)
    events: list[str] = []
    session.on_watch(events.append)
    ephemeral = f"{deployment.path}/mine"
    ask(session, create(ephemeral, flags=EPHEMERAL))
    ask(session, GetChildren(deployment.path, True))
    first, stalled_at = session.id, now()
    zk.create(f"{deployment.path}/event")
    eventually(lambda: zk.exists(ephemeral) is None and now() - stalled_at > 2.1, "the session is over")
    assert session._socket and select.select([session._socket], [], [], 30)[0], "the event waits"
    session.run(True)
    assert not session.connected and "did not run" in session.error and not events
    run(session, lambda: session.connected)
    assert session.former == {first}
    end(session)
    hush.close()


# -- bad servers ---------------------------------------------------


def silent(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
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
        with connection, socket.create_connection((HOST, server.port)) as ours:
            back = threading.Thread(target=carry, args=(ours, connection), daemon=True)
            back.start()
            carry(connection, ours)
            back.join()

    with listener(serve) as port:
        yield port


def carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):  # The server may have closed it already.
        target.shutdown(socket.SHUT_RDWR)


def closing(connection: socket.socket) -> None:
    connection.close()


def talking(data: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        try:
            connection.sendall(data)
            while connection.recv(1000):
                pass
        except OSError:
            pass  # The other side has closed the connection.
        finally:
            connection.close()

    return serve


def dead(connection: socket.socket) -> None:
    raise AssertionError("nobody listens there")


@pytest.mark.parametrize(
    "serve",
    [
        dead,
        silent,
        closing,
        talking(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        talking(b"\xff" * 100_000),
        talking(b"\0\0\0\4abcd"),
        talking(b"\0\0\0\x25" + b"\0" * 37),
        talking(b"\0" * 4),
    ],
    ids=["dead", "silent", "closing", "http", "bytes", "short frame", "zeros", "empty frame"],
)
def test_a_port_without_zookeeper_is_left(zookeeper: Server, serve: Callable[[socket.socket], None]) -> None:
    """Nobody listens there, or another program: the next server is tried."""
    with listener(serve) as port:
        other = (HOST, free_port() if serve is dead else port)
        session = Session(Servers([other, (HOST, zookeeper.port)]), 4.0)
        session._hosts = [(HOST, zookeeper.port), other]  # The last one comes first.
        begun = now()
        run(session, lambda: session.connected)
        assert session._socket and session._socket.getpeername()[1] == zookeeper.port
        assert now() - begun < 30.0
        end(session)


def test_every_server_is_tried_before_one_is_tried_again() -> None:
    tried: list[int] = []

    def count(number: int) -> Callable[[socket.socket], None]:
        def serve(connection: socket.socket) -> None:
            tried.append(number)
            connection.close()

        return serve

    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(listener(count(number))) for number in range(6)]
        session = Session(Servers([(HOST, port) for port in ports]), 4.0)
        run(session, lambda: len(tried) >= 12)
        session.abandon()
    assert sorted(tried[:6]) == sorted(tried[6:12]) == list(range(6))


def test_a_frozen_server_is_skipped(ensemble: Ensemble) -> None:
    """The kernel still accepts connections for it."""
    frozen, other = ensemble.followers
    frozen.freeze()
    session = Session(servers(f"{frozen.hosts},{other.hosts}"), 6.0)
    session._hosts = [(HOST, other.port), (HOST, frozen.port)]
    run(session, lambda: session._silences)
    assert session.server == frozen.hosts
    run(session, lambda: session.connected)
    end(session)


def test_a_server_that_is_starting_costs_no_session(zookeeper: Server) -> None:
    """It accepts connections and never answers the first ones."""
    with forgetful(zookeeper, forgets=2) as port:
        session = Session(at(port), 6.0)
        run(session, lambda: session.connected)
        assert not session._failures  # Each would lengthen the pause before the next attempt.
        end(session)


def test_garbage_in_a_connection_makes_a_new_one(zookeeper: Server) -> None:
    spoiled: list[int] = []

    def spoil(connection: socket.socket) -> None:
        with connection, socket.create_connection((HOST, zookeeper.port)) as server:
            for source, target in ((connection, server), (server, connection)):
                target.sendall(source.recv(1000))
            if not spoiled:
                spoiled.append(1)
                connection.sendall(b"\0\0\0\3abc")
            while data := connection.recv(1000):
                server.sendall(data)
                connection.sendall(server.recv(1000))

    with listener(spoil) as port:
        session = Session(at(port), 4.0)
        run(session, lambda: spoiled and not session.connected)
        run(session, lambda: session.connected)
        assert not session.former
        end(session)


class Swallow(Tap):
    """Drops the reply to the first request of one kind, like a server that forgets it.

    One may forget a `sync` in an election (ZOOKEEPER-1863).
    """

    xid = b""

    def __init__(self, server: Server, kind: int) -> None:
        super().__init__(server, "", lambda: None)
        self._kind = kind.to_bytes(4, "big")

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while packet := read_packet(client):
                # A Connect has no header; its bytes at this place are never such a number.
                if packet[8:12] == self._kind and not self.xid:
                    self.xid = packet[4:8]
                server.sendall(packet)
        server.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while packet := read_packet(server):
                if not self.acted and packet[4:8] == self.xid and len(packet) > 8:
                    self.acted = True
                    continue
                client.sendall(packet)
        client.close()


@pytest.fixture
def swallow(request: pytest.FixtureRequest, zookeeper: Server) -> Iterator[Swallow]:
    """The parameter is the kind of request."""
    swallow = Swallow(zookeeper, request.param)
    yield swallow
    swallow.close()


@pytest.mark.parametrize("swallow", [EXISTS], indirect=True)
def test_a_reply_that_is_missing_is_noticed(swallow: Swallow, deployment: Deployment) -> None:
    """As soon as a later request is answered; other requests are not affected."""
    session = connected(servers(swallow.hosts), timeout=10.0)
    again = connections(session)
    forgotten, answered = Replies(), Replies()
    session.request(Exists(deployment.path, False), forgotten.hear)
    session.request(GetChildren(deployment.prefix, False), answered.hear)
    run(session, lambda: forgotten and answered)
    assert swallow.acted
    assert isinstance(forgotten[0].error, ConnectionLoss)
    assert answered[0].value == [deployment.id]
    assert session.connected and not again
    end(session)


@pytest.mark.parametrize("swallow", [EXISTS], indirect=True)
def test_a_missing_reply_is_noticed_if_only_pings_follow(swallow: Swallow, deployment: Deployment) -> None:
    """The connection is closed before the session would expire."""
    session = connected(servers(swallow.hosts), timeout=12.0)
    again = connections(session)
    lost = ask(session, Exists(deployment.path, False))
    assert swallow.acted and isinstance(lost.error, ConnectionLoss)
    run(session, lambda: again)
    assert again == [session.id] and not session.former
    assert ask(session, Exists(deployment.path, False)).error is None
    end(session)


# -- descriptors, names ---------------------------------------------------------------------------------


def test_names_are_resolved_in_a_child(
    zookeeper: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name server that does not answer delays nothing else."""
    answer = tmp_path / "answer"
    real = socket.getaddrinfo

    def slow(host: bytes, port: int, *args: Any, **more: Any) -> Any:
        if not more.get("flags"):
            eventually(answer.exists, "the name server answers")
            host = HOST.encode()
        return real(host, port, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    ours, theirs = socket.socketpair()
    threads = len(os.listdir("/proc/self/task"))
    known = set(psutil.Process().children())
    loop = Loop()
    session = Session(servers(f"zookeeper.example:{zookeeper.port}"), 4.0)
    loop.add(session)

    def children() -> set[psutil.Process]:
        return set(psutil.Process().children()) - known

    begun = now()
    loop.sleep(0.1)
    assert now() - begun < 10 and not session.connected
    (child,) = children()
    assert len(os.listdir("/proc/self/task")) <= threads
    # While the child has a copy open, the end of file is not seen.
    theirs.close()
    assert loop.wait(lambda: select.select([ours], [], [], 0)[0], now() + 30) and not ours.recv(1)
    eventually(
        lambda: len(os.listdir(f"/proc/{child.pid}/fd")) == 1, "the child holds its pipe, and nothing else"
    )
    answer.touch()
    run(session, lambda: session.connected)
    assert not children(), "the child is reaped"
    session.abandon()
    ours.close()


def test_a_look_up_ends_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its child is killed and reaped, and no descriptor stays open."""
    real = socket.getaddrinfo

    def never(host: bytes, port: int, *args: Any, **more: Any) -> Any:
        if more.get("flags"):
            return real(host, port, *args, **more)
        while True:
            time.sleep(1)

    monkeypatch.setattr(socket, "getaddrinfo", never)
    known = set(psutil.Process().children())
    descriptors = len(os.listdir("/proc/self/fd"))
    session = Session(servers("zookeeper.example:2181"), 4.0)
    run(session, lambda: set(psutil.Process().children()) - known)
    session.abandon()
    assert set(psutil.Process().children()) == known
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_look_up_that_cannot_fork_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again: a limit on processes may last."""

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    descriptors = len(os.listdir("/proc/self/fd"))
    session = Session(servers("zookeeper.example:2181"), 4.0)
    run(session, lambda: session._failures >= 3)
    assert "Resource temporarily unavailable" in session.error
    assert len(os.listdir("/proc/self/fd")) == descriptors
    session.abandon()


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 70 + ".invalid", "bad..name", "ö" * 70, "", "\0"]
)
def test_an_invalid_name_is_tried_again(host: str) -> None:
    """The error says why."""
    session = Session(Servers([(host, 2181)]), 4.0)
    run(session, lambda: session._failures >= 2, seconds=60)
    assert session.error and not session.connected and not session.closed
    session.abandon()


def test_ctrl_c_while_a_connection_is_closed_leaves_no_closed_socket(zookeeper: Server) -> None:
    """The tool then runs the loop once more, which can't poll a closed socket."""
    session = connected(servers(zookeeper.hosts))
    assert session._socket

    class Interrupting:
        def close(self) -> None:
            raise KeyboardInterrupt

    with session._socket:
        session._socket = Interrupting()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            session.abandon()
    assert session.interest is None and not session.connected


# -- credentials, ACLs ----------------------------------------------------------------------------------


def test_credentials_are_sent(zookeeper: Server, zk: KazooClient, deployment: Deployment) -> None:
    """Again after each reconnection."""
    path = f"{deployment.path}/secret"
    zk.create(path, b"data", acl=[make_digest_acl("agent", "password", all=True)])
    session = connected(servers(zookeeper.hosts, auth=[("digest", "agent:password")]), timeout=10.0)
    again = connections(session)
    for number in (1, 2):
        assert ask(session, GetData(path, False)).value[0] == b"data"
        assert session._socket
        session._socket.shutdown(socket.SHUT_RDWR)
        run(session, lambda number=number: len(again) == number)  # type: ignore[misc]
    assert ask(session, Delete(path, -1)).error is None
    session.abandon()


def test_refused_credentials_are_tried_with_increasing_delay(zookeeper: Server) -> None:
    """They may be right for the next server, or in a minute."""
    session = Session(servers(zookeeper.hosts, auth=[("nonsense", "agent")]), 4.0)
    refused: list[float] = []
    session.on_fault(lambda error: refused.append(now()))
    run(session, lambda: len(refused) == 3)
    assert not session.closed and "refused the credentials" in session.error
    first, second = (later - earlier for earlier, later in zip(refused, refused[1:]))
    assert first >= 1.0 and second >= 2.0
    session.abandon()


def test_refused_credentials_reach_the_caller(zookeeper: Server) -> None:
    nonsense = servers(zookeeper.hosts, auth=[("nonsense", "agent")])
    client = Client(nonsense, 4.0, OPEN_ACL_UNSAFE, Loop())
    with pytest.raises(AccessDenied, match="refused the credentials of KOLLA_ZK_AUTH_FILE"):
        client.connect(30.0)
        client.loop.sleep(30.0)
    client.session.abandon()


# -- TLS ------------------------------------------------------------------------------------------------


class Secure(NamedTuple):
    """A server with TLS, for clients with a certificate; `directory` holds those of `certify`."""

    server: Server
    port: int
    directory: Path

    def servers(self, host: str, ca: str, cert: str = "", key: str = "") -> Servers:
        """With the names of files in `directory`."""
        files = {"ca": ca, "cert": cert, "key": key}
        return servers(f"{host}:{self.port}", **{role: self.file(name) for role, name in files.items()})

    def file(self, name: str) -> str | None:
        return str(self.directory / name) if name else None


@contextlib.contextmanager
def secured(directory: Path) -> Iterator[Secure]:
    """One that is known by its address, and by no name."""
    certify(directory)
    port = free_port()
    lines = {**shows(directory, "server-both.pem", "ca.pem"), "secureClientPort": port}
    with Server(directory / "server", settings=lines, java=UNDER_TLS) as server:
        yield Secure(server, port, directory)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """A server that is as it should be."""
    with secured(tmp_path_factory.mktemp("tls")) as secure:
        yield secure


def test_a_session_over_tls(secure: Secure) -> None:
    """Longer than its timeout, with data larger than a record."""
    session = connected(secure.servers(HOST, "ca.pem", "client.pem", "client.key"), timeout=2.0)
    again, begun = connections(session), now()
    path = "/large"
    assert ask(session, create(path, b"x" * 900_000)).error is None
    run(session, lambda: now() - begun > 2.3)
    assert ask(session, GetData(path, False)).value[0] == b"x" * 900_000
    assert not again and not session.former
    end(session)


def test_certificate_files_are_read_for_each_connection(secure: Secure, tmp_path: Path) -> None:
    """They may be renewed; while one cannot be read, the error names it."""
    renewed = tmp_path / "ca.pem"
    renewed.write_text("")
    session = Session(
        servers(f"{HOST}:{secure.port}", ca=str(renewed), cert=secure.file("client-both.pem")), 4.0
    )
    run(session, lambda: session._failures >= 2)
    assert f"KOLLA_ZK_CA is '{renewed}'" in session.error
    renewed.write_text((secure.directory / "ca.pem").read_text())
    run(session, lambda: session.connected)
    end(session)


# -- servers that close a connection ----------------------------------------------------


def refusal(to: Servers) -> str:
    """Why attempts to connect have failed; they do so again and again. Silence only means a busy machine."""
    session = Session(to, 4.0)
    again = connections(session)
    run(session, lambda: session._failures >= 2 or again)
    assert not again
    session.abandon()
    return session.error


def test_too_many_connections_are_explained(tmp_path: Path, containers: Containers) -> None:
    """ZooKeeper only closes the connection if `maxClientCnxns` is reached."""
    with Server(tmp_path / "server", settings={"maxClientCnxns": 2}) as server:
        others = [connected(servers(server.hosts)) for _ in range(2)]
        why = refusal(servers(server.hosts))
        assert "too many connections to it (maxClientCnxns in its zoo.cfg, 60 by default" in why
        agent = containers.start("web", KOLLA_ZK_HOSTS=server.hosts)
        agent.says("maxClientCnxns in its zoo.cfg")
        end(others.pop())
        agent.says("the definition")  # It is connected.
        others.pop().abandon()


def test_a_missing_connection_is_reported_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, log_lines: LogLines
) -> None:
    """With the server, the last error, and what to check."""
    monkeypatch.setattr(session_module, "PROGRESS_INTERVAL", 0.2)
    session = Session(at(free_port()), 4.0)
    words = r"no connection to ZooKeeper at 127\.0\.0\.1:\d+ for \d s \(.*\); retrying; check .*"
    run(session, lambda: [line for line in log_lines() if re.fullmatch(words, line.message)])
    session.abandon()


def test_the_error_names_the_cause_for_each_server(zookeeper: Server) -> None:
    dead = free_port()
    with listener(lambda connection: connection.close()) as port:
        why = refusal(servers(f"{HOST}:{dead},{HOST}:{port}"))
    assert f"{HOST}:{dead}: Connection refused" in why
    assert f"{HOST}:{port}: the server closed the connection without an answer" in why


def test_a_dead_server_beside_another_is_not_logged(zookeeper: Server, log_lines: LogLines) -> None:
    session = Session(servers(f"{HOST}:{free_port()},{zookeeper.hosts}"), 4.0)
    session._hosts = list(reversed(session.servers.hosts))  # The last one comes first.
    run(session, lambda: session.connected)
    assert not [line for line in log_lines() if line.level != "debug"]
    end(session)


def test_a_server_can_have_an_ipv6_address(tmp_path: Path) -> None:
    with Server(tmp_path / "server", settings={"clientPortAddress": "::"}) as server:
        settings = parse({"KOLLA_APP_ID": "/a/b", "KOLLA_ZK_HOSTS": f"[::1]:{server.port}"})
        to = settings.servers
        assert str(to) == f"[::1]:{server.port}"
        end(connected(to))
