"""`kolla_mesos_ctl wait`: blocks until services are up, or until it is clear that they will not be."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console

from kolla_mesos_start.errors import BadUsage, DependenciesNotSatisfied
from kolla_mesos_start.operator import causes, explain
from kolla_mesos_start.operator.causes import Cause
from kolla_mesos_start.operator.invocation import Invocation, NotThere, Subcommand
from kolla_mesos_start.operator.lines import show
from kolla_mesos_start.operator.live import Deployment, Ended, Service
from kolla_mesos_start.operator.mirror import mirror, named

SHOWN = 3  # names in the line that says what is waited for
TICK = 1.0  # seconds between two looks at the clock
# Seconds for which a cause must be there: a publisher may be about to write the next definition, and a
# launcher about to start a container again.
SETTLE = 3.0


class Goal(NamedTuple):
    """A service, and how many of its instances are to be ready; None: as many as are wanted."""

    name: str
    count: int | None  # type: ignore[assignment]  # tuple.count is not used.

    def is_met(self, service: Service) -> bool:
        """Whether it is up so far."""
        return service.is_up if self.count is None or service.is_task else service.ready >= self.count

    def progress(self, service: Service) -> str:
        """How far it is."""
        what = "done" if service.is_task else "ready"
        return f"{service.role}: {service.ready} of {self.count or service.wanted} {what}"


def run(invocation: Invocation) -> int:
    """Wait; 0 once all are up, 1 if that can't come, 75 when the time is over."""
    options, out = invocation.options, invocation.out
    asked = [_goal(word) for word in options.services]
    source = mirror(invocation, watching=True)
    began = time.monotonic()
    deadline = math.inf if options.timeout is None else began + options.timeout
    watch = _Watch(asked, out, began)
    with out.status("") as line:
        while True:
            deployment = source.deployment()
            left = watch.look(deployment)
            if not left:
                return 0
            line.update(f"waiting for {_brief(left)} for {time.monotonic() - began:.0f} s")
            if watch.is_hopeless or time.monotonic() >= deadline:
                break
            source.wait(max(0.0, min(TICK, deadline - time.monotonic())))
    invocation.err.print(f"not up after {time.monotonic() - began:.0f} s: {', '.join(left)}", style="bold")
    show(invocation.err, explain.lines(deployment, watch.final or watch.found, ()))
    return 1 if watch.is_hopeless else DependenciesNotSatisfied.status


def _brief(names: Sequence[str]) -> str:
    """Names that fit one line."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class _Watch:
    """What has been seen so far. `found` are the causes of now, `final` those that nothing will mend."""

    def __init__(self, goals: Sequence[Goal], out: Console, began: float) -> None:
        self.found: Sequence[Cause] = ()
        self.final: Sequence[Cause] = ()
        self._goals, self._out, self._began = goals, out, began
        self._since = math.inf
        self._said: dict[str, str] = {}
        self._ends: set[Ended] = set()

    @property
    def is_hopeless(self) -> bool:
        return time.monotonic() - self._since >= SETTLE

    def look(self, deployment: Deployment) -> list[str]:
        """The roles that are not up; whatever has changed is printed."""
        pairs = list(_pairs(self._goals, deployment))
        for goal, service in pairs:
            self._say(service.name, goal.progress(service))
        left = [service for goal, service in pairs if not goal.is_met(service)]
        for service in left:
            self._say_ends(service)
        everything = causes.find(deployment, time.time())
        of_all = [cause for cause in everything if cause.kind in causes.OF_ALL]
        mine = [of_all, *(causes.concerning(everything, service) for service in left)]
        self.found = [cause for cause in everything if any(cause in each for each in mine)]
        self.final = [cause for cause in self.found if cause.is_final]
        self._since = min(self._since, time.monotonic()) if self.final else math.inf
        return [service.role for service in left] or ["the publication" for _ in of_all]

    def _say_ends(self, service: Service) -> None:
        """How its starts go wrong: once, though a launcher repeats them every second."""
        for ended in causes.ends(service):
            kind = ended._replace(reason="", at=0.0)
            if kind not in self._ends:
                self._ends.add(kind)
                what = ended.command or service.role
                self._print(f"{what} on {ended.host} ended: {ended.reason}")

    def _say(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            self._said[name] = text
            self._print(text)

    def _print(self, text: str) -> None:
        self._out.print(f"{time.monotonic() - self._began:7.1f} s  {text}")


def _pairs(goals: Sequence[Goal], deployment: Deployment) -> Iterator[tuple[Goal, Service]]:
    if not deployment.services:
        raise NotThere(f"{deployment.id} has no services: publish them first")
    for goal in goals or [Goal(name, None) for name in deployment.services]:
        yield goal, named(deployment, goal.name)


def _goal(word: str) -> Goal:
    name, equals, count = word.partition("=")
    if not name or (equals and not (count.isascii() and count.isdigit())):
        raise BadUsage(f"{word!r}: expected SERVICE or SERVICE=N; see kolla_mesos_ctl wait --help")
    return Goal(name, int(count) if equals else None)


def seconds(text: str) -> float:
    """A span of the command line. ValueError for what is none."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "services",
        metavar="SERVICE[=N]",
        nargs="*",
        help="only these; of a daemon N ready instances are enough",
    )
    parser.add_argument("--timeout", metavar="S", type=seconds, help="seconds; default: no limit")


SUBCOMMAND = Subcommand(
    name="wait",
    summary="block until services are up",
    description="""\
Block until all services are up, or those that are named. It ends early, and says why, on what nothing
will mend by itself: a failed command, a container that ended before its command began, a cycle, a
dependency that no published service provides.

The exit status is 0 once all are up, 1 if it ended early, 75 if the time is over.
""",
    example="kolla_mesos_ctl wait keystone-api=2 mariadb --timeout 600 --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
