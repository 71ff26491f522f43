"""Places in the queues for locks: of one-time commands, and of publications.

Contenders are named like those of kazoo's Lock.

A place is only taken while the agent has nothing else to do, and given back before it runs another command: a
held lock blocks only the command that needs it. The lock decides who runs a command; whether it is done is
watched elsewhere.
"""

from __future__ import annotations

import re

from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.zookeeper.client import Outage, refusal
from kolla_mesos_start.zookeeper.view import data_of
from kolla_mesos_start.zookeeper.wire import NodeExistsError, NoNodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kolla_mesos_start.zookeeper.client import Client
    from kolla_mesos_start.zookeeper.view import Query

log = Logger(__name__)

EPHEMERAL, SEQUENCE = 1, 2  # flags of a create request
_SEQUENCE = re.compile(r"__(?:lock|rlock)__(-?\d{10})$")


class Place(NamedTuple):
    """Our contender, the one right before it (None: it is our turn), and the number of those before it."""

    contender: str
    before: str | None
    ahead: int

    @property
    def watched(self) -> str:
        """The contender to watch. Ours does not matter while another one is before it."""
        return self.before or self.contender


def standing(lock: str, names: Iterable[str], name: str | None) -> Place | None:
    """The position of the contender `name` below `lock`; None if it does not exist."""
    ordered = ((_SEQUENCE.search(each), each) for each in names)
    queue = [each for _, each in sorted((match.group(1), each) for match, each in ordered if match)]
    if name not in queue:
        return None
    index = queue.index(name)
    return Place(f"{lock}/{name}", f"{lock}/{queue[index - 1]}" if index else None, index)


class Queues:
    """The agent's places, by the path of the lock."""

    def __init__(self, client: Client, identifier: str) -> None:
        """`identifier` is the data of a contender, for people."""
        self._client = client
        self._identifier = identifier.encode()
        self._places: dict[str, Place] = {}
        self._dead: set[str] = set()  # names of contenders that no session owns, as in a copied tree
        self._session = client.session.id

    def turn(self, lock: str) -> str | None:
        """The path of our contender if it is first in the queue for `lock`, else None."""
        self._forget_lost_session()
        place = self._places.get(lock)
        if place is None or self._gone(place.contender):
            place = self._look(lock, place)
        elif self._gone(place.before):
            # Later contenders are behind us. Look again only if there were several before us.
            place = self._look(lock, place) if place.ahead > 1 else Place(place.contender, None, 0)
        self._places[lock] = place
        return None if place.before else place.contender

    def queries(self, lock: str) -> list[Query]:
        """What to watch to notice that our turn may have come, or our place is gone."""
        place = self._places.get(lock)
        return [data_of(place.watched)] if place else []

    def leave(self, but: str | None = None) -> None:
        """Give back every place, except the one for the lock `but`."""
        for lock in [lock for lock in self._places if lock != but]:
            self.give_back(lock)

    def give_back(self, lock: str) -> None:
        """Give back the place for one lock."""
        place = self._places.pop(lock, None)
        if place is not None:
            self._client.watches.forget([place.watched])
            self._client.ephemerals.discard(place.contender)

    def released(self, lock: str) -> None:
        """Forget a place whose contender was deleted together with the outcome."""
        place = self._places.pop(lock, None)
        if place is not None:
            self._client.watches.forget([place.watched])

    def _forget_lost_session(self) -> None:
        if self._session != self._client.session.id:
            self._session = self._client.session.id
            self._places.clear()

    def _gone(self, path: str | None) -> bool:
        if path is None or data_of(path) not in self._client.watches.results:
            return False
        znode = self._client.watches.results[data_of(path)]
        return znode is None or not znode.stat.ephemeralOwner

    def _look(self, lock: str, place: Place | None) -> Place:
        """Our position in the queue; takes a place first if we have none."""
        if place is None:
            self._enter(lock)
        while True:
            names = self._contenders(lock, place)
            leaving = self._client.ephemerals.all
            mine = [
                name for name in names if name.startswith(self._prefix) and f"{lock}/{name}" not in leaving
            ]
            # After an outage the request may have been sent twice, and one contender is enough.
            for double in mine[1:]:
                self._client.ephemerals.discard(f"{lock}/{double}")
            found = standing(lock, names, mine[0] if mine else None)
            if found is not None:
                return found
            self._enter(lock)

    @property
    def _prefix(self) -> str:
        """With what the names of our contenders begin in this session; all others are somebody else's."""
        session = self._client.session.id % 2**64
        return f"{self._client.name}{session:016x}__lock__"

    def _enter(self, lock: str) -> None:
        """Try to take a place: after an outage, `_look` finds out whether there is one."""
        # The session may be another one by the time of the connection, and the name of a contender says whose
        # it is: one of an earlier session is gone.
        self._client.loop.wait(lambda: self._client.connected)
        create = self._client.creation(f"{lock}/{self._prefix}", self._identifier, EPHEMERAL | SEQUENCE)
        try:
            self._client.attempt(create, f"{lock}: contending")
        except Outage:
            pass
        except NodeExistsError as error:  # Its number is taken: the server's database is damaged.
            raise refusal(create, f"{lock}: contending", error) from error

    def _contenders(self, lock: str, place: Place | None) -> Sequence[str]:
        """The names of all contenders, except those that are known to be dead."""
        names = self._client.children([lock])[lock]
        if names is None:
            raise NoNodeError(lock)
        if place and place.before and self._gone(place.before):
            found = self._client.read(f"{lock}/{name}" for name in names)
            self._dead |= {path for path, znode in found.items() if znode and not znode.stat.ephemeralOwner}
        return [name for name in names if f"{lock}/{name}" not in self._dead]
