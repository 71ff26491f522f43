"""The agent's one session with the ZooKeeper ensemble: connect, read together, write, lost and found.

The session is kazoo's; what is awaited is awaited in the loop, so that signals and the other
events are never kept waiting. Bytes become text here (`text`).
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Callable

import six
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import ACL, Id, Permissions

from kolla_mesos_start.errors import AccessDenied, AgentError, CannotRender, NoConnection
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.zookeeper.query import Znode

log = logging.getLogger(__name__)

# The server drops the connection on a larger request, which looks like an outage and would be
# retried for ever; its own limit (jute.maxbuffer) is 1,048,575 bytes for the whole packet.
MAX_DATA = 1_000_000
CREATE_OVERHEAD = 500  # bytes: headers and an ACL

# kazoo's default back-off grows to hours: after an outage of 30 s most sessions would be lost. It
# adds a jitter of up to 0.4 of each delay either way. An election takes less than half a second:
# with a steeper growth most agents would sleep through its end.
BACK_OFF = {"max_tries": -1, "delay": 0.05, "backoff": 1.25, "max_delay": 0.5}
# Seconds for a server to answer a new connection, and as many more each time that none does: one that has
# only begun to start takes a connection and forgets it, and kazoo would wait for it for a session timeout.
HANDSHAKE_TIMEOUT = 1.0

PROGRESS_INTERVAL = 30.0
SHORT_SESSION = 3.0

# What a request meets when the connection goes away (kazoo's RuntimeError: the server has forgotten it), and
# when it may not do what it wants.
OUTAGE = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.OperationTimeoutError,
    RuntimeError,
)
DENIED = (kazoo_errors.NoAuthError, kazoo_errors.AuthFailedError, kazoo_errors.InvalidACLError)
_PERMISSIONS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


class Outage(Exception):
    """The connection went away under a request; whether it was applied is unknown."""


class Refused(Exception):
    """A transaction was refused as a whole; `cause` is what the first bad operation met, at `path`."""

    def __init__(self, cause: Exception, path: str) -> None:
        super().__init__(f"{type(cause).__name__} at {path}")
        self.cause = cause
        self.path = path


def text(path: str, data: bytes) -> str:
    """The text that stands at `path`; CannotRender names the znode where it isn't UTF-8."""
    try:
        return str(six.ensure_text(data))
    except UnicodeDecodeError as error:
        raise CannotRender(f"{path} is not UTF-8 text (byte {error.start})") from error


