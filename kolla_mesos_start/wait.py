"""Yields each command once it is satisfied: whichever is ready first, the daemon last.

All that is waited for is watched together; after each event everything is judged anew, from what
the server said last. Judging is the business of `states`, the queues for locks that of `lock`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kazoo.exceptions import NoNodeError

from kolla_mesos_start.definition.model import Command, Dependency, Graph, Members
from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.tree.status import StatusTree
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.client import PROGRESS_INTERVAL, Ensemble
from kolla_mesos_start.zookeeper.ephemerals import Ephemerals
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.query import Query, View, data_of
from kolla_mesos_start.zookeeper.watches import Watches

log = logging.getLogger(__name__)

NEVER = float("inf")
SUPERSEDED = "a newer definition has run it since; restart this container"


class Runnable(NamedTuple):
    """A command whose turn it is. `contender` is our znode that holds its lock; a one-time
    command without one is done already, and only passed through."""

    command: Command
    contender: str | None = None

    @property
    def already_done(self) -> bool:
        return self.command.run_once is not None and self.contender is None


class Blocked(NamedTuple):
    """How far a command is from its turn: the dependencies it unmet, then what blocks it."""

    command: Command
    unmet: Sequence[Unmet]
    blocked: str = ""


class Progress(NamedTuple):
    """How far this container has come in its definition: its `own` commands, those that it has `passed`, and
    the zxid of the definition."""

    own: frozenset[str]
    passed: frozenset[str]
    definition: int


def judge(command: Command, view: View, znodes: Znodes, passage: Progress) -> Runnable | Blocked | None:
    """Whether it is the command's turn; None where that is for the lock to decide."""
    unmet = [lack for each in command.dependencies if (lack := _unmet(each, view, znodes, passage))]
    if unmet:
        return Blocked(command, unmet)
    if command.run_once is None or states.is_done(command, znodes, view):
        return Runnable(command)
    if states.superseded_by(command, znodes, view, passage.definition) is not None:
        return Blocked(command, (), SUPERSEDED)
    return None


def queries(standing: Blocked, view: View, znodes: Znodes) -> set[Query]:
    """What must be known to judge a command anew. Grows with what is found."""
    command = standing.command
    # How an attempt failed is watched too: it could not be read when a limit is reached in an outage.
    found = {data_of(lack.detail) for lack in standing.unmet if lack.detail}
    for dependency in command.dependencies:
        found.update(states.queries(dependency, znodes))
    if command.run_once is not None:
        found.update(states.once_queries(command, znodes, view))
    return found


def _unmet(dependency: Dependency | Members, view: View, znodes: Znodes, passage: Progress) -> Unmet | None:
    """Inside one definition a dependency means this container's own passage, and what it asks beyond."""
    if isinstance(dependency, Dependency) and dependency.path in passage.own:
        if dependency.path not in passage.passed:
            return Unmet(dependency, "not passed by this container yet")
        if dependency.generation is None and dependency.count is None:
            return None
    return states.unmet(dependency, view, znodes)


