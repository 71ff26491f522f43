"""Waits until a command may run, and returns it: whichever is ready first, the daemon last.

All commands of a definition wait together. After each answer of the server, `judge` decides about each of
them again.
"""

from __future__ import annotations

import math
import time
from functools import partial

from kolla_mesos_start.definition.model import Dependency, External
from kolla_mesos_start.definition.strings import ANY
from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.published import Changed, stamp
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.wait.judge import SUPERSEDED, Blocked, Progress, Runnable, judge
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.view import Unknown, View, data_of
from kolla_mesos_start.zookeeper.wire import NoNodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, Callable

    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.render.prepare import Generation
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.wait.external import Answer, ExternalProbes
    from kolla_mesos_start.zookeeper.view import Query

log = Logger("kolla_mesos_start.wait")

DETAIL_LEAD = 1.0  # seconds before a line is due: nothing can be read for it during an outage


class Waiting:
    """The commands of one definition that this container has not passed yet."""

    def __init__(
        self,
        tree: StatusTree,
        report: Report,
        limit: float | None,
        image: str | None = None,
        published: Callable[[Dependency], Generation] | None = None,
    ) -> None:
        """`limit`: seconds that a command may wait for its dependencies. `image`: see `Progress`.

        `published` reads the published generation of a dependency's command; it is only called with an
        `image`.
        """
        self._tree, self._report, self._limit = tree, report, limit
        self._client, self._watches, self._znodes = tree.client, tree.client.watches, tree.znodes
        self._queues = Queues(tree.client, tree.znodes.host)
        self._pending = list(tree.graph.commands)
        self._daemon = tree.graph.daemon
        own = frozenset(command.path for command in tree.graph.commands)
        self._progress = Progress(own, frozenset(), tree.definition_zxid, image, {})
        self._probes = _external_probes(tree)
        self._read_published = published
        self._generations: dict[Dependency, Generation] = {}
        self._needed: set[Query] = set()  # what the last decisions have read
        self._has_run = False
        self._begun: dict[str, float] = {}

    def __iter__(self) -> Iterator[Runnable]:
        """Each command when it may run, repeatedly until it is `passed`.

        Raises Changed if something else is published before the first one runs.
        """
        while self._candidates():
            turn = self._next()
            self._queues.leave(but=self._lock(turn.command) if turn.contender else None)
            away = now()
            yield turn
            self._has_run = self._has_run or not turn.already_done
            # The time that this container spends on a command does not count as waiting.
            self._begun = {path: begun + now() - away for path, begun in self._begun.items()}

    def passed(self, command: Command) -> None:
        """The command has run here, or was found done: commands that depend on it may run."""
        self._progress = self._progress._replace(passed=self._progress.passed | {command.path})
        if command.run_once is not None:
            self._queues.released(self._lock(command))
        if command in self._pending:
            self._pending.remove(command)
        else:
            self._daemon = None

    def _candidates(self) -> Sequence[Command]:
        return self._pending or ([self._daemon] if self._daemon else [])

    # -- the loop -------------------------------------------------------------------------------

    def _next(self) -> Runnable:
        """The next command that may run. External services are only probed until then."""
        if not self._probes:
            return self._wait()
        self._probes.probe([each for command in self._candidates() for each in command.outside])
        try:
            return self._wait()
        finally:
            self._probes.probe(())

    def _state(self) -> tuple[int, Mapping[External, Answer]]:
        """Changes whenever the commands must be judged again."""
        return self._watches.changes, self._probes.answers if self._probes else {}

    def _wait(self) -> Runnable:
        watches = self._watches
        logged_at, silent = now(), True
        for command in self._candidates():
            self._begun.setdefault(command.path, logged_at)
        waiting = [
            Blocked(command, [Unmet(each, "unknown: not read yet") for each in command.dependencies])
            for command in self._candidates()
        ]
        self._judge(waiting)
        seen: object = None
        while True:
            limit = min(self._limit_of(blocked) for blocked in waiting)
            due = min(limit, logged_at + PROGRESS_INTERVAL)
            soon = now() >= due - DETAIL_LEAD
            watches.watch(self._queries(waiting, with_details=soon))
            was_connected = self._client.connected
            self._client.loop.wait(
                lambda seen=seen, before=was_connected: (  # type: ignore[misc]
                    self._client.connected is not before or (watches.answered() and self._state() != seen)
                ),
                due if soon else due - DETAIL_LEAD,
            )
            if self._client.connected is not was_connected:
                outage = f"no connection to ZooKeeper; as last known: {'; '.join(map(_brief, waiting))}"
                self._report.write_silence("" if self._client.connected else outage)
            if not self._has_run:
                try:
                    self._tree.raise_if_seen_changed()
                except Changed:
                    self._queues.leave()
                    raise
            if watches.answered() and self._state() != seen:
                seen = self._state()
                self._progress = self._progress._replace(answers=seen[1])
                verdicts = self._judge(waiting)
                if verdicts is None:
                    continue
                waiting = []
                for command, verdict in verdicts:
                    blocked = self._apply(command, verdict)
                    if isinstance(blocked, Runnable):
                        return blocked
                    waiting.append(blocked)
                if self._probes and not self._probes.settled:
                    continue  # The first report should be complete.
                brief = "; ".join(_brief(blocked) for blocked in waiting)
                only = waiting[0].command.path if len(waiting) == 1 else ""
                unmet = [unmet for blocked in waiting for unmet in blocked.unmet]
                outside = {each.what: each.found for each in unmet if isinstance(each.dependency, External)}
                self._report.write("waiting", brief, only, outside=outside)
                if silent:
                    silent = False
                    log.info("%s", brief)
            elif now() >= limit:
                overdue = [blocked for blocked in waiting if self._limit_of(blocked) <= now()]
                first, *others = overdue
                reason = "; ".join([self._waited(first), *map(self._has_waited, others)])
                raise DependenciesNotSatisfied(reason, command=first.command.path)
            elif now() >= logged_at + PROGRESS_INTERVAL:
                logged_at = now()
                outage = "" if self._client.connected else "no connection to ZooKeeper; as last known: "
                log.info("%s%s", outage, "; ".join(map(self._has_waited, waiting)))

    def _judge(self, waiting: list[Blocked]) -> Sequence[tuple[Command, Runnable | Blocked | None]] | None:
        """Decide about each command; None if more must be read first: a new mark's name, then the mark.

        A command that must wait is replaced in `waiting`: what it does not wait for need not be read again
        while more is read for another one.
        """
        self._needed, verdicts, is_known = set(), [], True
        for index, (command, before, _, _) in enumerate(waiting):
            view = View(self._watches.results)
            published = partial(self._published_generation, command, view)
            progress = self._progress._replace(published=published)
            try:
                verdict = judge(command, view, self._znodes, progress, before)
                verdicts.append((command, verdict))
                if isinstance(verdict, Blocked):
                    waiting[index] = verdict
            except Unknown:
                is_known = False
            self._needed |= view.noted
            for remark in view.remarks:
                self._client.warn_once(remark)
        return verdicts if is_known else None

    def _apply(self, command: Command, verdict: Runnable | Blocked | None) -> Runnable | Blocked:
        """Contend for the lock if it decides; otherwise another contender may be able to use it."""
        if verdict is None:
            return self._contend(command)
        if isinstance(verdict, Blocked) and verdict.reason == SUPERSEDED:
            self._client.warn_once(f"{command.path}: {verdict.reason}")
        if command.run_once is not None:
            self._queues.give_back(self._lock(command))
        return verdict

    def _published_generation(self, command: Command, view: View, dependency: Dependency) -> str | None:
        """The published generation of another service's command, read again if it has changed."""
        known, image = self._generations.get(dependency), self._progress.image
        if known is None or _has_changed(known, view.answers):
            assert image is not None and self._read_published
            timeouts = [each for each in (self._limit, dependency.timeout) if each is not None]
            due = self._begun[command.path] + min(timeouts, default=math.inf)
            with self._client.within(max(0.0, due - now())):
                known = self._generations[dependency] = self._read_published(dependency)
            _warn_of_generation(command, dependency, known, image)
        view.noted.update(map(data_of, known.stamps))
        return known.name

    def _contend(self, command: Command) -> Runnable | Blocked:
        lock = self._lock(command)
        while True:
            try:
                contender = self._queues.turn(lock)
                break
            except NoNodeError:
                # The status tree was deleted, for example by a redeploy.
                self._tree.ensure()
        if contender is not None:
            return Runnable(command, contender)
        detail = states.once_znodes(command, self._znodes).detail
        attempt = states.decode_detail(self._watches.results.get(data_of(detail)))
        if attempt.started is None or attempt.finished is not None:
            return Blocked(command, (), "another container is about to run it")
        return Blocked(command, (), f"{attempt.host} is running it", attempt)

    # -- what is read ---------------------------------------------------------------------------

    def _queries(self, waiting: Sequence[Blocked], *, with_details: bool) -> set[Query]:
        """`with_details`: also how the attempts failed that are waited for. Only needed for a log line."""
        found = set(self._needed)
        if not self._has_run:
            found.update(map(data_of, self._tree.stamps))
        for blocked in waiting:
            if blocked.command.run_once is not None:
                found.update(self._queues.queries(self._lock(blocked.command)))
            if with_details:
                found.update(data_of(unmet.detail) for unmet in blocked.unmet if unmet.detail)
        return found

    def _lock(self, command: Command) -> str:
        return states.once_znodes(command, self._znodes).lock

    # -- limits and messages --------------------------------------------------------------------

    def _limit_of(self, blocked: Blocked) -> float:
        """When this command has waited too long for its dependencies."""
        if not blocked.unmet:
            return math.inf
        timeouts = [self._limit, *(unmet.dependency.timeout for unmet in blocked.unmet)]
        given = [timeout for timeout in timeouts if timeout is not None]
        return self._begun[blocked.command.path] + min(given, default=math.inf)

    def _has_waited(self, blocked: Blocked) -> str:
        return f"{blocked.command.path} has {self._waited(blocked)}"

    def _waited(self, blocked: Blocked) -> str:
        """How long it has waited, and for what."""
        waited = now() - self._begun[blocked.command.path]
        unmet = ", ".join(self._state_of(unmet) for unmet in blocked.unmet)
        reason = blocked.reason
        if blocked.attempt and blocked.attempt.started:
            since = max(0.0, time.time() - blocked.attempt.started)
            more = f"; {states.NO_TIMEOUT}" if blocked.command.timeout is None else ""
            reason += f" for {since:.0f} s (it holds the lock){more}"
        words = [f"for {unmet}"] * bool(unmet) + [f"while {reason}"] * bool(reason)
        return f"waited {waited:.0f} s {', '.join(words)}"

    def _state_of(self, unmet: Unmet) -> str:
        znode = self._watches.results.get(data_of(unmet.detail)) if unmet.detail else None
        return states.describe(unmet, states.decode_detail(znode), time.time())


