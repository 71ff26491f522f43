"""What happened in a deployment: what was recorded, what its state says, and what has changed since then.

Pure, except that `EventReader` says what must be read. One function compares two looks; the first look is
compared with nothing, so that everything that the present state says has just happened, each at its own time.
What came and went between two looks is not seen, and neither is what a later state has replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.live.cause import CLOCK_STEP, listed
from kolla_mesos_start.ctl.live.model import Attempt, LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk import containers, event_record
from kolla_mesos_start.ctl.zk.containers import DRAINING, Container
from kolla_mesos_start.ctl.zk.event_record import Entry
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.report import (
    REFRESH_FAILED,
    REFRESH_PENDING,
    REFRESH_RUNNING,
    REFRESH_SETTLING,
    REFRESH_STUCK,
)
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY, RUNNING, printable
from kolla_mesos_start.zookeeper.view import Query, data_of

# The words for each stage of a container that is an event; a service's name, or its daemon's, comes before.
STAGES = {
    "ready": "is ready",
    "unready": "is no longer ready",
    DRAINING: "is about to be stopped",
    "ended": "has ended",
    "finished": "has finished its commands",
}
REFRESHING = (REFRESH_PENDING, REFRESH_RUNNING, REFRESH_SETTLING)
REFRESHES = {
    REFRESH_RUNNING: "refreshing",
    REFRESH_FAILED: "refresh failed",
    REFRESH_STUCK: "refresh blocked",
}
OUTCOMES = {DONE: "done", ERROR: "failed", RETRY: "failed"}


class DeploymentEvent(NamedTuple):
    """One event; `at` in seconds since the epoch. `services`: those that it concerns; empty: all."""

    at: float
    kind: str
    text: str
    services: tuple[str, ...]
    host: str = ""
    entry: Entry | None = None

    def data(self) -> dict[str, Any]:
        """The event for a program."""
        found = {"at": self.at, "kind": self.kind, "text": self.text, "services": list(self.services)}
        if self.host:
            found["host"] = self.host
        if self.entry:
            found.update({name: getattr(self.entry, name) for name in ("by", "names", "total", "detail")})
        return found


class Elected(NamedTuple):
    """A decision of an election, and when its record was last written (seconds since the epoch)."""

    epoch: int
    state: str
    winner: str
    at: float


class Look(NamedTuple):
    """The deployment at one moment; `now` in seconds since the epoch. `elected` by service.

    `ready_since`: when each ready container became ready (seconds since the epoch), by service and id.
    """

    now: float
    deployment: LiveDeployment
    entries: tuple[Entry, ...] = ()
    elected: Mapping[str, Elected] = MappingProxyType({})
    ready_since: Mapping[str, Mapping[str, float]] = MappingProxyType({})


NOTHING = Look(0.0, LiveDeployment("", {}, 0.0))


class EventReader(DeploymentReader):
    """Reads also what operators have done, and when containers became ready."""

    def queries(self, view: View) -> set[Query]:
        """What must be read."""
        ready = (
            view.kept(
                ("ready since queries", each.service_name),
                None,
                lambda own=each: list(containers.ready_since_queries(own, view)),  # type: ignore[misc]
            )
            for each in self.services(view)
        )
        return {*super().queries(view), data_of(self.znodes.events), *chain.from_iterable(ready)}

    def look(self, view: View, now: float) -> Look:
        """The deployment, once all `queries` are answered."""
        deployment, entries = self.deployment(view), view.kept("entries", None, lambda: self._entries(view))
        ready = {
            each.service_name: view.kept(
                ("ready since", each.service_name),
                None,
                lambda own=each: containers.ready_since(own, view),  # type: ignore[misc]
            )
            for each in self.services(view)
        }
        return Look(now, deployment, entries, dict(self._elected(deployment, view)), ready)

    def _entries(self, view: View) -> tuple[Entry, ...]:
        record = view.znode(self.znodes.events)
        return tuple(event_record.decode(record.data)) if record else ()

    def _elected(self, deployment: LiveDeployment, view: View) -> Iterator[tuple[str, Elected]]:
        for name, service in deployment.services.items():
            decision = service.election.snapshot.decision if service.election else None
            if not decision:
                continue
            znode = view.znode(self.znodes._replace(service_name=name).election.decision)
            if znode:
                winner = printable(decision.winner)
                yield name, Elected(decision.epoch, decision.state, winner, znode.stat.mtime / 1000)


def between(before: Look, after: Look) -> list[DeploymentEvent]:
    """What happened between two looks, the oldest first."""
    known = set(before.entries)
    found = [_action(each) for each in after.entries if each not in known]
    names = {**before.deployment.services, **after.deployment.services}
    for name in names:
        old, new = before.deployment.services.get(name), after.deployment.services.get(name)
        if old is new:  # Nothing that the record was made from has changed.
            continue
        commands = list(_commands(old, new)) if new else []
        begun = [(each.host, each.at) for each in commands if each.kind == RUNNING]
        found += _containers(old, new, after, begun)
        found += commands
        if new:
            found += _starts(old, new)
            found += _elections(new, before.elected.get(name), after.elected.get(name))
    # At the same time, a container reaches a stage because of the others.
    return sorted(found, key=lambda each: (each.at, each.kind in STAGES))


def _action(entry: Entry) -> DeploymentEvent:
    parts = [each for each in (listed(entry.names), entry.detail) if each]
    more = f" ({entry.total} in all)" if entry.total > len(entry.names) else ""
    text = f"{entry.by}: {entry.action} {' '.join(parts)}{more}".rstrip()
    return DeploymentEvent(entry.at, entry.action, text, entry.services, entry=entry)


# -- containers -------------------------------------------------------------------------------------------


def _containers(
    old: LiveService | None, new: LiveService | None, look: Look, begun: Sequence[tuple[str, float]]
) -> Iterator[DeploymentEvent]:
    """The events of a service's containers; `begun`: where and when attempts of its commands have begun."""
    before = {each.id: each for each in old.containers} if old else {}
    after = {each.id: each for each in new.containers} if new else {}
    for service, container in [(new, each) for each in after.values()]:
        assert service is not None
        own = before.get(container.id)
        if own is None:
            yield _started(service, container, begun)
        ready_since = look.ready_since.get(service.name, {}).get(container.id)
        yield from _container(service, own, container, look.now, ready_since)
    for id in before.keys() - after.keys():
        assert old is not None
        each = before[id]
        text = f"{old.name} on {each.host}: its container is gone; it was {each.stage}"
        yield DeploymentEvent(look.now, "gone", text, (old.name,), each.host)


