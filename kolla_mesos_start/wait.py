"""Yields each command once it is satisfied: whichever is ready first, the daemon last.

All that is waited for is watched together; after each answer everything is judged again, from what
the server said last. Judging is the business of `states`, the queues for locks that of `lock`, what
lies outside the deployment that of `outside`.
"""

from __future__ import annotations

import time
from types import MappingProxyType

from kolla_mesos_start.definition.forms import ANY
from kolla_mesos_start.definition.model import Dependency, External
from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.published import stamp
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.query import data_of
from kolla_mesos_start.zookeeper.wire import NoNodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Callable

    from kolla_mesos_start.definition.model import Command, Members
    from kolla_mesos_start.outside import Answer, Outside
    from kolla_mesos_start.render.published_generation import Generation
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.query import Query, View

log = Logger(__name__)

NEVER = float("inf")
SUPERSEDED = "a newer definition has run it since; restart this container"
RUNS_IT = "is running it"
AGAIN = "its dependencies are read again"
DETAIL_LEAD = 1.0  # seconds before a line is due: in an outage nothing can be read for it


class Runnable(NamedTuple):
    """A command whose turn has come.

    `contender` is our znode that holds its lock. A one-time command without one is done already, and
    is passed through.
    """

    command: Command
    contender: str | None = None

    @property
    def already_done(self) -> bool:
        return self.command.run_once is not None and self.contender is None


class Blocked(NamedTuple):
    """A command whose turn has not come: its unmet dependencies, and the `reason`, of which one may be empty.

    While any is unmet, the others are not watched.
    """

    command: Command
    unmet: Sequence[Unmet]
    reason: str = ""


class Progress(NamedTuple):
    """Own commands, those that this container has `passed`, the definition's zxid, the generation of the
    code in the image, where that is known, what those outside have answered, and the generations that are
    published for commands of others, where they decide."""

    own: frozenset[str]
    passed: frozenset[str]
    definition: int
    image: str | None
    answers: Mapping[External, Answer]
    published: states.Published = MappingProxyType({})


def judge(command: Command, view: View, znodes: Znodes, progress: Progress) -> Runnable | Blocked | None:
    """Whether the command's turn has come; None if the lock decides that."""
    known = [each for each in command.dependencies if _queries(each, view, znodes, progress) <= view.keys()]
    unmet = [found for each in known if (found := _unmet(each, view, znodes, progress))]
    foreign = _foreign(command, view, znodes, progress)
    if unmet:
        return Blocked(command, unmet, foreign)
    if len(known) < len(command.dependencies):
        return Blocked(command, (), AGAIN)  # The others were satisfied when they were read last.
    if command.run_once is None or states.is_done(command, znodes, view):
        return Runnable(command)
    if states.superseded_by(command, znodes, view, progress.definition) is not None:
        return Blocked(command, (), SUPERSEDED)
    return Blocked(command, (), foreign) if foreign else None


def _foreign(command: Command, view: View, znodes: Znodes, progress: Progress) -> str:
    """That another image has to run it, or empty text: old code would be recorded as the new migration."""
    if command.run_once is None or command.generation is None:
        return ""
    if progress.image in (None, command.generation) or states.is_done(command, znodes, view):
        return ""
    return f"{command.path} is for {command.generation}, this image is {progress.image}"


def queries(blocked: Blocked, view: View, znodes: Znodes, progress: Progress) -> set[Query]:
    """What must be known to judge a command again. Grows with what is found."""
    command = blocked.command
    found: set[Query] = set()
    for dependency in [unmet.dependency for unmet in blocked.unmet] or command.dependencies:
        found |= _queries(dependency, view, znodes, progress)
    if command.run_once is not None:
        found.update(states.once_queries(command, znodes, view))
        found.add(data_of(znodes.token_floor))  # For the claim.
    return found


def _queries(
    dependency: Dependency | Members | External, view: View, znodes: Znodes, progress: Progress
) -> set[Query]:
    if isinstance(dependency, External) or _is_passage(dependency, progress):
        return set()
    return set(states.queries(dependency, znodes, view, progress.image))


def _is_passage(dependency: Dependency | Members, progress: Progress) -> bool:
    """Whether it means only that this container itself has passed the command."""
    return (
        isinstance(dependency, Dependency)
        and dependency.path in progress.own
        and dependency.generation in (None, ANY)
        and dependency.count is None
    )


