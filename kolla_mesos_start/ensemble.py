"""The agent's one session with the ZooKeeper ensemble: connect, read together, watch, write, lost and found.

All of kazoo is used here, and here alone. What the agent wants to know is a set of queries; this
module keeps a view of their results true: it sets the watch, then reads, and does so again after
every event, every reconnection and in every new session. Bytes become text here (`text`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Callable

import six
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import ACL, Id, Permissions

from kolla_mesos_start.errors import AccessDenied, AgentError, CannotRender, NoConnection
from kolla_mesos_start.mailbox import Mailbox, now
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.znodes import Query, Znode

log = logging.getLogger(__name__)

# The server drops the connection on a larger request, which looks like an outage and would be
# retried for ever; its own limit (jute.maxbuffer) is 1,048,575 bytes for the whole packet.
MAX_DATA = 1_000_000

# kazoo's default back-off grows to hours: after an outage of 30 s most sessions would be lost.
BACK_OFF = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0}

PROGRESS_INTERVAL = 30.0

_OUTAGE = (kazoo_errors.ConnectionLoss, kazoo_errors.SessionExpiredError, kazoo_errors.OperationTimeoutError)
_DENIED = (kazoo_errors.NoAuthError, kazoo_errors.AuthFailedError, kazoo_errors.InvalidACLError)
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
    """A transaction was refused as a whole; `cause` is what the first bad operation met."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(type(cause).__name__)
        self.cause = cause


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
    since. `view`: the results of the watched queries; `changes` counts its changes. `unwanted`:
    znodes that are to be deleted, and aren't known to be gone.
    """

    def __init__(self, settings: Settings, mailbox: Mailbox) -> None:
        self.connected = False
        self.session = 0
        self.client_id: tuple[int, bytes] | None = None
        self.timeout = settings.session_timeout
        self.proven_at = 0.0
        self.view: dict[Query, Any] = {}
        self.changes = 0
        self.unwanted: set[str] = set()
        self._settings = settings
        self._mailbox = mailbox
        self._wanted: dict[Query, Callable[[object], None]] = {}
        self._reading: set[Query] = set()
        self._dirty: set[Query] = set()
        self._kept: dict[str, bytes] = {}
        self._unmade: set[str] = set()
        self._on_proof: list[Callable[[float], None]] = []
        self._lost = True
        self.client = self._new_client()

    # -- the session --------------------------------------------------------------------------

    def connect(self) -> None:
        """Wait for the first connection; NoConnection past KOLLA_ZK_CONNECT_TIMEOUT."""
        begun = now()
        limit = self._settings.connect_timeout
        deadline = None if limit is None else begun + limit
        self.client.start_async()
        while not self.connected:
            step = now() + PROGRESS_INTERVAL
            self._mailbox.wait(lambda: self.connected, step if deadline is None else min(step, deadline))
            if self.connected:
                break
            if deadline is not None and now() >= deadline:
                raise NoConnection(
                    f"no connection to ZooKeeper at {self._settings.hosts} within {limit:g} s "
                    "(KOLLA_ZK_CONNECT_TIMEOUT)"
                )
            log.warning(
                "no connection to ZooKeeper at %s for %.0f s; still trying",
                self._settings.hosts,
                now() - begun,
            )

    def close(self) -> None:
        """End the session: its ephemerals go at once."""
        self.client.stop()
        self.client.close()

    def on_proof(self, handler: Callable[[float], None]) -> None:
        """Have `handler(sent)` run when the leader has proved to know of this session since `sent`."""
        self._on_proof.append(handler)

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
            self._mailbox.post(partial(self._connected, begun, timeout, client.client_id))
            return read_timeout, connect_timeout

        connection._connect = observed

    def _state_changed(self, state: str) -> None:
        # Runs on kazoo's thread.
        self._mailbox.post(partial(self._on_state, state, self.client.client_state))

    def _on_state(self, state: str, keeper: str) -> None:
        if keeper == KeeperState.AUTH_FAILED:
            raise AccessDenied("ZooKeeper refused the credentials of KOLLA_ZK_AUTH_FILE")
        if state == KazooState.LOST:
            self._lost = True
        if state != KazooState.CONNECTED and self.connected:
            self.connected = False
            log.warning("connection to ZooKeeper lost; still trying")

    def _connected(self, begun: float, timeout: float, client_id: tuple[int, bytes] | None) -> None:
        self.connected = True
        self.timeout = timeout
        self.proven_at = begun
        self.client_id = client_id or self.client_id
        renewed, self._lost = self._lost, False
        if renewed:
            # Whatever the expired session owned is gone.
            self.session += 1
            self._unmade.update(self._kept)
        if self.session > 1 or not renewed:
            log.warning("connected to ZooKeeper again%s", ": the session had expired" * renewed)
        for handler in self._on_proof:
            handler(begun)
        for path in self._unmade:
            self._make(path)
        for path in self.unwanted:
            self._delete(path)
        # kazoo drops every watch with the connection, and anything may have happened meanwhile.
        self._dirty.update(self._wanted)
        self._refresh()

    # -- the view -------------------------------------------------------------------------------

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `view` true for these queries, and for no others."""
        wanted = set(queries)
        for query in set(self._wanted) - wanted:
            del self._wanted[query]
            self.view.pop(query, None)
            self._dirty.discard(query)
        for query in wanted - set(self._wanted):
            self._wanted[query] = partial(self._fired, query)
            self._dirty.add(query)
        self._refresh()

    def fresh(self) -> bool:
        """Whether the view holds what the server said last, of everything that is watched."""
        return self.connected and not self._dirty and not self._reading

    def _fired(self, query: Query, event: object) -> None:
        # Runs on kazoo's thread.
        self._mailbox.post(partial(self._changed, query))

    def _changed(self, query: Query) -> None:
        if query in self._wanted:
            self._dirty.add(query)
            self._refresh()

    def _refresh(self) -> None:
        if not self.connected:
            return
        for query in self._dirty - self._reading:
            self._dirty.discard(query)
            self._reading.add(query)
            self._read(query)

    def _read(self, query: Query) -> None:
        fired = self._wanted[query]
        # A watch can only be set by get where there is a znode, and by exists everywhere; sent
        # first, so that nothing can happen between the watch and the read.
        self.client.exists_async(query.path, watch=fired)
        if query.children:
            reply = self.client.get_children_async(query.path, watch=fired)
        else:
            reply = self.client.get_async(query.path)
        reply.rawlink(lambda result: self._mailbox.post(partial(self._arrived, query, result)))

    def _arrived(self, query: Query, reply: Any) -> None:
        self._reading.discard(query)
        if query not in self._wanted:
            return
        try:
            value = reply.get()
        except kazoo_errors.NoNodeError:
            value = None
        except _OUTAGE:
            # The connection may be back by the time the failure is told: try again at once.
            self._dirty.add(query)
            self._refresh()
            return
        except _DENIED as error:
            raise AccessDenied(f"{query.path} can't be read: {type(error).__name__}") from error
        if query.children:
            self.view[query] = tuple(sorted(value or ()))
        else:
            self.view[query] = Znode(*value) if value else None
        self.changes += 1
        self._refresh()

    # -- requests -------------------------------------------------------------------------------

    def attempt(self, start: Callable[[KazooClient], Any], what: str) -> Any:
        """The result of one request, once connected; Outage where its fate is unknown.

        `what` names the request in an error. Other errors of ZooKeeper pass through as they are.
        """
        self._mailbox.wait(lambda: self.connected)
        reply = start(self.client)
        self._await([reply])
        try:
            return reply.get()
        except _OUTAGE as error:
            raise Outage(what) from error
        except _DENIED as error:
            raise AccessDenied(f"{what}: {type(error).__name__}") from error

    def request(self, start: Callable[[KazooClient], Any], what: str) -> Any:
        """The result of a request that may safely be sent again, however long that takes."""
        while True:
            try:
                return self.attempt(start, what)
            except Outage:
                # The state change is on its way: until it is here, another try would fail at once.
                self._mailbox.wait(lambda: not self.connected, now() + 0.05)

    def transaction(self, operations: Callable[[Any], None], what: str) -> Sequence[Any]:
        """Apply all `operations` or none; Refused where one met an error, Outage where it is unknown."""

        def start(client: KazooClient) -> Any:
            transaction = client.transaction()
            operations(transaction)
            for operation in transaction.operations:
                check_size(operation.path, getattr(operation, "data", b""))
            return transaction.commit_async()

        results: Sequence[Any] = self.attempt(start, what)
        errors = [result for result in results if isinstance(result, Exception)]
        for error in errors:
            if isinstance(error, _DENIED):
                raise AccessDenied(f"{what}: {type(error).__name__}")
        causes = [e for e in errors if not isinstance(e, (kazoo_errors.RolledBackError, _INCONSISTENT))]
        if errors:
            raise Refused((causes or errors)[0])
        return results

    def _await(self, replies: Sequence[Any]) -> None:
        """Wait until all of `replies` have come; in an outage they come as errors."""
        # Replies come in the order of the requests: the last one wakes us.
        replies[-1].rawlink(lambda result: self._mailbox.post(lambda: None))
        self._mailbox.wait(lambda: all(reply.ready() for reply in replies))

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
            self._mailbox.wait(lambda: self.connected)
            replies = [(path, start(self.client, path)) for path in missing]
            self._await([reply for _, reply in replies])
            for path, reply in replies:
                try:
                    results[path] = parse(reply.get())
                except kazoo_errors.NoNodeError:
                    results[path] = None
                except _OUTAGE:
                    continue
                except _DENIED as error:
                    raise AccessDenied(f"{path} can't be read: {type(error).__name__}") from error
            missing = [path for path in missing if path not in results]
            if missing:
                self._mailbox.wait(lambda: not self.connected, now() + 0.05)
        return results

    def keep(self, path: str, data: bytes) -> None:
        """Keep an ephemeral at `path`, in this session and in every later one, without waiting for it."""
        check_size(path, data)
        self._kept[path] = data
        self._unmade.add(path)
        if self.connected:
            self._make(path)

    def _make(self, path: str) -> None:
        self.client.create_async(path.rsplit("/", 1)[0])
        reply = self.client.create_async(path, self._kept[path], ephemeral=True)
        reply.rawlink(lambda result: self._mailbox.post(partial(self._made, path, result)))

    def _made(self, path: str, reply: Any) -> None:
        try:
            reply.get()
        except kazoo_errors.NodeExistsError:
            # A previous run of this container left it, or our own request was applied and its
            # reply lost. Replaced in one transaction, so that nobody counts two, nor none.
            transaction = self.client.transaction()
            transaction.delete(path)
            transaction.create(path, self._kept[path], ephemeral=True)
            transaction.commit_async().rawlink(
                lambda result: self._mailbox.post(partial(self._replaced, path, result))
            )
        except _OUTAGE:
            if self.connected:
                self._make(path)
        except _DENIED as error:
            raise AccessDenied(f"{path} can't be created: {type(error).__name__}") from error
        else:
            self._unmade.discard(path)

    def _replaced(self, path: str, reply: Any) -> None:
        try:
            replaced = not any(isinstance(result, Exception) for result in reply.get())
        except _OUTAGE:
            replaced = False
        if replaced:
            self._unmade.discard(path)
        elif self.connected:
            self._make(path)  # What stood there has gone by itself.

    def discard(self, path: str) -> None:
        """Have `path` deleted, now or after an outage, without waiting for it."""
        self.unwanted.add(path)
        if self.connected:
            self._delete(path)

    def _delete(self, path: str) -> None:
        reply = self.client.delete_async(path)
        reply.rawlink(lambda result: self._mailbox.post(partial(self._deleted, path, result)))

    def _deleted(self, path: str, reply: Any) -> None:
        try:
            reply.get()
        except kazoo_errors.NoNodeError:
            pass  # Somebody was quicker, or the reply to an earlier try was lost.
        except _OUTAGE:
            if self.connected:
                self._delete(path)
            return
        except _DENIED as error:
            raise AccessDenied(f"{path} can't be deleted: {type(error).__name__}") from error
        self.unwanted.discard(path)

    def ensure(self, nodes: Mapping[str, bytes]) -> None:
        """Create those of `nodes` that are not there, parents first as they are given."""
        present = self.read(nodes)
        absent = [path for path in nodes if present[path] is None]
        while absent:
            self._mailbox.wait(lambda: self.connected)
            replies = [self.client.create_async(path, nodes[path]) for path in absent]
            self._await(replies)
            absent = [path for path, reply in zip(absent, replies) if not self._is_created(path, reply)]

    def _is_created(self, path: str, reply: Any) -> bool:
        try:
            reply.get()
        except kazoo_errors.NodeExistsError:
            return True  # Another agent, or this one before the connection was lost.
        except _OUTAGE:
            return False
        except kazoo_errors.NoNodeError as error:
            raise AgentError(f"{path} can't be created: its parent has been deleted meanwhile") from error
        except _DENIED as error:
            raise AccessDenied(f"{path} can't be created: {type(error).__name__}") from error
        return True


_INCONSISTENT = kazoo_errors.RuntimeInconsistency


def check_size(path: str, data: bytes) -> None:
    """Refuse what the server would answer by dropping the connection."""
    if len(data) > MAX_DATA:
        raise AgentError(f"{path}: {len(data)} bytes are more than ZooKeeper takes ({MAX_DATA})")
