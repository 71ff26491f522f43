"""Takes turns to refresh: at most `width` instances of a service at a time, and none after a failure.

    <status/global/role/daemon>/refreshes/
      queue/<id>-<number>   an instance that waits, in this order                     (ephemeral)
      slots/<id>            an instance that refreshes, until it is ready again, or that failed or died

Only the first instance in the queue watches the slots, so a free slot wakes one instance. The slot of a
failed instance blocks all others until something newer is published: new files that break one container must
not reach the others.
"""

from __future__ import annotations

from functools import partial

from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.zookeeper import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kolla_mesos_start.zookeeper.session import Session

log = Logger(__name__)

EPHEMERAL_SEQUENCE = 3  # flags of a create request
FAILED = b"failed "  # prefix of a failed slot; otherwise the session's id. The host follows.
MAX_SHOWN = 200  # characters of another instance's text


class Slot(NamedTuple):
    """The slot of another instance; `failure`: why it will not be released.

    `since`: the zxid at which its turn began: a failure says nothing about later publications. `gone`: its
    container does not exist any more. `version` is that of its znode.
    """

    name: str
    failure: str
    since: int
    gone: bool
    version: int


def blocking_reason(slots: Sequence[Slot], width: int, change: int) -> tuple[str, bool]:
    """Why another instance can't refresh for the publication at the zxid `change`, or empty text.

    The second value: whether an operator must do something about it.
    """
    counted = [slot for slot in slots if not slot.failure or slot.since > change]
    failed = [slot for slot in counted if slot.failure]
    if failed:
        return (
            f"{failed[0].failure}: no other instance refreshes until that one is ready again, or something"
            " new is published"
        ), True
    is_full = len(counted) >= width
    return f"{len(counted)} of at most {width} instances refresh now" if is_full else "", False


