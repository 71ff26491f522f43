"""`kolla_mesos_ctl explain`: why a deployment is not up, root causes first.

What lives here: words. What is a cause is decided in `causes`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from kolla_mesos_start.operator.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.operator.live import causes
from kolla_mesos_start.operator.live.causes import Cause
from kolla_mesos_start.operator.live.mirror import mirror, named
from kolla_mesos_start.operator.live.reader import Deployment, Service
from kolla_mesos_start.operator.terminal.lines import Line, show

COLUMN = 12  # characters of what comes before the text


def run(invocation: Invocation) -> int:
    """Say why; 0 if nothing is stuck."""
    deployment, found = look(lambda: mirror(invocation).deployment())
    services: Sequence[Service] = list(deployment.services.values())
    if invocation.options.service:
        services = [named(deployment, invocation.options.service)]
        found = causes.concerning(found, services[0])
    if invocation.as_json:
        invocation.print_json(_data(found, services))
    else:
        show(invocation.out, lines(deployment, found, services))
    return 1 if any(cause.is_stuck for cause in found) else 0


def look(read: Callable[[], Deployment]) -> tuple[Deployment, list[Cause]]:
    """What is read, and why it is not up; read twice where a first look may deceive."""
    deployment = read()
    found = causes.find(deployment, time.time())
    if any(cause.kind in causes.MAY_SEEM for cause in found):
        deployment = read()
        found = causes.confirmed(found, causes.find(deployment, time.time()))
    return deployment, found


def lines(deployment: Deployment, found: Sequence[Cause], services: Sequence[Service]) -> Iterator[Line]:
    """Each cause with what it blocks, and then what is up."""
    for cause in found:
        head, style = ("ROOT CAUSE", "bold red") if cause.is_stuck else (cause.kind, "cyan")
        yield _line(head, style, cause.text)
        for number, chain in enumerate(cause.blocks):
            steps = " <- ".join(_label(path, deployment) for path in chain)
            yield _line("" if number else "  blocks", "yellow", steps)
    touched = frozenset().union(*(cause.touches for cause in found))
    for service in services:
        if not service.is_up and not causes.nodes(service) & touched:
            yield _line("starting", "cyan", f"{service.name}: nothing that it waits for is stuck")
    up = [f"{service.role} {service.ready} of {service.wanted}" for service in services if service.is_up]
    if up:  # In one line: a hundred would move the causes off the screen.
        yield _line("up", "green", ", ".join(up))


def _line(head: str, style: str, text: str) -> Line:
    return Line(f"{head:{COLUMN}}", style, text)


def _label(path: str, deployment: Deployment) -> str:
    """A step; of a daemon of which several are wanted, how many are ready."""
    service = deployment.roles[path.partition("/")[0]]
    if path == f"{service.role}/daemon" and service.wanted > 1:
        return f"{path} ({service.ready} of {service.wanted} ready)"
    return path


def _data(found: Sequence[Cause], services: Sequence[Service]) -> dict[str, Any]:
    return {
        "stuck": any(cause.is_stuck for cause in found),
        "causes": [cause_data(cause) for cause in found],
        "up": [service.name for service in services if service.is_up],
    }


def cause_data(cause: Cause) -> dict[str, Any]:
    """A cause for a program."""
    return {
        "kind": cause.kind,
        "stuck": cause.is_stuck,
        "final": cause.is_final,
        "text": cause.text,
        "blocks": [list(chain) for chain in cause.blocks],
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "service", metavar="SERVICE", nargs="?", help="only what keeps this one from being up"
    )
    add_format(parser)


SUBCOMMAND = Subcommand(
    description="""\
Say why a deployment is not up: the root causes first, and below each what it blocks, one chain a line
(`a <- b`: b waits for a). What merely runs or starts is shown as such.

The exit status is 0 if nothing is stuck, else 1.
""",
    example="kolla_mesos_ctl explain keystone-api --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
