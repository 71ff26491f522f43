"""One ZooKeeper session in one thread, on kazoo's wire format.

A session is a `loop.EventSource`. It reconnects for ever: no failure of the connection is an error.
Exceptions of handlers and callbacks pass through `run`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
from collections import deque
from functools import partial

from kolla_mesos_start import identities
from kolla_mesos_start.errors import (
    AccessDenied,
    AgentError,
    TooLarge,
    UnreadableServer,
    cause,
    causes,
    handshake_cause,
)
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.connect import Task, connect_any, connect_with_tls, resolve, would_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, NoReturn, Optional

    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.connect import Address, Steps

    Requests = Generator[Any, Any, None]
    Done = Callable[[Any, Optional[wire.KazooException]], object]

log = Logger(__name__)

WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4
NO_PASSWORD = b"\0" * 16
# The server closes the connection on a larger request, which looks like an outage and would be retried for
# ever; its own limit (jute.maxbuffer) is 1,048,575 bytes for the whole packet.
MAX_DATA = 1_000_000
LARGEST_FRAME = 64 << 20  # bytes of a list of children, which jute.maxbuffer does not limit
READS = 16  # of 64 KiB each before the loop continues: a server may never stop sending

# Shares of the session timeout. A ping after a third, as other clients do; a frozen server must be left early
# enough to try two others before the session expires.
PING_AFTER, DEAD_AFTER, FORGOTTEN_AFTER, HANDSHAKE_TIMEOUT = 1 / 3, 0.6, 1 / 2, 1 / 6
# An election takes less than half a second: with a steeper growth most clients would sleep past its end.
BACK_OFF, BACK_OFF_FACTOR, BACK_OFF_MOST = 0.05, 1.25, 0.5  # seconds
REFUSED, REFUSED_MOST = 1.0, 60.0  # seconds after the servers refused the credentials
GRANT = "use another credential, or give this one the right (acl.yml, then publish)"
# A request of more than SMALL bytes is too large if the connection is lost SOON after it, TIMES in a row.
SMALL, SOON, TIMES = 1024, 1.0, 3
STABLE = 1.0  # seconds; a connection that ends sooner counts as a failure, so that no loop spins


class Pace(NamedTuple):
    """How often the same request may fail: `free` times in a row, and `rate` times a second; after that its
    failure is reported with a delay that doubles each time, up to `longest` seconds.
    """

    free: int
    rate: float
    longest: float


FIRST_DELAY = 0.05  # seconds
# Callers handle errors, and most try again. This is for errors that do not pass, or that no caller expects
# twice: whatever a caller does, it can't ask without a pause.
PACE = Pace(free=3, rate=0.2, longest=5.0)
PACE_OF_ABSENT = Pace(free=50, rate=2.0, longest=1.0)  # for an answer that a znode does not exist
LATER = 1.0  # seconds until a sender hears that the server is overloaded, at least
MOST_FAILING = 1000  # requests that are counted


class Servers:
    """The servers of an ensemble, and how a client authenticates. With `ca` the connection is TLS.

    `hosts`: (host, port) of each; `source` is where they were given. `auth`: (scheme, credential) of each
    identity, last read from `auth_file`. `ca`, `cert`, `key`: paths of PEM files.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        chroot: str = "",
        auth: Sequence[tuple[str, str]] = (),
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        auth_file: str | None = None,
    ) -> None:
        self.hosts, self.chroot, self.auth = tuple(hosts), chroot, tuple(auth)
        self.ca, self.cert, self.key = ca, cert, key
        self.auth_file = auth_file
        self.source = "KOLLA_ZK_HOSTS"

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What makes the same object in another process."""
        return self.hosts, self.chroot, self.auth, self.ca, self.cert, self.key, self.auth_file

    @property
    def advice(self) -> str:
        """What to check if no server answers."""
        return f"{self.source}, and that ZooKeeper runs there"

    @property
    def identity(self) -> str:
        """Who we are to the servers, without the secrets."""
        # Only of a digest it is known which part is the name.
        names = [
            f"digest:{credential.partition(':')[0]}"
            if scheme == "digest"
            else f"an identity of scheme {scheme}"
            for scheme, credential in self.auth
        ]
        if self.cert:
            names.append("the certificate in KOLLA_ZK_CERT")
        return ", ".join(names) or "nobody (neither KOLLA_ZK_AUTH_FILE nor KOLLA_ZK_CERT is set)"

    @property
    def hint(self) -> str:
        """The end of a message about a missing right."""
        return f"; connected as {self.identity}: {GRANT}"

    def __str__(self) -> str:
        return ",".join(_address(host, port) for host, port in self.hosts)

    def stamp(self) -> tuple[object, ...]:
        """It differs after a file with an identity of ours, or the file of CAs, was replaced."""
        return tuple(map(_stamp, filter(None, (self.auth_file, self.ca, self.cert, self.key))))

    def read_auth(self) -> str:
        """Read `auth_file` again; returns why that failed. Then the last identities stay in use."""
        if self.auth_file:
            from kolla_mesos_start.files.paths import read_regular

            try:
                self.auth = identities.credentials(read_regular(self.auth_file).decode())
            except OSError as error:
                return f"KOLLA_ZK_AUTH_FILE can't be read: {cause(error)}"
            except ValueError:
                return "KOLLA_ZK_AUTH_FILE: expected scheme:credential in each line"
        return ""

    def read_identity(self) -> str:
        """Read all files with an identity of ours again; returns why that failed."""
        why = self.read_auth()
        if self.ca and not why:
            from kolla_mesos_start.zookeeper.tls import UnusableFiles, make_context

            try:
                make_context(self.ca, self.cert, self.key)
            except UnusableFiles as error:
                return cause(error)
        return why


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _NewIdentity(OSError):
    """Our credential, certificate or CA was replaced: the connection has to be made again."""


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Request(NamedTuple):
    """A request that waits for its reply."""

    xid: int
    operation: Any
    sent: float
    done: Done


class Session:
    """A session: a new one (id 0), or an existing one with its id and password.

    `timeout` is in seconds: the requested one, then the one that the server granted. `connected`: requests
    may be sent. `sessions` counts the sessions so far: an expired one is replaced, and `former` has the ids
    of earlier ones. `zxid` is the youngest one seen. `answers` counts those to requests.
    """

    def __init__(
        self,
        servers: Servers,
        timeout: float,
        *,
        session_id: int = 0,
        password: bytes = NO_PASSWORD,
        zxid: int = 0,
    ) -> None:
        self.servers = servers
        self.id, self.password, self.zxid = session_id, password or NO_PASSWORD, zxid
        self.timeout = self._asked_timeout = timeout
        self.sessions, self.former = int(bool(session_id)), set[int]()
        self.connected = self.closed = self._closing = False
        self.answers = 0
        self.quiet = False  # whether outages are not logged
        self._connected_handlers: list[Callable[[], object]] = []
        self._watch_handlers: list[Callable[[str], object]] = []
        self._fault_handlers: list[Callable[[AgentError], object]] = []
        self._events: deque[Callable[[], object]] = deque()
        self._xid = 0
        self._hosts: list[tuple[str, int]] = []
        self._host = ("", 0)  # the last one that was tried
        self._causes: dict[str, str] = {}
        self._task: Task | None = None
        self._socket: socket.socket | None = None
        self._inbox, self._outbox = bytearray(), bytearray()
        self._pending: deque[Request] = deque()
        self._pings: deque[float] = deque()  # when each one that waits for its reply was sent
        self._failures, self._silences, self._not_before = 0, 0, 0.0
        self._refusals = 0
        self._stamp: tuple[object, ...] = ()  # of the files with our identity, when they were last read
        self._look_at = 0.0  # when to compare it
        self._admitted = False  # whether a request of ours was ever granted
        self._suspect, self._losses = "", 0  # the path of a large request, and the losses right after it
        self._answered_at = math.inf  # when the first request of this connection was answered
        self._failing: dict[object, tuple[float, float]] = {}  # how often each request failed, and when
        self._held_back: list[tuple[float, Callable[[], object]]] = []  # replies that are reported later
        self._opened = self._sent = self._heard = self._answered_ping = 0.0
        self._ran = self._lost_at = now()
        self._lost = False
        self._progress_at = self._lost_at + PROGRESS_INTERVAL

    def on_connected(self, handler: Callable[[], object]) -> None:
        """Call `handler` after each connection: watches and unanswered requests are gone then."""
        self._connected_handlers.append(handler)

    def on_watch(self, handler: Callable[[str], object]) -> None:
        """Call `handler(path)` when a watch on a path fires."""
        self._watch_handlers.append(handler)

    def on_fault(self, handler: Callable[[AgentError], object]) -> None:
        """Call `handler(error)` when an outage is none; the session keeps trying.

        AccessDenied: the servers refuse our credentials. TooLarge: they close the connection because of a
        request's size. UnreadableServer: a connected server sends something else than replies.
        """
        self._fault_handlers.append(handler)

    @property
    def error(self) -> str:
        """What ended the last attempt to connect to each server; empty while connected."""
        return causes(self._causes) if self._causes else ""

    # -- for the loop ---------------------------------------------------------------------------

    @property
    def interest(self) -> Interest:
        """The descriptor and the poll() events that `run` waits for."""
        if self._task:
            return self._task.interest
        if self._socket:
            return self._socket.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0)
        return None

    @property
    def deadline(self) -> float:
        """When `run` must run at the latest."""
        if self._events:
            return 0.0
        due = min((when for when, _ in self._held_back), default=math.inf)
        if self.closed:
            return due
        if self._socket:
            return min(due, self._sent + self.timeout * PING_AFTER, self._heard + self.timeout * DEAD_AFTER)
        return min(due, self._task.deadline if self._task else self._not_before, self._progress_at)

    def run(self, ready: bool) -> None:
        """Do what is possible without blocking; `ready`: the events of `interest` have come."""
        if not self.closed:
            try:
                if self._socket:
                    self._converse(self._socket)
                else:
                    self._connect(ready)
            # ValueError: another program on that port sends something unreadable.
            except (OSError, ValueError) as error:
                self._lose(error)
            self._ran = now()
        if self._held_back:
            self._events.extend(report for when, report in self._held_back if when <= now())
            self._held_back = [each for each in self._held_back if each[0] > now()]
        # Outside of the clause above: an error of a handler is not one of the connection.
        while self._events:
            self._events.popleft()()
        self.flush()  # The handlers' requests need not wait for another turn of the loop.

    def request(self, operation: Any, done: Done) -> None:
        """Send one of kazoo's operations; `done(value, error)` is called later.

        The error is ConnectionLoss if it is unknown whether the operation was applied.
        """
        if not self.connected:
            self._events.append(lambda: done(None, wire.ConnectionLoss()))
            return
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._send(_rooted(self.servers.chroot, operation) if self.servers.chroot else operation, self._xid)
        self._pending.append(Request(self._xid, operation, self._sent, done))

    @property
    def server(self) -> str:
        """The address of the current or the last server."""
        return _address(*self._host)

    def flush(self) -> bool:
        """Send the requests so far; whether all are sent."""
        if self._socket:
            try:
                self._flush(self._socket)
            except OSError as error:
                self._lose(error)
        return not self._outbox or not self._socket

    def close(self) -> None:
        """End the session, which deletes its ephemerals. `closed` is set when that is done."""
        self._closing = True
        if self.connected:
            self.request(wire.Close(), self._on_closed)
        elif not self.id:
            self.abandon()

    def abandon(self) -> None:
        """Drop the connection and leave the session to its timeout."""
        self.closed = True
        self._drop()

    # -- connecting -----------------------------------------------------------------------------

    def _connect(self, ready: bool) -> None:
        if now() >= self._progress_at:
            self._progress_at = now() + PROGRESS_INTERVAL
            why = f" ({self.error})" if self.error else ""
            away = now() - self._lost_at
            log.warning(
                "no connection to ZooKeeper at %s for %.0f s%s; retrying; check %s",
                self.servers,
                away,
                why,
                self.servers.advice,
            )
        if self._task is None:
            if now() < self._not_before:
                return
            self._host = self._next_host()
            self._task, ready = Task(self._shake_hands(*self._host)), True
        self._task.run(ready)
        if self._task.ended:
            task, self._task = self._task, None
            if task.error:
                raise task.error
            self._begin(*task.result)

    def _next_host(self) -> tuple[str, int]:
        if not self._hosts:
            self._hosts = sorted(self.servers.hosts, key=lambda host: os.urandom(8))
        return self._hosts.pop()

    def _shake_hands(self, host: str, port: int) -> Steps[tuple[socket.socket, wire.Connect]]:
        addresses = yield from resolve(host, port)
        assert self._task is not None
        # A starting server accepts a connection and forgets it. The timeout grows with each silence, because
        # an ensemble is slow when a thousand clients come back.
        self._task.deadline = now() + self.timeout * min(1.0, HANDSHAKE_TIMEOUT * (1 + self._silences))
        self._stamp = self.servers.stamp()  # before the files are read
        try:
            connection = yield from self._dial(addresses, host)
            try:
                return connection, (yield from self._introduce(connection))
            except BaseException:
                connection.close()
                raise
        except (TimeoutError, PermissionError):
            raise  # `_lose` tells them apart.
        except OSError as error:
            # A read-only server closes the connection without an answer. We never accept a read-only session:
            # the server's record of sessions and locks may be old.
            if not self.servers.ca:
                raise ConnectionError(errno.ECONNRESET, handshake_cause(error)) from error
            from kolla_mesos_start.zookeeper.tls import explain

            why = explain(error, has_cert=bool(self.servers.cert), hosts=self.servers.source)
            raise ConnectionError(errno.ECONNRESET, why) from error

    def _dial(self, addresses: Sequence[Address], host: str) -> Steps[socket.socket]:
        """A connection to the first of the addresses that accepts one, with TLS if that is configured."""
        servers = self.servers
        if servers.ca:
            from kolla_mesos_start.zookeeper.tls import make_context

            # The files are read for each connection: they may have been renewed.
            context = make_context(servers.ca, servers.cert, servers.key)
            return (yield from connect_with_tls(addresses, context, host))
        return (yield from connect_any(addresses))

    def _introduce(self, connection: socket.socket) -> Steps[wire.Connect]:
        # The zxid keeps us from a server that lags behind. But an ensemble that was set up again from scratch
        # would refuse it for ever. After an outage this long the session has expired anyway.
        if self._lost and now() - self._lost_at > self.timeout:
            self.zxid = 0
        milliseconds = int(self._asked_timeout * 1000)
        self._inbox, self._outbox = bytearray(), bytearray()
        self._send(wire.Connect(0, self.zxid, milliseconds, self.id, self.password, False))
        while True:
            try:
                self._flush(connection)
            except OSError:
                self._receive(connection)  # With TLS 1.3, the server may have said why it refuses us.
                raise
            heard = self._receive(connection)
            frame = self._frame()
            if frame is not None:
                return wire.decode(wire.Connect, frame, 0)[0]
            if not heard:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
            yield connection.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0)

    def _begin(self, connection: socket.socket, answer: wire.Connect) -> None:
        """Handle the server's answer: it grants the session, or it has expired."""
        if answer.time_out <= 0:
            connection.close()
            self._expire()
            return
        self.sessions += not self.id
        self.id, self.password, self.timeout = answer.session_id, answer.passwd, answer.time_out / 1000
        again = " again" if self._opened else ""
        self._socket, self.connected, self._opened, self._silences = connection, True, now(), 0
        self._answered_at = math.inf
        self._causes.clear()
        # Read for each connection, as the files of TLS are: it may have been replaced.
        if why := self.servers.read_auth():
            log.warning("%s; the last credential that was read stays in use", why)
        for scheme, credential in self.servers.auth:
            self._send(wire.Auth(0, scheme, credential), AUTH_XID)
        log.debug("connected to ZooKeeper, session %#x, timeout %.1f s", self.id, self.timeout)
        if self._lost and not self.quiet:
            log.warning("connected to ZooKeeper%s after %.1f s", again, now() - self._lost_at)
        self._lost = False
        if self._closing:
            self.close()
        else:
            self._events.extend(self._connected_handlers)

    def _expire(self) -> None:
        if not self.id:
            raise ConnectionError(errno.ECONNRESET, "the server opens no session")
        self.former.add(self.id)
        self.id, self.password = 0, NO_PASSWORD
        if self._closing:
            self.abandon()
        else:
            log.warning("the ZooKeeper session has expired; opening a new one")

    def _lose(self, error: Exception) -> None:
        """Handle the loss of the connection, or a failed attempt to connect."""
        if isinstance(error, _NewIdentity):
            log.info("%s", error)
            self._lost_at = self._not_before = now()
            self._progress_at = self._lost_at + PROGRESS_INTERVAL
            self._drop()
            return
        self._causes[_address(*self._host)] = cause(error)
        was_connected = self._socket is not None
        if was_connected and now() - self._opened >= STABLE:
            self._failures = self._refusals = 0
        if was_connected:
            self._lost_at = now()
            self._progress_at = self._lost_at + PROGRESS_INTERVAL
        # No message while there are more servers to try.
        if was_connected or not (self._lost or self._hosts):
            words = "lost the connection to ZooKeeper" if was_connected else "can't connect to ZooKeeper"
            if not (self._closing or self.quiet):
                advice = "" if was_connected else f"; check {self.servers.advice}"
                log.warning("%s at %s (%s); retrying%s", words, self.servers, self.error, advice)
            self._lost = True
        if was_connected and isinstance(error, ValueError):
            self._report(UnreadableServer(f"{self.server}: {wire.UNREADABLE}"))
        if self._pending:
            self._count_losses(closed=isinstance(error, ConnectionError))
        if isinstance(error, PermissionError):
            self._not_before = now() + min(REFUSED_MOST, REFUSED * 2**self._refusals)
            self._refusals = min(self._refusals + 1, 10)
        elif not was_connected and isinstance(error, TimeoutError):
            self._silences += 1
            self._not_before = now()  # The timeout was pause enough.
        elif not self._hosts:
            delay = min(BACK_OFF_MOST, BACK_OFF * BACK_OFF_FACTOR ** min(self._failures, 20))
            self._not_before = now() + jittered(delay, 0.4)
            self._failures += 1
        self._drop()

    def _count_losses(self, closed: bool) -> None:
        """Find a request that is too large for the servers; `closed`: they closed the connection.

        A server closes it without an answer on a request larger than its `jute.maxbuffer`, which looks like
        an outage. But in an outage, the same large request is not sent right before several losses in a row.
        """
        earliest = max(now() - SOON, self._answered_at)
        sizes = {
            _largest_path(each.operation): len(each.operation.serialize())
            for each in self._pending
            if closed and each.sent >= earliest
        }
        path = max(sizes, key=sizes.__getitem__, default="")
        if sizes.get(path, 0) <= SMALL:
            path = ""
        self._losses = self._losses + 1 if path == self._suspect else 1
        self._suspect = path
        if path and self._losses >= TIMES:
            self._suspect = ""
            self._report(TooLarge(path, sizes[path]))

    def _report(self, fault: AgentError) -> None:
        self._events.extend(partial(handler, fault) for handler in self._fault_handlers)

    def _drop(self) -> None:
        # First: Ctrl-C may interrupt the tool here, and the loop can't poll a closed socket afterwards.
        task, self._task = self._task, None
        connection, self._socket, self.connected = self._socket, None, False
        if task:
            task.close()
        if connection:
            connection.close()
        while self._pending:
            self._fail(self._pending.popleft())
        self._pings.clear()

    def _fail(self, request: Request) -> None:
        """Report that it is unknown whether the request was applied."""
        self._events.append(lambda: request.done(None, wire.ConnectionLoss()))

    # -- conversing -----------------------------------------------------------------------------

    def _converse(self, connection: socket.socket) -> None:
        if now() - self._ran > self.timeout:
            # After a stop longer than the session timeout: find out whether the session still exists.
            raise TimeoutError(errno.ETIMEDOUT, f"this process did not run for {now() - self._ran:.1f} s")
        heard = self._receive(connection)
        while self._socket and (frame := self._frame()) is not None:
            self._read(frame)
        if not self._socket:
            return  # That was the reply to Close.
        if not heard:
            raise ConnectionError(errno.ECONNRESET, "closed by the server")
        # Only after reading: this process may have been stopped, or the machine suspended.
        if now() >= self._heard + self.timeout * DEAD_AFTER:
            raise TimeoutError(errno.ETIMEDOUT, f"nothing heard for {now() - self._heard:.1f} s")
        self._check_forgotten()
        if now() >= self._look_at:
            self._look_at = now() + self.timeout * PING_AFTER
            self._check_identity()
        if now() >= self._sent + self.timeout * PING_AFTER:
            self._send(wire.Ping(), PING_XID)
            self._pings.append(self._sent)
        self._flush(connection)

    def _check_identity(self) -> None:
        """Raise _NewIdentity if a file with our identity was replaced.

        A new connection reads everything again: a server may have kept events from who had no right to read.
        """
        stamp, before = self.servers.stamp(), self.servers.auth
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if why := self.servers.read_identity():
            log.warning("%s; the connection to ZooKeeper keeps its identity", why)
        elif self.servers.ca or self.servers.auth != before:
            raise _NewIdentity(
                "connecting to ZooKeeper again: our credential, certificate or CA was replaced"
            )

    def _check_forgotten(self) -> None:
        # The server sends data, but never completes a reply.
        if self._pings and now() >= self._pings[0] + self.timeout:
            raise TimeoutError(
                errno.ETIMEDOUT, f"a ping was left unanswered for {now() - self._pings[0]:.1f} s"
            )
        # Replies come in the order of the requests. A server may forget a sync in an election, and still
        # answer pings.
        if self._pending and self._answered_ping > self._pending[0].sent:
            age = now() - self._pending[0].sent
            if age >= self.timeout * FORGOTTEN_AFTER:
                raise TimeoutError(errno.ETIMEDOUT, f"a request was left unanswered for {age:.1f} s")

    def _read(self, frame: bytes) -> None:
        header, offset = wire.decode(wire.ReplyHeader, frame, 0)
        if header.zxid > 0:
            self.zxid = header.zxid
        if header.xid == WATCH_XID:
            watch, _ = wire.decode(wire.Watch, frame, offset)
            if watch.path:
                path = watch.path[len(self.servers.chroot) :] or "/"
                self._events.extend(partial(handler, path) for handler in self._watch_handlers)
        elif header.xid == PING_XID:
            self._answered_ping = self._pings.popleft() if self._pings else self._answered_ping
        elif header.xid == AUTH_XID:
            if header.err:
                # The file is being replaced: the next connection reads it, with a pause that grows. However
                # long that takes, nothing runs too long: it renews no lease, which ends a one-time command.
                if self._admitted:
                    raise PermissionError(errno.EACCES, "the credentials were refused")
                self._refuse(wire.AuthFailedError())
        else:
            self._reply(header, frame, offset)

    def _reply(self, header: wire.ReplyHeader, frame: bytes, offset: int) -> None:
        while self._pending and self._pending[0].xid != header.xid:
            self._fail(self._pending.popleft())  # The server has forgotten it.
        if not self._pending:
            raise ValueError(f"a reply to no request (xid {header.xid})")
        request = self._pending[0]
        value, error = None, None
        if header.err:
            error = wire.error_of(header.err)
        elif hasattr(request.operation, "deserialize"):
            value = wire.answer(request.operation, frame, offset)
            if self.servers.chroot:
                value = _unrooted(self.servers.chroot, request.operation, value)
        failure = error or (wire.failure(value) if isinstance(request.operation, wire.Transaction) else None)
        kind = wire.meaning(failure).kind if failure else ""
        if failure and kind == wire.LOST:
            raise OSError(errno.EREMOTEIO, f"the server answered: {wire.in_words(failure)}")
        if failure and kind == wire.UNKNOWN_IDENTITY:
            self._refuse(failure)
        if kind == wire.LATER:
            value, error = None, failure
        if isinstance(failure, wire.NoAuthError):
            self._check_identity()  # If it is another one, the request is sent again at the next connection.
        elif failure is None:
            self._admitted, self._refusals = True, 0
        self._pending.popleft()  # Not earlier: an unreadable reply is no answer.
        self.answers += 1
        self._answered_at = min(self._answered_at, now())
        # Its size is not the cause. (A read of the same znode proves nothing.)
        if self._suspect and len(request.operation.serialize()) > SMALL:
            self._suspect = "" if _largest_path(request.operation) == self._suspect else self._suspect
        if isinstance(request.operation, wire.Close):
            request.done(value, error)
        elif delay := self._delay(request.operation, failure):
            self._held_back.append((now() + jittered(delay, 0.2), lambda: request.done(value, error)))
        else:
            self._events.append(lambda: request.done(value, error))

    def _refuse(self, failure: Exception) -> NoReturn:
        """The server refuses our identities, and closes the connection, or should."""
        words = wire.meaning(failure).words
        self._report(AccessDenied(f"{words}; connected as {self.servers.identity}"))
        raise PermissionError(errno.EACCES, words)

    def _delay(self, operation: Any, failure: Exception | None) -> float:
        """Seconds until the failure of a request is reported: 0, unless it fails again and again."""
        if not failure:
            if self._failing:
                self._failing.pop(_what(operation), None)
            return 0.0
        what = _what(operation)
        is_absent = isinstance(failure, wire.NoNodeError) and isinstance(operation, wire.READS)
        pace = PACE_OF_ABSENT if is_absent else PACE
        if len(self._failing) >= MOST_FAILING:
            self._failing.clear()
        times, last = self._failing.get(what, (0.0, now()))
        times = max(0.0, times - (now() - last) * pace.rate) + 1
        self._failing[what] = times, now()
        delay = FIRST_DELAY * 2 ** min(times - pace.free, 10.0) if times > pace.free else 0.0
        least = LATER if wire.meaning(failure).kind == wire.LATER else 0.0
        return max(least, min(delay, pace.longest))

    def _on_closed(self, value: object, error: wire.KazooException | None) -> None:
        # If the connection is lost instead, the session is attached again and closed.
        if not isinstance(error, wire.ConnectionLoss):
            self.abandon()

    # -- bytes ----------------------------------------------------------------------------------

    def _send(self, operation: Any, xid: int | None = None) -> None:
        header = b"" if xid is None else wire.int_struct.pack(xid) + wire.int_struct.pack(operation.type)
        payload = header + bytes(operation.serialize())
        self._outbox += wire.int_struct.pack(len(payload)) + payload
        self._sent = now()

    def _flush(self, connection: socket.socket) -> None:
        try:
            while self._outbox:
                del self._outbox[: connection.send(self._outbox)]
        except OSError as error:
            if not would_block(error):
                raise

    def _receive(self, connection: socket.socket) -> bool:
        """Read the available data, or a part of it; false at end of file."""
        try:
            for _ in range(READS):
                data = connection.recv(65536)
                if not data:
                    return False
                self._inbox += data
                self._heard = now()
        except OSError as error:
            if not would_block(error):
                raise
        return True

    def _frame(self) -> bytes | None:
        if len(self._inbox) < wire.int_struct.size:
            return None
        (length,) = wire.int_struct.unpack_from(self._inbox)
        if not 0 <= length <= LARGEST_FRAME:
            raise ValueError(f"a frame of {length} bytes: not a ZooKeeper server?")
        end = wire.int_struct.size + length
        if len(self._inbox) < end:
            return None
        frame = bytes(self._inbox[wire.int_struct.size : end])
        del self._inbox[:end]
        return frame


