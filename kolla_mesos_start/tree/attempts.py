"""Writes the progress of commands for others: claim and outcome of a one-time command, states of a plain one.

Every write is one transaction that checks the versions that were read before. If a reply is lost, `detail`
shows whether the transaction was applied: each attempt has its own name there (`claim`).
"""

from __future__ import annotations

import os
import time
from functools import partial

from kolla_mesos_start.definition.model import Dependency
from kolla_mesos_start.definition.strings import GLOBAL, LOCAL
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.published import Changed
from kolla_mesos_start.tree.states import DONE, RETRY, RUNNING, Detail
from kolla_mesos_start.zookeeper.client import Outage, Refused
from kolla_mesos_start.zookeeper.view import Znode, data_of
from kolla_mesos_start.zookeeper.wire import CheckVersion, Delete, GetData, SetData, Transaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Callable

    from kazoo.protocol.states import ZnodeStat

    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.tree.znodes import CommandZnodes
    from kolla_mesos_start.zookeeper.view import View

    Operations = list[Any]

log = Logger(__name__)

SCOPES = (LOCAL, GLOBAL)


class Lost(Exception):
    """Another container has the lock, or has done the command: wait for the lock again."""


class Outcome(NamedTuple):
    """How an attempt ended. `state` is the command's new state; `message` is one clause for people.

    `passes`: the command could not be run, for a reason that can pass by itself.
    """

    state: str
    status: int | None
    message: str
    passes: bool = False


class Claim(NamedTuple):
    """Our attempt of a one-time command. `token` grows with every attempt. `previous_unfinished`: the
    previous attempt recorded no outcome. `sent`: the earliest instant at which the claim was sent
    (`loop.now`).
    """

    detail: Detail
    version: int
    token: int
    previous_unfinished: bool
    sent: float