class Ensemble:
    """One session with the ensemble.

    `connected`: requests may be sent. `session` counts sessions. `client_id`: id and password of
    the session. `timeout`: negotiated, seconds. `proven_at`: the leader has known of the session
    since.
    """

    def __init__(self, settings: Settings, loop: Loop) -> None:
        self.connected = False
        self.session = 0
        self.client_id: tuple[int, bytes] | None = None
        self.timeout = 0.0
        self.proven_at = 0.0
        self._settings = settings
        self.loop = loop
        self._on_connected: list[Callable[[], None]] = []
        self._dialled = False
        self._lost = True
        self._closing = False
        self._away_since = now()
        self.client = self._new_client()

    # -- the session --------------------------------------------------------------------------

    def dial(self) -> None:
        """Begin to connect, and go on trying for as long as the agent lives."""
        self._dialled = True
        # Signals are the main thread's: one that another thread takes just before the exec is lost with it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.client.start_async()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def connect(self) -> None:
        """Wait for the first connection; NoConnection past KOLLA_ZK_CONNECT_TIMEOUT."""
        if not self._dialled:
            self.dial()
        limit = self._settings.connect_timeout
        self.loop.call_at(self._away_since + PROGRESS_INTERVAL, self._still_away)
        if not self.loop.wait(lambda: self.connected, None if limit is None else self._away_since + limit):
            raise NoConnection(
                f"no connection to ZooKeeper at {self._settings.hosts} within {limit:g} s "
                "(KOLLA_ZK_CONNECT_TIMEOUT)"
            )

    def close(self) -> None:
        """End the session: its ephemerals go at once. From here on its connection is nobody's concern."""
        self._closing = True
        self.client.stop()
        self.client.close()

    def drop_connection(self) -> None:
        """Give up a connection over which a request is not answered; another one is made at once."""
        log.warning("a request to ZooKeeper has been left without an answer: connecting again")
        with contextlib.suppress(OSError, AttributeError):  # It is gone already.
            self.client._connection._socket.shutdown(socket.SHUT_RDWR)

    def on_connected(self, handler: Callable[[], None]) -> None:
        """Have `handler` run at each connection after this, whether the session is the same or a new one."""
        self._on_connected.append(handler)

    def _new_client(self) -> KazooClient:
        settings = self._settings
        client = KazooClient(
            hosts=settings.hosts + settings.chroot,
            timeout=settings.session_timeout,
            connection_retry=dict(BACK_OFF),
            command_retry=dict(BACK_OFF),
            auth_data=list(settings.auth),
            default_acl=self.acl or None,
            use_ssl=bool(settings.ca or settings.cert),
            ca=settings.ca,
            certfile=settings.cert,
            keyfile=settings.key,
            check_hostname=bool(settings.ca),
        )
        self._observe_connections(client)
        client.add_listener(self._state_changed)
        return client

    @property
    def acl(self) -> list[ACL]:
        """KOLLA_ZK_ACL as kazoo wants it; empty stands for the default, the world."""
        return [
            ACL(sum(_PERMISSIONS[letter] for letter in set(perms)), Id(scheme, identity))
            for scheme, identity, perms in self._settings.acl
        ]

    def _observe_connections(self, client: KazooClient) -> None:
        # kazoo keeps the negotiated timeout to itself; the connection's own step returns 2/3 of it.
        # When that step was begun is of use too: the leader itself opens a session or finds it
        # alive at every connection, so it has known of this one since then.
        connection = client._connection
        connect = connection._connect

        def observed(*args: Any) -> tuple[float, float]:
            begun = now()
            read_timeout, connect_timeout = connect(*args)
            timeout = round(read_timeout * 1.5) / 1000
            self.loop.post(partial(self._connected, begun, timeout, client.client_id))
            return read_timeout, connect_timeout

        connection._connect = observed
        invoke = connection._invoke
        silences = 0

        def invoke_impatiently(timeout: float, request: Any, **more: Any) -> Any:
            nonlocal silences
            if not isinstance(request, Connect):
                return invoke(timeout, request, **more)
            try:
                answer = invoke(min(timeout, HANDSHAKE_TIMEOUT * (1 + silences)), request, **more)
            except client.handler.timeout_exception:
                silences += 1
                raise
            silences = 0
            return answer

        connection._invoke = invoke_impatiently
        read_response = connection._read_response

        def read_or_drop(*args: Any) -> Any:
            try:
                return read_response(*args)
            except RuntimeError as error:
                # A request that a server has forgotten, a sync in an election for one: kazoo's thread would
                # die of the next one's reply, which is not the one that it awaits.
                raise kazoo_errors.ConnectionDropped(str(error)) from error

        connection._read_response = read_or_drop

    def _state_changed(self, state: str) -> None:
        # Runs on kazoo's thread.
        self.loop.post(partial(self._on_state, state, self.client.client_state))

    def _on_state(self, state: str, keeper: str) -> None:
        if keeper == KeeperState.AUTH_FAILED:
            raise AccessDenied("ZooKeeper refused the credentials of KOLLA_ZK_AUTH_FILE")
        if state == KazooState.LOST:
            self._lost = True
        if state != KazooState.CONNECTED and self.connected:
            self.connected = False
            if self._closing:
                return
            self._away_since = now()
            self.loop.call_at(self._away_since + PROGRESS_INTERVAL, self._still_away)
            log.warning("connection to ZooKeeper lost; trying on")

    def _still_away(self) -> None:
        away = now() - self._away_since
        if not self.connected and not self._closing and away >= PROGRESS_INTERVAL:
            log.warning("no connection to ZooKeeper at %s for %.0f s; trying on", self._settings.hosts, away)
            self.loop.call_at(now() + PROGRESS_INTERVAL, self._still_away)

    def _connected(self, begun: float, timeout: float, client_id: tuple[int, bytes] | None) -> None:
        previous, self.timeout = self.timeout, timeout
        self.connected = True
        self.proven_at = begun
        self.client_id = client_id or self.client_id
        renewed, self._lost = self._lost, False
        self.session += renewed
        if self.session > 1 or not renewed:
            log.warning("connected to ZooKeeper again%s", ": the session had expired" * renewed)
        if timeout < SHORT_SESSION and timeout != previous:
            log.warning(
                "the session timeout is %g s, as the server grants it: a short hiccup will look like the end "
                "of this container; set KOLLA_ZK_SESSION_TIMEOUT, or the server's tickTime, higher",
                timeout,
            )
        for handler in self._on_connected:
            handler()

    # -- requests -------------------------------------------------------------------------------

    def attempt(self, start: Callable[[KazooClient], Any], what: str) -> Any:
        """The result of one request, once connected; Outage where its fate is unknown.

        `what` names the request in an error. Other errors of ZooKeeper pass through as they are.
        """
        self.loop.wait(lambda: self.connected)
        reply = start(self.client)
        self._await([reply])
        try:
            return reply.get()
        except OUTAGE as error:
            raise Outage(what) from error
        except DENIED as error:
            raise AccessDenied(f"{what}: {type(error).__name__}") from error

    def request(self, start: Callable[[KazooClient], Any], what: str) -> Any:
        """The result of a request that may safely be sent again, however long that takes."""
        while True:
            try:
                return self.attempt(start, what)
            except Outage:
                # The state change is on its way: until it is here, another try would fail at once.
                self.loop.wait(lambda: not self.connected, now() + 0.05)

    def transaction(
        self, operations: Callable[[Any], None], what: str, meanwhile: Callable[[], object] = lambda: None
    ) -> Sequence[Any]:
        """Apply all `operations` or none; Refused where one met an error, Outage where it is unknown.

        `meanwhile` is called once they are sent.
        """
        paths: list[str] = []

        def start(client: KazooClient) -> Any:
            transaction = client.transaction()
            operations(transaction)
            for operation in transaction.operations:
                check_size(operation.path, getattr(operation, "data", b""))
            paths[:] = [operation.path for operation in transaction.operations]
            reply = transaction.commit_async()
            meanwhile()
            return reply

        results: Sequence[Any] = self.attempt(start, what)
        errors = [(result, path) for result, path in zip(results, paths) if isinstance(result, Exception)]
        for error, _ in errors:
            if isinstance(error, DENIED):
                raise AccessDenied(f"{what}: {type(error).__name__}")
        causes = [e for e in errors if not isinstance(e[0], (kazoo_errors.RolledBackError, _INCONSISTENT))]
        if errors:
            raise Refused(*(causes or errors)[0])
        return results

    def _await(self, replies: Sequence[Any]) -> None:
        """Wait until all of `replies` have come; in an outage they come as errors."""
        # Replies come in the order of the requests: the last one wakes us.
        replies[-1].rawlink(lambda result: self.loop.post(lambda: None))
        self.loop.wait(lambda: all(reply.ready() for reply in replies))

    def read(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        """What stands at each of `paths`, read together, without a watch."""
        return self._together(paths, lambda client, path: client.get_async(path), lambda got: Znode(*got))

    def list(self, paths: Iterable[str]) -> dict[str, Sequence[str] | None]:
        """The sorted names below each of `paths`, read together, without a watch."""
        return self._together(paths, lambda client, path: client.get_children_async(path), sorted)

    def _together(
        self, paths: Iterable[str], start: Callable[[KazooClient, str], Any], parse: Callable[[Any], Any]
    ) -> dict[str, Any]:
        results: dict[str, Any] = {}
        missing = list(dict.fromkeys(paths))
        while missing:
            self.loop.wait(lambda: self.connected)
            replies = [(path, start(self.client, path)) for path in missing]
            self._await([reply for _, reply in replies])
            for path, reply in replies:
                try:
                    results[path] = parse(reply.get())
                except kazoo_errors.NoNodeError:
                    results[path] = None
                except OUTAGE:
                    continue
                except DENIED as error:
                    raise AccessDenied(f"{path} can't be read: {type(error).__name__}") from error
            missing = [path for path in missing if path not in results]
            if missing:
                self.loop.wait(lambda: not self.connected, now() + 0.05)
        return results

    def ensure(
        self,
        nodes: Mapping[str, bytes],
        implied: Mapping[str, str] = MappingProxyType({}),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> dict[str, Znode | None]:
        """Create those of `nodes` that are absent, parents first as given; all or none where one request
        holds them.

        `implied` names for some of them another one, with which they are always made: while that
        is there they are not looked at. Returns what stood where it was looked; None where it was
        made just now. `meanwhile` is called while the servers write, if they have to.
        """
        while True:
            found = self.read(path for path in nodes if path not in implied)
            absent = [path for path in nodes if found[implied.get(path, path)] is None]
            if not absent:
                return found

            try:
                for batch in _batches(absent, nodes):
                    self.transaction(
                        partial(_create, batch, nodes), f"{batch[0]} can't be created", meanwhile
                    )
                return found
            except Outage:
                continue  # Perhaps it was applied: that is for another look.
            except Refused as refused:
                if isinstance(refused.cause, kazoo_errors.NoNodeError) and _parent(refused.path) not in nodes:
                    raise AgentError(
                        f"{refused.path} can't be created: its parent is not there any more"
                    ) from refused
                # Another agent has been quicker, or a part of them was there: nothing is implied any more.
                implied = {}


def _batches(paths: Sequence[str], nodes: Mapping[str, bytes]) -> Iterator[list[str]]:
    """The paths in their order, as many at a time as one request may hold."""
    batch: list[str] = []
    size = 0
    for path in paths:
        needs = len(path) + len(nodes[path]) + CREATE_OVERHEAD
        if batch and size + needs > MAX_DATA:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += needs
    if batch:
        yield batch


def _create(paths: Sequence[str], nodes: Mapping[str, bytes], transaction: Any) -> None:
    for path in paths:
        transaction.create(path, nodes[path])


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0]


_INCONSISTENT = kazoo_errors.RuntimeInconsistency


def check_size(path: str, data: bytes) -> None:
    """Refuse what the server would answer by dropping the connection."""
    if len(data) > MAX_DATA:
        raise AgentError(f"{path}: {len(data)} bytes are more than ZooKeeper takes ({MAX_DATA})")