def perform(session: Session, steps: Requests) -> None:
    """Send each request that a generator yields, and continue it with the answer, or a list of them together.

    An error of the server is raised in it, or is in the list; one that it does not handle ends it.
    """

    def advance(value: Any, error: wire.KazooException | None) -> None:
        with contextlib.suppress(StopIteration, wire.KazooException):
            send(steps.throw(error) if error else steps.send(value))

    def send(asked: Any) -> None:
        if not isinstance(asked, list):
            session.request(asked, advance)
            return
        answers: dict[int, Any] = {}

        def collect(index: int, value: Any, error: wire.KazooException | None) -> None:
            answers[index] = error or value
            if len(answers) == len(asked):
                advance([answers[each] for each in range(len(asked))], None)

        for index, each in enumerate(asked):
            session.request(each, partial(collect, index))

    advance(None, None)


def check_size(path: str, data: bytes) -> None:
    """Refuse data on which the server would close the connection."""
    if len(data) > MAX_DATA:
        raise AgentError(f"{path}: {len(data)} bytes are more than ZooKeeper accepts ({MAX_DATA})")


def _largest_path(operation: Any) -> str:
    """The path of a request; of a transaction that of its largest part."""
    parts = getattr(operation, "operations", None) or [operation]
    return str(getattr(max(parts, key=lambda each: len(each.serialize())), "path", ""))


