"""What the agent must know of the tree, kept true: the watch is set, then the state is read.

Done again after every event, at every connection and in every new session: watches are gone with the
connection, and anything may have happened meanwhile. Only reads.

A thousand containers that wait for two hundred names must not all read them two hundred times: while
many are missing, a list is read again after a pause.
"""

from __future__ import annotations

from functools import partial

from kolla_mesos_start.errors import NoRight, RefusedByServer
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.query import Znode, data_of
from kolla_mesos_start.zookeeper.session import jittered
from kolla_mesos_start.zookeeper.wire import (
    OUTAGE,
    AuthFailedError,
    Exists,
    GetChildren,
    GetData,
    NoAuthError,
    NoNodeError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.zookeeper.query import Query
    from kolla_mesos_start.zookeeper.session import Session
    from kolla_mesos_start.zookeeper.wire import (
        KazooException,
    )

# Seconds for each name that is missing beside the next one, and at most: with the time to read, the last
# name is known a quarter of a second after it came.
PAUSE, LONGEST_PAUSE = 0.01, 0.24


class WatchState:
    """What is wanted, what the server said of it last, and what is to be read. Decides, and reads nothing.

    `results`: what the server said last; `changes` counts replies.
    """

    def __init__(self) -> None:
        self.results: dict[Query, Any] = {}
        self.changes = 0
        self.wanted: set[Query] = set()
        self._paused: set[Query] = set()  # to be read again, but not yet
        self._asked: set[Query] = set()
        self._dirty: set[Query] = set()
        self._unanswered: set[Query] = set()  # since they are wanted, or since the connection was made

    @property
    def complete(self) -> bool:
        """Whether all that is wanted is known, as far as watches have fired."""
        return not self._dirty and not self._paused and not self._asked

    @property
    def answered(self) -> bool:
        """Whether all that is wanted was answered once. Some of it may be read again meanwhile, and where
        several things change all the time there is never an instant at which all is `complete`."""
        return not self._unanswered

    def is_known(self, query: Query) -> bool:
        """Whether its result is the last one."""
        return query in self.results and query not in self._dirty | self._paused | self._asked

    def want(self, queries: Iterable[Query]) -> None:
        """These, and no others."""
        wanted = set(queries)
        for query in self.wanted - wanted:
            self.results.pop(query, None)
            self._dirty.discard(query)
            self._paused.discard(query)
            self._unanswered.discard(query)
        self._dirty |= wanted - self.wanted
        self._unanswered |= wanted - self.wanted
        self.wanted = wanted

    def due(self) -> set[Query]:
        """What is to be read now: `arrived` or `failed` will follow. Nothing is read twice at a time."""
        due = self._dirty - self._asked
        self._dirty -= due
        self._asked |= due
        return due

    def changed(self, query: Query) -> None:
        """The last result may no longer be true."""
        if query in self.wanted:
            self._dirty.add(query)

    def fired(self, query: Query) -> float:
        """A watch has: for how long to pause before `resume`, in seconds. 0: it is to be read now.

        Nothing is lost by a pause, since reading sets the next watch.
        """
        missing = query.required - len(self.results.get(query, ())) if query.children else 0
        if missing <= 1 or query not in self.wanted:
            self.changed(query)
            return 0.0
        self._paused.add(query)
        return min(LONGEST_PAUSE, PAUSE * (missing - 1))

    def resume(self, query: Query) -> None:
        """The pause is over."""
        if query in self._paused:
            self._paused.discard(query)
            self.changed(query)

    def arrived(self, query: Query, value: Any) -> None:
        """The answer."""
        self._asked.discard(query)
        if query in self.wanted:
            self._unanswered.discard(query)
            self.results[query] = value
            self.changes += 1

    def failed(self, query: Query) -> None:
        """There will be no answer."""
        self._asked.discard(query)
        self.changed(query)

    def connected(self) -> None:
        """All watches are gone, and anything may have happened meanwhile."""
        self._paused.clear()
        self._dirty |= self.wanted
        self._unanswered |= self.wanted


class Watches:
    """The queries that are watched. `results`: what the server said last; `changes` counts replies."""

    def __init__(self, session: Session, loop: Loop) -> None:
        self._session, self._loop = session, loop
        self._watch_state = WatchState()
        self.kept: frozenset[Query] = frozenset()  # watched whatever else is
        session.on_connected(self._read_again)
        session.on_watch(self._fired)

    @property
    def results(self) -> dict[Query, Any]:
        return self._watch_state.results

    @property
    def changes(self) -> int:
        return self._watch_state.changes

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `results` true for these queries and those `kept`, and for no others."""
        self._watch_state.want({*queries, *self.kept})
        self._refresh()

    def forget(self, paths: Iterable[str]) -> None:
        """Stop watching these znodes: what becomes of them is our own doing."""
        self.watch(self._watch_state.wanted - {data_of(path) for path in paths})

    def fresh(self) -> bool:
        """Whether `results` are what the server said last, about everything that is watched."""
        return self._session.connected and self._watch_state.complete

    def answered(self) -> bool:
        """Whether `results` are an answer of this connection each, though perhaps not the last one."""
        return self._session.connected and self._watch_state.answered

    def is_known(self, query: Query) -> bool:
        """Whether nothing has happened to it since its result, up to the last reply of the server."""
        return self._session.connected and self._watch_state.is_known(query)

    def _fired(self, path: str) -> None:
        for query in [query for query in self._watch_state.wanted if query.path == path]:
            if pause := self._watch_state.fired(query):
                # Up to a fifth sooner: not all who wait for the same should read at one instant.
                self._loop.call_at(now() + jittered(pause * 0.9, 1 / 9), partial(self._resume, query))
        self._refresh()

    def _resume(self, query: Query) -> None:
        self._watch_state.resume(query)
        self._refresh()

    def _read_again(self) -> None:
        self._watch_state.connected()
        self._refresh()

    def _refresh(self) -> None:
        if self._session.connected:
            for query in self._watch_state.due():
                ask = GetChildren if query.children else GetData
                # Reading sets the watch, so nothing can happen between the two.
                self._session.request(ask(query.path, True), partial(self._arrived, query))

    def _arrived(self, query: Query, value: Any, error: KazooException | None) -> None:
        if isinstance(error, NoNodeError):
            self._watch_for(query)
        elif isinstance(error, (NoAuthError, AuthFailedError)) and query in self._watch_state.wanted:
            raise NoRight(query.path, "read", error)
        elif error is not None and not isinstance(error, OUTAGE) and query in self._watch_state.wanted:
            raise RefusedByServer(query.path, error)
        elif error is not None:
            # The connection may be back by the time the failure is known: try again at once.
            self._watch_state.failed(query)
            self._refresh()
            return
        if query.children:
            self._watch_state.arrived(query, tuple(sorted(value or ())))
        else:
            self._watch_state.arrived(query, Znode(*value) if value else None)
        self._refresh()

    def _watch_for(self, query: Query) -> None:
        """Watch for a znode that is not there: only `exists` sets a watch then. Its answer is not awaited."""
        if query in self._watch_state.wanted:
            self._session.request(Exists(query.path, True), partial(self._looked_for, query))

    def _looked_for(self, query: Query, value: Any, error: KazooException | None) -> None:
        # An error in an outage, after which everything is read again anyway.
        if error is None:
            self._watch_state.changed(query)
            self._refresh()