def _has_changed(known: Generation, answers: Mapping[Query, Any]) -> bool:
    """Whether a znode that the generation was read from has changed since."""
    return any(
        data_of(path) in answers and stamp(answers[data_of(path)]) != before
        for path, before in known.stamps.items()
    )


def _warn_of_generation(command: Command, dependency: Dependency, found: Generation, image: str) -> None:
    """Warn if the dependency is done, but not for the image's generation, which may be the published one."""
    if found.unknown:
        why = f"whether that is the published generation is not known: {found.unknown}"
    elif found.name not in (None, image):
        why = f"it is published for generation {found.name}"
    else:
        return
    log.warning(
        "%s: %s is done, but not for generation %s, which this image has; %s. Any generation is enough."
        ' If this is intended, write "generation": "%s" in the dependency',
        command.path,
        dependency.path,
        image,
        why,
        ANY,
    )


def _external_probes(tree: StatusTree) -> ExternalProbes | None:
    """The probes of external services; None if the definition has no external dependency."""
    if not any(command.outside for command in tree.graph.all_commands):
        return None
    from kolla_mesos_start.wait.external import ExternalProbes

    return ExternalProbes(tree.client.loop)


def _brief(blocked: Blocked) -> str:
    if not blocked.unmet:
        return f"{blocked.command.path} waits: {blocked.reason}"
    unmet = ", ".join(f"{unmet.what}: {unmet.found}" for unmet in blocked.unmet)
    more = f"; and {blocked.reason}" if blocked.reason else ""
    return f"{blocked.command.path} waits for {unmet}{more}"
