"""What an instance shows of itself in ZooKeeper: its presence, and that it is ready.

What lives here: which ephemerals must be made or removed now (a table), and the requests that do
it. Whether the instance is ready is concluded in `ready`; the session is `session`'s.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.protocol.serialization import Create, Delete, Exists, GetData, SetData
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.session import Reply, Session

if TYPE_CHECKING:
    from kolla_mesos_start.daemon.handoff import Tree

log = logging.getLogger(__name__)

TRY_AGAIN = 5.0  # seconds, after ZooKeeper has refused something
SETTLE = 3.0  # seconds after somebody has deleted what is ours: he may be removing a whole tree
EPHEMERAL = 1
RUNNING = b"running"

# Whose the znode at a path is. `former`: of a session that we had before, or of a previous run.
UNKNOWN, NOBODY, OURS, FORMER, STRANGER = "unknown", "nobody", "ours", "former", "stranger"

# What to do next about an ephemeral: (wanted, whose it is) -> step. Where a stranger has taken
# its place while we lived, he came later: two that replaced each other would do so for ever.
STEPS: dict[tuple[bool, str], str] = {
    (True, UNKNOWN): "look",
    (True, NOBODY): "create",
    (True, OURS): "rest",
    (True, FORMER): "delete",
    (True, STRANGER): "rest",
    (False, UNKNOWN): "look",
    (False, NOBODY): "rest",
    (False, OURS): "delete",
    (False, FORMER): "delete",
    (False, STRANGER): "rest",
}


def whose(owner: int | None, session: int, former: set[int], held: bool) -> str:
    """Whose a znode is, by its owner's session id (None: no znode); `held`: whether we ever had it."""
    if owner is None:
        return NOBODY
    if owner == session:
        return OURS
    return FORMER if owner in former or not held else STRANGER


def with_since(data: bytes, since: float) -> bytes:
    """The JSON object `data` with one more member, `since` (seconds since the epoch, told in UTC)."""
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since)).encode()
    body = data.rstrip()[:-1].rstrip()
    return body + (b"" if body.endswith(b"{") else b", ") + b'"since": "' + text + b'"}'


class Ephemeral:
    """One ephemeral, and what is known of it. Decides what comes next, and does nothing."""

    def __init__(self, path: str, data: bytes, *, wanted: bool) -> None:
        self.path, self.data, self.wanted = path, data, wanted
        self.whose = UNKNOWN
        self.held = False  # in any session so far
        self.busy = False
        self.not_before = 0.0

    @property
    def step(self) -> str:
        """What to do next; nothing is done while a request is under way."""
        return STEPS[self.wanted, self.whose]

    def begin(self) -> None:
        """Take the step: `looked` or `unsure` will follow."""
        self.busy = self.step != "rest"

    def looked(self, owner: int | None, session: int, former: set[int]) -> None:
        """Whose session the znode is of (None: there is none), as the server has said in ours."""
        self.busy = False
        self.whose = whose(owner, session, former, self.held)
        self.held = self.held or self.whose == OURS

    def unsure(self, not_before: float = 0.0) -> None:
        """Something has happened to it, by us or others: what, is for another look."""
        self.busy, self.whose, self.not_before = False, UNKNOWN, not_before

    def fired(self, at: float) -> None:
        """A watch says that it has changed. One that is busy is looked at when its reply has come."""
        if not self.busy:
            self.unsure(at + SETTLE if self.whose == OURS else 0.0)


