"""The agent's ZooKeeper client: sends requests over one session, and waits for the replies in the loop.

Signals, timers and all other sources of the loop continue while it waits. Its watches keep the results of
queries up to date: everything is read again after every event and at every connection, because watches are
gone then, and anything may have happened.

A thousand containers that wait for two hundred names must not all read them two hundred times: while many
names are missing, a list is read again after a pause.
"""

from __future__ import annotations

import contextlib
import math
import os
from functools import partial
from types import MappingProxyType

from kolla_mesos_start.errors import (
    DONE,
    NO_ANSWER,
    AccessDenied,
    AgentError,
    CannotRender,
    DependenciesNotSatisfied,
    NoConnection,
    NoRight,
    RefusedByServer,
    UnreadableServer,
)
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.ephemerals import Ephemerals, denial
from kolla_mesos_start.zookeeper.session import MAX_DATA, Session, check_size, jittered, perform
from kolla_mesos_start.zookeeper.view import Unknown, View, Znode, data_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, Callable, Optional, TypeVar

    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.zookeeper.session import Requests, Servers
    from kolla_mesos_start.zookeeper.view import Query

    T = TypeVar("T")
    # The data at a path (False) or the names below it (True): the zxid of its last change; None: nothing.
    Seen = dict[tuple[str, bool], Optional[int]]

log = Logger(__name__)

CREATE_OVERHEAD = 500  # bytes: headers, and an ACL for one
ENTRY_OVERHEAD = 30  # bytes of each entry of an ACL, beside its id
# Seconds for each missing name after the first, and at most: together with the read, the last name is known a
# quarter of a second after it appeared.
PAUSE, LONGEST_PAUSE = 0.01, 0.24
MOST_WARNINGS = 100  # about what was read: another container may write as much as it likes
SHORT_SESSION = 3.0  # seconds
# Seconds until a read is repeated that was granted before, and then denied: a credential is being replaced.
DENIED_PAUSE = 5.0
SILENT = 2.0  # seconds until a wait for an answer is reported
CLOSE_TIMEOUT = 1.0  # seconds; then the session ends with its timeout instead


class Outage(Exception):
    """The connection was lost during a request; it is unknown whether it was applied."""


class Refused(Exception):
    """A transaction was refused as a whole; `cause` is the error of the first failed operation, at `path`."""

    def __init__(self, cause: Exception, path: str) -> None:
        super().__init__(f"{type(cause).__name__} at {path}")
        self.cause = cause
        self.path = path


