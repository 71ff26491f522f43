"""Waits until a command may run, and returns it: whichever is ready first, the daemon last.

All commands of a definition wait together. After each answer of the server, `judge` decides about each of
them again.
"""

from __future__ import annotations

import time

from kolla_mesos_start.definition.forms import ANY
from kolla_mesos_start.definition.model import Dependency, External
from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.published import Changed, stamp
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.wait.judge import AGAIN, SUPERSEDED, Blocked, Progress, Runnable, judge, queries
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.query import data_of
from kolla_mesos_start.zookeeper.wire import NoNodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Callable

    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.render.published_generation import Generation
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.wait.external import Answer, ExternalProbes
    from kolla_mesos_start.zookeeper.query import Query, View

log = Logger("kolla_mesos_start.wait")

NEVER = float("inf")
RUNS_IT = "is running it"
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
        self._progress = Progress(own, frozenset(), tree.definition, image, {})
        self._probes = _external_probes(tree)
        self._read_published = published
        self._generations: dict[Dependency, Generation] = {}
        self._superseded: set[str] = set()
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
        waiting = [Blocked(command, self._unknown(command)) for command in self._candidates()]
        seen: object = None
        while True:
            limit = min(self._limit_of(blocked) for blocked in waiting)
            due = min(limit, logged_at + PROGRESS_INTERVAL)
            soon = now() >= due - DETAIL_LEAD
            watches.watch(self._queries(waiting) | (self._details(waiting) if soon else set()))
            self._client.loop.wait(
                lambda seen=seen: watches.answered() and self._state() != seen,  # type: ignore[misc]
                due if soon else due - DETAIL_LEAD,
            )
            self._begin_again_if_changed()
            if watches.answered() and self._queries(waiting) - watches.results.keys():
                continue  # An answer requires more reads: a new mark's name, then the mark itself.
            if watches.answered() and self._state() != seen:
                seen = self._state()
                self._progress = self._progress._replace(answers=seen[1])
                waiting = []
                for command in self._candidates():
                    blocked = self._judge(command)
                    if isinstance(blocked, Runnable):
                        return blocked
                    waiting.append(blocked)
                if any(blocked.reason == AGAIN for blocked in waiting):
                    continue
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
                self._time_out([blocked for blocked in waiting if self._limit_of(blocked) <= now()])
            elif now() >= logged_at + PROGRESS_INTERVAL:
                logged_at = now()
                log.info("%s", self._describe(waiting))

    def _begin_again_if_changed(self) -> None:
        """Raise Changed if something else is published, and this container has not run anything yet."""
        if self._has_run:
            return
        try:
            self._tree.raise_if_changed()
        except Changed:
            self._queues.leave()
            raise

    def _judge(self, command: Command) -> Runnable | Blocked:
        self._look_up_generations(command)
        for dependency in command.inside:
            for warning in states.left_out(dependency, self._znodes, self._watches.results):
                self._client.warn_once(warning)
        verdict = judge(command, self._watches.results, self._znodes, self._progress)
        if verdict is None:
            return self._contend(command)
        if isinstance(verdict, Blocked) and verdict.reason == SUPERSEDED:
            if command.path not in self._superseded:
                log.warning("%s: %s", command.path, verdict.reason)
            self._superseded.add(command.path)
        if command.run_once is not None:
            # The next contender may be able to use the lock.
            self._queues.give_back(self._lock(command))
        return verdict

    def _look_up_generations(self, command: Command) -> None:
        """Read the published generations of commands of other services, if they decide."""
        results, image = self._watches.results, self._progress.image
        for dependency in command.inside:
            if not states.needs_published(dependency, results, self._znodes, image):
                continue
            assert isinstance(dependency, Dependency) and image is not None and self._read_published
            known = self._generations.get(dependency)
            if known is None or _has_changed(known, results):
                found = self._generations[dependency] = self._read_published(dependency)
                published = {(dependency.path, dependency.scope): found.name}
                self._progress = self._progress._replace(published={**self._progress.published, **published})
                _warn_of_generation(command, dependency, found, image)

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
        attempt = self._attempt(command)
        if attempt.started is None or attempt.finished is not None:
            return Blocked(command, (), "another container is about to run it")
        return Blocked(command, (), f"{attempt.host} {RUNS_IT}")

    def _attempt(self, command: Command) -> states.Detail:
        """The last attempt of a one-time command, if known."""
        detail = states.once_znodes(command, self._znodes).detail
        return states.decode_detail(self._watches.results.get(data_of(detail)))

    # -- what is read ---------------------------------------------------------------------------

    def _queries(self, waiting: Sequence[Blocked]) -> set[Query]:
        found = set() if self._has_run else set(map(data_of, self._tree.stamps))
        for blocked in waiting:
            found |= queries(blocked, self._watches.results, self._znodes, self._progress)
            for dependency in blocked.command.inside:
                if isinstance(dependency, Dependency) and dependency in self._generations:
                    found.update(map(data_of, self._generations[dependency].stamps))
            if blocked.command.run_once is not None:
                found.update(self._queues.queries(self._lock(blocked.command)))
        return found

    def _details(self, waiting: Sequence[Blocked]) -> set[Query]:
        """How the attempts failed that are waited for. Only needed for a log line."""
        return {data_of(unmet.detail) for blocked in waiting for unmet in blocked.unmet if unmet.detail}

    def _unknown(self, command: Command) -> list[Unmet]:
        return [Unmet(dependency, "unknown: not read yet") for dependency in command.dependencies]

    def _lock(self, command: Command) -> str:
        return states.once_znodes(command, self._znodes).lock

    # -- limits and messages --------------------------------------------------------------------

    def _limit_of(self, blocked: Blocked) -> float:
        """When this command has waited too long for its dependencies."""
        timeouts = [unmet.dependency.timeout for unmet in blocked.unmet]
        if blocked.unmet or blocked.reason == AGAIN:
            timeouts.append(self._limit)
        given = [timeout for timeout in timeouts if timeout is not None]
        return self._begun[blocked.command.path] + min(given) if given else NEVER

    def _time_out(self, overdue: Sequence[Blocked]) -> None:
        first, *others = overdue
        reason = "; ".join([self._waited(first), *map(self._has_waited, others)])
        raise DependenciesNotSatisfied(reason, command=first.command.path)

    def _describe(self, waiting: Sequence[Blocked]) -> str:
        outage = "" if self._client.connected else "no connection to ZooKeeper; as last known: "
        return outage + "; ".join(map(self._has_waited, waiting))

    def _has_waited(self, blocked: Blocked) -> str:
        return f"{blocked.command.path} has {self._waited(blocked)}"

    def _waited(self, blocked: Blocked) -> str:
        """How long it has waited, and for what."""
        waited = now() - self._begun[blocked.command.path]
        unmet = ", ".join(self._state_of(unmet) for unmet in blocked.unmet)
        reason = f"{blocked.reason}{self._runs_since(blocked)}"
        words = [f"for {unmet}"] * bool(unmet) + [f"while {reason}"] * bool(reason)
        return f"waited {waited:.0f} s {', '.join(words)}"

    def _runs_since(self, blocked: Blocked) -> str:
        """How long another container has been running the one-time command."""
        started = blocked.reason.endswith(RUNS_IT) and self._attempt(blocked.command).started
        if not started:
            return ""
        more = f"; {states.NO_TIMEOUT}" if blocked.command.timeout is None else ""
        return f" for {max(0.0, time.time() - started):.0f} s (it holds the lock){more}"

    def _state_of(self, unmet: Unmet) -> str:
        znode = self._watches.results.get(data_of(unmet.detail)) if unmet.detail else None
        return states.describe(unmet, states.decode_detail(znode), time.time())


def _has_changed(known: Generation, view: View) -> bool:
    """Whether a znode that the generation was read from has changed since."""
    return any(
        data_of(path) in view and stamp(view[data_of(path)]) != before
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
    if not any(command.outside for command in tree.graph.steps):
        return None
    from kolla_mesos_start.wait.external import ExternalProbes

    return ExternalProbes(tree.client.loop)


def _brief(blocked: Blocked) -> str:
    if not blocked.unmet:
        return f"{blocked.command.path} waits: {blocked.reason}"
    unmet = ", ".join(f"{unmet.what}: {unmet.found}" for unmet in blocked.unmet)
    more = f"; and {blocked.reason}" if blocked.reason else ""
    return f"{blocked.command.path} waits for {unmet}{more}"
