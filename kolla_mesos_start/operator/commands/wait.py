"""`kolla_mesos_ctl wait`: blocks until services are up and run what is published, or it is clear that they
will not."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.ensemble import connection
from kolla_mesos_start.operator.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.operator.live import explanation
from kolla_mesos_start.operator.live.cause import Cause
from kolla_mesos_start.operator.live.mirror import mirror
from kolla_mesos_start.operator.live.model import LiveService
from kolla_mesos_start.operator.live.waiting import Goal, WaitOutcome, Watch
from kolla_mesos_start.operator.terminal.durations import seconds
from kolla_mesos_start.operator.terminal.lines import show

SHOWN = 3  # names in the line that says what is waited for
TICK = 1.0  # seconds between two looks at the clock


def run(invocation: Invocation) -> int:
    """Wait; 0 once all are up, 1 if that can't come, 75 when the time is over."""
    options, began = invocation.options, time.monotonic()
    asked = [_goal(word) for word in options.services]
    is_quiet = options.quiet or invocation.as_json
    out = Console(quiet=True) if is_quiet else invocation.out
    source = mirror(invocation, watching=True)
    # What was published through another server must be seen by the one that is asked here.
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
            if each.needs_restart
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
        help="only these; of a daemon N ready instances that run what is published are enough",
    )
    parser.add_argument("--timeout", metavar="S", type=seconds, help="seconds; default: no limit")
    parser.add_argument("--quiet", action="store_true", help="no progress, only why it has ended early")
    add_format(parser)


SUBCOMMAND = Subcommand(
    description="""\
Block until all services are up, or those that are named, and their containers run what is published: after
`publish` it waits for all refreshes (on_change), and until each refreshed instance is ready again.

It ends early, and says why, on a problem that does not resolve without help: a failed command or refresh, a
container that ended before its command began, a daemon that ended before it was ready and that nobody has
started again for 10 s, a cycle, a dependency that no published service provides. If all that is missing are
restarts, it ends too, and names the containers and what they run that is older.

The exit status is 0 once all are up, 1 if it ended early, 75 if the time is over. `--format json` prints the
outcome (up, failed, restart or timeout), and nothing else, when it ends.
""",
    example="kolla_mesos_ctl wait keystone-api=2 mariadb --timeout 600 --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
