"""Keeps ephemerals: creates them again in every session, and reliably deletes those that are discarded.

A table decides the next step for each ephemeral. The requests are not awaited: after an outage they continue
at the next connection. Then everything is read again, because watches are gone, and a znode may have been
deleted, or its session may have expired.
"""

from __future__ import annotations

import math
from functools import partial

from kolla_mesos_start.errors import NoRight
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.session import check_size, jittered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Optional

    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.session import Session

    Error = Optional[wire.KazooException]

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
        """Delete `path`, and forget it."""
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
                    self._send(ephemeral)

    def _send(self, ephemeral: Ephemeral) -> None:
        path, step = ephemeral.path, ephemeral.begin(now())
        create = wire.Create(path, ephemeral.data, self.acl, EPHEMERAL)
        if step == "look":
            self._session.request(wire.Exists(path, True), partial(self._on_look, ephemeral))
        elif step == "create":
            self._session.request(create, partial(self._on_created, ephemeral))
        elif step == "replace":
            # In one transaction, so that others never count two of us, or none.
            replace = wire.Transaction([wire.Delete(path, -1), create])
            self._session.request(replace, partial(self._on_replaced, ephemeral))
        elif step == "write":
            self._session.request(
                wire.SetData(path, ephemeral.data, -1), partial(self._on_written, ephemeral)
            )
        else:
            self._session.request(wire.Delete(path, -1), partial(self._on_deleted, ephemeral))

    def _on_look(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        if error and not isinstance(error, wire.NoNodeError):
            self._failed(ephemeral, "read", error)
            return
        # Not owner_session_id, which is None for a znode that is not ephemeral.
        owner = None if error else value.ephemeralOwner
        self._found(ephemeral, owner)
        if ephemeral.owner == OTHER and ephemeral.wanted:
            same = self._session.servers.labels.identity
            self._complain(f"another container has taken %s: it uses the same {same}", ephemeral.path)

    def _found(self, ephemeral: Ephemeral, owner: int | None) -> None:
        ephemeral.looked(owner, self._session.id, self._session.former)
        if ephemeral.discarded and ephemeral.step == "rest" and self.all.get(ephemeral.path) is ephemeral:
            del self.all[ephemeral.path]

    def _on_created(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        # It may have been discarded in the meantime.
        if isinstance(error, wire.NoNodeError):
            if ephemeral.wanted:
                self._create_parents(ephemeral)
            else:
                self._found(ephemeral, None)
        elif error is None or isinstance(error, wire.NodeExistsError):
            if error:
                ephemeral.written = None  # It may be ours, from an earlier request with other data.
            ephemeral.unsure()  # Looking finds its owner, and sets a watch.
        else:
            self._failed(ephemeral, "created", error)

    def _on_deleted(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        if error is None or isinstance(error, wire.NoNodeError):
            self._found(ephemeral, None)
        else:
            self._failed(ephemeral, "deleted", error)

    def _on_written(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        if error and not isinstance(error, wire.NoNodeError):
            ephemeral.written = None  # Unknown.
            self._failed(ephemeral, "written", error)
        else:
            ephemeral.unsure()  # Our own write has used up the watch.

    def _on_replaced(self, ephemeral: Ephemeral, results: Any, error: Error) -> None:
        # A transaction is answered with the result of each part.
        errors = [each for each in results or () if isinstance(each, Exception)]
        causes = [each for each in errors if not isinstance(each, wire.RolledBackError)]
        denied = [each for each in causes if isinstance(each, (wire.NoAuthError, wire.InvalidACLError))]
        if error or denied:
            # If the deletion is refused, the creation was not tried.
            done = "deleted" if denied and results[0] is denied[0] else "created"
            self._failed(ephemeral, done, error or denied[0])
        else:
            ephemeral.unsure()  # Replaced, or already gone.

    def _create_parents(self, ephemeral: Ephemeral) -> None:
        ephemeral.refused(now())
        above = [entry for entry in self.parents if ephemeral.path.startswith(entry[0] + "/")]
        if above:
            self._create_parent(ephemeral, above, created=False)
        else:
            self._complain("%s can't be created: its parent is missing", ephemeral.path)

    def _create_parent(
        self, ephemeral: Ephemeral, above: Sequence[tuple[str, bytes]], *, created: bool
    ) -> None:
        """Create the first of these, then the others; `created`: an earlier one was created."""
        (path, data), *others = above

        def on_reply(value: Any, error: Error) -> None:
            if isinstance(error, wire.NoNodeError):
                # We never create the deployment itself, and the other creations would fail too.
                self._complain("%s can't be created: the deployment is gone", ephemeral.path)
            elif not isinstance(error, (wire.ConnectionLoss, wire.SessionExpiredError)):
                if others:
                    self._create_parent(ephemeral, others, created=created or not error)
                elif created or not error:
                    ephemeral.unsure()

        self._session.request(wire.Create(path, data, self.acl, 0), on_reply)

    def _failed(self, ephemeral: Ephemeral, done: str, error: wire.KazooException) -> None:
        if isinstance(error, (wire.ConnectionLoss, wire.SessionExpiredError)):
            ephemeral.unsure()
            return
        denied = NoRight(ephemeral.path, done, error)
        on_denied = self._on_denied if isinstance(error, (wire.NoAuthError, wire.InvalidACLError)) else None
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
