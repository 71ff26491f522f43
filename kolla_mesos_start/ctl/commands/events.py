"""`kolla_mesos_ctl events`: what happened in a deployment, and what happens."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable
from datetime import datetime

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.ctl.live import events
from kolla_mesos_start.ctl.live.events import DeploymentEvent, EventReader, Look
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.text import UNITS
from kolla_mesos_start.ctl.zk import services
from kolla_mesos_start.report import utc

QUIET = 0.02  # seconds: a container writes why it is no longer ready just after that
COLUMN = 15  # characters of the kind
SHORT_UNITS = {"m": 60, **dict(UNITS)}  # seconds


def run(invocation: Invocation) -> int:
    """Print the events, the oldest first; with --follow until Ctrl-C."""
    options = invocation.options
    znodes = invocation.require_deployment()
    reader = EventReader(znodes, invocation.given)
    mirror = Mirror(invocation.client, reader, watching=options.follow)
    look = mirror.read(lambda view: reader.look(view, time.time()))
    service = _service(look, options.service) if options.service else ""
    found = events.recorded(look.entries)
    _print(invocation, [each for each in found if each.at >= (options.since or 0.0)], service)
    while options.follow:
        mirror.wait(quiet=QUIET)
        before, look = look, mirror.read(lambda view: reader.look(view, time.time()))
        _print(invocation, events.between(before, look), service)
    return 0


def _service(look: Look, name: str) -> str:
    """The service of that name or role, which may have been removed."""
    recorded = {service for entry in look.entries for service in entry.services}
    return services.chosen(name, {*look.deployment.services, *recorded}, look.deployment.id)


def _print(invocation: Invocation, found: Iterable[DeploymentEvent], service: str) -> None:
    for event in found:
        if service and event.services and service not in event.services:
            continue
        if invocation.as_json:
            line = json.dumps(event.data())
        else:
            line = f"{utc(event.at)}  {event.kind:{COLUMN}} {event.text}"
        invocation.out.out(line)
    invocation.out.file.flush()


def since(text: str) -> float:
    """An instant in seconds since the epoch: a duration before now, or a time in ISO 8601."""
    duration = re.fullmatch(r"(\d{1,9})\s*(s|m|min|h|d)", text)
    if duration:
        return time.time() - int(duration[1]) * SHORT_UNITS[duration[2]]
    # Python 3.9 and 3.10 read no Z; a time without a zone is local.
    try:
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f"expected 30s, 10m, 2h, 1d or 2026-01-31T10:00:00Z, found {text!r}"
        ) from error


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "service", metavar="SERVICE", nargs="?", help="only what concerns this service, by its name or role"
    )
    parser.add_argument("--follow", action="store_true", help="print also what happens from now on")
    parser.add_argument(
        "--since",
        metavar="T",
        type=since,
        help="only events after that: 30s, 10m, 2h, 1d, or a time such as 2026-01-31T10:00:00Z",
    )
    add_format(parser)


SUBCOMMAND = Subcommand(
    description="""\
Print what operators did, one line for each action, the oldest first: publications, changes of variables and
records, by whom. The last 200 are recorded in the deployment, with names, never values.

With --follow, print also every change as it happens: starts of containers; readiness gained and lost, and
why; attempts of commands and their results; refreshes; elections. `--since 0s` leaves out what happened
before. With --format json each line is a JSON object.
""",
    example="kolla_mesos_ctl events keystone-api --since 1h --follow",
    add_arguments=_add_arguments,
    run=run,
)
