"""Keeps ephemerals: creates them again in every session, and reliably deletes those that are discarded.

A table decides the next step for each ephemeral. The requests are not awaited: after an outage they continue
at the next connection. Then everything is read again, because watches are gone, and a znode may have been
deleted, or its session may have expired.
"""

from __future__ import annotations

import math

from kolla_mesos_start.errors import NoRight
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.session import check_size, jittered, perform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.session import Requests, Session

log = Logger(__name__)

SETTLE = 3.0  # seconds to wait after one of ours was deleted: a whole tree may be being removed
# Seconds until the next attempt, after ZooKeeper has refused something: the first, and the longest.
RETRY, LONGEST_RETRY = 5.0, 300.0
EPHEMERAL = 1  # the flag of a create request

# The owner of a znode: "none" if it does not exist; "former": an earlier session of this process, or of an
# earlier run of this container.
UNKNOWN, NONE, OURS, FORMER, OTHER = "unknown", "none", "ours", "former", "other"
OUTDATED = "outdated"  # ours, with other data than are wanted

# The next step for an ephemeral: (wanted, owner) -> step. Another session that took its place during ours is
# newer, and is left alone: two sessions that replaced each other would never stop.
STEPS: dict[tuple[bool, str], str] = {
    (True, UNKNOWN): "look",
    (True, NONE): "create",
    (True, OURS): "rest",
    (True, OUTDATED): "write",
    (True, FORMER): "replace",
    (True, OTHER): "rest",
    (False, UNKNOWN): "look",
    (False, NONE): "rest",
    (False, OURS): "delete",
    (False, OUTDATED): "delete",
    (False, FORMER): "delete",
    (False, OTHER): "rest",
}


WRITES = ("create", "replace", "write")
DONE = {"look": "read", "create": "created", "replace": "created", "write": "written", "delete": "deleted"}


def owner_of(session: int | None, ours: int, former: Iterable[int], held: bool) -> str:
    """The owner of a znode with this ephemeralOwner (None: no znode; 0: it is persistent, so nobody's).

    `held`: it was ours before.
    """
    if session is None:
        return NONE
    if session == ours:
        return OURS
    return FORMER if not session or session in former or not held else OTHER


class Ephemeral:
    """One ephemeral, and what is known about it. Only decides the next step.

    `data` may change at any time; `written` is the server's data, if known. `interval`: the least seconds
    between two writes; `write_after`: when the next one is allowed. `denied`: why ZooKeeper refused the last
    step; empty once it is ours.
    """

    def __init__(self, path: str, data: bytes, *, wanted: bool, owner: str = UNKNOWN) -> None:
        self.path, self.data, self.wanted = path, data, wanted
        self.owner = owner
        self.written: bytes | None = data
        self.interval = self.write_after = 0.0
        self.held = False  # in any session so far
        self.busy = False
        self.not_before = 0.0
        self.refusals = 0
        self.denied = ""
        self.discarded = False  # to be forgotten once it is gone

    @property
    def step(self) -> str:
        """The next step."""
        outdated = self.owner == OURS and self.data != self.written
        return STEPS[self.wanted, OUTDATED if outdated else self.owner]

    @property
    def due(self) -> float:
        """When to do the next step; infinite if there is nothing to do, or a request is running."""
        if self.busy or self.step == "rest":
            return math.inf
        return max(self.not_before, self.write_after if self.step in WRITES else 0.0)

    def begin(self, instant: float) -> str:
        """Begin the next step, and return it."""
        step, self.busy = self.step, True
        if step in WRITES:
            self.written, self.write_after = self.data, instant + self.interval
        return step

    def looked(self, session: int | None, ours: int, former: Iterable[int]) -> None:
        """Record the session that owns the znode according to the server (None: no znode)."""
        self.busy = False
        self.owner = owner_of(session, ours, former, self.held)
        if self.owner == OURS:
            self.held, self.refusals, self.denied = True, 0, ""

    def unsure(self, not_before: float = 0.0) -> None:
        """Look at it again, but not before that instant."""
        self.busy, self.owner, self.not_before = False, UNKNOWN, not_before

    def refused(self, instant: float) -> None:
        """ZooKeeper has refused a step: try again with increasing delay."""
        pause = min(LONGEST_RETRY, RETRY * 2**self.refusals)
        self.refusals = min(self.refusals + 1, 10)
        self.unsure(instant + jittered(pause, 0.2))

    def fired(self, instant: float) -> None:
        """Handle a fired watch. A busy ephemeral is looked at after its reply."""
        if not self.busy:
            self.unsure(instant + SETTLE if self.owner == OURS else 0.0)


def denial(path: str, done: str, error: Exception) -> NoRight:
    """The error for something that can't be `done` to the znode at `path` (see NoRight)."""
    return NoRight(path, done, "" if isinstance(error, wire.NoAuthError) else wire.in_words(error))


