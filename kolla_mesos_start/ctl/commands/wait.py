"""`kolla_mesos_ctl wait`: block until services are up and run the published state, or can't become so."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format, show
from kolla_mesos_start.ctl.live import explanation
from kolla_mesos_start.ctl.live.cause import Cause
from kolla_mesos_start.ctl.live.mirror import mirror
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.live.service_causes import why_keep
from kolla_mesos_start.ctl.live.waiting import Goal, WaitOutcome, Watch
from kolla_mesos_start.ctl.text import seconds
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.errors import BadUsage

SHOWN = 3  # names in the progress line
TICK = 1.0  # seconds between two looks at the clock


def run(invocation: Invocation) -> int:
    """Wait; 0 once all are up, 1 if that can't happen without help, 75 after the timeout."""
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
            line.update(f"waiting for {_brief(left)} for {time.monotonic() - began:.0f} s")
            source.wait(max(0.0, min(TICK, deadline - time.monotonic())))
    outcome = watch.outcome(left)
    if invocation.as_json:
        invocation.print_json(_data(outcome, left, watch.reasons, time.monotonic() - began))
    elif left:
        text = f"{outcome.words} after {time.monotonic() - began:.0f} s: "
        invocation.err.print(text + _brief(left), style="bold")
        show(invocation.err, explanation.lines(deployment, watch.reasons, ()))
    return outcome.status


def _data(
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


def _brief(left: Sequence[LiveService]) -> str:
    """Names that fit one line."""
    names = [service.role for service in left]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _goal(word: str) -> Goal:
    name, equals, count = word.partition("=")
    if not name or (equals and not (count.isascii() and count.isdigit())):
        raise BadUsage(f"{word!r}: expected SERVICE or SERVICE=N; see kolla_mesos_ctl wait --help")
    return Goal(name, int(count) if equals else None)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "services",
        metavar="SERVICE[=N]",
        nargs="*",
        help="only these services; with N, that many ready and current instances of a daemon are enough",
    )
    parser.add_argument("--timeout", metavar="S", type=seconds, help="seconds; default: no limit")
    parser.add_argument(
        "--quiet", action="store_true", help="print no progress, only the reason for an early end"
    )
    add_format(parser)


SUBCOMMAND = Subcommand(
    description="""\
Block until all services (or the named ones) are up, and their containers run the published state: after
`publish` the command waits for all refreshes (on_change), and until each refreshed instance is ready again.

The command ends early, with the reason, on a problem that does not resolve without help: a failed command or
refresh, a container that ended before its command began, a daemon that ended before it was ready and was not
restarted for 10 s, a cycle, a dependency that no published service provides. It also ends if only restarts
are missing, and names the containers and the changes that they lack.

The exit status is 0 once all are up, 1 after an early end, 75 after the timeout. `--format json` prints only
the outcome (up, failed, restart or timeout), at the end.
""",
    example="kolla_mesos_ctl wait keystone-api=2 mariadb --timeout 600 --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
