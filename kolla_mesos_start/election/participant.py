"""The part of a running daemon in its cluster's election: its registrar keeps `running`, answers candidates,
records that the cluster was formed, and ends a daemon that waits in vain.

A source of the loop. Requests are not awaited; after an outage everything is read again. Imported when the
registrar starts, and only if the daemon has an election.
"""

from __future__ import annotations

import math

from kolla_mesos_start.election import records
from kolla_mesos_start.election.records import (
    FIRST,
    FORMED,
    JOINED,
    LEFT_OUT,
    READY,
    STARTING,
    BadRecord,
    Member,
    Membership,
    Running,
    encode,
)
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree.codec import instance, why_left_out
from kolla_mesos_start.tree.znodes import ElectionZnodes
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.session import perform
from kolla_mesos_start.zookeeper.view import Znode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from kolla_mesos_start.tree.presence import Presence
    from kolla_mesos_start.zookeeper.session import Requests, Session

    class Readiness(Protocol):
        """Of the daemon: whether it is ready, and whether a check has said so since `confirm`."""

        @property
        def ready(self) -> bool: ...
        @property
        def confirmed(self) -> bool: ...
        def confirm(self, after: float) -> None: ...
        def stop(self) -> None: ...


log = Logger("kolla_mesos_start.election")

EPHEMERAL = 1  # the flag of a create request
RETRY = 1.0  # seconds until a transition is tried again that was refused
TERM_SHARE = 0.25  # of give_up: the daemon gets TERM so long before KILL, or `stop_grace` if that is shorter
END_GRACE = 5.0  # seconds between TERM and KILL for a daemon whose epoch is over
CONFLICTS = (wire.BadVersionError, wire.RolledBackError, wire.RuntimeInconsistency)


class Postponed(Exception):
    """A transition can't be made now, for the reason in its text."""


