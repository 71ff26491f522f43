"""Which containers run something older than what is published, and whether they may be replaced.

It sends no requests; `state` and `summary` read the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.ctl.live.model import CLOCK_STEP, LiveService
from kolla_mesos_start.ctl.text import few, lasting
from kolla_mesos_start.ctl.zk.containers import Container
from kolla_mesos_start.tree.states import ERROR, RETRY

SLOW = 10.0  # seconds; an agent logs a daemon that takes longer to become ready
# What keeps a container from being current.
REFRESHING, FAILED, RESTART = KINDS = ("refreshing", "failed", "restart")
WORDS = {REFRESHING: "refreshing", FAILED: "refresh failed", RESTART: "restart needed"}


# -- what must stay -----------------------------------------------------------------------------------------


def is_slow(container: Container, now: float) -> bool:
    """Whether its daemon should be ready by now."""
    is_late = container.stage == "starting" and container.reason and now - container.since >= SLOW
    return container.stage == "unready" or bool(is_late)


def unproven(service: LiveService, now: float) -> tuple[list[str], list[str]]:
    """The hosts on which what is published fails, and those on which it is not ready yet.

    Containers that run something older may be the last ones that work: until it is ready, they must stay.
    """
    since = min((part.since for each in service.live for part in each.older), default=now) - CLOCK_STEP
    fails = {each.host for each in service.failed_starts if each.at >= since}
    fails |= {each.host for each in service.gone if each.since >= since}
    tries = [attempt for step in service.steps if not step.done for attempt in step.attempts]
    fails |= {each.detail.host for each in tries if each.state in (ERROR, RETRY) and each.since >= since}
    new = [each for each in service.live if each.definition_zxid and each.is_current and not each.ready]
    fails |= {each.host for each in new if is_slow(each, now)}
    return sorted(fails - {""}), sorted({each.host for each in new} - fails)


def why_keep(service: LiveService, container: Container, now: float) -> str:
    """Why a container that runs something older should stay, as advice; empty if it may be replaced."""
    fails, starts = unproven(service, now) if container.ready and container.needs_restart else ([], [])
    if fails:
        return (
            f"keep it while the new version fails on {few(fails)}: correct that and publish, or publish"
            " the old version again"
        )
    return f"keep it until the new version is ready on {few(starts)}" if starts else ""


# -- how far a rollout has come -----------------------------------------------------------------------------


class NotCurrent(NamedTuple):
    """A container that is not current; `since` in seconds since the epoch."""

    kind: str
    host: str
    id: str
    since: float


class RolloutState(NamedTuple):
    """How many of a service's containers run what is published, and why the others do not."""

    current: int
    total: int
    others: Sequence[NotCurrent]
    restart: str = WORDS[RESTART]

    @property
    def is_over(self) -> bool:
        return not self.others

    def words(self, now: float) -> str:
        """The state in a few words: the longest time of each kind."""
        parts = []
        for kind in KINDS:
            found = [each for each in self.others if each.kind == kind]
            if found:
                age = lasting(now - min(each.since for each in found))
                words = self.restart if kind == RESTART else WORDS[kind]
                parts.append(f"{words}: {few(sorted(each.host for each in found))} for {age}")
        return f"{self.current} of {self.total} current ({'; '.join(parts)})"

    def data(self) -> dict[str, Any]:
        """The state for a program."""
        others = [each._asdict() for each in self.others]
        return {"current": self.current, "total": self.total, "others": others}


def state(service: LiveService) -> RolloutState:
    """The state of a service's rollout."""
    others = [_not_current(each) for each in service.live if not each.is_current]
    is_kept = any(why_keep(service, each, time.time()) for each in service.live)
    restart = "older" if is_kept else WORDS[RESTART]
    return RolloutState(len(service.live) - len(others), len(service.live), others, restart)


def _not_current(container: Container) -> NotCurrent:
    kind, since = RESTART, min((each.since for each in container.older), default=container.written)
    if container.keeps_old_files:
        kind, since = FAILED, container.written
    elif container.is_refreshing:
        kind = REFRESHING
    return NotCurrent(kind, container.host, container.id, since)


def summary(services: Sequence[LiveService]) -> Iterator[str]:
    """How many containers run something older than what is published, by what replaces it."""
    containers = [each for service in services for each in service.containers]
    now = time.time()
    older = sum(bool(why_keep(service, each, now)) for service in services for each in service.containers)
    restart = sum(each.needs_restart for each in containers) - older
    refreshing = sum(each.is_refreshing for each in containers)
    old_files = sum(each.keeps_old_files for each in containers)
    if restart:
        yield f"{counted(restart, 'container')} {'needs' if restart == 1 else 'need'} a restart"
    if older:
        yield f"{counted(older, 'older container')} kept until the new version is ready"
    if refreshing:
        yield f"{counted(refreshing, 'container')} refreshing"
    if old_files:  # The service is up, so the operator needs this hint to run `explain`.
        yield f"{counted(old_files, 'container')} with older files, see explain"
