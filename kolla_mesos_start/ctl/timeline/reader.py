"""Reads from ZooKeeper how the start of a deployment went.

What belongs here: which znodes say when something happened, and what each of them means. `report` has the
result.

Times are the servers': a znode's ctime and mtime. Only the duration of an attempt is taken from its `detail`,
because that has the times of the container's clock; the znode was written when the attempt ended. `rerun`
writes it again: then both times are taken from its `detail`. Nothing records when a daemon was executed: it
counts as started when everything that it needs was there. Only the last run has times. An earlier run
shows in the number of attempts, and in the number of children that a znode has had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kolla_mesos_start.ctl.live.reader import DeploymentReader, hosts_of
from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import Finished, Need, TimelineStep
from kolla_mesos_start.ctl.timeline.report import StartReport
from kolla_mesos_start.ctl.zk import containers
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.model import Command, Graph, Members
from kolla_mesos_start.definition.strings import GLOBAL, LOCAL
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import DONE
from kolla_mesos_start.tree.znodes import Znodes

STARTED_AGAIN, READY_AGAIN, RUN_AGAIN = "started again", "ready again", "run again"
READY_BEFORE = "ready before"
BEGINNING = 1.0  # seconds at most between a container's first writes for its host, and its presence
BEGUN = (DONE, "starting", "unready", "draining")  # In other states it waits, or does not say what it does.


class HistoryReader(DeploymentReader):
    """Reads also what the znodes of a deployment say about the past."""

    def report(self, view: View, now: float) -> StartReport:
        """What happened. What has not ended has lasted until `now`."""
        found = [(znodes, self.definitions.find(znodes, view).graph) for znodes in self.services(view)]
        graphs = [(znodes, graph) for znodes, graph in found if graph]
        return _StartReader(graphs, self.znodes.deployment_id, view, now).report()


class _StartReader:
    """Finds the steps of a start in one view, of the services whose definition is valid."""

    def __init__(self, graphs: Sequence[tuple[Znodes, Graph]], id: str, view: View, now: float) -> None:
        self._graphs, self._id, self._view, self._now = graphs, id, view, now
        self._own: Mapping[str, Sequence[Command]] = {znodes.role: graph.commands for znodes, graph in graphs}
        self._once = {
            each.path for commands in self._own.values() for each in commands if each.run_once == GLOBAL
        }

    def report(self) -> StartReport:
        """All steps in their order."""
        appeared: dict[str, float] = {}  # when each container appeared first
        presences = []
        for znodes, _ in self._graphs:
            for each in containers.presences(znodes, self._view):
                # A member takes no time to appear, and depends on nothing.
                step = TimelineStep(f"{znodes.role}/{containers.PARTY}", each.host, (), each.at, each.at)
                presences += [step] if each.is_member else []
                appeared[step.container] = min(appeared.get(step.container, each.at), each.at)
        again = dict(self._started_again(appeared))
        first = min(appeared.values(), default=self._now)
        commands = [
            step for znodes, graph in self._graphs for step in self._commands(znodes, graph, again, first)
        ]
        known = [*presences, *commands]
        began = min((*appeared.values(), *(step.started for step in known)), default=self._now)
        steps = [*commands, *self._daemons(known, began, appeared, again)]
        needed = {need.name for step in steps for need in step.needs}
        steps += [step for step in presences if step.name in needed]
        steps.sort(key=lambda each: (each.started, each.finished))
        return StartReport(self._id, began, appeared, tuple(steps))

    def _started_again(self, appeared: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """The containers that have run before, and since when they exist this time.

        The service has had more members than it has, and this container came well after what its first run
        has created.
        """
        for znodes, _ in self._graphs:
            if not containers.had_more_members(znodes, self._view):
                continue
            for host in hosts_of(znodes, self._view):
                name = f"{znodes.role}@{host}"
                created = containers.ready_on_host(znodes._replace(host=host), self._view)
                since = appeared.get(name)
                if created and since is not None and since > created.ctime / 1000 + BEGINNING:
                    yield name, since

    def _commands(
        self, znodes: Znodes, graph: Graph, started_again: Mapping[str, float], first: float
    ) -> Iterator[TimelineStep]:
        """The attempts; `first` is when the first container appeared."""
        hosts = [znodes._replace(host=host) for host in hosts_of(znodes, self._view)]
        for command in graph.commands:
            scope, places = (GLOBAL, [znodes]) if command.run_once == GLOBAL else (LOCAL, hosts)
            for place in places:
                znode = self._view.znode(place.command(scope, command.path).detail)
                detail = states.decode_detail(znode)
                if znode is None or detail.started is None:
                    continue
                started = finished = znode.stat.mtime / 1000
                if detail.taken_back and detail.finished is not None:
                    # The operator has written the znode since: only the container's clock is left.
                    started, finished = detail.started, detail.finished
                elif detail.finished is None:
                    finished = max(started, self._now)
                else:
                    started -= max(0.0, detail.finished - detail.started)
                if detail.adopted:  # It was done before the start, or at this time.
                    started = finished = max(finished, first)
                needs = self._needs(command, detail.host)
                step = TimelineStep(command.path, detail.host, needs, started, finished)
                step = step._replace(
                    state=detail.state, attempts=max(1, detail.attempt), message=detail.message
                )
                if finished > started_again.get(step.container, finished):
                    step = step._replace(again=STARTED_AGAIN)
                elif command.run_once and detail.attempt > 1 + command.retries:
                    step = step._replace(again=RUN_AGAIN)  # One container makes fewer attempts.
                yield step

    def _daemons(
        self,
        known: Sequence[TimelineStep],
        began: float,
        appeared: Mapping[str, float],
        started_again: Mapping[str, float],
    ) -> Iterator[TimelineStep]:
        """In the order in which they became ready, because a daemon may need others."""
        found = sorted(self._instances(), key=lambda each: each[1].finished)
        done, everything = Finished(known), Finished([*known, *(step for _, step in found)])
        for znodes, step in found:
            ready = containers.ready_on_host(znodes, self._view)
            if step.container in started_again:
                step = step._replace(again=STARTED_AGAIN)
            elif containers.has_lost_children(ready):
                step = step._replace(again=READY_AGAIN if step.state == DONE else READY_BEFORE)
            # Its end alone is known if it, or something that it needs, became ready again. A daemon that was
            # ready three times may have been so without a start of its container.
            if step.again == STARTED_AGAIN:
                is_known = ready is None or ready.cversion + ready.numChildren <= 2 * 2
            else:
                is_known = not step.again and not critical_path.needs_came_later(step, everything)
            if step.state in BEGUN and is_known:
                begun = max(
                    critical_path.earliest_start(step, done, began), appeared.get(step.container, began)
                )
                step = step._replace(started=min(begun, step.finished))
            done.add(step)
            yield step

    def _instances(self) -> Iterator[tuple[Znodes, TimelineStep]]:
        """Each container of a daemon, with the znodes of its host. When the daemon started is not known
        yet."""
        for znodes, graph in self._graphs:
            if graph.daemon is None:
                continue
            ready_since = containers.ready_since(znodes, self._view)
            for each in containers.containers(znodes, self._view):
                if each.ready and each.id not in ready_since:
                    continue
                at = ready_since[each.id] if each.ready else self._now
                needs = self._needs(graph.daemon, each.host)
                step = TimelineStep(graph.daemon.path, each.host, needs, at, at)
                if not each.ready:
                    step = step._replace(state=each.stage, message=each.reason)
                yield znodes._replace(host=each.host), step

    def _needs(self, command: Command, host: str) -> tuple[Need, ...]:
        """What a command on `host` waits for; a daemon also for the commands of its own container."""
        own = command.path.partition("/")[0]
        needs = []
        for each in command.inside:
            if isinstance(each, Members):
                needs.append(Need(f"{each.service.rpartition('/')[2]}/{containers.PARTY}", each.count))
            else:
                here = each.path not in self._once and (each.scope == LOCAL or each.role == own)
                needs.append(Need(each.path, each.count or 1, host if here else None))
        mine = self._own[own] if command.is_daemon else []
        needs += [Need(each.path, 1, None if each.path in self._once else host) for each in mine]
        return tuple(needs)
