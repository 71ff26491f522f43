"""`kolla_mesos_ctl explain`, `wait` and `graph`: why a deployment is not up."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from kolla_mesos_start.ctl.invocation import Invocation, show
from kolla_mesos_start.ctl.live import causes, explanation
from kolla_mesos_start.ctl.live.explanation import cause_data, lines, look
from kolla_mesos_start.ctl.live.graph import dot, of, text, with_reasons
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import Cause, LiveService
from kolla_mesos_start.ctl.live.rollouts import why_keep
from kolla_mesos_start.ctl.live.waiting import Goal, WaitOutcome, Watch
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand
from kolla_mesos_start.ctl.text import few, seconds
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import directory


@subcommand(
    "kolla_mesos_ctl explain keystone-api --deployment site",
    argument("service", metavar="SERVICE", nargs="?", help="only the causes that concern this service"),
    FORMAT,
)
def explain(invocation: Invocation) -> int:
    """Explain why a deployment is not up: the root causes first, and below each of them what it blocks, one
    chain on each line (`a <- b`: b waits for a). `...` stands for what an earlier cause blocks, too. Commands
    and daemons that are running or starting are marked so.

    The exit status is 0 if nothing is stuck, else 1.
    """
    deployment, found = look(lambda: mirror(invocation).deployment())
    services: Sequence[LiveService] = list(deployment.services.values())
    if invocation.options.service:
        services = [named(deployment, invocation.options.service)]
        found = causes.concerning(found, services[0])
    if invocation.as_json:
        invocation.print_json(_data(found, services))
    else:
        show(invocation.out, lines(deployment, found, services))
    return 1 if any(cause.is_stuck for cause in found) else 0


def _data(found: Sequence[Cause], services: Sequence[LiveService]) -> dict[str, Any]:
    return {
        "stuck": any(cause.is_stuck for cause in found),
        "causes": [cause_data(cause) for cause in found],
        "up": [service.name for service in services if service.is_up],
    }


TICK = 1.0  # seconds between two looks at the clock


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
    only the outcome (up, failed, restart or timeout), at the end.
    """
    options, began = invocation.options, time.monotonic()
    asked = [_goal(word) for word in options.services]
    is_quiet = options.quiet or invocation.as_json
    out = Console(quiet=True) if is_quiet else invocation.out
    source = mirror(invocation, watching=True)
    # Our server must have received what was published through another one.
    connection.sync(invocation.client, invocation.znodes.deployment)
    deadline = math.inf if options.timeout is None else began + options.timeout
    watch = Watch(asked, out, began)
    with out.status("") as line:
        while True:
            deployment = source.deployment()
            left = watch.look(deployment)
            if not left or watch.is_hopeless or time.monotonic() >= deadline:
                break
            line.update(
                f"waiting for {few(service.role for service in left)} for {time.monotonic() - began:.0f} s"
            )
            source.wait(max(0.0, min(TICK, deadline - time.monotonic())))
    outcome = watch.outcome(left)
    if invocation.as_json:
        invocation.print_json(_outcome_data(outcome, left, watch.reasons, time.monotonic() - began))
    elif left:
        text = f"{outcome.words} after {time.monotonic() - began:.0f} s: "
        invocation.err.print(text + few(service.role for service in left), style="bold")
        show(invocation.err, explanation.lines(deployment, watch.reasons, ()))
    return outcome.status


def _outcome_data(
    outcome: WaitOutcome, left: Sequence[LiveService], reasons: Sequence[Cause], seconds: float
) -> dict[str, Any]:
    return {
        "outcome": outcome.name,
        "seconds": round(seconds, 1),
        "missing": [service.role for service in left],
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


@subcommand(
    "kolla_mesos_ctl graph --format dot --deployment site | dot -Tsvg >site.svg",
    argument("--format", choices=("text", "dot"), default="text", help="default: %(default)s"),
    argument(
        "--imported",
        metavar="DIR",
        type=Path,
        help="the directory of `kolla_mesos_ctl import`: adds the reason for each dependency",
    ),
)
def graph(invocation: Invocation) -> int:
    """Print every command and daemon of the deployment with its dependencies and its state.

    dot is the language of Graphviz, whose program draws it: `dot -Tsvg`.
    """
    imported, form = invocation.options.imported, invocation.options.format
    reasons = {} if imported is None else directory.reasons(imported)
    deployment = mirror(invocation).deployment()
    graph = with_reasons(of(deployment), reasons)
    if form == "text":
        show(invocation.out, text(graph))
    else:
        invocation.out.out(dot(graph, deployment.id))
    return 0
