"""What happened in a deployment: what operators did, and what has changed between two looks.

Pure. What came and went between two looks is not seen. An
action has its own time, a change the time of the look that has shown it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.live.model import Attempt, LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.text import few
from kolla_mesos_start.ctl.zk import event_record
from kolla_mesos_start.ctl.zk.containers import DRAINING, Container
from kolla_mesos_start.ctl.zk.event_record import Entry
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.election.records import Decision
from kolla_mesos_start.log import printable
from kolla_mesos_start.report import (
    REFRESH_FAILED,
    REFRESH_PENDING,
    REFRESH_RUNNING,
    REFRESH_SETTLING,
)
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY, RUNNING

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


class Look(NamedTuple):
    """The deployment at one moment; `now` in seconds since the epoch."""

    now: float
    deployment: LiveDeployment
    entries: tuple[Entry, ...] = ()


class EventReader(DeploymentReader):
    """Reads also what operators have done."""

    def look(self, view: View, now: float) -> Look:
        """The deployment at this moment."""
        record = view.znode(self.znodes.events)
        entries = event_record.decode(record.data) if record else ()
        return Look(now, self.deployment(view), tuple(entries))


def recorded(entries: Sequence[Entry]) -> list[DeploymentEvent]:
    """What operators did, the oldest first."""
    return [_action(each) for each in sorted(entries, key=lambda each: each.at)]


def between(before: Look, after: Look) -> list[DeploymentEvent]:
    """What happened between two looks, causes before their effects."""
    found = recorded([each for each in after.entries if each not in before.entries])
    old = before.deployment.services
    pairs = [(old.get(name), each) for name, each in after.deployment.services.items()]
    changed = [(one, each) for one, each in pairs if one != each]
    for changes in (_commands, _starts, _elections, _containers):
        for one, each in changed:
            found += [event._replace(at=after.now) for event in changes(one, each)]
    gone: list[tuple[LiveService, LiveService | None]] = [(one, each) for one, each in changed if one]
    gone += [(one, None) for name, one in old.items() if name not in after.deployment.services]
    return found + [event._replace(at=after.now) for one, each in gone for event in _gone(one, each)]


def _action(entry: Entry) -> DeploymentEvent:
    parts = [each for each in (few(entry.names), entry.detail) if each]
    more = f" ({entry.total} in all)" if entry.total > len(entry.names) else ""
    text = f"{entry.by}: {entry.action} {' '.join(parts)}{more}".rstrip()
    return DeploymentEvent(entry.at, entry.action, text, entry.services, entry=entry)


# -- containers -------------------------------------------------------------------------------------------


def _containers(old: LiveService | None, new: LiveService) -> Iterator[DeploymentEvent]:
    before = {each.id: each for each in old.containers} if old else {}
    for each in new.containers:
        own = before.get(each.id)
        if own is None:
            yield _event("started", f"{new.name} on {each.host}: a container has started", new, each.host)
        yield from _container(new, own, each)


def _gone(old: LiveService, new: LiveService | None) -> Iterator[DeploymentEvent]:
    present = {each.id for each in new.containers} if new else ()
    for each in old.containers:
        if each.id not in present:
            text = f"{old.name} on {each.host}: its container is gone; it was {each.stage}"
            yield _event("gone", text, old, each.host)


def _event(kind: str, text: str, service: LiveService, host: str) -> DeploymentEvent:
    return DeploymentEvent(0.0, kind, text, (service.name,), host)


def _container(service: LiveService, old: Container | None, new: Container) -> Iterator[DeploymentEvent]:
    subject = f"{service.name if service.is_task else service.daemon} on {new.host}"
    if new.stage in STAGES and (old is None or old.stage != new.stage):
        why = f": {new.reason}" if new.reason and new.stage in ("unready", DRAINING) else ""
        yield _event(new.stage, f"{subject} {STAGES[new.stage]}{why}", service, new.host)
    elif old is not None and new.stage == "unready" and new.reason and not old.reason:
        # It may have left the ready instances a moment before it says why.
        yield _event("unready", f"{subject} is not ready: {new.reason}", service, new.host)
    if new.code in REFRESHES and (old is None or old.code != new.code):
        yield _event(REFRESHES[new.code], f"{subject}: {new.reason}", service, new.host)
    elif old is not None and old.code in REFRESHING and new.code not in REFRESHING and new.is_current:
        yield _event("refreshed", f"{subject} was refreshed", service, new.host)


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
    what = f"{path} on {detail.host}: attempt {max(detail.attempt, 1)}"
    is_new = old is None or old.detail.claim != detail.claim
    if is_new:
        yield _event(RUNNING, f"{what} has begun", service, detail.host)
    if detail.state in OUTCOMES and (is_new or (old and old.detail.state != detail.state)):
        kind, message = OUTCOMES[detail.state], "" if new.is_taken_back else detail.message
        # Of a success the message says so itself: "done", or with an exit status.
        text = f"is {message or 'done'}" if kind == DONE else f"failed{message and ': '}{message}"
        yield _event(kind, f"{what} {text}", service, detail.host)


def _starts(old: LiveService | None, new: LiveService) -> Iterator[DeploymentEvent]:
    """How starts have failed."""
    known = {each.zxid for each in old.ended} if old else set()
    for each in new.ended:
        if each.zxid not in known:
            text = f"{each.command or new.name} on {each.host} {each.how()}"
            yield _event("failed", text, new, each.host)


def _elections(old: LiveService | None, new: LiveService) -> Iterator[DeploymentEvent]:
    before, after = (each and each.election and each.election.snapshot.decision for each in (old, new))
    if after and (not before or _outcome(before) != _outcome(after)):
        winner = printable(after.winner)
        text = f"{new.name}: {winner} bootstraps the cluster, epoch {after.epoch}: {after.state}"
        yield _event("elected", text, new, winner)


def _outcome(decision: Decision) -> tuple[int, str, str]:
    return decision.epoch, decision.winner, decision.state