def _what(operation: Any) -> object:
    """What a request asks for: the same for each repetition of it."""
    parts = getattr(operation, "operations", None) or [operation]
    return tuple((each.type, getattr(each, "path", "")) for each in parts)


def _rooted(chroot: str, operation: Any) -> Any:
    """The operation with its paths below the chroot."""
    if isinstance(operation, wire.Transaction):
        return operation._replace(operations=[_rooted(chroot, each) for each in operation.operations])
    if hasattr(operation, "path"):
        return operation._replace(path=chroot + (operation.path if operation.path != "/" else ""))
    return operation


def _unrooted(chroot: str, operation: Any, value: Any) -> Any:
    """The result of the operation, with the paths of created znodes as they were requested."""
    if isinstance(operation, wire.Transaction):
        return [_unrooted(chroot, each, result) for each, result in zip(operation.operations, value)]
    if isinstance(operation, wire.Create) and isinstance(value, str):  # In a transaction it may be an error.
        return value[len(chroot) :] or "/"
    return value


def jittered(seconds: float, share: float) -> float:
    """`seconds` plus or minus up to that share, so that many clients do not act at the same instant."""
    # Not `random`, which would cost each registrar half a megabyte.
    chance = int.from_bytes(os.urandom(4), "big") / 2**32
    return seconds * (1 + share * (2 * chance - 1))
