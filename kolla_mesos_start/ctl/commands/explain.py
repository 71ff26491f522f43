"""`kolla_mesos_ctl explain`: why a deployment is not up, root causes first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format, show
from kolla_mesos_start.ctl.live import causes
from kolla_mesos_start.ctl.live.cause import Cause
from kolla_mesos_start.ctl.live.explanation import cause_data, lines, look
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import LiveService


def run(invocation: Invocation) -> int:
    """Print the causes; 0 if nothing is stuck."""
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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "service", metavar="SERVICE", nargs="?", help="only the causes that concern this service"
    )
    add_format(parser)


SUBCOMMAND = Subcommand(
    description="""\
Explain why a deployment is not up: the root causes first, and below each of them what it blocks, one chain on
each line (`a <- b`: b waits for a). `...` stands for what an earlier cause blocks, too. Commands and daemons
that are running or starting are marked so.

The exit status is 0 if nothing is stuck, else 1.
""",
    example="kolla_mesos_ctl explain keystone-api --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