def _unmet(
    dependency: Dependency | Members | External, view: View, znodes: Znodes, progress: Progress
) -> Unmet | None:
    """Inside one definition a dependency means this container's own progress, and what it asks beyond."""
    if isinstance(dependency, External):
        answer = progress.answers.get(dependency)
        if answer is None:
            return Unmet(dependency, "no answer yet")
        return Unmet(dependency, answer.failure, answer.since) if answer.failure else None
    if isinstance(dependency, Dependency) and dependency.path in progress.own:
        if dependency.path not in progress.passed:
            return Unmet(dependency, "not run by this container yet")
        if _is_passage(dependency, progress):
            return None
    return states.unmet(dependency, view, znodes, progress.image, progress.published)


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
        """`limit`: seconds for which a command may wait on its dependencies; None: for ever. `image`: the
        generation of the code in it, where that is known; then `published` reads the generation that is
        published for the command of a dependency."""
        self._tree, self._report, self._limit = tree, report, limit
        self._client, self._watches, self._znodes = tree.client, tree.client.watches, tree.znodes
        self._queues = Queues(tree.client, tree.znodes.host)
        self._pending = list(tree.graph.commands)
        self._daemon = tree.graph.daemon
        own = frozenset(command.path for command in tree.graph.commands)
        self._progress = Progress(own, frozenset(), tree.definition, image, {})
        self._outside = _outside(tree)
        self._read_published = published
        self._generations: dict[Dependency, Generation] = {}
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
        """The next command whose turn has come; what lies outside is asked only until then."""
        self._ask([each for command in self._candidates() for each in command.outside])
        try:
            return self._wait()
        finally:
            self._ask(())

    def _ask(self, externals: Sequence[External]) -> None:
        if self._outside:
            self._outside.ask(externals)

    def _look(self) -> tuple[int, Mapping[External, Answer]]:
        """What differs once there is something new to judge."""
        return self._watches.changes, self._outside.answers if self._outside else {}

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
                lambda seen=seen: watches.answered() and self._look() != seen,  # type: ignore[misc]
                due if soon else due - DETAIL_LEAD,
            )
            if watches.answered() and self._queries(waiting) - watches.results.keys():
                continue  # What has come asks for more: a new mark's name, for what the mark says.
            if watches.answered() and self._look() != seen:
                seen = self._look()
                self._progress = self._progress._replace(answers=seen[1])
                waiting = []
                for command in self._candidates():
                    blocked = self._judge(command)
                    if isinstance(blocked, Runnable):
                        return blocked
                    waiting.append(blocked)
                if any(blocked.reason == AGAIN for blocked in waiting):
                    continue
                if self._outside and not self._outside.settled:
                    continue  # What is said first is to be all of it.
                brief = "; ".join(_brief(blocked) for blocked in waiting)
                only = waiting[0].command.path if len(waiting) == 1 else ""
                outside = {
                    unmet.what: unmet.found
                    for blocked in waiting
                    for unmet in blocked.unmet
                    if isinstance(unmet.dependency, External)
                }
                self._report.write("waiting", brief, only, outside=outside)
                if silent:
                    silent = False
                    log.info("%s", brief)
            elif now() >= limit:
                self._give_up([blocked for blocked in waiting if self._limit_of(blocked) <= now()])
            elif now() >= logged_at + PROGRESS_INTERVAL:
                logged_at = now()
                log.info("%s", self._describe(waiting))

    def _judge(self, command: Command) -> Runnable | Blocked:
        self._look_up_generations(command)
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
        """Learn which generations are published for commands of other services, where that decides."""
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
                # The status tree was deleted under us, by a redeploy for instance: it is made again.
                self._tree.ensure()
        if contender is not None:
            return Runnable(command, contender)
        return Blocked(command, (), self._who_runs(command))

    def _who_runs(self, command: Command) -> str:
        attempt = self._attempt(command)
        if attempt.started is None or attempt.finished is not None:
            return "another container is about to run it"
        return f"{attempt.host} {RUNS_IT}"

    def _attempt(self, command: Command) -> states.Detail:
        """The last attempt of a one-time command, as far as it is known."""
        detail = states.once_znodes(command, self._znodes).detail
        return states.decode_detail(self._watches.results.get(data_of(detail)))

    # -- what is known --------------------------------------------------------------------------

    def _queries(self, waiting: Sequence[Blocked]) -> set[Query]:
        found: set[Query] = set()
        for blocked in waiting:
            found |= queries(blocked, self._watches.results, self._znodes, self._progress)
            for dependency in blocked.command.inside:
                if isinstance(dependency, Dependency) and dependency in self._generations:
                    found.update(map(data_of, self._generations[dependency].stamps))
            if blocked.command.run_once is not None:
                found.update(self._queues.queries(self._lock(blocked.command)))
        return found

    def _details(self, waiting: Sequence[Blocked]) -> set[Query]:
        """How the attempts failed that are waited for: of use only where a line says it."""
        return {data_of(unmet.detail) for blocked in waiting for unmet in blocked.unmet if unmet.detail}

    def _unknown(self, command: Command) -> list[Unmet]:
        return [Unmet(dependency, "unknown: not read yet") for dependency in command.dependencies]

    def _lock(self, command: Command) -> str:
        return states.once_znodes(command, self._znodes).lock

    # -- limits and words -----------------------------------------------------------------------

    def _limit_of(self, blocked: Blocked) -> float:
        """When this command has waited for its dependencies as long as it may."""
        timeouts = [unmet.dependency.timeout for unmet in blocked.unmet]
        if blocked.unmet or blocked.reason == AGAIN:
            timeouts.append(self._limit)
        given = [timeout for timeout in timeouts if timeout is not None]
        return self._begun[blocked.command.path] + min(given) if given else NEVER

    def _give_up(self, overdue: Sequence[Blocked]) -> None:
        first, *others = overdue
        reason = "; ".join([self._waited(first), *map(self._has_waited, others)])
        raise DependenciesNotSatisfied(reason, command=first.command.path)

    def _describe(self, waiting: Sequence[Blocked]) -> str:
        words = map(self._has_waited, waiting)
        outage = "" if self._client.connected else "no connection to ZooKeeper; as last known: "
        return outage + "; ".join(words)

    def _has_waited(self, blocked: Blocked) -> str:
        return f"{blocked.command.path} has {self._waited(blocked)}"

    def _waited(self, blocked: Blocked) -> str:
        """For how long, and for what: each unmet with its state, since when, where and why it failed."""
        waited = now() - self._begun[blocked.command.path]
        unmet = ", ".join(self._state_of(unmet) for unmet in blocked.unmet)
        reason = f"{blocked.reason}{self._runs_since(blocked)}"
        words = [f"for {unmet}"] * bool(unmet) + [f"while {reason}"] * bool(reason)
        return f"waited {waited:.0f} s {', '.join(words)}"

    def _runs_since(self, blocked: Blocked) -> str:
        """For how long another container has run the one-time command that this one would run."""
        started = blocked.reason.endswith(RUNS_IT) and self._attempt(blocked.command).started
        if not started:
            return ""
        more = f"; {states.NO_TIMEOUT}" if blocked.command.timeout is None else ""
        return f" for {max(0.0, time.time() - started):.0f} s (it holds the lock){more}"

    def _state_of(self, unmet: Unmet) -> str:
        znode = self._watches.results.get(data_of(unmet.detail)) if unmet.detail else None
        return states.describe(unmet, states.decode_detail(znode), time.time())


def _has_changed(known: Generation, view: View) -> bool:
    """Whether the generation that was read comes from znodes that are others by now."""
    return any(
        data_of(path) in view and stamp(view[data_of(path)]) != before
        for path, before in known.stamps.items()
    )


def _warn_of_generation(command: Command, dependency: Dependency, found: Generation, image: str) -> None:
    """Warn of an image whose generation is neither done nor published, as far as that is known."""
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


def _outside(tree: StatusTree) -> Outside | None:
    """What asks those outside; None where a definition names none, as most do."""
    if not any(command.outside for command in tree.graph.steps):
        return None
    from kolla_mesos_start.outside import Outside

    return Outside(tree.client.loop)


def _brief(blocked: Blocked) -> str:
    if not blocked.unmet:
        return f"{blocked.command.path} waits: {blocked.reason}"
    unmet = ", ".join(f"{unmet.what}: {unmet.found}" for unmet in blocked.unmet)
    more = f"; and {blocked.reason}" if blocked.reason else ""
    return f"{blocked.command.path} waits for {unmet}{more}"