class _Reply:
    """The result of a request, once `done`."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: wire.KazooException | None = None

    def arrive(self, value: Any, error: wire.KazooException | None) -> None:
        self.done, self.value, self.error = True, value, error


def text(path: str, data: bytes) -> str:
    """The text of the znode at `path`. Raises CannotRender if it is not UTF-8."""
    import six

    try:
        return str(six.ensure_text(data))
    except UnicodeDecodeError as error:
        raise CannotRender(f"{path} is not UTF-8 text (byte {error.start})") from error


class Watches:
    """Keeps the results of the wanted queries, and of those `kept`, up to date.

    `results`: the server's last answers; `changes` counts replies.
    """

    def __init__(self, session: Session, loop: Loop) -> None:
        self._session, self._loop = session, loop
        self.results: dict[Query, Any] = {}
        self.changes = 0
        self.wanted: set[Query] = set()
        self.kept: frozenset[Query] = frozenset()  # always watched, in addition to the others
        self._dirty: set[Query] = set()  # to be read, or again
        self._paused: set[Query] = set()  # to be read again, but not yet
        self._asked: set[Query] = set()  # being read; none is read twice at a time
        self._granted: set[Query] = set()  # have been read once, so a denial may pass by
        self._denied: set[Query] = set()  # are denied now, and that is logged
        self._unanswered: set[Query] = set()  # since they are wanted, or since the connection was made
        session.on_connected(self._read_again)
        session.on_watch(self._on_watch)

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `results` up to date for these queries and those `kept`, and for no others."""
        wanted = {*queries, *self.kept}
        for query in self.wanted - wanted:
            self.results.pop(query, None)
        new = wanted - self.wanted
        self.wanted = wanted
        self._dirty = self._dirty & wanted | new
        self._unanswered = self._unanswered & wanted | new
        self._paused &= wanted
        self._refresh()

    def forget(self, paths: Iterable[str]) -> None:
        """Stop watching these znodes: we change them ourselves."""
        self.watch(self.wanted - {data_of(path) for path in paths})

    def decide(self, decision: Callable[[View], T]) -> T:
        """Watch what the decision reads, and return it once all of that is up to date."""
        while True:
            view, decided = View(self.results), False
            with contextlib.suppress(Unknown):
                result, decided = decision(view), True
            self.watch(view.noted)
            if decided and self.fresh():
                return result
            self._loop.wait(self.fresh)

    def fresh(self) -> bool:
        """Whether all `results` are up to date, as far as watches have fired."""
        return self._session.connected and not (self._dirty or self._paused or self._asked)

    def answered(self) -> bool:
        """Whether each result is an answer from this connection, though perhaps not the latest one.

        If several znodes change all the time, the results are never all up to date at one instant.
        """
        return self._session.connected and not self._unanswered

    def is_known(self, query: Query) -> bool:
        """Whether the result of this query is up to date."""
        outdated = self._dirty | self._paused | self._asked
        return self._session.connected and query in self.results and query not in outdated

    def _on_watch(self, path: str) -> None:
        for query in [query for query in self.wanted if query.path == path]:
            missing = query.required - len(self.results.get(query, ())) if query.children else 0
            if missing <= 1:
                self._dirty.add(query)
                continue
            # This loses nothing, because reading sets the next watch. Up to a fifth sooner, so that many
            # clients do not read at the same instant.
            self._paused.add(query)
            pause = min(LONGEST_PAUSE, PAUSE * (missing - 1))
            self._loop.call_at(now() + jittered(pause * 0.9, 1 / 9), partial(self._resume, query))
        self._refresh()

    def _resume(self, query: Query) -> None:
        if query in self._paused:
            self._paused.discard(query)
            self._dirty.add(query)
            self._refresh()

    def _read_again(self) -> None:
        """All watches are gone, and anything may have happened."""
        self._paused.clear()
        self._dirty |= self.wanted
        self._unanswered |= self.wanted
        self._refresh()

    def _refresh(self) -> None:
        if self._session.connected:
            for query in self._dirty - self._asked:
                self._dirty.discard(query)
                self._asked.add(query)
                perform(self._session, self._read(query))

    def _read(self, query: Query) -> Requests:
        operation = (wire.GetChildren if query.children else wire.GetData)(query.path, True)
        try:
            try:
                # This sets the watch, so nothing can happen between the two.
                value = yield operation
            except wire.NoNodeError:
                self._arrived(query, () if query.children else None)
                if query not in self.wanted:
                    return
                with contextlib.suppress(wire.NoNodeError):
                    yield wire.Exists(query.path, True)  # Only this sets a watch on a missing znode.
                    self._read_soon(query)  # It exists by now.
                return
        except wire.KazooException as error:
            self._asked.discard(query)
            if query not in self.wanted:
                return
            if isinstance(error, wire.DENIED) and query in self._granted:
                self._deny_for_now(query, refusal(operation, query.path, error))
                return
            if not isinstance(error, wire.OUTAGE):
                raise refusal(operation, query.path, error) from None
            self._read_soon(query)  # The connection may be back by the time the failure is known.
        else:
            self._granted.add(query)
            self._arrived(query, tuple(sorted(value)) if query.children else Znode(*value))

    def _read_soon(self, query: Query) -> None:
        self._dirty |= {query} & self.wanted
        self._refresh()

    def _deny_for_now(self, query: Query, denied: AgentError) -> None:
        if query not in self._denied:
            self._denied.add(query)
            log.warning("%s%s; retrying", denied.reason, self._session.servers.hint)
        self._paused.add(query)
        self._loop.call_at(now() + jittered(DENIED_PAUSE, 0.2), partial(self._resume, query))

    def _arrived(self, query: Query, value: Any) -> None:
        self._asked.discard(query)
        self._denied.discard(query)
        if query in self.wanted:
            self._unanswered.discard(query)
            self.results[query] = value
            self.changes += 1
        self._refresh()


