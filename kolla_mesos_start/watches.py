"""What the agent wants to know of the tree, kept true: the watch is set, then the state is read.

Done again after every event, at every connection and in every new session: kazoo drops all
watches with the connection, and anything may have happened meanwhile. Only reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Callable

from kazoo.exceptions import NoNodeError

from kolla_mesos_start.ensemble import DENIED, OUTAGE, Ensemble
from kolla_mesos_start.errors import AccessDenied
from kolla_mesos_start.znodes import Query, Znode, data_of


class Watches:
    """The queries that are watched. `results`: what the server said last; `changes` counts replies."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.results: dict[Query, Any] = {}
        self.changes = 0
        self._ensemble = ensemble
        self._wanted: dict[Query, Callable[[object], None]] = {}
        self._reading: set[Query] = set()
        self._dirty: set[Query] = set()
        ensemble.on_connected(self._read_again)

    def watch(self, queries: Iterable[Query]) -> None:
        """Keep `results` true for these queries, and for no others."""
        wanted = set(queries)
        for query in set(self._wanted) - wanted:
            del self._wanted[query]
            self.results.pop(query, None)
            self._dirty.discard(query)
        for query in wanted - set(self._wanted):
            self._wanted[query] = partial(self._fired, query)
            self._dirty.add(query)
        self._refresh()

    def fresh(self) -> bool:
        """Whether `results` are what the server said last, about everything that is watched."""
        return self._ensemble.connected and not self._dirty and not self._reading

    def _fired(self, query: Query, event: object) -> None:
        # Runs on kazoo's thread.
        self._ensemble.mailbox.post(partial(self._changed, query))

    def _changed(self, query: Query) -> None:
        if query in self._wanted:
            self._dirty.add(query)
            self._refresh()

    def _refresh(self) -> None:
        if not self._ensemble.connected:
            return
        for query in self._dirty - self._reading:
            self._dirty.discard(query)
            self._reading.add(query)
            self._read(query)

    def _read(self, query: Query) -> None:
        fired = self._wanted[query]
        client = self._ensemble.client
        # Reading sets the watch, so nothing can happen between the two; where there is no znode, only
        # exists sets one. Of children it says when there are some: it is sent first.
        if query.children:
            client.exists_async(query.path, watch=fired)
        ask = client.get_children_async if query.children else client.get_async
        reply = ask(query.path, watch=fired)
        reply.rawlink(lambda result: self._ensemble.mailbox.post(partial(self._arrived, query, result)))

    def _arrived(self, query: Query, reply: Any) -> None:
        self._reading.discard(query)
        if query not in self._wanted:
            return
        try:
            value = reply.get()
        except NoNodeError:
            value = None
            if not query.children:
                self._watch_for(query)
        except OUTAGE:
            # The connection may be back by the time the failure is told: try again at once.
            self._dirty.add(query)
            self._refresh()
            return
        except DENIED as error:
            raise AccessDenied(f"{query.path} can't be read: {type(error).__name__}") from error
        if query.children:
            self.results[query] = tuple(sorted(value or ()))
        else:
            self.results[query] = Znode(*value) if value else None
        self.changes += 1
        self._refresh()

    def _watch_for(self, query: Query) -> None:
        """Watch for a znode that is not there. That is known already: nobody waits for the answer."""
        reply = self._ensemble.client.exists_async(query.path, watch=self._wanted[query])
        reply.rawlink(lambda result: self._ensemble.mailbox.post(partial(self._looked_for, query, result)))

    def _looked_for(self, query: Query, reply: Any) -> None:
        # Not successful in an outage, after which everything is read again anyway.
        if reply.successful() and reply.get() is not None:
            self._changed(query)

    def forget(self, paths: Iterable[str]) -> None:
        """Stop watching these znodes: what becomes of them is our own doing."""
        self.watch(set(self._wanted) - {data_of(path) for path in paths})

    def _read_again(self) -> None:
        self._dirty.update(self._wanted)
        self._refresh()
