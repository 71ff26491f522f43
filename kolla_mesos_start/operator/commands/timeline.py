"""`kolla_mesos_ctl timeline`: how a start went, from what it has left in ZooKeeper."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.operator.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.operator.live.mirror import Mirror
from kolla_mesos_start.operator.timeline import html_page
from kolla_mesos_start.operator.timeline.reader import HistoryReader
from kolla_mesos_start.operator.timeline.report import as_json, lines


def run(invocation: Invocation) -> int:
    """Draw it as text, or write the page."""
    znodes = invocation.require_deployment()
    reader = HistoryReader(znodes, invocation.given)
    report = reader.report(Mirror(invocation.client, reader).view(), time.time())
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
        invocation.out.print("\n".join(lines(report, invocation.out.width)), markup=False)
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", type=Path, help="write a page to look at in a browser")
    add_format(form)


SUBCOMMAND = Subcommand(
    description="""\
Show how the start of a deployment went: what each container did when, the critical path, retries and
failures. Times are ZooKeeper's. What came back since shows its last run, and says so ("started again",
also if its session had expired); then this is not one start, and nothing is said of what decided it.

--format json prints an object: "deployment", "began" (seconds since the epoch, as all times), and "steps",
a list in the order in which they began. Each step has "command" (role/command, or role/.party where another
step needed a container to be present), "host", "state" ("done",
or what it is doing), "started" (null where only the end is known), "finished" (of a step that is not done:
now), "attempts", "message" (of the last failure, or null), "again" (why these are not the times of the first
start, or null), and "critical" (whether it is on the critical path).
""",
    example="kolla_mesos_ctl timeline --html start.html --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
