"""Takes turns to refresh, so that enough instances of a service stay ready.

    <status/global/role/daemon>/
      ready/<id>                      a ready instance
      refreshes/queue/<id>-<number>   a ready instance that waits, in this order
      refreshes/slots/<id>            an instance that refreshes, until its daemon is ready again

All are ephemeral. An instance begins only while fewer than `width` others of the wanted instances refresh or
are not ready. So a daemon that its new files break stops the rollout, and a container that is replaced while
it refreshes counts by its replacement. Two never begin at the same moment: a slot is taken in a transaction
that fails if another one was taken since the decision.

An instance that is not ready itself does not queue, and only slots count for it: nothing is lost by its
refresh, and the new files may be what makes it ready. Only the first in the queue watches slots and
instances, so that a change wakes one of many.
"""

from __future__ import annotations

from kolla_mesos_start.definition.strings import DAEMON, GLOBAL
from kolla_mesos_start.log import Logger
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.session import perform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence
    from typing import Any, TypeVar

    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.session import Requests, Session

    T = TypeVar("T")
    Steps = Generator[list[Any], list[Any], T]  # lists of requests and of their answers

log = Logger(__name__)

EPHEMERAL, EPHEMERAL_SEQUENCE = 1, 3  # flags of a create request
# Errors after which another attempt may succeed.
PASSING = (
    wire.NoNodeError,
    wire.NodeExistsError,
    wire.BadVersionError,
    wire.RolledBackError,
    wire.RuntimeInconsistency,
)
MOST_DIGITS = 5  # of a number of instances


def obstacle(
    refreshing: Collection[str], ready: Collection[str], wanted: int, width: int, is_ready: bool
) -> str:
    """Why an instance can't refresh, or empty text; `refreshing` and `ready` are the ids of others."""
    if len(refreshing) >= width:
        return f"{len(refreshing)} of at most {width} instances refresh now"
    down = max(0, wanted - 1 - len({*refreshing, *ready}))
    if is_ready and len(refreshing) + down >= width:
        return f"{down} of {wanted} instances not ready, and at most {width} may refresh or not be ready"
    return ""