class Participant:
    """The running instance of this host, as the election sees it.

    `admitted`: whether it may be registered as ready, because its `running` belongs to this session and says
    that it is ready. `why`: the reason for which the daemon is ended.
    """

    interest = None

    def __init__(
        self,
        session: Session,
        presence: Presence,
        readiness: Callable[[], Readiness],
        order: Membership,
        end: Callable[[bool], object],
    ) -> None:
        """`end` ends the daemon: by KILL (True), or by TERM."""
        self._session, self._presence, self._readiness = session, presence, readiness
        self._order, self._end = order, end
        self._at = ElectionZnodes(order.top)
        self._ready_at = list(presence.ready_data())
        self._ready_list = self._ready_at[0].rpartition("/")[0]
        self.admitted = self._was_ready = False
        self.why = self._complained = ""
        self._recorded_in = session.id  # the session in which `running` is ours; the agent has created it
        self._busy, self._again_at = False, 0.0
        self._started = self._alone_since = now()
        self._others_ready = False  # whether any instance is registered as ready, this one too
        self._known = False  # whether that was read since the connection was made
        self._answer_due = False
        self._kill_at = math.inf
        session.on_connected(self._look)
        session.on_watch(self._fired)

    # -- for the loop -----------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When `run` must run at the latest."""
        if self.why:
            return self._kill_at
        can_change = self._session.connected and not self._busy and self._wanted()
        return min(self._limit()[0], self._again_at if can_change else math.inf)

    def run(self, ready: bool) -> None:
        """Make the transitions that are due, and end the daemon if it is time."""
        if self.why:
            if now() >= self._kill_at:
                self._kill_at = math.inf
                self._end(True)
            return
        if self._answer_due and self.admitted and self._readiness().confirmed:
            self._answer_due = False
            self._presence.write_again()
        if self._session.connected and not self._busy and self._wanted() and now() >= self._again_at:
            perform(self._session, self._transition())
        when, why, grace = self._limit()
        if now() >= when:
            self._give_up(why, grace)

    @property
    def _is_new_winner(self) -> bool:
        return self._order.role == FIRST and not self._was_ready

    def _limit(self) -> tuple[float, str, float]:
        """When the daemon is to be ended, why, and the seconds between TERM and KILL."""
        order = self._order
        if self._readiness().ready:
            return math.inf, "", 0.0
        if self._is_new_winner:
            if order.start_timeout is None:
                return math.inf, "", 0.0
            why = f"it was not ready within its start_timeout of {order.start_timeout:g} s"
            return self._started + order.start_timeout, why, 0.0
        if self._others_ready or not (self._session.connected and self._known):
            return math.inf, "", 0.0  # While it is cut off, others may be ready.
        grace = min(order.stop_grace, order.give_up * TERM_SHARE)
        why = (
            f"no instance is ready for {now() - self._alone_since:.0f} s: it ends, so that all hosts can be"
            " candidates for the cluster's bootstrap"
        )
        return self._alone_since + order.give_up - grace, why, grace

    def _give_up(self, why: str, grace: float) -> None:
        self.why, self._kill_at = why, now() + grace
        log.warning("ending the daemon: %s", why)
        self._readiness().stop()
        if grace > 0:
            self._end(False)

    # -- what is watched ------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read everything again, at each connection."""
        self._known, self._busy, self._again_at = False, False, 0.0
        if self._recorded_in != self._session.id:
            self.admitted = False
            # Candidates take a new registration for an answer: it needs a new check, as every answer does.
            self._readiness().confirm(now())
        perform(self._session, self._read_ready())
        perform(self._session, self._read_candidates())

    def _fired(self, path: str) -> None:
        if path == self._ready_list:
            perform(self._session, self._read_ready())
        elif path == self._at.candidates:
            perform(self._session, self._read_candidates())

    def _read_ready(self) -> Requests:
        try:
            names = yield wire.GetChildren(self._ready_list, True)
        except wire.OUTAGE:
            return
        except wire.KazooException:  # The status tree was deleted, perhaps; there is no watch then.
            self._on_instances(False)
            yield wire.Exists(self._ready_list, True)
            return
        found = []
        if names:
            found = yield [wire.GetData(f"{self._ready_list}/{name}", False) for name in names]
        if not any(isinstance(each, wire.OUTAGE) for each in found):
            known = [Znode(*each) for each in found if not isinstance(each, wire.KazooException)]
            self._on_instances(any(not why_left_out(each, instance) for each in known))

    def _on_instances(self, is_any: bool) -> None:
        was_ready, self._others_ready = self._others_ready, is_any
        # From when one was last seen, or from when that was known again.
        if was_ready or is_any or not self._known:
            self._alone_since = max(self._started, now())
        self._known = True

    def _read_candidates(self) -> Requests:
        try:
            names = yield wire.GetChildren(self._at.candidates, True)
        except wire.NoNodeError:  # The status tree was deleted: there is no watch then.
            yield wire.Exists(self._at.candidates, True)
            return
        if names:
            # A candidate trusts only what is written after a check that began now.
            self._answer_due = True
            self._readiness().confirm(now())

    # -- transitions ------------------------------------------------------------------------------------

    def _wanted(self) -> str:
        """The transition that is due: `restore` after the session has expired, or `ready`; or empty."""
        if self._recorded_in != self._session.id:
            return "restore"
        return "ready" if self._readiness().confirmed and not self.admitted else ""

    def _transition(self) -> Requests:
        """Read what the transition depends on, and make it. Otherwise try again soon, or once connected."""
        self._busy, pause = True, RETRY
        at, host = self._at, self._order.host
        paths = [at.turn, at.decision, at.member(host), at.runner(host), *self._ready_at]
        try:
            answers = yield [wire.GetData(path, False) for path in paths]
            errors = [each for each in answers if isinstance(each, wire.KazooException)]
            wanted, session = self._wanted(), self._session.id
            if self.why or not wanted or not all(isinstance(each, wire.NoNodeError) for each in errors):
                return
            found = {path: each for path, each in zip(paths, answers) if each not in errors}
            self._check_epoch(found)
            if self.why:
                return
            data = self._presence.ready_data()
            (results,) = yield [wire.Transaction(self._operations(wanted, found, data))]
            results = [results] if isinstance(results, wire.KazooException) else results
            failed = [each for each in results if isinstance(each, Exception)]
            if any(isinstance(each, wire.NoAuthError) for each in failed):
                raise Postponed(f"{self._order.top}: ZooKeeper denies a change: its ACL lacks rights")
            # If only the reply was lost, the next attempt finds what it has written.
            if failed or session != self._session.id:
                pause = RETRY / 10 if failed and isinstance(failed[0], CONFLICTS) else RETRY
                return
            self._recorded_in, pause = session, 0.0
            if wanted == "ready":
                if self._is_new_winner:
                    log.info("the cluster of epoch %d is formed", self._order.epoch)
                self._was_ready = self.admitted = True
                self._presence.adopt(data)
        except (BadRecord, Postponed) as error:
            if str(error) != self._complained:
                self._complained = str(error)
                log.warning("%s", error)
        finally:
            self._busy, self._again_at = False, now() + pause

    def _check_epoch(self, found: dict[str, Any]) -> None:
        """End the daemon if the election has moved on without it, by the operator's override."""
        at, order = self._at, self._order
        if at.decision not in found or at.turn not in found:
            raise Postponed(f"{order.top} is gone: this host takes no part in elections until it is back")
        path = at.member(order.host)
        decision = records.decode(records.Decision, at.decision, found[at.decision][0])
        member = records.decode(records.Member, path, found[path][0]) if path in found else None
        if decision.epoch != order.epoch:
            why = f"it is of epoch {order.epoch}, and the cluster of epoch {decision.epoch}"
        elif member is None or member.state == LEFT_OUT:
            why = "its host is no member of the cluster any more, by the operator's override"
        else:
            return
        self._give_up(
            f"{why}: it must not serve beside that cluster", 0.0 if self._is_new_winner else END_GRACE
        )

    def _operations(self, wanted: str, found: dict[str, Any], data: dict[str, bytes]) -> Sequence[Any]:
        """The transaction. Readiness, with `data`, and that the cluster was formed are all or nothing."""
        at, order, acl = self._at, self._order, self._presence.acl
        state = READY if wanted == "ready" or self._was_ready else STARTING
        running = encode(Running(order.epoch, order.role, state, order.container))
        operations = [wire.SetData(at.turn, b"", found[at.turn][1].version)]
        path = at.runner(order.host)
        if path in found and found[path][1].ephemeralOwner == self._session.id:
            operations.append(wire.SetData(path, running, found[path][1].version))
        else:
            if path in found:
                self._check_own(path, found[path])
                operations.append(wire.Delete(path, found[path][1].version))
            operations.append(wire.Create(path, running, acl, EPHEMERAL))
        if wanted != "ready":
            return operations
        decision = records.decode(records.Decision, at.decision, found[at.decision][0])
        version = found[at.decision][1].version
        if order.role == FIRST and decision.state != FORMED:
            formed = encode(decision._replace(state=FORMED, formed=True))
            operations.append(wire.SetData(at.decision, formed, version))
        else:
            operations.append(wire.CheckVersion(at.decision, version))
        member = at.member(order.host)
        joined = encode(Member(order.epoch, JOINED))
        operations.append(wire.SetData(member, joined, found[member][1].version))
        for path, instance_data in data.items():
            if path in found:
                operations.append(wire.Delete(path, found[path][1].version))
            operations.append(wire.Create(path, instance_data, acl, EPHEMERAL))
        return operations

    def _check_own(self, path: str, found: Any) -> None:
        # 0: no session owns it, as in a copied tree.
        if found[1].ephemeralOwner not in (0, *self._session.former) and (
            records.decode(records.Running, path, found[0]).id != self._order.container
        ):
            raise Postponed(f"{path} belongs to another container: there must be one on each host")