class Client:
    """One session with an ensemble, its watches and its ephemerals.

    New znodes get the ACL `acl`. `timeout` is the requested one, in seconds. `name`: a random one. `seen`:
    everything that `read` and `children` have read, with the zxid of its last change. `on_silence` is called
    with what a request waits for if that takes long, and with empty text once it is over.
    """

    # The errors of requests that compete with other writers.
    expected: Mapping[type, tuple[type[Exception], ...]] = MappingProxyType(
        {
            wire.Create: (wire.NoNodeError, wire.NodeExistsError),
            **dict.fromkeys(
                (wire.SetData, wire.Delete, wire.CheckVersion), (wire.NoNodeError, wire.BadVersionError)
            ),
        }
    )

    def __init__(self, servers: Servers, timeout: float, acl: list[wire.ACL], loop: Loop) -> None:
        self.loop, self.acl = loop, acl
        self.session = Session(servers, timeout)
        self.name = os.urandom(8).hex()
        self.watches = Watches(self.session, loop)
        self.ephemerals = Ephemerals(self.session, acl, on_denied=self._deny)
        self.seen: Seen = {}
        self._warnings: set[str] = set()
        self._granted = 0.0
        self._closing = False
        self.deadline = math.inf  # of what is done `within` a limit
        self.on_silence: Callable[[str], object] = lambda what: None
        self.session.on_connected(self._check_timeout)
        self.session.on_fault(self._on_fault)
        loop.add(self.session)
        loop.add(self.ephemerals)

    @property
    def connected(self) -> bool:
        """Whether requests may be sent."""
        return self.session.connected

    def dial(self) -> None:
        """Begin to connect without waiting."""
        self.session.run(False)
        self.loop.sleep(0)

    def connect(
        self,
        limit: float | None,
        report: Callable[[str], object] = lambda cause: None,
        begun: float | None = None,
    ) -> None:
        """Wait for the first connection. Raises NoConnection after `limit` seconds (None: no limit).

        `report` is called with each new cause of failure.
        """
        begun = now() if begun is None else begun
        deadline = begun + limit if limit is not None else float("inf")
        reported = ""

        def is_connected() -> bool:
            nonlocal reported
            if self.session.error not in ("", reported):
                reported = self.session.error
                report(reported)
            return self.connected

        if not self.loop.wait(is_connected, deadline):
            raise NoConnection(
                f"no connection to ZooKeeper at {self.session.servers} within {limit:g} s "
                f"(KOLLA_ZK_CONNECT_TIMEOUT): {self.session.error or NO_ANSWER}; "
                f"check {self.session.servers.advice}"
            )

    def close(self) -> None:
        """End the session, which deletes its ephemerals at once. Refusals are ignored."""
        self.ignore()
        if self.connected:
            self.session.close()
            self.loop.wait(lambda: self.session.closed, now() + CLOSE_TIMEOUT)
        self.session.abandon()

    def ignore(self) -> None:
        """Ignore refusals from now on."""
        self._closing = True
        self.watches.kept = frozenset()
        self.watches.watch(())

    def warn_once(self, warning: str) -> None:
        """Log a warning about what was read, unless it was logged before, or there were too many."""
        if warning not in self._warnings and len(self._warnings) < MOST_WARNINGS:
            self._warnings.add(warning)
            log.warning("%s", warning)
            if len(self._warnings) == MOST_WARNINGS:
                log.warning("more warnings about what others have written are not logged")

    def _check_timeout(self) -> None:
        timeout = self.session.timeout
        if timeout < SHORT_SESSION and timeout != self._granted:
            log.warning(
                "the server grants a session timeout of %g s: a short interruption will look like the end "
                "of this container; raise KOLLA_ZK_SESSION_TIMEOUT, or the server's tickTime",
                timeout,
            )
        self._granted = timeout

    def _on_fault(self, error: AgentError) -> None:
        if not self._closing and not isinstance(error, UnreadableServer):
            raise error

    def _deny(self, denied: NoRight) -> None:
        if not self._closing:
            raise denied

    # -- requests -------------------------------------------------------------------------------

    def creation(self, path: str, data: bytes, flags: int = 0) -> wire.Create:
        """The operation that creates a znode."""
        return wire.Create(path, data, self.acl, flags)

    def until(self, condition: Callable[[], object]) -> None:
        """Run the loop until then: every request waits here, however long an outage lasts.

        Raises DependenciesNotSatisfied if that takes longer than `within` allows.
        """
        begun = now()
        if self.loop.wait(condition, begun + SILENT):
            return
        logged_at = begun
        while True:
            error = "" if self.connected else self.session.error
            what = f"for an answer of ZooKeeper at {self.session.servers}: {error or NO_ANSWER}"
            self.on_silence(what)
            if now() >= self.deadline:
                raise DependenciesNotSatisfied(f"waited {now() - begun:.0f} s {what}")
            if now() >= logged_at + PROGRESS_INTERVAL:
                logged_at = now()
                log.info("waiting for %.0f s %s", now() - begun, what)
            if self.loop.wait(condition, min(self.deadline, now() + SILENT)):
                self.on_silence("")
                return

    @contextlib.contextmanager
    def within(self, limit: float | None) -> Iterator[None]:
        """Limit the requests inside to `limit` seconds together (None: no limit)."""
        self.deadline = math.inf if limit is None else now() + limit
        try:
            yield
        finally:
            self.deadline = math.inf

    def attempt(self, operation: Any, what: str, meanwhile: Callable[[], object] | None = None) -> Any:
        """The result of one request, once connected. Raises Outage if it is unknown whether it was applied.

        `what` names the request in errors; `expected` ones pass through. `meanwhile` is called after the
        request is sent.
        """
        (reply,) = self._send([operation])
        if meanwhile:
            self.session.flush()
            meanwhile()
        self.until(lambda: reply.done)
        if reply.error is None:
            return reply.value
        if isinstance(reply.error, wire.OUTAGE):
            raise Outage(what) from reply.error
        if not self._is_expected(reply.error, operation):
            raise refusal(operation, what, reply.error) from reply.error
        raise reply.error

    def _is_expected(self, error: Exception, operation: Any) -> bool:
        return isinstance(error, self.expected.get(type(operation), ()))

    def request(self, operation: Any, what: str) -> Any:
        """The result of a request that may be sent again, without a time limit."""
        while True:
            try:
                return self.attempt(operation, what)
            except Outage:
                continue

    def transaction(
        self, operations: Sequence[Any], what: str, meanwhile: Callable[[], object] | None = None
    ) -> Sequence[Any]:
        """Apply all `operations` or none. Raises Refused if one of them failed, Outage if that is unknown."""
        for operation in operations:
            check_size(operation.path, getattr(operation, "data", b""))
        results: Sequence[Any] = self.attempt(wire.Transaction(operations), what, meanwhile)
        cause = wire.failure(results)
        if cause is None:
            return results
        operation = next(each for each, result in zip(operations, results) if result is cause)
        if not self._is_expected(cause, operation):
            raise refusal(operation, operation.path, cause)
        raise Refused(cause, operation.path)

    def record(self) -> Seen:
        """Begin a new `seen`, and return it."""
        self.seen = {}
        return self.seen

    def read(self, paths: Iterable[str], unrecorded: str = "") -> dict[str, Znode | None]:
        """The znode at each of `paths`, read together, without a watch; all but `unrecorded` are `seen`."""
        found: dict[str, Any] = self._together(paths, wire.GetData)
        for path, got in found.items():
            if path != unrecorded:
                self.seen[path, False] = got[1].mzxid if got else None
        return {path: Znode(*got) if got else None for path, got in found.items()}

    def children(self, paths: Iterable[str]) -> dict[str, Sequence[str] | None]:
        """The sorted names below each of `paths`, read together, without a watch."""
        found: dict[str, Any] = self._together(paths, wire.GetChildren2)
        for path, got in found.items():
            self.seen[path, True] = got[1].pzxid if got else None
        return {path: sorted(got[0]) if got else None for path, got in found.items()}

    def decide(self, decision: Callable[[View], T], known: Mapping[Query, Any] = MappingProxyType({})) -> T:
        """The decision on what the servers say now, read without watches. What is `known` is not read."""
        answers = dict(known)
        while True:
            view = View(answers)
            try:
                return decision(view)
            except Unknown:
                missing = [query for query in view.noted if query not in answers]
                names = self.children(query.path for query in missing if query.children)
                znodes = self.read(query.path for query in missing if not query.children)
                answers.update(
                    (query, tuple(names[query.path] or ()) if query.children else znodes[query.path])
                    for query in missing
                )

    def _together(self, paths: Iterable[str], kind: Callable[[str, bool], Any]) -> dict[str, Any]:
        results = self.each({path: kind(path, False) for path in paths})
        for path, result in results.items():
            if isinstance(result, wire.NoNodeError):
                results[path] = None
            elif isinstance(result, Exception):
                raise refusal(kind(path, False), path, result)
        return results

    def each(self, operations: Mapping[T, Any]) -> dict[T, Any]:
        """The result of each request, or the error that it met; all are sent together, and again after
        an outage."""
        results: dict[T, Any] = {}
        while missing := [key for key in operations if key not in results]:
            replies = self._send([operations[key] for key in missing])
            self.until(lambda replies=replies: all(reply.done for reply in replies))  # type: ignore[misc]
            for key, reply in zip(missing, replies):
                if not isinstance(reply.error, wire.OUTAGE):
                    results[key] = reply.value if reply.error is None else reply.error
        return results

    def _send(self, operations: Sequence[Any]) -> list[_Reply]:
        """Send the requests together, once connected."""
        self.until(lambda: self.connected)
        replies = []
        for operation in operations:
            reply = _Reply()
            replies.append(reply)
            self.session.request(operation, reply.arrive)
        return replies

    def ensure(
        self,
        nodes: Mapping[str, bytes],
        implied: Mapping[str, str] = MappingProxyType({}),
        meanwhile: Callable[[], object] | None = None,
    ) -> dict[str, Znode | None]:
        """Create the missing ones of `nodes`, parents first as given; all or none if they fit into one
        request.

        `implied` maps some of them to another one with which they are always created: they are not read if
        that one exists. Returns the znodes that were read; None for those that were created. `meanwhile` is
        called while the server writes. Raises Refused if a parent is missing.
        """
        found: dict[str, Znode | None] = {}
        unknown = [path for path in nodes if path not in implied]
        while True:
            found.update(self.read(unknown))
            absent = [path for path in nodes if found.get(implied.get(path, path)) is None]
            if not absent:
                return found
            try:
                for batch in _batches(self.creation(path, nodes[path]) for path in absent):
                    self.transaction(batch, f"{batch[0].path} can't be created", meanwhile)
                return found
            except Outage:
                unknown = [path for path in absent if path not in implied]  # It may have been applied.
            except AccessDenied:
                if not implied:
                    raise
                implied, unknown = {}, list(nodes)  # Znodes that we may not create may have been published.
            except Refused as refused:
                cause, path = refused.cause, refused.path
                if isinstance(cause, wire.NoNodeError) and _parent(path) not in nodes:
                    raise
                if isinstance(cause, wire.NodeExistsError) and path not in implied:
                    # Another agent was faster. It created this znode, and probably those below it.
                    below = [each for each in absent if each.startswith(path + "/") and each not in implied]
                    unknown = [path, *below]
                else:
                    # Only some of them exist: nothing is implied now.
                    implied, unknown = {}, list(nodes)


def refusal(operation: Any, what: str, error: Exception) -> AgentError:
    """The error for a request that was refused; `what` names it."""
    if isinstance(error, wire.DENIED):
        if isinstance(operation, wire.Transaction):  # as a whole
            return AccessDenied(f"{what}: {wire.in_words(error)}")
        done = DONE.get(type(operation).__name__, "read")
        return denial(getattr(operation, "path", what), done, error)
    return RefusedByServer(what, wire.in_words(error))


def _batches(creations: Iterable[wire.Create]) -> Iterator[list[wire.Create]]:
    """The creations in their order, in batches that fit into one request."""
    batch: list[wire.Create] = []
    size = overhead = 0
    acl: Sequence[wire.ACL] | None = None
    for creation in creations:
        if creation.acl is not acl:  # An ACL may name many services, and most znodes have the same one.
            acl = creation.acl
            overhead = CREATE_OVERHEAD + sum(len(entry.id.id) + ENTRY_OVERHEAD for entry in acl)
        needs = len(creation.path) + len(creation.data) + overhead
        if batch and size + needs > MAX_DATA:
            yield batch
            batch, size = [], 0
        batch.append(creation)
        size += needs
    if batch:
        yield batch


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0]
