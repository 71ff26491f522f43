"""Ephemerals kept as they are wanted: made again in every session, and surely gone when given up.

What lives here: what to do next about an ephemeral (a table), and the requests that do it. Nobody
waits for them: what an outage interrupts goes on at the next connection.

After each connection everything is looked at again: watches are gone by then, and a znode may have
been deleted, or its session have expired.
"""

from __future__ import annotations

import math
from functools import partial

from kolla_mesos_start.errors import NoRight
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.session import check_size, jittered
from kolla_mesos_start.zookeeper.wire import (
    ConnectionLoss,
    Create,
    Delete,
    Exists,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    SessionExpiredError,
    SetData,
    Transaction,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Optional

    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.session import Session
    from kolla_mesos_start.zookeeper.wire import KazooException

    Error = Optional[KazooException]

log = Logger(__name__)

SETTLE = 3.0  # seconds after one of ours was deleted: perhaps a whole tree is being removed
# Seconds until the next attempt, after ZooKeeper has refused something: the first, and the longest.
RETRY, LONGEST_RETRY = 5.0, 300.0
EPHEMERAL = 1  # the flag of a create request

# Which session owns the znode at a path: nobody's is "none", ours "ours"; "former": one that this
# process had before, or one of an earlier run of this container.
UNKNOWN, NONE, OURS, FORMER, OTHER = "unknown", "none", "ours", "former", "other"
OUTDATED = "outdated"  # ours, with other data than are wanted

# What to do next about an ephemeral: (wanted, its owner) -> step. If another session has taken its
# place while we lived, it came later: two that replaced each other would do so for ever.
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
    """Who owns a znode with this ephemeralOwner (None: no znode); `held`: whether it was ours before."""
    if session is None:
        return NONE
    if session == ours:
        return OURS
    return FORMER if session in former or not held else OTHER


class Ephemeral:
    """One ephemeral, and what is known of it. Decides what comes next, and does nothing.

    `data` may change at any time; `written` is what the server has of it, as far as is known. `interval`:
    seconds between two writes, at least; `write_after`: when the next one may be. `denied`: why ZooKeeper
    refused the last step; empty once it is ours.
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
        self.discarded = False  # not to be remembered once it is gone

    @property
    def step(self) -> str:
        """What to do next; nothing is done while a request is under way."""
        outdated = self.owner == OURS and self.data != self.written
        return STEPS[self.wanted, OUTDATED if outdated else self.owner]

    @property
    def due(self) -> float:
        """When to do it; infinite while there is nothing to do."""
        if self.busy or self.step == "rest":
            return math.inf
        return max(self.not_before, self.write_after if self.step in WRITES else 0.0)

    def begin(self, instant: float) -> str:
        """The step is taken: which one."""
        step, self.busy = self.step, True
        if step in WRITES:
            self.written, self.write_after = self.data, instant + self.interval
        return step

    def looked(self, session: int | None, ours: int, former: Iterable[int]) -> None:
        """What the server has said: the session that owns the znode (None: there is no znode)."""
        self.busy = False
        self.owner = owner_of(session, ours, former, self.held)
        if self.owner == OURS:
            self.held, self.refusals, self.denied = True, 0, ""

    def unsure(self, not_before: float = 0.0) -> None:
        """Something has happened to it: find out what, but not before that instant."""
        self.busy, self.owner, self.not_before = False, UNKNOWN, not_before

    def refused(self, instant: float) -> None:
        """ZooKeeper has refused a step: try again, ever more seldom."""
        pause = min(LONGEST_RETRY, RETRY * 2**self.refusals)
        self.refusals = min(self.refusals + 1, 10)
        self.unsure(instant + jittered(pause, 0.2))

    def fired(self, instant: float) -> None:
        """A watch says that it has changed. A busy one is looked at when its reply has come."""
        if not self.busy:
            self.unsure(instant + SETTLE if self.owner == OURS else 0.0)


class Ephemerals:
    """All ephemerals of one session, as a source of the loop; one request for each at a time.

    `parents`: (path, data) of what may be created above them if it is missing, outermost first.
    `on_denied` gets what is to be said when an ACL refuses a step; without it that is logged and tried again.
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
        """Have an ephemeral at `path`, in this session and in every later one."""
        check_size(path, data)
        ephemeral = self.all[path] = Ephemeral(path, data, wanted=True, owner=NONE)
        return ephemeral

    def discard(self, path: str) -> None:
        """Have `path` deleted, and forget it."""
        ephemeral = self.all[path] = Ephemeral(path, b"", wanted=False, owner=FORMER)
        ephemeral.discarded = True

    @property
    def discarding(self) -> bool:
        """Whether a discarded one is not known to be gone."""
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
        create = Create(path, ephemeral.data, self.acl, EPHEMERAL)
        if step == "look":
            self._session.request(Exists(path, True), partial(self._on_look, ephemeral))
        elif step == "create":
            self._session.request(create, partial(self._on_created, ephemeral))
        elif step == "replace":
            # In one transaction, so that nobody counts two of us, nor none.
            replace = Transaction([Delete(path, -1), create])
            self._session.request(replace, partial(self._on_replaced, ephemeral))
        elif step == "write":
            self._session.request(SetData(path, ephemeral.data, -1), partial(self._on_written, ephemeral))
        else:
            self._session.request(Delete(path, -1), partial(self._on_deleted, ephemeral))

    def _on_look(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        if error and not isinstance(error, NoNodeError):
            self._failed(ephemeral, "read", error)
            return
        # Not owner_session_id, which takes a znode that isn't ephemeral for none.
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
        # It may be given up by now; what was created is there all the same.
        if isinstance(error, NoNodeError):
            if ephemeral.wanted:
                self._create_parents(ephemeral)
            else:
                self._found(ephemeral, None)
        elif error is None or isinstance(error, NodeExistsError):
            if error:
                ephemeral.written = None  # Perhaps it is ours, of a request before, with other data.
            ephemeral.unsure()  # Looking says whose it is, and sets a watch.
        else:
            self._failed(ephemeral, "created", error)

    def _on_deleted(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        if error is None or isinstance(error, NoNodeError):
            self._found(ephemeral, None)
        else:
            self._failed(ephemeral, "deleted", error)

    def _on_written(self, ephemeral: Ephemeral, value: Any, error: Error) -> None:
        if error and not isinstance(error, NoNodeError):
            ephemeral.written = None  # Nobody knows.
            self._failed(ephemeral, "written", error)
        else:
            ephemeral.unsure()  # Our own write has used up the watch.

    def _on_replaced(self, ephemeral: Ephemeral, results: Any, error: Error) -> None:
        # A transaction is answered with what came of each part of it.
        errors = [each for each in results or () if isinstance(each, Exception)]
        causes = [each for each in errors if not isinstance(each, RolledBackError)]
        denied = [each for each in causes if isinstance(each, (NoAuthError, InvalidACLError))]
        if error or denied:
            # It is deleted before it is created: where that is refused, the rest was not tried.
            done = "deleted" if denied and results[0] is denied[0] else "created"
            self._failed(ephemeral, done, error or denied[0])
        else:
            ephemeral.unsure()  # Replaced; or gone meanwhile, by itself.

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
        """The first of these, and then the others; `created`: one before them was."""
        (path, data), *others = above

        def on_reply(value: Any, error: Error) -> None:
            if isinstance(error, NoNodeError):
                # The deployment itself is never created by us, and the others would be refused too.
                self._complain("%s can't be created: the deployment is gone", ephemeral.path)
            elif not isinstance(error, (ConnectionLoss, SessionExpiredError)):
                if others:
                    self._create_parent(ephemeral, others, created=created or not error)
                elif created or not error:
                    ephemeral.unsure()

        self._session.request(Create(path, data, self.acl, 0), on_reply)

    def _failed(self, ephemeral: Ephemeral, done: str, error: KazooException) -> None:
        if isinstance(error, (ConnectionLoss, SessionExpiredError)):
            ephemeral.unsure()
            return
        denied = NoRight(ephemeral.path, done, error)
        if self._on_denied and isinstance(error, (NoAuthError, InvalidACLError)):
            self._on_denied(denied)
        ephemeral.refused(now())
        ephemeral.denied = denied.reason
        self._complain("%s; retrying", ephemeral.path, denied.reason)

    def _complain(self, message: str, path: str, shown: str = "") -> None:
        if path not in self._complaints:
            self._complaints.add(path)
            log.warning(message, shown or path)

    def _look_again(self) -> None:
        for ephemeral in self.all.values():
            if ephemeral.wanted or ephemeral.step != "rest":  # Who is gone doesn't come back by itself.
                ephemeral.unsure()

    def _fired(self, path: str) -> None:
        if path in self.all:
            self.all[path].fired(now())
