"""This host's part in an election, up to the start of its daemon: position, candidate, decision, check.

`decide` has the rules. Each transition is one transaction that checks and sets `turn`, so that all
transitions of all hosts are one line. After a lost reply, the znodes show whether a transition was made: an
ephemeral of our session is ours, and nobody else creates one there.
"""

from __future__ import annotations

import math
from functools import partial

from kolla_mesos_start.definition.strings import DAEMON, GLOBAL
from kolla_mesos_start.election import decide, records, words
from kolla_mesos_start.election.decide import Elected, Join, Snapshot
from kolla_mesos_start.election.records import (
    FIRST,
    STARTING,
    BadRecord,
    Candidate,
    Membership,
    Position,
    Running,
    encode,
    last_line,
    parse,
)
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.codec import instance, why_left_out
from kolla_mesos_start.tree.published import Changed
from kolla_mesos_start.tree.states import decode_registered
from kolla_mesos_start.zookeeper.client import Outage
from kolla_mesos_start.zookeeper.client import Refused as RefusedTransaction
from kolla_mesos_start.zookeeper.wire import CheckVersion, Delete, NoNodeError, SetData

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from kolla_mesos_start.definition.model import Election
    from kolla_mesos_start.render.prepare import Prepared
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.zookeeper.view import View, Znode

log = Logger("kolla_mesos_start.election")

EPHEMERAL = 1  # the flag of a create request
EXPIRY_TIMEOUTS = 2.0  # session timeouts; then a znode of another session is not one that is about to expire
LONGEST_SESSION = 10.0  # seconds: another container may have asked for a longer timeout than we have


class Result(NamedTuple):
    """The result of an election for this host: its `role`, and its own position."""

    role: str
    epoch: int
    position: Position

    @property
    def values(self) -> dict[str, str]:
        """What templates see as `election`."""
        return words.values(self.role, str(self.epoch), self.position)

    @property
    def environ(self) -> dict[str, str]:
        """Variables in the daemon's environment."""
        role, *others = self.values.items()
        names = {f"KOLLA_ELECTION_{name.upper()}": value for name, value in others}
        return {"KOLLA_ELECTION": role[1], **names}

    def __str__(self) -> str:
        if self.role == FIRST:
            return f"is elected in epoch {self.epoch}: it bootstraps the cluster, from {self.position}"
        return f"joins the cluster of epoch {self.epoch}"