class Rollout:
    """The turn of one instance. `on_turn` is called when it comes; `waiting_for` says why it has not come.

    `stuck`: an operator must do something first.
    """

    def __init__(
        self,
        session: Session,
        acl: Sequence[Any],
        path: str,
        member: str,
        host: str,
        party: str,
        width: int,
        on_turn: Callable[[], object],
    ) -> None:
        """`path`: the znode `refreshes`; `member`: our id; `party`: the znode of the service's containers."""
        self._session, self._acl, self._path = session, acl, path
        self._host = host.encode()
        self._member, self._party, self._width, self._on_turn = member, party, width, on_turn
        self._slot = f"{path}/slots/{member}"
        self._change: int | None = None  # None: no turn is wanted
        self._busy = self._again = False
        self._content = b""  # of our slot; empty: we have none
        self._releasing = False
        self._watched: set[str] = set()
        self.waiting_for, self.stuck = "", False
        session.on_connected(self._look_again)
        session.on_watch(self._fired)

    def want(self, change: int) -> None:
        """Request a turn, for the publication at the zxid `change`."""
        self._change = change
        self._look()

    def give_back(self, failure: str = "") -> None:
        """End the turn. After a failure, the slot stays and says why."""
        self._content = b"%s%s: %s" % (FAILED, self._host, failure.encode()[:MAX_SHOWN]) if failure else b""
        self._releasing = not failure
        self._write_slot()

    def _write_slot(self) -> None:
        if self._releasing:
            self._request(wire.Delete(self._slot, -1), self._on_released)
        elif self._content:
            self._request(wire.SetData(self._slot, self._content, -1), lambda value: None)

    def _on_released(self, value: Any) -> None:
        self._releasing = False
        self._look()

    # -- looking --------------------------------------------------------------------------------

    def _fired(self, path: str) -> None:
        if path in self._watched:
            self._look()

    def _look_again(self) -> None:
        self._busy = False
        if self._content and not self._content.startswith(FAILED):
            self._content = self._own()  # The session may be another one.
        self._write_slot()
        self._look()

    def _look(self) -> None:
        """Read the queue and, if we are first, the slots; again after changes in the meantime."""
        if self._change is None or self._releasing or not self._session.connected:
            return
        if self._busy:
            self._again = True
            return
        self._busy, self._again, self._watched = True, False, set()
        self._request(wire.GetData(self._slot, False), self._on_own_slot)

    def _looked(self, waiting_for: str, stuck: bool = False) -> None:
        self.waiting_for, self.stuck, self._busy = waiting_for, stuck, False
        if self._again:
            self._look()

    def _on_own_slot(self, value: Any) -> None:
        if value is None:
            self._request(wire.GetChildren(f"{self._path}/queue", False), self._on_queue)
            return
        # Created again: its czxid says when this turn has begun.
        take = [wire.Delete(self._slot, -1), wire.Create(self._slot, self._own(), self._acl, 0)]
        if value[0].startswith(FAILED):
            # Our slot of a failed refresh: we are first, but other instances may hold slots by now.
            self._look_at_slots(*take)
        else:
            # The write to the parent stops others that take this for the slot of a replaced container.
            write = wire.SetData(f"{self._path}/slots", b"", -1)
            self._request(wire.Transaction([write, *take]), self._on_taken)

    def _on_queue(self, names: Any) -> None:
        if names is None:
            self._create_parents()
            return
        queue = sorted(names, key=lambda name: name.rsplit("-", 1)[-1])
        own = [name for name in queue if name.startswith(f"{self._member}-")]
        if not own:
            path = f"{self._path}/queue/{self._member}-"
            self._request(wire.Create(path, b"", self._acl, EPHEMERAL_SEQUENCE), self._on_changed)
        elif queue[0] == own[0]:
            # After a lost reply there may be two of ours.
            leave = [wire.Delete(f"{self._path}/queue/{name}", -1) for name in own]
            self._look_at_slots(wire.Create(self._slot, self._own(), self._acl, 0), *leave)
        else:
            before = f"{self._path}/queue/{queue[queue.index(own[0]) - 1]}"
            self._watched.add(before)
            self._request(wire.Exists(before, True), partial(self._on_before, queue.index(own[0])))

    def _on_before(self, ahead: int, stat: Any) -> None:
        if stat is None:
            self._again = True
        self._looked(f"{ahead} instances wait before this one")

    def _look_at_slots(self, *take: Any) -> None:
        """Read the slots of others; the operations `take` begin our turn."""
        path = f"{self._path}/slots"
        self._watched.add(path)
        slots: list[Slot] = []

        def on_names(value: Any) -> None:
            if value is None:
                self._create_parents()
                return
            names = set(value[0]) - {self._member}
            missing = len(names)
            # The version check fails if another instance takes a slot after this read.
            steps = [wire.SetData(path, b"", value[1].version), *take]
            if not missing:
                self._decide(slots, steps)

            def on_slot(slot: Slot | None) -> None:
                nonlocal missing
                missing -= 1
                slots.extend([slot] if slot else [])
                if not missing:
                    self._decide(slots, steps)

            for name in names:
                self._watched |= {f"{path}/{name}", f"{self._party}/{name}"}
                self._request(wire.GetData(f"{path}/{name}", True), partial(self._on_slot, name, on_slot))

        self._request(wire.GetChildren2(path, True), on_names)

    def _on_slot(self, name: str, done: Callable[[Slot | None], object], value: Any) -> None:
        if value is None:
            done(None)
            return
        data, stat = value

        def on_owner(owner: Any) -> None:
            failure, (session, _, rest) = "", data.partition(b" ")
            said = rest[:MAX_SHOWN].decode("utf-8", "replace")
            if data.startswith(FAILED):
                failure = said
            elif owner is None or session != b"%x" % owner.ephemeralOwner:
                failure = f"the instance on {said} has not come back from its refresh"
            done(Slot(name, failure, stat.czxid, owner is None, stat.version))

        self._request(wire.Exists(f"{self._party}/{name}", True), on_owner)

    def _decide(self, slots: Sequence[Slot], steps: Sequence[Any]) -> None:
        assert self._change is not None
        reason, stuck = blocking_reason(slots, self._width, self._change)
        if reason:
            self._looked(reason, stuck)
            return
        # Delete the slots of replaced containers. One that comes back in the meantime has changed its slot's
        # version.
        left = [wire.Delete(f"{self._path}/slots/{slot.name}", slot.version) for slot in slots if slot.gone]
        self._request(wire.Transaction([*steps, *left]), self._on_taken)

    def _on_taken(self, results: Any) -> None:
        # Refused if another instance was faster, or our contender is gone.
        if any(isinstance(result, Exception) for result in results):
            self._on_changed(None)
        else:
            self._begin(None)

    def _begin(self, value: Any) -> None:
        self._change, self._content, self._busy, self.waiting_for = None, self._own(), False, ""
        self._on_turn()

    def _on_changed(self, value: Any) -> None:
        self._again = True
        self._looked(self.waiting_for, self.stuck)

    # -- requests -------------------------------------------------------------------------------

    def _own(self) -> bytes:
        return b"%x %s" % (self._session.id, self._host)

    def _create_parents(self) -> None:
        daemon = self._path.rpartition("/")[0]
        self._watched.add(daemon)
        self._request(wire.Exists(daemon, True), self._on_daemon)

    def _on_daemon(self, stat: Any) -> None:
        if stat is None:  # The container that registers the daemon creates them.
            self._looked("the states of its service were removed from ZooKeeper")
            return
        for path in (self._path, f"{self._path}/slots"):
            self._session.request(wire.Create(path, b"", self._acl, 0), lambda value, error: None)
        self._request(wire.Create(f"{self._path}/queue", b"", self._acl, 0), self._on_changed)

    def _request(self, operation: Any, on_answer: Callable[[Any], object]) -> None:
        """Send a request; the answer is None if the znode does not exist, or exists already.

        After an outage there is no answer: everything is read again.
        """
        session = self._session.id

        def on_reply(value: Any, error: Exception | None) -> None:
            if isinstance(error, wire.OUTAGE) or self._session.id != session:
                return
            if error and not isinstance(error, (wire.NoNodeError, wire.NodeExistsError)):
                refusal = f"ZooKeeper refuses a turn in {self._path} ({type(error).__name__})"
                log.warning("%s", refusal)
                self._releasing = False
                self._looked(refusal, stuck=True)
                return
            on_answer(value)

        self._session.request(operation, on_reply)