class Waiting:
    """The commands of one definition that this container has not passed yet."""

    def __init__(
        self,
        graph: Graph,
        definition_zxid: int,
        ensemble: Ensemble,
        watches: Watches,
        ephemerals: Ephemerals,
        znodes: Znodes,
        tree: StatusTree,
        state_file: StateFile,
        limit: float | None,
    ) -> None:
        """`limit`: seconds for which a command may wait on its dependencies; None for ever."""
        self._ensemble = ensemble
        self._watches = watches
        self._loop = ensemble.loop
        self._znodes = znodes
        self._tree = tree
        self._state_file = state_file
        self._limit = limit
        self._queues = Queues(ensemble, watches, ephemerals, znodes.host)
        self._pending = list(graph.commands)
        self._daemon = graph.daemon
        own = frozenset(command.path for command in graph.commands)
        self._passage = Progress(own, frozenset(), definition_zxid)
        self._superseded: set[str] = set()
        self._begun: dict[str, float] = {}

    def __iter__(self) -> Iterator[Runnable]:
        """Each command when its turn has come, again and again until it is `passed`."""
        while self._candidates():
            turn = self._next()
            self._queues.leave(but=self._lock(turn.command) if turn.contender else None)
            away = now()
            yield turn
            # Nobody waits while this container is busy with a command: that is no part of a limit.
            self._begun = {path: begun + now() - away for path, begun in self._begun.items()}

    def passed(self, command: Command) -> None:
        """The command is behind this container, run or found done: what depends on it may go on."""
        self._passage = self._passage._replace(passed=self._passage.passed | {command.path})
        self._queues.leave()
        if command in self._pending:
            self._pending.remove(command)
        else:
            self._daemon = None

    def _candidates(self) -> Sequence[Command]:
        return self._pending or ([self._daemon] if self._daemon else [])

    # -- the loop -------------------------------------------------------------------------------

    def _next(self) -> Runnable:
        watches = self._watches
        told, silent = now(), True
        for command in self._candidates():
            self._begun.setdefault(command.path, told)
        standings = [Blocked(command, self._unknown(command)) for command in self._candidates()]
        seen = -1
        while True:
            watches.watch(self._queries(standings))
            limit = min(self._limit_of(standing) for standing in standings)
            self._loop.wait(
                lambda seen=seen: watches.fresh() and watches.changes != seen,  # type: ignore[misc]
                min(limit, told + PROGRESS_INTERVAL),
            )
            if watches.fresh() and self._queries(standings) - watches.results.keys():
                continue  # What has come asks for more: a new mark's name, for what the mark says.
            if watches.fresh() and watches.changes != seen:
                seen = watches.changes
                standings = []
                for command in self._candidates():
                    standing = self._judge(command)
                    if isinstance(standing, Runnable):
                        return standing
                    standings.append(standing)
                brief = "; ".join(_brief(standing) for standing in standings)
                self._state_file.write("waiting", brief)
                if silent:
                    silent = False
                    log.info("%s", brief)
            elif now() >= limit:
                self._give_up([standing for standing in standings if self._limit_of(standing) <= now()])
            elif now() >= told + PROGRESS_INTERVAL:
                told = now()
                log.info("%s", self._progress(standings))

    def _judge(self, command: Command) -> Runnable | Blocked:
        verdict = judge(command, self._watches.results, self._znodes, self._passage)
        if verdict is None:
            return self._contend(command)
        if isinstance(verdict, Blocked) and verdict.blocked and command.path not in self._superseded:
            self._superseded.add(command.path)
            log.warning("%s: %s", command.path, verdict.blocked)
        if command.run_once is not None:
            # Who stands behind us may have a use for the lock that we have none for.
            self._queues.give_back(self._lock(command))
        return verdict

    def _contend(self, command: Command) -> Runnable | Blocked:
        lock = self._lock(command)
        while True:
            try:
                contender = self._queues.turn(lock)
                break
            except NoNodeError:
                # The status tree was deleted under us, by a redeploy for instance: it is made again.
                self._tree.ensure()
        if contender is not None:
            return Runnable(command, contender)
        return Blocked(command, (), self._who_runs(command))

    def _who_runs(self, command: Command) -> str:
        detail = states.once_znodes(command, self._znodes).detail
        attempt = states.decode_detail(self._watches.results.get(data_of(detail)))
        if attempt.started is None or attempt.finished is not None:
            return "another container is about to run it"
        return f"{attempt.host} is running it"

    # -- what is known --------------------------------------------------------------------------

    def _queries(self, standings: Sequence[Blocked]) -> set[Query]:
        found: set[Query] = set()
        for standing in standings:
            found |= queries(standing, self._watches.results, self._znodes)
            if standing.command.run_once is not None:
                found.update(self._queues.queries(self._lock(standing.command)))
        return found

    def _unknown(self, command: Command) -> list[Unmet]:
        return [Unmet(dependency, "unknown: not read yet") for dependency in command.dependencies]

    def _lock(self, command: Command) -> str:
        return states.once_znodes(command, self._znodes).lock

    # -- limits and words -----------------------------------------------------------------------

    def _limit_of(self, standing: Blocked) -> float:
        """When this command has waited for its dependencies as long as it may."""
        timeouts = [lack.dependency.timeout for lack in standing.unmet] + [self._limit] * bool(standing.unmet)
        given = [timeout for timeout in timeouts if timeout is not None]
        return self._begun[standing.command.path] + min(given) if given else NEVER

    def _give_up(self, overdue: Sequence[Blocked]) -> None:
        first, *others = overdue
        reason = "; ".join([self._waited(first), *map(self._has_waited, others)])
        raise DependenciesNotSatisfied(reason, command=first.command.path)

    def _progress(self, standings: Sequence[Blocked]) -> str:
        words = map(self._has_waited, standings)
        outage = "" if self._ensemble.connected else "no connection to ZooKeeper; as last known: "
        return outage + "; ".join(words)

    def _has_waited(self, standing: Blocked) -> str:
        return f"{standing.command.path} has {self._waited(standing)}"

    def _waited(self, standing: Blocked) -> str:
        """For how long, and for what: each lack with its state, since when, where and why it failed."""
        waited = now() - self._begun[standing.command.path]
        unmet = [self._told(lack) for lack in standing.unmet]
        return f"waited {waited:.0f} s {'for ' + ', '.join(unmet) if unmet else 'while ' + standing.blocked}"

    def _told(self, lack: Unmet) -> str:
        znode = self._watches.results.get(data_of(lack.detail)) if lack.detail else None
        return states.describe(lack, states.decode_detail(znode), time.time())


def _brief(standing: Blocked) -> str:
    if not standing.unmet:
        return f"{standing.command.path} waits: {standing.blocked}"
    return f"{standing.command.path} waits for " + ", ".join(
        f"{lack.what}: {lack.found}" for lack in standing.unmet
    )
