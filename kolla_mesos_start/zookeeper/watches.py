"""What the agent wants to know of the tree, kept true: the watch is set, then the state is read.

Done again after every event, at every connection and in every new session: kazoo drops all
watches with the connection, and anything may have happened meanwhile. Only reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Callable

from kazoo.exceptions import NoNodeError

from kolla_mesos_start.errors import AccessDenied
from kolla_mesos_start.zookeeper.client import DENIED, OUTAGE, Ensemble
from kolla_mesos_start.zookeeper.query import Query, Znode, data_of


class Knowledge:
    """What is wanted, what the server said of it last, and what is to be asked. Decides, and asks nobody.

    `results`: what the server said last; `changes` counts replies.
    """

    def __init__(self) -> None:
        self.results: dict[Query, Any] = {}
        self.changes = 0
        self.wanted: set[Query] = set()
        self._asked: set[Query] = set()
        self._dirty: set[Query] = set()

    @property
    def complete(self) -> bool:
        """Whether all that is wanted is known, as far as we were told of changes."""
        return not self._dirty and not self._asked

    def want(self, queries: Iterable[Query]) -> None:
        """These, and no others."""
        wanted = set(queries)
        for query in self.wanted - wanted:
            self.results.pop(query, None)
            self._dirty.discard(query)
        self._dirty |= wanted - self.wanted
        self.wanted = wanted

    def due(self) -> set[Query]:
        """What is to be asked now: `arrived` or `failed` will follow. Nothing is asked twice at a time."""
        due = self._dirty - self._asked
        self._dirty -= due
        self._asked |= due
        return due

    def changed(self, query: Query) -> None:
        """What was said of it may be true no more."""
        if query in self.wanted:
            self._dirty.add(query)

    def arrived(self, query: Query, value: Any) -> None:
        """The answer."""
        self._asked.discard(query)
        if query in self.wanted:
            self.results[query] = value
            self.changes += 1

    def failed(self, query: Query) -> None:
        """There will be no answer."""
        self._asked.discard(query)
        self.changed(query)

    def connected(self) -> None:
        """All watches are gone, and anything may have happened meanwhile."""
        self._dirty |= self.wanted


class Watches:
    """The queries that are watched. `results`: what the server said last; `changes` counts replies."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._knowledge = Knowledge()
        # One function each: kazoo calls the same one only once.
        self._watchers: dict[Query, Callable[[object], None]] = {}
        ensemble.on_connected(self._read_again)

    @property
    def results(self) -> dict[Query, Any]:
        return self._knowledge.results

    @property
    def changes(self) -> int:
        return self._knowledge.changes

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `results` true for these queries, and for no others."""
        self._knowledge.want(queries)
        self._watchers = {
            query: self._watchers.get(query) or partial(self._fired, query)
            for query in self._knowledge.wanted
        }
        self._refresh()

    def fresh(self) -> bool:
        """Whether `results` are what the server said last, about everything that is watched."""
        return self._ensemble.connected and self._knowledge.complete

    def _fired(self, query: Query, event: object) -> None:
        # Runs on kazoo's thread.
        self._ensemble.loop.post(partial(self._changed, query))

    def _changed(self, query: Query) -> None:
        self._knowledge.changed(query)
        self._refresh()

    def _refresh(self) -> None:
        if self._ensemble.connected:
            for query in self._knowledge.due():
                self._read(query)

    def _read(self, query: Query) -> None:
        fired = self._watchers[query]
        client = self._ensemble.client
        # Reading sets the watch, so nothing can happen between the two; where there is no znode, only
        # exists sets one. Of children it says when there are some: it is sent first.
        if query.children:
            client.exists_async(query.path, watch=fired)
        ask = client.get_children_async if query.children else client.get_async
        reply = ask(query.path, watch=fired)
        reply.rawlink(lambda result: self._ensemble.loop.post(partial(self._arrived, query, result)))

    def _arrived(self, query: Query, reply: Any) -> None:
        try:
            value = reply.get()
        except NoNodeError:
            value = None
            if not query.children and query in self._watchers:
                self._watch_for(query)
        except OUTAGE:
            # The connection may be back by the time the failure is told: try again at once.
            self._knowledge.failed(query)
            self._refresh()
            return
        except DENIED as error:
            if query not in self._watchers:
                self._knowledge.failed(query)
                return
            raise AccessDenied(f"{query.path} can't be read: {type(error).__name__}") from error
        if query.children:
            self._knowledge.arrived(query, tuple(sorted(value or ())))
        else:
            self._knowledge.arrived(query, Znode(*value) if value else None)
        self._refresh()

    def _watch_for(self, query: Query) -> None:
        """Watch for a znode that is not there. That is known already: nobody waits for the answer."""
        reply = self._ensemble.client.exists_async(query.path, watch=self._watchers[query])
        reply.rawlink(lambda result: self._ensemble.loop.post(partial(self._looked_for, query, result)))

    def _looked_for(self, query: Query, reply: Any) -> None:
        # Not successful in an outage, after which everything is read again anyway.
        if reply.successful() and reply.get() is not None:
            self._changed(query)

    def forget(self, paths: Iterable[str]) -> None:
        """Stop watching these znodes: what becomes of them is our own doing."""
        self.watch(self._knowledge.wanted - {data_of(path) for path in paths})

    def _read_again(self) -> None:
        self._knowledge.connected()
        self._refresh()
