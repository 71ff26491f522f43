"""How far the containers of a service have followed what is published. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.live.cause import listed
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.live.service_causes import why_keep
from kolla_mesos_start.ctl.text import lasting
from kolla_mesos_start.ctl.zk.containers import Container

# What keeps a container from being current.
REFRESHING, FAILED, RESTART = KINDS = ("refreshing", "failed", "restart")
WORDS = {REFRESHING: "refreshing", FAILED: "refresh failed", RESTART: "restart needed"}


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
                parts.append(f"{words}: {listed(sorted(each.host for each in found))} for {age}")
        return f"{self.current} of {self.total} current ({'; '.join(parts)})"

    def data(self) -> dict[str, Any]:
        """The state for a program."""
        return {
            "current": self.current,
            "total": self.total,
            "others": [each._asdict() for each in self.others],
        }


def state(service: LiveService) -> RolloutState:
    """The state of a service's rollout."""
    containers = service.live
    others = [_not_current(each) for each in containers if not each.is_current]
    current = sum(each.is_current for each in containers)
    is_kept = any(why_keep(service, each, time.time()) for each in containers)
    restart = "older" if is_kept else WORDS[RESTART]
    return RolloutState(current, len(containers), others, restart)


def _not_current(container: Container) -> NotCurrent:
    kind, since = RESTART, min((each.since for each in container.older), default=container.written)
    if container.keeps_old_files:
        kind, since = FAILED, container.written
    elif container.is_refreshing:
        kind = REFRESHING
    return NotCurrent(kind, container.host, container.id, since)
