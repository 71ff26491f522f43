"""How a start went, from what it has left in ZooKeeper.

What lives here: which znodes tell it, and what each tells. Times are the servers': a znode's ctime and mtime.
A `detail`, whose times are those of its container's clock, was written when the attempt ended; only how long
that took is taken from it. Nobody writes when a daemon was executed: it counts as started once all that it
needs was there. Only the last run is told with its times; that there was an earlier one shows in the number
of znodes that were ever made below another one, and of attempts.
`critical_path` finds the critical path, `html_page` draws the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kolla_mesos_start.definition.forms import DAEMON, GLOBAL, LOCAL
from kolla_mesos_start.definition.model import Command, Graph, Members
from kolla_mesos_start.operator.live.reader import (
    CONTAINERS,
    PARTY,
    DeploymentReader,
    View,
    hosts_of,
    identity,
    service_names,
    text_of,
    told_by,
)
from kolla_mesos_start.operator.timeline import critical_path
from kolla_mesos_start.operator.timeline.critical_path import Finished, Need, TimelineStep
from kolla_mesos_start.operator.timeline.past import Event, StartReport
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import DONE
from kolla_mesos_start.zookeeper.query import Query, Znode, children_of, data_of

STARTED_AGAIN, READY_AGAIN, RUN_AGAIN = "started again", "ready again", "run again"
READY_BEFORE = "ready before"
BEGINNING = 1.0  # seconds at most between a container's first writes on its host, and its presence
BEGUN = (DONE, "starting", "unready")  # The others wait for something, or do not say what they do.


class History(DeploymentReader):
    """What a deployment's znodes tell of its past."""

    def queries(self, view: View) -> set[Query]:
        """What must be known."""
        return super().queries(view) | set(self._more(view))

    def _more(self, view: View) -> Iterator[Query]:
        for name, graph in self._graphs(view):
            role = name.rsplit("/", 1)[-1]
            for command in graph.commands:
                for scope in self._scopes(command, view):
                    yield data_of(self._detail(command, scope))
            yield data_of(f"{self.znodes.service(name)}/{PARTY}")
            for host in hosts_of(role, self.znodes, view):
                yield data_of(self._ready_on(role, host))
            ready = self.znodes.command(GLOBAL, f"{role}/{DAEMON}").ready
            for place in (
                ready,
                f"{self.znodes.service(name)}/{PARTY}",
                f"{self.znodes.service(name)}/{CONTAINERS}",
            ):
                yield from (data_of(f"{place}/{each}") for each in view.get(children_of(place), ()))

    def past(self, view: View, now: float) -> StartReport:
        """All that is told. What has not ended has lasted until `now`."""
        return StartReader(self, view, now).past()

    def _graphs(self, view: View) -> Iterator[tuple[str, Graph]]:
        for name in service_names(self.znodes, view):
            definition = self._definition(name, view)
            if definition and definition.graph:
                yield name, definition.graph

    def _scopes(self, command: Command, view: View) -> Sequence[str]:
        """Where its attempts are told: together, or for each host."""
        role = command.path.partition("/")[0]
        return [GLOBAL] if command.run_once == GLOBAL else hosts_of(role, self.znodes, view)

    def _ready_on(self, role: str, host: str) -> str:
        return self.znodes._replace(host=host).command(LOCAL, f"{role}/{DAEMON}").ready

    def _detail(self, command: Command, scope: str) -> str:
        return self.znodes._replace(host=scope).command(scope, command.path).detail