class Attempts:
    """Writes for the commands of one service on one host."""

    def __init__(self, tree: StatusTree) -> None:
        self._client, self._tree, self._znodes = tree.client, tree, tree.znodes

    # -- one-time commands ------------------------------------------------------------------------

    def claim(self, command: Command, contender: str) -> Claim:
        """Begin an attempt under the lock that `contender` holds. Raises Lost if it is not allowed any
        longer.

        If something else is published by now, gives the lock back and raises Changed.
        """
        claim = self._claim(command, contender)
        # The transaction's checks miss a znode that was deleted and created again, and a variable with
        # precedence.
        changed = self._tree.changed()
        unmet = None if changed else self._no_longer_exclusive(command)
        if changed is None and unmet is None:
            return claim
        why = f"{changed} has changed" if changed else unmet
        self.conclude(command, claim, contender, Outcome(RETRY, None, f"not started: {why}"))
        if changed:
            raise self._given_back(contender, changed)
        self._client.ephemerals.discard(contender)
        raise Lost(f"{command.path} was not started: {unmet}")

    def _no_longer_exclusive(self, command: Command) -> str | None:
        """Why an exclusive dependency is no longer satisfied, read after the claim; None if it is."""
        exclusive = [each for each in command.inside if isinstance(each, Dependency) and each.exclusive]
        found = (self._client.decide(partial(states.unmet, each, znodes=self._znodes)) for each in exclusive)
        return next((unmet.found for unmet in found if unmet), None)

    def _given_back(self, contender: str, changed: str) -> Changed:
        self._client.ephemerals.discard(contender)
        return Changed(f"{changed} has changed since it was read")

    def _claim(self, command: Command, contender: str) -> Claim:
        """The first try uses the watched znodes if they are up to date: if the command has been done or
        claimed since, `detail` has another version, and the claim is refused.

        The token floor needs no check: an operator who removes `detail` raises the floor first, and removes
        our contender too.
        """
        at = states.once_znodes(command, self._znodes)
        name = os.urandom(16).hex()
        unfinished, sent = False, now()
        watches = self._client.watches
        known = watches.results if watches.fresh() else {}
        znode: Znode | None = known.get(data_of(at.detail))
        floor: Znode | None = None
        if znode is not None:
            floor = self._client.decide(partial(self._check_due, command), known)
        # The claim's own changes need not be read.
        watches.watch([data_of(contender)])
        while True:
            if znode is None:
                znode, found = self._read_detail(at)
                if found.claim == name:  # Applied, though the reply was lost.
                    return Claim(
                        found, znode.stat.version, states.token_of(found, znode.stat.mzxid), unfinished, sent
                    )
                # After `detail`, whose version protects the claim.
                known = {data_of(at.detail): znode}
                floor = self._client.decide(partial(self._check_due, command), known)
            found = states.decode_detail(znode)
            unfinished = found.started is not None and found.finished is None
            detail = Detail(
                attempt=found.attempt + 1,
                claim=name,
                host=self._znodes.host,
                generation=command.generation,
                started=time.time(),
                state=RUNNING,
                newest=found.newest_done,
                after=states.largest_token(znode, floor) or None,
            )
            sent = now()
            try:
                stat = self._write_claim(command, at, contender, detail, znode.stat.version)
            except Refused as refused:
                if refused.path in self._tree.stamps:
                    raise self._given_back(contender, refused.path) from refused
                raise Lost(
                    f"{command.path} was not claimed, because the lock or a record has changed ({refused})"
                ) from refused
            except Outage:
                log.warning("%s: the reply to the claim was lost", command.path)
                znode = None
                continue
            return Claim(detail, stat.version, states.token_of(detail, stat.mzxid), unfinished, sent)

    def _write_claim(
        self, command: Command, at: CommandZnodes, contender: str, detail: Detail, version: int
    ) -> ZnodeStat:
        operations = [
            SetData(at.detail, detail.encoded(), version),
            SetData(at.state, RUNNING.encode(), -1),
            CheckVersion(contender, -1),
            *(CheckVersion(path, stamp[0]) for path, stamp in self._tree.stamps.items() if stamp),
        ]
        return self._client.transaction(operations, f"{at.detail}: claiming {command.path}")[0]

    def _check_due(self, command: Command, view: View) -> Znode | None:
        """Raise Lost if the command has been done; returns the token floor."""
        floor, is_done = view.all(
            partial(view.znode, self._znodes.token_floor),
            partial(states.is_done, command, self._znodes, view),
        )
        if is_done:
            raise Lost(f"{command.path} was done meanwhile")
        if states.superseded_by(command, self._znodes, view, self._tree.definition_zxid):
            raise Lost(f"{command.path} was done by a newer definition meanwhile")
        return floor  # type: ignore[no-any-return]

    def conclude(self, command: Command, claim: Claim, contender: str, outcome: Outcome) -> None:
        """Write the outcome of a claimed attempt. Raises Lost if another container has claimed since.

        Final outcomes release the lock. If the lock was lost but no container has claimed since, the outcome
        is still valid: the command had ended before another container could have begun.
        """
        at = states.once_znodes(command, self._znodes)
        detail = claim.detail._replace(
            finished=time.time(),
            state=outcome.state,
            status=outcome.status,
            token=claim.token,
            message=outcome.message,
        )
        holds_lock = True
        self._client.watches.watch(())
        while True:
            operations = self._outcome_writes(command, at, claim, detail)
            if outcome.state == RETRY:
                operations.append(CheckVersion(contender, -1))
            elif holds_lock:
                operations.append(Delete(contender, -1))
            try:
                self._client.transaction(operations, f"{at.detail}: outcome of {command.path}")
                break
            except Outage:
                log.warning("%s: the reply to the outcome was lost", command.path)
            except Refused as refused:
                log.debug("%s: outcome refused: %s", command.path, refused)
            _, found = self._read_detail(at)
            if found.claim != claim.detail.claim:
                raise Lost(f"{command.path} was claimed by another container")
            if found.finished is not None:
                break
            # Other znodes were deleted, by a redeploy or by hand.
            self._tree.ensure()
            holds_lock = self._client.read([contender])[contender] is not None
            if outcome.state == RETRY and not holds_lock:
                raise Lost(f"{command.path}: the lock was lost")

    def _outcome_writes(
        self, command: Command, at: CommandZnodes, claim: Claim, detail: Detail
    ) -> Operations:
        operations = [
            SetData(at.detail, detail.encoded(), claim.version),
            SetData(at.state, detail.state.encode(), -1),
        ]
        if detail.state == DONE and command.generation is not None:
            mark = at.generation(command.generation)
            data = states.encode_mark(claim.token, self._tree.definition_zxid)
            marked = self._client.read([mark])[mark] is not None  # Created by hand.
            operations.append(SetData(mark, data, -1) if marked else self._client.creation(mark, data))
        # A command that runs once on each host shows its state in `global` too, another one its success here.
        others = [GLOBAL] if command.run_once == LOCAL else [LOCAL] * (detail.state == DONE)
        return operations + self._shared_writes(command, detail.state, others)

    def forget_oldest(self, command: Command) -> None:
        """Delete the oldest marks, except KEPT_MARKS. Failures are ignored.

        If there are far too many, only some of them are read: each deleted mark is older than KEPT_MARKS
        others, and the next generation continues.
        """
        if command.generation is None:
            return
        at = states.once_znodes(command, self._znodes)
        names = self._client.children([at.generations])[at.generations] or ()
        if len(names) <= states.KEPT_MARKS:
            return
        found = self._client.read(f"{at.generations}/{name}" for name in names[: 2 * states.KEPT_MARKS])
        marks = sorted(
            (states.decode_mark(path, znode) for path, znode in found.items()), key=lambda mark: mark.token
        )
        for mark in marks[: -states.KEPT_MARKS]:
            self._client.session.request(Delete(mark.name, -1), lambda value, error: None)

    def _read_detail(self, at: CommandZnodes) -> tuple[Znode, Detail]:
        znode = self._client.read([at.detail])[at.detail]
        if znode is None:
            # If nothing else was deleted, the command would wait for ever.
            self._tree.ensure()
            raise Lost(f"{at.detail} was deleted")
        return znode, states.decode_detail(znode)

    def pass_through(self, command: Command) -> None:
        """Mark a one-time command that is done elsewhere as done in this host's `local` scope.

        A command that runs once on each host has its own state there, which an operator may just have reset.
        """
        if command.run_once == GLOBAL:
            self._write(command, lambda: self._shared_writes(command, DONE, [LOCAL], marks_host=False))

    # -- plain commands -----------------------------------------------------------------------------

    def begin(self, command: Command) -> None:
        """Write that a plain command begins on this host, without waiting.

        It is only for people, and not tried again after an outage. Requests are answered in their order, so
        `end` has the last word.
        """
        detail = Detail(host=self._znodes.host, started=time.time(), state=RUNNING)
        session = self._client.session

        def on_read(scope: str, value: Any, error: Exception | None) -> None:
            if value:
                texts = self._text_writes(command, RUNNING, {scope: Znode(*value)})
                operations = texts + self._detail_writes(command, detail, [scope])
                session.request(Transaction(operations), lambda results, error: None)

        # Each scope on its own: replicas that begin at the same time share `global`.
        for scope in SCOPES:
            path = self._znodes.command(scope, command.path).state
            session.request(GetData(path, False), partial(on_read, scope))

    def end(self, command: Command, begun: float, attempt: int, outcome: Outcome) -> None:
        """Write that a plain command has ended on this host. `begun`: seconds since the epoch."""
        detail = Detail(
            attempt=attempt,
            host=self._znodes.host,
            started=begun,
            finished=time.time(),
            state=outcome.state,
            status=outcome.status,
            message=outcome.message,
        )
        details = self._detail_writes(command, detail, SCOPES)
        self._write(command, lambda: self._shared_writes(command, detail.state, SCOPES) + details)

    def _detail_writes(self, command: Command, detail: Detail, scopes: Sequence[str]) -> Operations:
        places = [self._znodes.command(scope, command.path) for scope in scopes]
        return [SetData(at.detail, detail.encoded(), -1) for at in places]

    # -- both -----------------------------------------------------------------------------------------

    def _shared_writes(
        self, command: Command, state: str, scopes: Sequence[str], *, marks_host: bool = True
    ) -> Operations:
        """The state writes in `scopes` (compare-and-set), and after a success this host in `hosts/`."""
        at = {scope: self._znodes.command(scope, command.path).state for scope in scopes}
        host = f"{self._znodes.command(GLOBAL, command.path).hosts}/{self._znodes.host}"
        marks_host = marks_host and state == DONE
        found = self._client.read([*at.values(), *([host] if marks_host else [])])
        marks = [self._client.creation(host, b"")] if marks_host and found[host] is None else []
        return self._text_writes(command, state, {scope: found[path] for scope, path in at.items()}) + marks

    def _text_writes(self, command: Command, state: str, found: Mapping[str, Znode | None]) -> Operations:
        operations: Operations = []
        for scope, znode in found.items():
            text = states.plain_state(scope, znode.data.decode("utf-8", "replace") if znode else None, state)
            if znode is None or znode.data != text.encode():
                path = self._znodes.command(scope, command.path).state
                operations.append(SetData(path, text.encode(), znode.stat.version if znode else 0))
        return operations

    def _write(self, command: Command, prepare: Callable[[], Operations]) -> None:
        """Read and write until no other container has written in between, and the connection was not lost."""
        while operations := prepare():
            try:
                self._client.transaction(operations, f"the state of {command.path}")
                return
            except (Outage, Refused) as error:
                # Another replica has changed the state, or a redeploy has deleted the tree.
                log.debug("%s: state not written yet: %s", command.path, error)
                self._tree.ensure()