def _started(service: LiveService, new: Container, begun: Sequence[tuple[str, float]]) -> DeploymentEvent:
    # It writes that it exists up to a second later, and meanwhile runs commands.
    late = [at for host, at in begun if host == new.host and new.created - CLOCK_STEP <= at]
    text = f"{service.name} on {new.host}: a container has started"
    return DeploymentEvent(min([new.created, *late]), "started", text, (service.name,), new.host)


def _reached(new: Container) -> float:
    """When it reached its stage (seconds since the epoch)."""
    # `since` is in whole seconds. It is written up to a second later; a later write was for something else.
    is_own = new.since <= new.written < new.since + 2 * CLOCK_STEP
    return new.written if is_own else max(new.since, new.created)


def _container(
    service: LiveService, old: Container | None, new: Container, now: float, ready_since: float | None
) -> Iterator[DeploymentEvent]:
    def event(at: float, kind: str, text: str) -> DeploymentEvent:
        return DeploymentEvent(at, kind, text, (service.name,), new.host)

    subject = f"{service.name if service.is_task else service.daemon} on {new.host}"
    if new.stage in STAGES and (old is None or old.stage != new.stage):
        why = f": {new.reason}" if new.reason and new.stage in ("unready", DRAINING) else ""
        # It may have left the ready instances a moment before it says so.
        at = _reached(new) if old is None or new.since != old.since else now
        if new.ready and ready_since is not None:
            at = ready_since
        yield event(at, new.stage, f"{subject} {STAGES[new.stage]}{why}")
    elif old is not None and new.stage == "unready" and new.reason and not old.reason:
        yield event(new.written, "unready", f"{subject} is not ready: {new.reason}")
    if new.code in REFRESHES and (old is None or old.code != new.code):
        yield event(new.written, REFRESHES[new.code], f"{subject}: {new.reason}")
    elif old is not None and old.code in REFRESHING and new.code not in REFRESHING and new.is_current:
        yield event(new.written, "refreshed", f"{subject} was refreshed")


# -- commands, starts, elections --------------------------------------------------------------------------


def _commands(old: LiveService | None, new: LiveService) -> Iterator[DeploymentEvent]:
    before = {(step.path, each.scope): each for step in old.steps for each in step.attempts} if old else {}
    for step in new.steps:
        for attempt in step.attempts if not step.command.is_daemon else ():
            yield from _attempt(new, step.path, before.get((step.path, attempt.scope)), attempt)


def _attempt(service: LiveService, path: str, old: Attempt | None, new: Attempt) -> Iterator[DeploymentEvent]:
    detail = new.detail
    if detail.started is None or new.is_adopted:
        return
    # The servers' time, unless an operator has written the record later.
    ended = detail.finished if detail.finished and new.is_taken_back else new.since
    what = f"{path} on {detail.host}: attempt {max(detail.attempt, 1)}"
    is_new = old is None or old.detail.claim != detail.claim
    if is_new:
        lasted = max(0.0, detail.finished - detail.started) if detail.finished else 0.0
        yield DeploymentEvent(ended - lasted, RUNNING, f"{what} has begun", (service.name,), detail.host)
    if detail.state in OUTCOMES and (is_new or (old and old.detail.state != detail.state)):
        kind = OUTCOMES[detail.state]
        message = "" if new.is_taken_back else detail.message
        if kind == "done":  # The message says so itself: "done", or with an exit status.
            text = f"{what} is {message or 'done'}"
        else:
            text = f"{what} failed: {message}" if message else f"{what} failed"
        yield DeploymentEvent(ended, kind, text, (service.name,), detail.host)


def _starts(old: LiveService | None, new: LiveService) -> Iterator[DeploymentEvent]:
    """How starts have failed."""
    known = {each.zxid for each in old.ended} if old else set()
    for each in new.ended:
        if each.zxid not in known:
            text = f"{each.command or new.name} on {each.host} {each.how()}"
            yield DeploymentEvent(each.at, "failed", text, (new.name,), each.host)


def _elections(service: LiveService, old: Elected | None, new: Elected | None) -> Iterator[DeploymentEvent]:
    if new and (old is None or (old.epoch, old.state, old.winner) != (new.epoch, new.state, new.winner)):
        text = f"{service.name}: {new.winner} bootstraps the cluster, epoch {new.epoch}: {new.state}"
        yield DeploymentEvent(new.at, "elected", text, (service.name,), new.winner)