class Instance:
    """Makes the ephemerals what they should be; at most one request for each is under way.

    After each connection everything is looked at again: watches are gone, and a znode may have
    been deleted, or its session have expired.
    """

    def __init__(self, session: Session, tree: Tree) -> None:
        self._session, self._tree = session, tree
        self._acl = [ACL(perms, Id(scheme, name)) for perms, scheme, name in tree.acl] or OPEN_ACL_UNSAFE
        self.presence = [Ephemeral(path, data, wanted=True) for path, data in tree.presence]
        self.instances = [Ephemeral(path, data, wanted=False) for path, data in tree.ready]
        self._ready = self._states_due = False
        self._complained: set[str] = set()
        session.on_open, session.on_event = self._on_open, self._on_event

    @property
    def ephemerals(self) -> list[Ephemeral]:
        return self.presence + self.instances

    @property
    def deadline(self) -> float:
        """When something that was refused is tried again."""
        waiting = [e.not_before for e in self.ephemerals if not e.busy and e.step != "rest"]
        return min(waiting, default=math.inf) if self._session.open else math.inf

    @property
    def withdrawn(self) -> bool:
        """Whether nobody can find a ready instance of us any more."""
        return all(e.whose in (NOBODY, STRANGER) for e in self.instances)

    def turn(self, ready: bool) -> None:
        """Send what can be sent now; `ready`: whether the daemon is."""
        if ready != self._ready:
            self._set_ready(ready)
        if not self._session.open:
            return
        for ephemeral in self.ephemerals:
            if not ephemeral.busy and now() >= ephemeral.not_before:
                self._send(ephemeral)
        if self._states_due and all(e.whose == OURS for e in self.instances):
            self._states_due = False
            for path in self._tree.states:
                self._tell_state(path)

    def _set_ready(self, ready: bool) -> None:
        self._ready = self._states_due = ready
        for ephemeral, (_, data) in zip(self.instances, self._tree.ready):
            ephemeral.wanted, ephemeral.not_before = ready, 0.0
            ephemeral.data = with_since(data, time.time())

    def _send(self, ephemeral: Ephemeral) -> None:
        path, step = ephemeral.path, ephemeral.step
        ephemeral.begin()
        if step == "look":
            self._session.request(Exists(path, True), partial(self._on_look, ephemeral))
        elif step == "create":
            create = Create(path, ephemeral.data, self._acl, EPHEMERAL)
            self._session.request(create, partial(self._on_change, ephemeral))
        elif step == "delete":
            self._session.request(Delete(path, -1), partial(self._on_change, ephemeral))

    def _on_look(self, ephemeral: Ephemeral, reply: Reply) -> None:
        if reply.error and not isinstance(reply.error, NoNodeError):
            self._refused(ephemeral, reply)
            return
        # Not owner_session_id, which takes a znode that isn't ephemeral for none.
        owner = None if reply.error else reply.value.ephemeralOwner
        ephemeral.looked(owner, self._session.id, self._session.former)
        if ephemeral.whose == STRANGER and ephemeral.wanted:
            self._complain(ephemeral.path, "another container has taken %s: it uses the same KOLLA_STATE_DIR")

    def _on_change(self, ephemeral: Ephemeral, reply: Reply) -> None:
        # What has become of it, and a watch on it, is found by looking.
        ephemeral.unsure()
        if isinstance(reply.error, NoNodeError) and ephemeral.wanted:
            self._make_parents(ephemeral)
        elif reply.error and not isinstance(reply.error, (NodeExistsError, NoNodeError)):
            self._refused(ephemeral, reply)

    def _make_parents(self, ephemeral: Ephemeral) -> None:
        # Where the deployment itself is gone this fails too: not even then is it made by us.
        ephemeral.not_before = now() + TRY_AGAIN
        above = [entry for entry in self._tree.parents if ephemeral.path.startswith(entry[0] + "/")]
        for path, data in above:
            self._session.request(Create(path, data, self._acl, 0), partial(self._on_parent, ephemeral))
        if not above:
            self._complain(ephemeral.path, "%s can't be made: there is nothing above it")

    def _on_parent(self, ephemeral: Ephemeral, reply: Reply) -> None:
        if not reply.error:
            ephemeral.not_before = 0.0
        elif isinstance(reply.error, NoNodeError):
            self._complain(ephemeral.path, "%s can't be made: the deployment is gone")

    def _refused(self, ephemeral: Ephemeral, reply: Reply) -> None:
        if isinstance(reply.error, (ConnectionLoss, SessionExpiredError)):
            ephemeral.unsure()
            return
        ephemeral.unsure(now() + TRY_AGAIN)
        kind = type(reply.error).__name__
        self._complain(ephemeral.path, f"ZooKeeper refuses %s: {kind}; trying on every {TRY_AGAIN:g} s")

    def _complain(self, path: str, message: str) -> None:
        if path not in self._complained:
            self._complained.add(path)
            log.warning(message, path)

    def _on_open(self) -> None:
        for ephemeral in self.ephemerals:
            ephemeral.unsure()

    def _on_event(self, path: str) -> None:
        for ephemeral in self.ephemerals:
            if ephemeral.path == path:
                ephemeral.fired(now())

    def _tell_state(self, path: str) -> None:
        def on_read(reply: Reply) -> None:
            if isinstance(reply.error, ConnectionLoss):
                self._states_due = True
            elif not reply.error and reply.value[0] != RUNNING:
                # Who has changed it since we read knows more than we do; it is for people only.
                self._session.request(SetData(path, RUNNING, reply.value[1].version), lambda reply: None)

        self._session.request(GetData(path, False), on_read)