class StartReader:
    """One view, read as a story."""

    def __init__(self, history: History, view: View, now: float) -> None:
        self._history, self._znodes, self._view, self._now = history, history.znodes, view, now
        self._graphs = dict(history._graphs(view))
        self._own: dict[str, list[Command]] = {
            name.rsplit("/", 1)[-1]: list(graph.commands) for name, graph in self._graphs.items()
        }
        self._once = {
            each.path for commands in self._own.values() for each in commands if each.run_once == GLOBAL
        }

    def past(self) -> StartReport:
        """Everything, in its order."""
        presences = [event for name in self._graphs for event in self._presences(name)]
        appeared: dict[str, float] = {}
        for event in presences:
            first = appeared.setdefault(event.step.container, event.step.started)
            appeared[event.step.container] = min(first, event.step.started)
        again = dict(self._started_again(appeared))
        commands = [event for graph in self._graphs.values() for event in self._commands(graph, again)]
        known = [event.step for event in (*presences, *commands)]
        began = min((step.started for step in known), default=self._now)
        events = [*presences, *commands, *self._daemons(known, began, appeared, again)]
        asked = {need.name for event in events for need in event.step.needs}
        told = [event for event in events if not event.step.is_presence or event.step.name in asked]
        told.sort(key=lambda each: (each.step.started, each.step.finished))
        return StartReport(self._znodes.deployment_id, began, appeared, tuple(told))

    def _started_again(self, appeared: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """The containers that have an earlier run behind them, and since when they are there.

        There were more members than there are, and this one came well after what its first run has made.
        """
        for name in self._graphs:
            role = name.rsplit("/", 1)[-1]
            if has_lost_names(self._view.get(data_of(f"{self._znodes.service(name)}/{PARTY}"))):
                for host in hosts_of(role, self._znodes, self._view):
                    made = self._view.get(data_of(self._history._ready_on(role, host)))
                    since = appeared.get(f"{role}@{host}")
                    if made and since is not None and since > made.stat.ctime / 1000 + BEGINNING:
                        yield f"{role}@{host}", since

    def _presences(self, name: str) -> Iterator[Event]:
        """A container appears in no time, and needs nothing."""
        for place in (CONTAINERS, PARTY):
            path = f"{self._znodes.service(name)}/{place}"
            for each in self._view.get(children_of(path), ()):
                znode = self._view.get(data_of(f"{path}/{each}"))
                if znode is not None:
                    at, host = znode.stat.ctime / 1000, text_of(told_by(znode), "host") or "?"
                    step = TimelineStep(f"{name.rsplit('/', 1)[-1]}/{place}", host, (), at, at)
                    yield Event(step, DONE, 1, "")

    def _commands(self, graph: Graph, started_again: Mapping[str, float]) -> Iterator[Event]:
        for command in graph.commands:
            for scope in self._history._scopes(command, self._view):
                znode = self._view.get(data_of(self._history._detail(command, scope)))
                detail = states.decode_detail(znode)
                if znode is None or detail.started is None:
                    continue
                started = finished = znode.stat.mtime / 1000
                if detail.finished is None:
                    finished = max(started, self._now)
                else:
                    started -= max(0.0, detail.finished - detail.started)
                step = TimelineStep(
                    command.path, detail.host, self._needs(command, detail.host), started, finished
                )
                if finished > started_again.get(step.container, finished):
                    step = step._replace(again=STARTED_AGAIN)
                elif command.run_once and detail.attempt > 1 + command.retries:
                    step = step._replace(again=RUN_AGAIN)  # A container makes no more attempts than these.
                yield Event(step, detail.state, max(1, detail.attempt), detail.message)

    def _daemons(
        self,
        known: Sequence[TimelineStep],
        began: float,
        appeared: Mapping[str, float],
        started_again: Mapping[str, float],
    ) -> Iterator[Event]:
        """In the order in which they became ready: a daemon may need others."""
        events = sorted(self._instances(), key=lambda each: each.step.finished)
        done, everything = Finished(known), Finished([*known, *(event.step for event in events)])
        for event in events:
            step = event.step
            if step.container in started_again:
                step = step._replace(again=STARTED_AGAIN)
            elif has_lost_names(self._ready_on(step)):
                step = step._replace(again=READY_AGAIN if event.state == DONE else READY_BEFORE)
            begun = max(critical_path.earliest_start(step, done, began), appeared.get(step.container, began))
            if event.state in BEGUN and self._has_known_begin(step, everything):
                step = step._replace(started=min(begun, step.finished))
            done.add(step)
            yield event._replace(step=step)

    def _has_known_begin(self, step: TimelineStep, finished: Finished) -> bool:
        """Not where its readiness came back, nor where what it needed did: then only its end is known.

        Of three and more times that it was ready, one may be without a start of its container.
        """
        if step.again == STARTED_AGAIN:
            made = self._ready_on(step)
            return made is None or made.stat.cversion + made.stat.numChildren <= 2 * 2
        return not step.again and not critical_path.needs_came_later(step, finished)

    def _ready_on(self, step: TimelineStep) -> Znode | None:
        role = step.name.partition("/")[0]
        found: Znode | None = self._view.get(data_of(self._history._ready_on(role, step.host)))
        return found

    def _instances(self) -> Iterator[Event]:
        """Each container of a daemon that has begun; how long it took to start is not known yet."""
        for name, graph in self._graphs.items():
            if graph.daemon is None:
                continue
            at = self._znodes.command(GLOBAL, graph.daemon.path).ready
            names = {identity(each): f"{at}/{each}" for each in self._view.get(children_of(at), ())}
            for container in self._history._containers(name, self._view):
                needs = self._needs(graph.daemon, container.host)
                znode = self._view.get(data_of(names.get(container.id, at)))
                if container.ready and znode is not None:
                    instant = znode.stat.ctime / 1000
                    yield Event(
                        TimelineStep(graph.daemon.path, container.host, needs, instant, instant), DONE, 1, ""
                    )
                elif not container.ready:
                    step = TimelineStep(graph.daemon.path, container.host, needs, self._now, self._now)
                    yield Event(step, container.stage, 1, container.reason)

    def _needs(self, command: Command, host: str) -> tuple[Need, ...]:
        """What it waits for when it runs on `host`; a daemon also for the commands of its own container."""
        own = command.path.partition("/")[0]
        needs = []
        for each in command.inside:
            if isinstance(each, Members):
                needs.append(Need(f"{each.service.rsplit('/', 1)[-1]}/{PARTY}", each.count))
            else:
                here = each.path not in self._once and (each.scope == LOCAL or each.role == own)
                needs.append(Need(each.path, each.count or 1, host if here else None))
        mine = self._own[own] if command.is_daemon else []
        needs += [Need(each.path, 1, None if each.path in self._once else host) for each in mine]
        return tuple(needs)


def has_lost_names(znode: Znode | None) -> bool:
    """Whether more znodes were made below it than there are: it counts those made, and those deleted."""
    return znode is not None and znode.stat.cversion > znode.stat.numChildren
