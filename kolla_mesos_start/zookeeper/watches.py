"""Keeps the results of queries up to date: sets the watch, then reads.

Everything is read again after every event and at every connection: watches are gone then, and anything may
have happened. Only reads.

A thousand containers that wait for two hundred names must not all read them two hundred times: while many
names are missing, a list is read again after a pause.
"""

from __future__ import annotations

import contextlib
from functools import partial

from kolla_mesos_start.errors import NoRight, RefusedByServer
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.session import jittered
from kolla_mesos_start.zookeeper.view import Unknown, View, Znode, data_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.zookeeper.session import Session
    from kolla_mesos_start.zookeeper.view import Query

    T = TypeVar("T")

# Seconds for each missing name after the first, and at most: together with the read, the last name is known a
# quarter of a second after it appeared.
PAUSE, LONGEST_PAUSE = 0.01, 0.24


class WatchState:
    """The wanted queries, their last results, and what to read next. Only decides.

    `results`: the server's last answers; `changes` counts replies.
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
        """Whether all results are up to date, as far as watches have fired."""
        return not self._dirty and not self._paused and not self._asked

    @property
    def answered(self) -> bool:
        """Whether all wanted queries were answered once. Some may be being read again: if several znodes
        change all the time, they are never all `complete` at one instant.
        """
        return not self._unanswered

    def is_known(self, query: Query) -> bool:
        """Whether its result is the last one."""
        return query in self.results and query not in self._dirty | self._paused | self._asked

    def want(self, queries: Iterable[Query]) -> None:
        """Set the wanted queries."""
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
        """The queries to read now; `arrived` or `failed` will follow. None is read twice at a time."""
        due = self._dirty - self._asked
        self._dirty -= due
        self._asked |= due
        return due

    def changed(self, query: Query) -> None:
        """The last result may be outdated."""
        if query in self.wanted:
            self._dirty.add(query)

    def fired(self, query: Query) -> float:
        """A watch has fired. Returns the seconds to pause before `resume`; 0: read it now.

        A pause loses nothing, because reading sets the next watch.
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
        """Record that there will be no answer."""
        self._asked.discard(query)
        self.changed(query)

    def connected(self) -> None:
        """Read everything again: all watches are gone, and anything may have happened."""
        self._paused.clear()
        self._dirty |= self.wanted
        self._unanswered |= self.wanted


class Watches:
    """The queries that are watched. `results`: what the server said last; `changes` counts replies."""

    def __init__(self, session: Session, loop: Loop) -> None:
        self._session, self._loop = session, loop
        self._watch_state = WatchState()
        self.kept: frozenset[Query] = frozenset()  # always watched, in addition to the others
        session.on_connected(self._read_again)
        session.on_watch(self._fired)

    @property
    def results(self) -> dict[Query, Any]:
        return self._watch_state.results

    @property
    def changes(self) -> int:
        return self._watch_state.changes

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `results` up to date for these queries and those `kept`, and for no others."""
        self._watch_state.want({*queries, *self.kept})
        self._refresh()

    def forget(self, paths: Iterable[str]) -> None:
        """Stop watching these znodes: we change them ourselves."""
        self.watch(self._watch_state.wanted - {data_of(path) for path in paths})

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
        """Whether all `results` are up to date."""
        return self._session.connected and self._watch_state.complete

    def answered(self) -> bool:
        """Whether each result is an answer from this connection, though perhaps not the latest one."""
        return self._session.connected and self._watch_state.answered

    def is_known(self, query: Query) -> bool:
        """Whether the result of this query is up to date."""
        return self._session.connected and self._watch_state.is_known(query)

    def _fired(self, path: str) -> None:
        for query in [query for query in self._watch_state.wanted if query.path == path]:
            if pause := self._watch_state.fired(query):
                # Up to a fifth sooner, so that many clients do not read at the same instant.
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
                ask = wire.GetChildren if query.children else wire.GetData
                # Reading sets the watch, so nothing can happen between the two.
                self._session.request(ask(query.path, True), partial(self._arrived, query))

    def _arrived(self, query: Query, value: Any, error: wire.KazooException | None) -> None:
        if isinstance(error, wire.NoNodeError):
            self._watch_for(query)
        elif (
            isinstance(error, (wire.NoAuthError, wire.AuthFailedError)) and query in self._watch_state.wanted
        ):
            raise NoRight(query.path, "read", error)
        elif error is not None and not isinstance(error, wire.OUTAGE) and query in self._watch_state.wanted:
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
        """Watch for a missing znode: only `exists` sets a watch on it. Its answer is not awaited."""
        if query in self._watch_state.wanted:
            self._session.request(wire.Exists(query.path, True), partial(self._looked_for, query))

    def _looked_for(self, query: Query, value: Any, error: wire.KazooException | None) -> None:
        # An error in an outage, after which everything is read again anyway.
        if error is None:
            self._watch_state.changed(query)
            self._refresh()