class Ephemerals:
    """All ephemerals of one session, as a source of the loop; one request for each at a time.

    `parents`: (path, data) of the znodes above that may be created if they are missing, outermost first.
    `on_denied` is called if an ACL refuses a step; without it the refusal is logged, and the step tried
    again.
    """

    interest: Interest = None

    def __init__(
        self,
        session: Session,
        acl: Sequence[Any],
        parents: Sequence[tuple[str, bytes]] = (),
        on_denied: Callable[[NoRight], object] | None = None,
    ) -> None:
        self.all: dict[str, Ephemeral] = {}
        self.parents = parents
        self.acl = acl
        self._session, self._on_denied = session, on_denied
        self._complaints: set[str] = set()
        session.on_connected(self._look_again)
        session.on_watch(self._fired)

    def keep(self, path: str, data: bytes) -> Ephemeral:
        """Keep an ephemeral at `path`, in this session and in every later one."""
        check_size(path, data)
        ephemeral = self.all[path] = Ephemeral(path, data, wanted=True, owner=NONE)
        return ephemeral

    def discard(self, path: str) -> None:
        """Delete `path`, whatever it is (also a persistent znode), and forget it."""
        ephemeral = self.all[path] = Ephemeral(path, b"", wanted=False, owner=FORMER)
        ephemeral.discarded = True

    @property
    def discarding(self) -> bool:
        """Whether a discarded ephemeral may still exist."""
        return any(ephemeral.discarded for ephemeral in self.all.values())

    @property
    def deadline(self) -> float:
        """When the next step is due."""
        if not self._session.connected:
            return math.inf
        return min((each.due for each in self.all.values()), default=math.inf)

    def run(self, ready: bool = False) -> None:
        """Send the requests that are due."""
        if self._session.connected and self.deadline <= now():
            for ephemeral in list(self.all.values()):
                if now() >= ephemeral.due:
                    perform(self._session, self._take(ephemeral))

    def _take(self, ephemeral: Ephemeral) -> Requests:
        """Take the next step."""
        path, step = ephemeral.path, ephemeral.begin(now())
        create = wire.Create(path, ephemeral.data, self.acl, EPHEMERAL)
        try:
            if step == "look":
                stat = yield wire.Exists(path, True)
                # Not owner_session_id, which is None for a znode that is not ephemeral.
                self._found(ephemeral, stat.ephemeralOwner)
                return
            if step == "delete":
                yield wire.Delete(path, -1)
                self._found(ephemeral, None)
                return
            if step == "replace":
                # In one transaction, so that others never count two of us, or none.
                results = yield wire.Transaction([wire.Delete(path, -1), create])
                cause = wire.failure(results)
                if (cause and wire.meaning(cause).kind != wire.EXPECTED) or isinstance(
                    cause, wire.NotEmptyError
                ):
                    self._failed(ephemeral, "deleted" if results[0] is cause else "created", cause)
                    return
            else:
                yield create if step == "create" else wire.SetData(path, ephemeral.data, -1)
        except wire.NoNodeError:
            if step == "create" and ephemeral.wanted:  # It may have been discarded in the meantime.
                yield from self._create_parents(ephemeral)
                return
            if step != "write":
                self._found(ephemeral, None)
                return
        except wire.NodeExistsError:
            ephemeral.written = None  # It may be ours, from an earlier request with other data.
        except wire.KazooException as error:
            if step == "write":
                ephemeral.written = None  # Unknown.
            self._failed(ephemeral, DONE[step], error)
            return
        ephemeral.unsure()  # Looking finds its owner, and sets a watch: our own write has used it up.

    def _found(self, ephemeral: Ephemeral, owner: int | None) -> None:
        ephemeral.looked(owner, self._session.id, self._session.former)
        if ephemeral.discarded and ephemeral.step == "rest" and self.all.get(ephemeral.path) is ephemeral:
            del self.all[ephemeral.path]
        if ephemeral.owner == OTHER and ephemeral.wanted:
            self._complain("another container has taken %s: it uses the same KOLLA_STATE_DIR", ephemeral.path)

    def _create_parents(self, ephemeral: Ephemeral) -> Requests:
        ephemeral.refused(now())
        above = [entry for entry in self.parents if ephemeral.path.startswith(entry[0] + "/")]
        if not above:
            self._complain("%s can't be created: its parent is missing", ephemeral.path)
        created = False
        for path, data in above:
            try:
                yield wire.Create(path, data, self.acl, 0)
                created = True
            except wire.NoNodeError:
                # We never create the deployment itself, and the other creations would fail too.
                self._complain("%s can't be created: the deployment is gone", ephemeral.path)
                return
            except wire.OUTAGE:
                return
            except wire.KazooException:
                pass  # It exists, or only an operator creates it.
        if created:
            ephemeral.unsure()

    def _failed(self, ephemeral: Ephemeral, done: str, error: wire.KazooException) -> None:
        if isinstance(error, wire.OUTAGE):
            ephemeral.unsure()
            return
        denied = denial(ephemeral.path, done, error)
        # What was ours before will be again: a credential is being replaced.
        on_denied = self._on_denied if isinstance(error, wire.DENIED) and not ephemeral.held else None
        if on_denied:
            on_denied(denied)
        ephemeral.refused(now())
        ephemeral.denied = denied.reason
        if not on_denied:
            self._complain("%s; retrying", ephemeral.path, denied.reason)

    def _complain(self, message: str, path: str, shown: str = "") -> None:
        if path not in self._complaints:
            self._complaints.add(path)
            log.warning(message, shown or path)

    def _look_again(self) -> None:
        for ephemeral in self.all.values():
            if ephemeral.wanted or ephemeral.step != "rest":
                ephemeral.unsure()

    def _fired(self, path: str) -> None:
        if path in self.all:
            self.all[path].fired(now())