def instances_in(definition: bytes) -> int | str:
    """How many instances a definition wants: a number, or the name of the variable that says it."""
    import json  # Few daemons take turns.

    try:
        wanted = json.loads(definition)["service"]["instances"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1
    text = str(wanted).strip()
    name = text[2:-2].strip() if text.startswith("{{") and text.endswith("}}") else ""
    return name if name.isidentifier() else number(text)


def number(text: str) -> int:
    """The number of instances that the text says; 1 if it says none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 1


class Rollout:
    """The turn of one instance; `run` it after every event.

    `has_turn`: it may refresh. `waiting_for`: why its turn has not come. `refusal`: why ZooKeeper refuses it.
    """

    def __init__(self, session: Session, acl: Sequence[Any], znodes: Znodes, member: str, width: int) -> None:
        """`member` is our id."""
        self.has_turn = False
        self.waiting_for = self.refusal = ""
        self._session, self._acl, self._znodes = session, acl, znodes
        self._member, self._width = member, width
        self._at = znodes.command(GLOBAL, f"{znodes.role}/{DAEMON}")
        self._slot = f"{self._at.slots}/{member}"
        self._create = wire.Create(self._slot, znodes.host.encode(), acl, EPHEMERAL)
        self._is_wanted = self._is_leaving = self._is_ready = False
        self._held_in = 0  # the session that has our slot
        self._changed = True  # since the last look
        self._watched: set[str] = set()
        self._busy = False
        session.on_connected(self._look_again)
        session.on_watch(self._fired)

    def want(self) -> None:
        """Request a turn."""
        if not self.has_turn:
            self._is_wanted = self._changed = True

    def take(self) -> None:
        """Take a turn at once, whatever others do. They are only told."""
        if not self.has_turn:
            self._begin(0)

    def give_back(self) -> None:
        """End the turn, if there is one."""
        if self.has_turn:
            self.has_turn, self._is_leaving, self._held_in = False, True, 0

    def run(self, is_ready: bool) -> None:
        """Send the requests that are due; `is_ready`: whether our daemon is."""
        if not self._session.connected or self._busy:
            return
        if self.has_turn and self._held_in != self._session.id:
            perform(self._session, self._exchange(self._hold(self._session.id)))
        elif self._is_leaving:
            perform(self._session, self._exchange(self._leave()))
        elif self._is_wanted and (self._changed or is_ready != self._is_ready):
            self._changed, self._is_ready, self._watched = False, is_ready, set()
            perform(self._session, self._exchange(self._ask(is_ready, self._session.id)))

    def _look_again(self) -> None:
        self._changed = True

    def _fired(self, path: str) -> None:
        if path in self._watched:
            self._changed = True

    def _begin(self, session: int) -> None:
        self.has_turn, self._held_in, self._is_wanted, self._is_leaving = True, session, False, False
        self.waiting_for = self.refusal = ""

    # -- exchanges with ZooKeeper -----------------------------------------------------------------------

    def _exchange(self, steps: Steps[None]) -> Requests:
        """Make the requests of these steps, one list after the other, until they end or an outage begins."""
        self._busy = True
        answers: list[Any] | None = None
        try:
            while not any(isinstance(each, wire.OUTAGE) for each in answers or ()):
                answers = yield steps.send(answers)  # type: ignore[arg-type]
            self._changed, self._held_in = True, 0
            # A slot may be taken, for which others, even those before us in the queue, would wait.
            self._is_leaving = not self.has_turn
        except StopIteration:
            pass
        finally:
            self._busy = False

    def _ask(self, is_ready: bool, session: int) -> Steps[None]:
        """Take a slot if that is possible now."""
        at = self._at
        queue = yield from self._queue(is_ready)
        if is_ready and (not queue or (yield from self._is_behind(queue))):
            return
        own = [name for name in queue if self._is_own(name)]
        self._watched |= {at.slots, at.ready}
        slots, ready = yield [wire.GetChildren2(at.slots, True), wire.GetChildren(at.ready, True)]
        if isinstance(slots, Exception):
            if not self._is_refused([slots]):
                yield from self._create_parents()
            return
        refreshing = yield from self._live(at.slots, slots[0], True)
        instances = yield from self._live(at.ready, [] if isinstance(ready, Exception) else ready, False)
        # A definition may say less than runs.
        party = self._znodes.party(self._znodes.service_name)
        (members,) = yield [wire.GetChildren(party, False)]
        present = yield from self._live(party, [] if isinstance(members, Exception) else members, False)
        wanted = max((yield from self._wanted()), 1 + len(present))
        self.waiting_for = obstacle(refreshing, instances, wanted, self._width, is_ready)
        if self.waiting_for:
            return
        before = [wire.Delete(self._slot, -1)] if self._member in slots[0] else []
        results = yield from _commit(
            # Refused if another instance has taken a slot since it was read.
            wire.SetData(at.slots, b"", slots[1].version),
            *before,
            self._create,
            *(wire.Delete(f"{at.queue}/{name}", -1) for name in own),
        )
        if self._is_refused(results):
            return
        if any(isinstance(result, Exception) for result in results):
            self._changed = True
        elif self._is_wanted:  # Otherwise a turn was taken meanwhile, and perhaps given back.
            self._begin(session)

    def _queue(self, is_ready: bool) -> Steps[Sequence[str]]:
        """The queue in its order, with a place of ours if we are ready; empty if there is none."""
        at = self._at
        (names,) = yield [wire.GetChildren(at.queue, False)]
        if isinstance(names, wire.NoNodeError):
            yield from self._create_parents()
            return ()
        if self._is_refused([names]):
            return ()
        if is_ready and not any(map(self._is_own, names)):
            path = f"{at.queue}/{self._member}-"
            created, names = yield [
                wire.Create(path, b"", self._acl, EPHEMERAL_SEQUENCE),
                wire.GetChildren(at.queue, False),
            ]
            if self._is_refused([created, names]) or isinstance(names, Exception):
                return ()
        return sorted(names, key=lambda name: str(name.rsplit("-", 1)[-1]))

    def _is_behind(self, queue: Sequence[str]) -> Steps[bool]:
        """Whether another instance is before us in the queue; then the last one before us is watched."""
        first = next((place for place, name in enumerate(queue) if self._is_own(name)), 0)
        for name in reversed(queue[:first]):
            path = f"{self._at.queue}/{name}"
            self._watched.add(path)
            (stat,) = yield [wire.Exists(path, True)]
            if not isinstance(stat, Exception) and stat.ephemeralOwner:
                self.waiting_for = "other instances wait before this one"
                return True
        return False

    def _wanted(self) -> Steps[int]:
        """How many instances the service wants, as far as that is a number or one variable."""
        definition = self._znodes.definition
        self._watched.add(definition)
        (znode,) = yield [wire.GetData(definition, True)]
        wanted = 1 if isinstance(znode, Exception) else instances_in(znode[0])
        if isinstance(wanted, int):
            return wanted
        places = self._znodes.variable(wanted)
        self._watched.update(places)
        # Only `exists` sets a watch on a missing znode.
        found = yield [ask for path in places for ask in (wire.Exists(path, True), wire.GetData(path, False))]
        values = [each[0] for each in found[1::2] if not isinstance(each, Exception)]
        return number(values[0].decode("utf-8", "replace").strip()) if values else 1

    def _live(self, path: str, names: Sequence[str], watch: bool) -> Steps[list[str]]:
        """Those of the entries, except ours, that a session owns: any other one is nobody's."""
        others = [name for name in names if name != self._member]
        if watch:
            self._watched.update(f"{path}/{name}" for name in others)
        stats = (yield [wire.Exists(f"{path}/{name}", watch) for name in others]) if others else []
        return [
            name
            for name, stat in zip(others, stats)
            if not isinstance(stat, Exception) and stat.ephemeralOwner
        ]

    def _hold(self, session: int) -> Steps[None]:
        """Create our slot in any case: we refresh already.

        After an expired session, this is sent before the instance is registered as ready again.
        """
        change, create = wire.SetData(self._at.slots, b"", -1), self._create
        self._held_in = session  # Whatever the answer is: we refresh all the same.
        results = yield from _commit(change, create)
        if any(isinstance(result, wire.NodeExistsError) for result in results):
            results = yield from _commit(change, wire.Delete(self._slot, -1), create)
        if any(isinstance(result, wire.NoNodeError) for result in results):
            yield from self._create_parents()
            yield from _commit(change, create)

    def _leave(self) -> Steps[None]:
        at = self._at
        _, names = yield [wire.Delete(self._slot, -1), wire.GetChildren(at.queue, False)]
        places = [] if isinstance(names, Exception) else list(filter(self._is_own, names))
        if places:
            yield [wire.Delete(f"{at.queue}/{name}", -1) for name in places]
        self._is_leaving = False

    def _create_parents(self) -> Steps[None]:
        """Create the places of slots and queue. Those above belong to the container that registers."""
        at = self._at
        self._watched.add(at.state)
        daemon, *created = yield [
            wire.Exists(at.state, True),
            *(wire.Create(path, b"", self._acl, 0) for path in (at.refreshes, at.slots, at.queue)),
        ]
        if isinstance(daemon, Exception):
            self.waiting_for = "the states of its service were removed from ZooKeeper"
        elif not self._is_refused(created):
            self._changed = True

    def _is_own(self, name: str) -> bool:
        return name.startswith(f"{self._member}-")

    def _is_refused(self, answers: Sequence[Any]) -> bool:
        """Whether ZooKeeper refuses something for a reason that another attempt does not change."""
        refused = [each for each in answers if isinstance(each, Exception) and not isinstance(each, PASSING)]
        if refused:
            kind = type(refused[0]).__name__
            self.refusal = self.waiting_for = f"ZooKeeper refuses a turn in {self._at.refreshes} ({kind})"
            log.warning("%s", self.refusal)
        return bool(refused)


def _commit(*operations: Any) -> Steps[Sequence[Any]]:
    """The results of a transaction, also if the server refuses it as a whole."""
    (results,) = yield [wire.Transaction(list(operations))]
    return [results] if isinstance(results, Exception) else results
