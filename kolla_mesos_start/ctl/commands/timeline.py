"""`kolla_mesos_ctl timeline`: the course of a start, from its records in ZooKeeper."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.timeline import html_page
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.timeline.report import as_json, lines
from kolla_mesos_start.errors import CannotWrite


def run(invocation: Invocation) -> int:
    """Print text or JSON, or write a page."""
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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", type=Path, help="write a page for a browser")
    add_format(form)


SUBCOMMAND = Subcommand(
    description="""\
Show how the start of a deployment went: what each container did when, the critical path, retries and
failures. Times are ZooKeeper's. A container that started again later (or whose session expired) shows its
last run, marked "started again"; the times are then not of one start, and no critical path is shown.

--format json prints an object: "deployment", "began" (seconds since the epoch, as all times), and "steps",
a list in the order in which they began. Each step has "command" (role/command, or role/.party if another
step needed a container to be present), "host", "state" ("done", or what it is doing), "started" (null if only
the end is known), "finished" (now, if the step is not done), "attempts", "message" (of the last failure, or
null), "again" (why these are not the times of the first start, or null), and "critical" (whether it is on the
critical path).
""",
    example="kolla_mesos_ctl timeline --html start.html --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
