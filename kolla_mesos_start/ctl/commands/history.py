"""`kolla_mesos_ctl events` and `timeline`: what happened in a deployment."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live.events import DeploymentEvent, EventReader, Look, between, recorded
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, either, subcommand
from kolla_mesos_start.ctl.text import UNITS
from kolla_mesos_start.ctl.timeline import html_page
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.timeline.report import as_json, lines
from kolla_mesos_start.ctl.zk import services
from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.report import utc

QUIET = 0.02  # seconds: a container writes why it is no longer ready just after that
COLUMN = 15  # characters of the kind
SHORT_UNITS = {"m": 60, **dict(UNITS)}  # seconds


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


@subcommand(
    "kolla_mesos_ctl events keystone-api --since 1h --follow",
    argument(
        "service", metavar="SERVICE", nargs="?", help="only what concerns this service, by its name or role"
    ),
    argument("--follow", action="store_true", help="print also what happens from now on"),
    argument(
        "--since",
        metavar="T",
        type=since,
        help="only events after that: 30s, 10m, 2h, 1d, or a time such as 2026-01-31T10:00:00Z",
    ),
    FORMAT,
)
def events(invocation: Invocation) -> int:
    """Print what operators did, one line for each action, the oldest first: publications, changes of
    variables and records, by whom. The last 200 are recorded in the deployment, with names, never values.

    With --follow, print also every change as it happens: starts of containers; readiness gained and lost, and
    why; attempts of commands and their results; refreshes; elections. `--since 0s` leaves out what happened
    before. With --format json each line is a JSON object.
    """
    options = invocation.options
    znodes = invocation.require_deployment()
    reader = EventReader(znodes, invocation.given)
    mirror = Mirror(invocation.client, reader, watching=options.follow)
    look = mirror.read(lambda view: reader.look(view, time.time()))
    service = _chosen(look, options.service) if options.service else ""
    found = recorded(look.entries)
    _print_events(invocation, [each for each in found if each.at >= (options.since or 0.0)], service)
    while options.follow:
        mirror.wait(quiet=QUIET)
        before, look = look, mirror.read(lambda view: reader.look(view, time.time()))
        _print_events(invocation, between(before, look), service)
    return 0


def _chosen(look: Look, name: str) -> str:
    """The service of that name or role, which may have been removed."""
    recorded = {service for entry in look.entries for service in entry.services}
    return services.chosen(name, {*look.deployment.services, *recorded}, look.deployment.id)


def _print_events(invocation: Invocation, found: Iterable[DeploymentEvent], service: str) -> None:
    for event in found:
        if service and event.services and service not in event.services:
            continue
        if invocation.as_json:
            line = json.dumps(event.data())
        else:
            line = f"{utc(event.at)}  {event.kind:{COLUMN}} {event.text}"
        invocation.out.out(line)
    invocation.out.file.flush()


@subcommand(
    "kolla_mesos_ctl timeline --html start.html --deployment site",
    either(argument("--html", metavar="FILE", type=Path, help="write a page for a browser"), FORMAT),
)
def timeline(invocation: Invocation) -> int:
    """Show how the start of a deployment went: what each container did when, the critical path, retries and
    failures. Times are ZooKeeper's. A container that started again later (or whose session expired) shows its
    last run, marked "started again"; the times are then not of one start, and no critical path is shown.

    --format json prints an object: "deployment", "began" (seconds since the epoch, as all times), and
    "steps", a list in the order in which they began. Each step has "command" (role/command, or role/.party if
    another step needed a container to be present), "host", "state" ("done", or what it is doing), "started"
    (null if only the end is known), "finished" (now, if the step is not done), "attempts", "message" (of the
    last failure, or null), "again" (why these are not the times of the first start, or null), and "critical"
    (whether it is on the critical path).
    """
    znodes = invocation.require_deployment()
    reader = HistoryReader(znodes, invocation.given)
    source = Mirror(invocation.client, reader)
    report = source.read(lambda view: reader.report(view, time.time()))
    page = invocation.options.html
    if invocation.as_json:
        invocation.print_json(as_json(report))
    elif page is not None:
        try:
            page.write_text(html_page.page(report), encoding="utf-8")
        except OSError as error:
            raise CannotWrite(f"{page} can't be written: {error.strerror}") from error
        invocation.out.print(f"wrote {page}")
    else:
        invocation.out.print("\n".join(lines(report, invocation.out.width)))
    return 0