class Candidacy:
    """The part of one container in the election of its daemon's cluster."""

    def __init__(
        self,
        tree: StatusTree,
        election: Election,
        container: str,
        report: Report,
        run: Callable[[Prepared], tuple[str, bytes]],
    ) -> None:
        """`container` is the id of this container. `run` runs the position command; it returns why that
        failed, or empty text, and the end of the output."""
        self._tree, self._client, self._watches = tree, tree.client, tree.client.watches
        self._election, self._report, self._run = election, report, run
        self._container, self._host = container, tree.znodes.host
        self._at = tree.znodes.election
        self._ready = tree.znodes.command(GLOBAL, f"{tree.znodes.role}/{DAEMON}").ready
        self._prepared: Prepared | None = None
        self._position: Position | None = None
        self._measured_in = 0  # the session
        self._said = ""  # why this host waits

    @property
    def position_command(self) -> str:
        """The path of the command."""
        return self._election.position

    # -- the position ---------------------------------------------------------------------------

    def read_position(self, prepared: Prepared) -> None:
        """Run the position command until it succeeds."""
        self._prepared = prepared
        self._position = self._measure(prepared)

    def forget_position(self) -> None:
        """Something may have changed the data: run the position command again before a candidacy."""
        self._position = None

    def _measure(self, prepared: Prepared) -> Position:
        command = prepared.step.command
        while True:
            self._measured_in = self._client.session.id
            failure, output = self._run(prepared)
            if not failure:
                try:
                    return parse(last_line(output))
                except ValueError as error:
                    raise BadDefinition([f"{command.label}: {error}"]) from None  # It may hold a secret.
            what = f"{command.path}: {failure}; this host is no candidate yet"
            self._report.write("waiting", what, command.path, code=decide.POSITION)
            log.warning("%s; next attempt in %g s", what, command.delay)
            self._client.loop.sleep(command.delay)

    # -- the election ---------------------------------------------------------------------------

    def elect(self) -> Result:
        """Take part in the election until this host may start its daemon."""
        assert self._prepared is not None, "the daemon runs after all commands"
        try:
            while True:
                position = self._position or self._measure(self._prepared)
                self._position = None  # It holds for one candidacy.
                result = self._await_decision(position) if self._become_candidate(position) else None
                if result:
                    log.info("%s %s", self._host, result)
                    return result
                self._said = ""
                log.warning("the session has expired: %s has to become a candidate again", self._host)
        finally:
            self._said = ""  # It ends the repetition of `_log`.

    def check(self, result: Result) -> None:
        """Commit a transaction which proves, right before the start of the daemon, that it is our turn.

        This process may have been frozen since the decision, and the operator may have decided otherwise:
        then raises Changed.
        """
        paths = (self._at.runner(self._host), self._at.decision)
        while True:
            view = self._look()
            if not self._is_our_turn(result, *map(view.get, paths)):
                raise Changed(f"the election of epoch {result.epoch} is over for this host: {self._at.top}")
            checks = [self._unchanged(path, view) for path in paths]
            if self._commit(view, checks, "the check before the start"):
                return

    def _is_our_turn(self, result: Result, running: Znode | None, decision: Znode | None) -> bool:
        if not (running and decision and self._is_ours(running)):
            return False
        try:
            found = records.decode(records.Decision, self._at.decision, decision.data)
        except BadRecord:
            return False
        bootstraps = found.winner == self._host and found.state == records.BOOTSTRAPPING
        return found.epoch == result.epoch and (result.role != FIRST or bootstraps)

    def membership(self, result: Result, stop_grace: float) -> Membership:
        """What the registrar of the daemon needs."""
        return Membership(
            top=self._at.top,
            host=self._host,
            container=self._container,
            role=result.role,
            epoch=result.epoch,
            start_timeout=self._election.start_timeout,
            give_up=self._election.give_up,
            stop_grace=stop_grace,
            values=result.values,
        )

    # -- transitions ------------------------------------------------------------------------------

    def _become_candidate(self, position: Position) -> bool:
        """Create our candidate, and delete what an earlier run of this container has left.

        False if the position was measured in an earlier session: another container may have run since.
        """
        record = encode(Candidate(position.group, position.value, self._container))
        path = self._at.candidate(self._host)
        kinds = {path: Candidate, self._at.runner(self._host): Running}
        foreign_since: float | None = None
        while True:
            view = self._look()
            left = [each for each in kinds if each in view]
            foreign = next((each for each in left if self._is_foreign(view[each], kinds[each])), None)
            if foreign:
                foreign_since = foreign_since or now()
                self._await_expiry(foreign, foreign_since)
                continue
            if self._client.session.id != self._measured_in:
                return False
            changes = [Delete(each, view[each].stat.version) for each in left]
            changes.append(self._client.creation(path, record, EPHEMERAL))
            if self._commit(view, changes, f"{path}: becoming a candidate"):
                return True

    def _await_decision(self, position: Position) -> Result | None:
        """Wait for the decision; None if our candidate is gone, with its session."""
        while True:
            view = self._look()
            path = self._at.runner(self._host)
            if path in view and self._is_ours(view[path]):  # Perhaps after a lost reply.
                found = records.decode(records.Running, path, view[path].data)
                return Result(found.role, found.epoch, position)
            candidate = view.get(self._at.candidate(self._host))
            if candidate is None or not self._is_ours(candidate):
                return None
            try:
                snapshot = self._snapshot(view, candidate)
            except BadRecord as bad:
                self._say(f"refused: {bad}", decide.BAD_RECORD, {"znode": bad.path})
                self._await_change()
                continue
            verdict = decide.decide(snapshot, self._host)
            if isinstance(verdict, Elected):
                self._commit(view, self._decision(verdict, view), f"{self._at.decision}: the decision")
            elif isinstance(verdict, Join):
                self._commit(view, self._join(verdict, view, candidate), f"{self._at.top}: joining")
            else:
                text = words.describe(verdict, snapshot)
                self._say(text, verdict.code, words.fields(verdict, snapshot))
                self._await_change()

    def _decision(self, verdict: Elected, view: Mapping[str, Znode]) -> Sequence[Any]:
        at, override = self._at, view.get(self._at.override)
        others = [host for host in verdict.decision.positions if host != self._host]
        members = verdict.members.items()
        return [
            *(self._unchanged(at.candidate(host), view) for host in others),
            *self._start_running(Running(verdict.decision.epoch, FIRST, STARTING), view),
            self._written(at.decision, encode(verdict.decision), view),
            *(self._written(at.member(host), encode(member), view) for host, member in members),
            # Its epoch is over now.
            *([Delete(at.override, override.stat.version)] if override else []),
        ]

    def _join(self, verdict: Join, view: Mapping[str, Znode], candidate: Znode) -> Sequence[Any]:
        answers = [path for path, znode in self._answers(view) if znode.stat.mzxid > candidate.stat.czxid]
        return [
            self._unchanged(answers[0], view),
            self._unchanged(self._at.decision, view),
            *self._start_running(verdict.running, view),
            self._written(self._at.member(self._host), encode(verdict.member), view),
        ]

    def _start_running(self, running: Running, view: Mapping[str, Znode]) -> Sequence[Any]:
        """From candidate to running: never both, and never neither while this session lasts."""
        path = self._at.candidate(self._host)
        data = encode(running._replace(id=self._container))
        return [
            Delete(path, view[path].stat.version),
            self._client.creation(self._at.runner(self._host), data, EPHEMERAL),
        ]

    def _unchanged(self, path: str, view: Mapping[str, Znode]) -> Any:
        return CheckVersion(path, view[path].stat.version)

    def _written(self, path: str, data: bytes, view: Mapping[str, Znode]) -> Any:
        known = view.get(path)
        return SetData(path, data, known.stat.version) if known else self._client.creation(path, data)

    def _commit(self, view: Mapping[str, Znode], operations: Sequence[Any], what: str) -> bool:
        """Make a transition; false if something has changed, or if the reply was lost."""
        turn = view.get(self._at.turn)
        if turn is None:
            self._tree.ensure()
            return False
        try:
            self._client.transaction([SetData(self._at.turn, b"", turn.stat.version), *operations], what)
        except Outage:
            log.warning("%s: the reply was lost", what)
            return False
        except RefusedTransaction as refused:
            log.debug("%s: %s", what, refused)
            if isinstance(refused.cause, NoNodeError):
                self._tree.ensure()  # The status tree may have been deleted.
            return False
        return True

    # -- what is read -----------------------------------------------------------------------------

    def _look(self) -> dict[str, Znode]:
        """All znodes of the election and all ready instances, as they were at one `turn`."""
        found = self._watches.decide(self._read)
        self._tree.raise_if_seen_changed()
        return found

    def _read(self, view: View) -> dict[str, Znode]:
        at = self._at
        single = (at.turn, at.decision, at.override, at.candidate(self._host), at.runner(self._host))
        places = (at.members, at.candidates, at.running, self._ready)
        znodes, *names = view.all(
            partial(view.znodes, single), *(partial(view.names, place) for place in places)
        )
        below = [f"{place}/{name}" for place, some in zip(places, names) for name in some]
        found = {**znodes, **view.znodes(below)}
        return {path: znode for path, znode in found.items() if znode}

    def _snapshot(self, view: Mapping[str, Znode], candidate: Znode) -> Snapshot:
        answers = [znode for _, znode in self._answers(view)]
        ready = [decode_registered(znode).host for znode in answers]
        answered = any(znode.stat.mzxid > candidate.stat.czxid for znode in answers)
        found, bad = decide.snapshot(self._at, view, self._election.members, ready, answered)
        for each in bad:
            self._client.warn_once(f"left out of the election: {each}")
        return found

    def _answers(self, view: Mapping[str, Znode]) -> list[tuple[str, Znode]]:
        """The ready instances; others may be invalid."""
        found = [(path, znode) for path, znode in view.items() if path.startswith(f"{self._ready}/")]
        return [each for each in found if not why_left_out(each[1], instance)]

    def _await_change(self, deadline: float = math.inf) -> None:
        seen = self._watches.changes
        self._client.loop.wait(lambda: self._watches.changes != seen, deadline)

    # -- whose ephemerals ---------------------------------------------------------------------------

    def _is_ours(self, znode: Znode) -> bool:
        return bool(znode.stat.ephemeralOwner == self._client.session.id)

    def _is_foreign(self, znode: Znode, kind: type[Candidate | Running]) -> bool:
        """Whether another container on this host has created it."""
        session = self._client.session
        # 0: no session owns it, as in a copied tree.
        if znode.stat.ephemeralOwner in (0, session.id, *session.former):
            return False
        try:
            # A restarted container has the id of its earlier run.
            return bool(records.decode(kind, "", znode.data).id != self._container)
        except BadRecord:
            return True

    def _await_expiry(self, path: str, since: float) -> None:
        """Wait for the end of another session; BadDefinition if it is alive."""
        deadline = since + EXPIRY_TIMEOUTS * max(self._client.session.timeout, LONGEST_SESSION)
        self._say(f"for the end of an earlier session on this host, which has {path}", decide.EXPIRY, {})
        if now() >= deadline:
            raise BadDefinition(
                [
                    f"{self._tree.znodes.service_name}: refused: another of its containers on {self._host}"
                    f" takes part in its election ({path}): an election needs one container on each host"
                ]
            )
        self._await_change(deadline)

    # -- messages -----------------------------------------------------------------------------------

    def _say(self, text: str, code: str, fields: Mapping[str, str]) -> None:
        path = f"{self._tree.znodes.role}/{DAEMON}"
        text = f"{path} waits: {text}"
        self._report.write("waiting", text, path, code=code, election=fields)
        if text != self._said:
            self._said = text
            self._log(text)

    def _log(self, text: str) -> None:
        """Log why this host waits, and again as long as it does."""
        if text is self._said:
            outage = "" if self._client.connected else "no connection to ZooKeeper; as last known: "
            log.info("%s%s", outage, text)
            self._client.loop.call_at(now() + PROGRESS_INTERVAL, partial(self._log, text))
