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
from kolla_mesos_start.znodes import Query, Znode


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
        # A watch can only be set by get where there is a znode, and by exists everywhere; sent
        # first, so that nothing can happen between the watch and the read. What was there just now
        # most likely still is.
        was_there = not query.children and self.results.get(query) is not None
        if not was_there:
            self._ensemble.client.exists_async(query.path, watch=fired)
        ask = self._ensemble.client.get_children_async if query.children else self._ensemble.client.get_async
        reply = ask(query.path, watch=fired)
        reply.rawlink(
            lambda result: self._ensemble.mailbox.post(partial(self._arrived, query, was_there, result))
        )

    def _arrived(self, query: Query, was_there: bool, reply: Any) -> None:
        self._reading.discard(query)
        if query not in self._wanted:
            return
        try:
            value = reply.get()
        except NoNodeError:
            if was_there:
                self.results.pop(query, None)
                self._dirty.add(query)
                self._refresh()
                return
            value = None
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

    def _read_again(self) -> None:
        self._dirty.update(self._wanted)
        self._refresh()
