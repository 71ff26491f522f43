"""Waiting for services: the progress of each, and whether waiting can still succeed.

What belongs here: what is decided from one look at the deployment to the next, and the lines that report it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console

from kolla_mesos_start.ctl.live import causes, rollouts
from kolla_mesos_start.ctl.live.cause import OF_ALL, Cause
from kolla_mesos_start.ctl.live.mirror import named
from kolla_mesos_start.ctl.live.model import EndedStart, LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.service_causes import ends
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.definition.strings import DAEMON
from kolla_mesos_start.errors import DependenciesNotSatisfied

# Seconds that a cause must last: meanwhile a publisher may write the next definition, or a launcher start a
# container again.
SETTLE = 3.0


class Goal(NamedTuple):
    """A service, and how many of its instances must be ready; None: as many as are wanted."""

    name: str
    count: int | None  # type: ignore[assignment]  # tuple.count is not used.

    def is_met(self, service: LiveService) -> bool:
        """Whether enough is ready, and runs what is published."""
        if service.is_task:
            return service.is_up
        ready = [each for each in service.containers if each.ready]
        current = [each for each in ready if each.is_current and not each.is_settling]
        if self.count is not None:
            return len(current) >= self.count
        return service.is_up and current == ready

    def progress(self, service: LiveService, now: float) -> str:
        """The progress of the service, in words."""
        what = "done" if service.is_task else "ready"
        ready = f"{service.role}: {service.ready} of {self.count or service.wanted} {what}"
        rollout = rollouts.state(service)
        return ready if rollout.is_over else f"{ready}, {rollout.words(now)}"


class WaitOutcome(NamedTuple):
    """How waiting has ended: a name for programs, words for people, and the exit status."""

    name: str
    words: str
    status: int


UP = WaitOutcome("up", "up", 0)
FAILED = WaitOutcome("failed", "not up", 1)
RESTART = WaitOutcome("restart", "up, but something needs a restart,", 1)
TIMEOUT = WaitOutcome("timeout", "not up", DependenciesNotSatisfied.status)


class Watch:
    """What has been seen so far. `found` are the present causes, `final` those that stay until somebody
    acts."""

    def __init__(self, goals: Sequence[Goal], out: Console, began: float) -> None:
        self.found: Sequence[Cause] = ()
        self.final: Sequence[Cause] = ()
        self._goals, self._out, self._began = goals, out, began
        self._since = math.inf
        self._said: dict[str, str] = {}
        self._ends: set[EndedStart] = set()

    @property
    def is_hopeless(self) -> bool:
        return time.monotonic() - self._since >= SETTLE

    @property
    def reasons(self) -> Sequence[Cause]:
        """The causes to report for the services that are not up."""
        return self.final or self.found

    def outcome(self, left: Sequence[LiveService]) -> WaitOutcome:
        """The outcome if waiting ends now."""
        if not left:
            return UP
        if not self.is_hopeless:
            return TIMEOUT
        return RESTART if all(cause.kind == "restart" for cause in self.final) else FAILED

    def look(self, deployment: LiveDeployment) -> list[LiveService]:
        """The services that are not up, or run something older. Prints what has changed."""
        pairs = list(_pairs(self._goals, deployment))
        for goal, service in pairs:
            self._say_progress(goal, service)
        everything = causes.find(deployment, time.time())
        of_all = [cause for cause in everything if cause.kind in OF_ALL]
        # During a publication no container is known to be current.
        left = [service for goal, service in pairs if of_all or not goal.is_met(service)]
        for service in left:
            self._say_ends(service)
        mine = [[*of_all, *causes.concerning(everything, service)] for service in left]
        self.found = [cause for cause in everything if any(cause in each for each in mine)]
        self.final = [cause for cause in self.found if cause.is_final]
        # Ask for restarts only if nothing else is missing.
        if all(each and all(cause.kind == "restart" for cause in each) for each in mine):
            self.final = self.found
        self._since = min(self._since, time.monotonic()) if self.final else math.inf
        return left

    def _say_ends(self, service: LiveService) -> None:
        """Print how its starts fail: each kind once, because a launcher repeats them every second."""
        for ended in ends(service):
            kind = ended._replace(reason="", at=0.0, zxid=0, times=1)
            if kind not in self._ends:
                self._ends.add(kind)
                # The reason is printed when waiting ends.
                how = "before it was ready" if ended.stage == DAEMON else f"in stage {ended.stage}"
                self._print(f"{ended.command or service.role} on {ended.host} ended {how}")

    def _say_progress(self, goal: Goal, service: LiveService) -> None:
        """Print the progress of a service if it has changed: a duration alone is no change."""
        without_duration = goal.progress(service, 0.0)
        if self._said.get(service.name) != without_duration:
            self._said[service.name] = without_duration
            self._print(goal.progress(service, time.time()))

    def _print(self, text: str) -> None:
        self._out.print(f"{time.monotonic() - self._began:7.1f} s  {text}")


def _pairs(goals: Sequence[Goal], deployment: LiveDeployment) -> Iterator[tuple[Goal, LiveService]]:
    if not deployment.services:
        raise NotThere(f"{deployment.id} has no services: publish them first")
    for goal in goals or [Goal(name, None) for name in deployment.services]:
        yield goal, named(deployment, goal.name)
