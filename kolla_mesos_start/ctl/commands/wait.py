"""`kolla_mesos_ctl wait`: block until services are up and run the published state, or can't become so."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from kolla_mesos_start.ctl.invocation import Invocation, show
from kolla_mesos_start.ctl.live import causes, explanation, rollouts
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import OF_ALL, Cause, EndedStart, LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.rollouts import why_keep
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand
from kolla_mesos_start.ctl.text import NotThere, few, seconds
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import LEAST
from kolla_mesos_start.definition.strings import DAEMON
from kolla_mesos_start.errors import BadUsage, DependenciesNotSatisfied

TICK = 1.0  # seconds between two looks at the clock
# Seconds that a cause must last: meanwhile a publisher may write the next definition, or a launcher start a
# container again.
SETTLE = 3.0
UP, FAILED, RESTART, TIMEOUT = "up", "failed", "restart", "timeout"
# How waiting has ended: in words, and the exit status.
OUTCOMES = {
    UP: ("up", 0),
    FAILED: ("not up", 1),
    RESTART: ("up, but something needs a restart,", 1),
    TIMEOUT: ("not up", DependenciesNotSatisfied.status),
}


@subcommand(
    "kolla_mesos_ctl wait keystone-api=2 mariadb --timeout 600 --deployment site",
    argument(
        "services",
        metavar="SERVICE[=N]",
        nargs="*",
        help="only these services; with N, that many ready and current instances of a daemon are enough",
    ),
    argument("--timeout", metavar="S", type=seconds, help="seconds; default: no limit"),
    argument("--quiet", action="store_true", help="print no progress, only the reason for an early end"),
    FORMAT,
)
def wait(invocation: Invocation) -> int:
    """Block until all services (or the named ones) are up, and their containers run the published state:
    after `publish` the command waits for all refreshes (on_change), and until each refreshed instance is
    ready again.

    The command ends early, with the reason, on a problem that does not resolve without help: a failed command
    or refresh, a container that ended before its command began, a daemon that ended before it was ready and
    was not restarted for 10 s, a cycle, a dependency that no published service provides. It also ends if only
    restarts are missing, and names the containers and the changes that they lack.

    The exit status is 0 once all are up, 1 after an early end, 75 after the timeout. `--format json` prints
    only the outcome (up, failed, restart or timeout), at the end. It is 69 if ZooKeeper does not answer.
    """
    options, began = invocation.options, time.monotonic()
    asked = [_goal(word) for word in options.services]
    is_quiet = options.quiet or invocation.as_json
    out = Console(quiet=True) if is_quiet else invocation.out
    timeout = math.inf if options.timeout is None else options.timeout
    deadline, invocation.limit = began + timeout, max(timeout, LEAST)
    source = mirror(invocation, watching=True)
    # Our server must have received what was published through another one.
    connection.sync(invocation.client, invocation.znodes.deployment)
    watch = Watch(asked, out, began)
    with out.status("") as line:
        while True:
            deployment = source.deployment()
            left = watch.look(deployment)
            if not left or watch.is_hopeless or time.monotonic() >= deadline:
                break
            roles = few(service.role for service in left)
            line.update(f"waiting for {roles} for {time.monotonic() - began:.0f} s")
            source.wait(max(0.0, min(TICK, deadline - time.monotonic())))
            invocation.client.limit = max(deadline - time.monotonic(), LEAST)
    outcome, took, missing = watch.outcome(left), time.monotonic() - began, [each.role for each in left]
    words, status = OUTCOMES[outcome]
    if invocation.as_json:
        data = {"outcome": outcome, "seconds": round(took, 1), "missing": missing}
        invocation.print_json({**data, **_why(left, watch.reasons)})
    elif left:
        invocation.err.print(f"{words} after {took:.0f} s: {few(missing)}", style="bold")
        show(invocation.err, explanation.lines(deployment, watch.reasons, ()))
    return status


def _why(left: Sequence[LiveService], reasons: Sequence[Cause]) -> dict[str, Any]:
    return {
        "restart": [
            {
                "service": service.name,
                "host": each.host,
                "id": each.id,
                "older": [part.what for part in each.older],
            }
            for service in left
            for each in service.containers
            if each.needs_restart and not why_keep(service, each, time.time())
        ],
        "causes": [explanation.cause_data(cause) for cause in reasons],
    }


def _goal(word: str) -> Goal:
    name, equals, count = word.partition("=")
    if not name or (equals and not (count.isascii() and count.isdigit())):
        raise BadUsage(f"{word!r}: expected SERVICE or SERVICE=N; see kolla_mesos_ctl wait --help")
    return Goal(name, int(count) if equals else None)


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
        ready = f"{service.role}: {service.ready} of {self.count or service.wanted} {service.what}"
        rollout = rollouts.state(service)
        return ready if rollout.is_over else f"{ready}, {rollout.words(now)}"


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

    def outcome(self, left: Sequence[LiveService]) -> str:
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
        for ended in service.failed_starts:
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
