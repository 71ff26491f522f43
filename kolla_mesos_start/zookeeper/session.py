"""One ZooKeeper session held by one thread, on kazoo's wire format alone.

What lives here: the connection, the session and the requests. What is asked for, and what an
answer means, is decided elsewhere. kazoo's client would cost 6 MB and three threads in every
container, for as long as it lives.

A session is driven by a loop: it says what it waits for (`wait`, `deadline`), and `turn` does
whatever can be done without blocking. Nothing that happens to the connection is an error: it is
made again, for ever.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from kazoo.exceptions import EXCEPTIONS, ConnectionLoss, KazooException
from kazoo.protocol.serialization import Auth, Close, Connect, Ping, ReplyHeader, Watch, int_struct

from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.connect import (
    Steps,
    Task,
    Wait,
    agree_on_tls,
    connect_any,
    resolve,
    would_block,
)

log = logging.getLogger(__name__)

WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4
NO_PASSWORD = b"\0" * 16
LARGEST_FRAME = 4 << 20  # bytes; more than a server ever sends (jute.maxbuffer is 1 MB)

# Shares of the session timeout. A ping after a third of silence, as the other clients do; a frozen
# server must be left early enough to try two others before the session is over.
PING_AFTER, DEAD_AFTER, ATTEMPT = 1 / 3, 0.6, 1 / 6
BACK_OFF, BACK_OFF_FACTOR, BACK_OFF_MOST = 0.05, 1.25, 1.0  # seconds
STABLE = 1.0  # seconds; a connection that ended sooner counts as a failure, so that no loop spins


class Ensemble(NamedTuple):
    """The servers, and how to become known to them. With `ca` or `cert` the connection is TLS."""

    hosts: Sequence[tuple[str, int]]
    chroot: str = ""
    auth: Sequence[tuple[str, str]] = ()
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class Reply(NamedTuple):
    """What came of a request; `error` is ConnectionLoss where nobody knows."""

    value: Any
    error: KazooException | None


class Request(NamedTuple):
    """A request that waits for its reply."""

    operation: Any
    done: Callable[[Reply], object]


class Session:
    """A session: attached to by its id and password, or new (id 0).

    `timeout` is in seconds: what is asked for, then what the server made of it. `on_open` runs
    after each connection, with the watches gone and requests that were under way lost;
    `on_event(path)` when a watch fires. A session that expires is replaced by a new one:
    `former` holds the ids of those before.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        timeout: float,
        *,
        session_id: int = 0,
        password: bytes = NO_PASSWORD,
        zxid: int = 0,
        on_open: Callable[[], object] = lambda: None,
        on_event: Callable[[str], object] = lambda path: None,
    ) -> None:
        self.id, self.password = session_id, password or NO_PASSWORD
        self.timeout = timeout
        self.former: set[int] = set()
        self.open = False
        self.closed = False
        self.on_open, self.on_event = on_open, on_event
        self._ensemble, self._asked_timeout = ensemble, timeout
        self._closing = False
        self._zxid, self._xid = zxid, 0
        self._hosts: list[tuple[str, int]] = []
        self._task: Task | None = None
        self._socket: socket.socket | None = None
        self._inbox, self._outbox = bytearray(), bytearray()
        self._pending: deque[Request] = deque()
        self._failures, self._silences, self._not_before = 0, 0, 0.0
        self._opened = self._sent = self._heard = 0.0
        self._lost: float | None = None

    # -- for the loop ---------------------------------------------------------------------------

    @property
    def wait(self) -> Wait | None:
        """The descriptor and the events of poll() for which `turn` should run."""
        if self._task:
            return self._task.wait
        if self._socket:
            return self._socket.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0)
        return None

    @property
    def deadline(self) -> float:
        """When `turn` must run at the latest."""
        if self.closed:
            return math.inf
        if self._task:
            return self._task.deadline
        if self._socket:
            return min(self._sent + self.timeout * PING_AFTER, self._heard + self.timeout * DEAD_AFTER)
        return self._not_before

    def turn(self, ready: bool) -> None:
        """Do what can be done now; `ready` says whether `wait` has come."""
        if self.closed:
            return
        try:
            if self._socket:
                self._converse()
            else:
                self._connect(ready)
        # A server that isn't one (another program on its port) sends what can't be read.
        except (OSError, struct.error, ValueError, IndexError) as error:
            self._lose(error)

    def request(self, operation: Any, done: Callable[[Reply], object]) -> None:
        """Send one of kazoo's operations; `done` runs with its reply, or with ConnectionLoss."""
        if not self.open:
            done(Reply(None, ConnectionLoss()))
            return
        path = getattr(operation, "path", None)
        if path is not None:
            operation = operation._replace(path=self._ensemble.chroot + path)
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._pending.append(Request(operation, done))
        self._send(int_struct.pack(self._xid) + int_struct.pack(operation.type), operation)

    def close(self) -> None:
        """End the session; all that it owns goes with it. `closed` tells when that is done."""
        self._closing = True
        if self.open:
            self.request(Close(), self._on_closed)
        elif not self.id:
            self.closed = True

    def abandon(self) -> None:
        """Drop the connection and leave the session to its timeout."""
        self.closed = True
        self._drop()

    # -- connecting -----------------------------------------------------------------------------

    def _connect(self, ready: bool) -> None:
        if self._task is None:
            if now() < self._not_before:
                return
            self._task, ready = Task(self._shake_hands(*self._next_host())), True
        self._task.turn(now(), ready)
        if self._task.ended:
            task, self._task = self._task, None
            if task.error:
                raise task.error
            self._begin(*task.result)

    def _next_host(self) -> tuple[str, int]:
        if not self._hosts:
            self._hosts = random.sample(list(self._ensemble.hosts), len(self._ensemble.hosts))
        return self._hosts.pop()

    def _shake_hands(self, host: str, port: int) -> Steps[tuple[socket.socket, Connect]]:
        addresses = yield from resolve(host, port)
        assert self._task is not None
        # A server that has only begun to start takes a connection and forgets it. Longer with each
        # silence all the same: an ensemble that a thousand clients come back to is slow.
        self._task.deadline = now() + self.timeout * min(1.0, ATTEMPT * (1 + self._silences))
        connection = yield from connect_any(addresses)
        try:
            if self._ensemble.ca or self._ensemble.cert:
                connection = yield from agree_on_tls(connection, self._tls(), host)
            return connection, (yield from self._introduce(connection))
        except BaseException:
            connection.close()
            raise

    def _tls(self) -> Any:
        import ssl

        context = ssl.create_default_context(cafile=self._ensemble.ca)
        context.check_hostname = bool(self._ensemble.ca)
        if self._ensemble.cert:
            context.load_cert_chain(self._ensemble.cert, self._ensemble.key)
        return context

    def _introduce(self, connection: socket.socket) -> Steps[Connect]:
        # The youngest state seen keeps us from a server that lags behind. An ensemble that was
        # made anew would be refused by it for ever; by then the session is long gone.
        away = self._lost is not None and now() - self._lost > self.timeout
        zxid = 0 if away else self._zxid
        milliseconds = int(self._asked_timeout * 1000)
        self._inbox, self._outbox = bytearray(), bytearray()
        self._send(b"", Connect(0, zxid, milliseconds, self.id, self.password, False))
        while True:
            self._flush(connection)
            heard = self._receive(connection)
            frame = self._frame()
            if frame is not None:
                return Connect.deserialize(frame, 0)[0]
            if not heard:
                raise ConnectionError(errno.ECONNRESET, "closed by the server")
            yield connection.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0)

    def _begin(self, connection: socket.socket, answer: Connect) -> None:
        if answer.time_out <= 0:
            connection.close()
            self._expire()
            return
        self.id, self.password, self.timeout = answer.session_id, answer.passwd, answer.time_out / 1000
        self._socket, self.open, self._opened, self._silences = connection, True, now(), 0
        for scheme, credential in self._ensemble.auth:
            self._send(int_struct.pack(AUTH_XID) + int_struct.pack(Auth.type), Auth(0, scheme, credential))
        log.debug("connected to ZooKeeper, session %#x, timeout %.1f s", self.id, self.timeout)
        if self._lost is not None:
            log.warning("connected to ZooKeeper again after %.1f s", now() - self._lost)
            self._lost = None
        if self._closing:
            self.close()
        else:
            self.on_open()
        self._flush(connection)

    def _expire(self) -> None:
        if not self.id:
            raise ConnectionError(errno.ECONNRESET, "the server opens no session")
        self.former.add(self.id)
        self.id, self.password = 0, NO_PASSWORD
        self.closed = self._closing
        if not self.closed:
            log.warning("the ZooKeeper session has expired; a new one is opened")

    def _lose(self, error: Exception) -> None:
        if self._socket and now() - self._opened >= STABLE:
            self._failures = 0
        if self._lost is None:
            self._lost = now()
            log.warning("no connection to ZooKeeper (%s); trying on", _told(error))
        else:
            log.debug("still no connection to ZooKeeper: %s", _told(error))
        if not self._socket and isinstance(error, TimeoutError):
            self._silences += 1
            self._not_before = now()  # That was pause enough.
        elif not self._hosts:
            delay = min(BACK_OFF_MOST, BACK_OFF * BACK_OFF_FACTOR ** min(self._failures, 20))
            self._not_before = now() + delay * random.uniform(0.5, 1.0)
            self._failures += 1
        self._drop()

    def _drop(self) -> None:
        if self._task:
            self._task.close()
        if self._socket:
            self._socket.close()
        self._task, self._socket, self.open = None, None, False
        pending, self._pending = self._pending, deque()
        for request in pending:
            request.done(Reply(None, ConnectionLoss()))

    # -- conversing -----------------------------------------------------------------------------

    def _converse(self) -> None:
        assert self._socket is not None
        heard = self._receive(self._socket)
        while self._socket and (frame := self._frame()) is not None:
            self._read(frame)
        if not self._socket:
            return  # That was the reply to Close.
        if not heard:
            raise ConnectionError(errno.ECONNRESET, "closed by the server")
        # Only after reading: the silence may have been ours (a stopped process, a suspended machine).
        if now() >= self._heard + self.timeout * DEAD_AFTER:
            raise TimeoutError(errno.ETIMEDOUT, f"nothing heard for {now() - self._heard:.1f} s")
        if now() >= self._sent + self.timeout * PING_AFTER:
            self._send(int_struct.pack(PING_XID) + int_struct.pack(Ping.type), Ping())
        self._flush(self._socket)

    def _read(self, frame: bytes) -> None:
        header, offset = ReplyHeader.deserialize(frame, 0)
        if header.zxid > 0:
            self._zxid = header.zxid
        if header.xid == WATCH_XID:
            watch, _ = Watch.deserialize(frame, offset)
            if watch.path:
                self.on_event(watch.path[len(self._ensemble.chroot) :])
        elif header.xid == AUTH_XID and header.err:
            raise ConnectionError(errno.EACCES, "the credentials were refused")
        elif header.xid >= 0:
            self._reply(header, frame, offset)

    def _reply(self, header: ReplyHeader, frame: bytes, offset: int) -> None:
        request = self._pending.popleft()
        if header.err:
            request.done(Reply(None, _exception(header.err)))
        elif hasattr(request.operation, "deserialize"):
            request.done(Reply(request.operation.deserialize(frame, offset), None))
        else:
            request.done(Reply(None, None))

    def _on_closed(self, reply: Reply) -> None:
        # Where the connection is lost instead, the session is attached to once more and closed.
        if reply.error is None:
            self.abandon()

    # -- bytes ----------------------------------------------------------------------------------

    def _send(self, header: bytes, operation: Any) -> None:
        payload = header + bytes(operation.serialize())
        self._outbox += int_struct.pack(len(payload)) + payload
        self._sent = now()

    def _flush(self, connection: socket.socket) -> None:
        try:
            while self._outbox:
                del self._outbox[: connection.send(self._outbox)]
        except OSError as error:
            if not would_block(error):
                raise

    def _receive(self, connection: socket.socket) -> bool:
        """Read what has come; false at its end."""
        try:
            while data := connection.recv(65536):
                self._inbox += data
                self._heard = now()
        except OSError as error:
            if not would_block(error):
                raise
            return True
        return False

    def _frame(self) -> bytes | None:
        if len(self._inbox) < int_struct.size:
            return None
        (length,) = int_struct.unpack_from(self._inbox)
        if not 0 <= length <= LARGEST_FRAME:
            raise ValueError(f"a frame of {length} bytes: not a ZooKeeper server?")
        end = int_struct.size + length
        if len(self._inbox) < end:
            return None
        frame = bytes(self._inbox[int_struct.size : end])
        del self._inbox[:end]
        return frame


def _exception(code: int) -> KazooException:
    kind = EXCEPTIONS.get(code)
    return kind() if kind else KazooException(f"error {code}")


def _told(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
