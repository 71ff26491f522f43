"""ZooKeeper in memory, without sockets: znodes, and sessions with the interface of `zookeeper.session`.

Like a real server, it answers the requests of a session in their order, and sends a watch event before any
later reply. Which session is next decides the test: see `Servers.step`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Optional

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    SetData,
    Transaction,
)
from kazoo.protocol.states import ZnodeStat

EPHEMERAL, SEQUENCE = 1, 2

Done = Callable[[Any, Optional[Exception]], object]


def no_answer(value: Any, error: Exception | None) -> None:
    """For a watch event."""


class Znode(NamedTuple):
    """`owner` is the session of an ephemeral, else 0; `numbers` counts the children that it ever had."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    version: int = 0
    numbers: int = 0
    owner: int = 0


class Servers:
    """The znodes, and all sessions."""

    def __init__(self) -> None:
        self.zxid = 100
        self.znodes = {"": Znode(b"", 0, 0, 0)}
        self.sessions: list[Session] = []
        self.denied: set[str] = set()  # In these nobody may create or delete a znode.
        self.requests = 0  # how many were answered

    def step(self, choose: Callable[[list[Session]], Session] = lambda sessions: sessions[0]) -> bool:
        """Let one session do one thing; returns whether there was something to do."""
        busy = [session for session in self.sessions if session.is_busy]
        if busy:
            choose(busy).step()
        return bool(busy)

    def put(self, path: str, data: bytes = b"", owner: int = 0) -> None:
        """Create or change a znode; missing parents are created."""
        if path in self.znodes:
            self.apply(SetData(path, data, -1), owner)
            return
        if path.rpartition("/")[0] not in self.znodes:
            self.put(path.rpartition("/")[0])
        self.apply(Create(path, data, (), EPHEMERAL * bool(owner)), owner)

    def remove(self, path: str) -> None:
        """Delete a znode and all below."""
        for each in sorted((each for each in self.znodes if f"{each}/".startswith(f"{path}/")), reverse=True):
            self.apply(Delete(each, -1), 0)

    def children(self, path: str) -> list[str]:
        return [each[len(path) + 1 :] for each in self.znodes if each and each.rpartition("/")[0] == path]

    def expire(self, session_id: int) -> None:
        """Delete the ephemerals of a session."""
        for path in [path for path, znode in self.znodes.items() if znode.owner == session_id]:
            self.apply(Delete(path, -1), 0)

    def apply(self, operation: Any, session_id: int) -> Any:
        """The answer to a request. Raises KazooException."""
        if isinstance(operation, Transaction):
            return self._transact(operation.operations, session_id)
        if isinstance(operation, Create):
            return self._create(operation, session_id)
        path = operation.path
        if path not in self.znodes:
            raise NoNodeError
        znode = self.znodes[path]
        if isinstance(operation, (Delete, SetData, CheckVersion)) and operation.version not in (
            -1,
            znode.version,
        ):
            raise BadVersionError
        if isinstance(operation, SetData):
            self.zxid += 1
            self.znodes[path] = znode._replace(
                data=operation.data, mzxid=self.zxid, version=znode.version + 1
            )
            self._fire("data", path)
        elif isinstance(operation, Delete):
            self._delete(path)
        return {
            GetData: (znode.data, self.stat(path)),
            GetChildren: self.children(path),
            GetChildren2: (self.children(path), self.stat(path)),
        }.get(type(operation), self.stat(path))

    def stat(self, path: str) -> ZnodeStat | None:
        if path not in self.znodes:
            return None
        znode, children = self.znodes[path], len(self.children(path))
        sizes = (znode.owner, len(znode.data), children, znode.pzxid)
        # Of the children, the version counts creations only; the code never compares it.
        return ZnodeStat(znode.czxid, znode.mzxid, 0, 0, znode.version, znode.numbers, 0, *sizes)

    def _create(self, operation: Create, session_id: int) -> str:
        path: str = operation.path
        parent = path.rpartition("/")[0]
        if parent not in self.znodes:
            raise NoNodeError
        if parent in self.denied:
            raise NoAuthError
        if operation.flags & SEQUENCE:
            path += f"{self.znodes[parent].numbers:010}"
        if path in self.znodes:
            raise NodeExistsError
        self.zxid += 1
        zxids = (self.zxid, self.zxid, self.zxid)
        owner = session_id if operation.flags & EPHEMERAL else 0
        self.znodes[path] = Znode(operation.data, *zxids, owner=owner)
        above = self.znodes[parent]
        self.znodes[parent] = above._replace(pzxid=self.zxid, numbers=above.numbers + 1)
        self._fire("data", path)
        self._fire("children", parent)
        return path

    def _delete(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if self.children(path):
            raise NotEmptyError
        if parent in self.denied:
            raise NoAuthError
        self.zxid += 1
        del self.znodes[path]
        self.znodes[parent] = self.znodes[parent]._replace(pzxid=self.zxid)
        self._fire("data", path)
        self._fire("children", path)
        self._fire("children", parent)

    def _transact(self, operations: list[Any], session_id: int) -> list[Any]:
        """All operations or none. Nobody sees a state in between, and no watch fires for it."""
        before, zxid = dict(self.znodes), self.zxid
        watched = [(session.watches, session.inbox) for session in self.sessions]
        kept = [
            ({kind: set(paths) for kind, paths in watches.items()}, deque(inbox))
            for watches, inbox in watched
        ]
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(self.apply(operation, session_id))
            except KazooException as error:
                self.znodes, self.zxid = before, zxid
                for session, (watches, inbox) in zip(self.sessions, kept):
                    session.watches, session.inbox = watches, inbox
                failed = len(results)
                return [error if at == failed else RolledBackError() for at in range(len(operations))]
        return results

    def _fire(self, kind: str, path: str) -> None:
        for session in self.sessions:
            if path in session.watches[kind]:
                session.watches[kind].remove(path)
                session.inbox.append((partial(session.fire, path), no_answer))


class Session:
    """A connection with the interface that the agent's parts use."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.id, self.zxid, self.connected = len(servers.sessions) + 1, 0, True
        self.former: set[int] = set()
        self.outbox: deque[tuple[Any, Done]] = deque()
        self.inbox: deque[tuple[Callable[[], object], Done]] = deque()  # messages; whose answer they are
        self.watches: dict[str, set[str]] = {"data": set(), "children": set()}
        self._watching: list[Callable[[str], object]] = []
        self._connecting: list[Callable[[], object]] = []
        servers.sessions.append(self)

    def on_connected(self, handler: Callable[[], object]) -> None:
        self._connecting.append(handler)

    def on_watch(self, handler: Callable[[str], object]) -> None:
        self._watching.append(handler)

    def request(self, operation: Any, done: Done) -> None:
        if self.connected:
            self.outbox.append((operation, done))
        else:
            self.inbox.append((partial(done, None, ConnectionLoss()), done))

    @property
    def is_busy(self) -> bool:
        return bool(self.outbox or self.inbox)

    def step(self) -> None:
        """Receive the next message; if there is none, the server answers the next request."""
        if self.inbox:
            self.inbox.popleft()[0]()
        else:
            self.serve()

    def serve(self) -> None:
        """The server applies the oldest request, and sends its answer."""
        operation, done = self.outbox.popleft()
        self.servers.requests += 1
        value, error = None, None
        try:
            value = self.servers.apply(operation, self.id)
        except KazooException as refusal:
            error = refusal
        if getattr(operation, "watcher", None):
            kind = "children" if isinstance(operation, (GetChildren, GetChildren2)) else "data"
            if error is None or isinstance(operation, Exists):
                self.watches[kind].add(operation.path)
        zxid = self.servers.zxid

        def reply() -> None:
            self.zxid = zxid
            done(value, error)

        self.inbox.append((reply, done))

    def fire(self, path: str) -> None:
        for handler in self._watching:
            handler(path)

    def lose(self, served: int = 0) -> None:
        """Lose the connection: the server still applies so many requests, and nothing arrives any more."""
        waiting = [done for _, done in (*self.inbox, *self.outbox)]
        for _ in range(min(served, len(self.outbox))):
            self.serve()
        self.connected = False
        self.outbox.clear()
        self.inbox.clear()
        self.watches = {"data": set(), "children": set()}
        for done in waiting:
            done(None, ConnectionLoss())

    def connect(self, expired: bool = False) -> None:
        """Connect again, with the same session unless it has expired."""
        if expired:
            self.servers.expire(self.id)
            self.former.add(self.id)
            self.id += 1000
        self.connected = True
        for handler in self._connecting:
            handler()
