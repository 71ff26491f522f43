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
from kolla_mesos_start.zookeeper.session import jittered, perform
from kolla_mesos_start.zookeeper.view import Unknown, View, Znode, data_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.zookeeper.session import Requests, Session
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
        self.unanswered: set[Query] = set()  # since they are wanted, or since the connection was made

    @property
    def complete(self) -> bool:
        """Whether all results are up to date, as far as watches have fired."""
        return not self._dirty and not self._paused and not self._asked

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
            self.unanswered.discard(query)
        self._dirty |= wanted - self.wanted
        self.unanswered |= wanted - self.wanted
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
            self.unanswered.discard(query)
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
        self.unanswered |= self.wanted


class Watches(WatchState):
    """Keeps the results of the wanted queries, and of those `kept`, up to date."""

    def __init__(self, session: Session, loop: Loop) -> None:
        super().__init__()
        self._session, self._loop = session, loop
        self.kept: frozenset[Query] = frozenset()  # always watched, in addition to the others
        session.on_connected(self._read_again)
        session.on_watch(self._on_watch)

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `results` up to date for these queries and those `kept`, and for no others."""
        self.want({*queries, *self.kept})
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
        """Whether all `results` are up to date."""
        return self._session.connected and self.complete

    def answered(self) -> bool:
        """Whether each result is an answer from this connection, though perhaps not the latest one.

        If several znodes change all the time, the results are never all up to date at one instant.
        """
        return self._session.connected and not self.unanswered

    def is_known(self, query: Query) -> bool:
        """Whether the result of this query is up to date."""
        return self._session.connected and super().is_known(query)

    def _on_watch(self, path: str) -> None:
        for query in [query for query in self.wanted if query.path == path]:
            if pause := self.fired(query):
                # Up to a fifth sooner, so that many clients do not read at the same instant.
                self._loop.call_at(now() + jittered(pause * 0.9, 1 / 9), partial(self._resume, query))
        self._refresh()

    def _resume(self, query: Query) -> None:
        self.resume(query)
        self._refresh()

    def _read_again(self) -> None:
        self.connected()
        self._refresh()

    def _refresh(self) -> None:
        if self._session.connected:
            for query in self.due():
                perform(self._session, self._read(query))

    def _read(self, query: Query) -> Requests:
        kind = wire.GetChildren if query.children else wire.GetData
        try:
            value = yield kind(
                query.path, True
            )  # This sets the watch, so nothing can happen between the two.
        except wire.NoNodeError:
            self.arrived(query, () if query.children else None)
            self._refresh()
            if query in self.wanted:
                yield wire.Exists(query.path, True)  # Only this sets a watch on a missing znode.
                self.changed(query)  # It exists by now.
        except wire.KazooException as error:
            if query in self.wanted and not isinstance(error, wire.OUTAGE):
                if isinstance(error, (wire.NoAuthError, wire.AuthFailedError)):
                    raise NoRight(query.path, "read", error) from None
                raise RefusedByServer(query.path, error) from None
            # The connection may be back by the time the failure is known: try again at once.
            self.failed(query)
        else:
            self.arrived(query, tuple(sorted(value)) if query.children else Znode(*value))
        self._refresh()
