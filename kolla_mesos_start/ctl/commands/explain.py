"""`kolla_mesos_ctl explain` and `graph`: why a deployment is not up, and what waits for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.invocation import Invocation, show
from kolla_mesos_start.ctl.live import causes
from kolla_mesos_start.ctl.live import graph as graphs
from kolla_mesos_start.ctl.live.explanation import cause_data, lines, read_and_explain
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import Cause, LiveService
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand


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
    deployment, found = read_and_explain(lambda: mirror(invocation).deployment())
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
    imported: Path | None = invocation.options.imported
    reasons: Mapping[tuple[str, str], str] = {}
    if imported is not None:
        from kolla_mesos_start.kolla_ansible.directory import reasons as recorded  # `explain` needs none.

        reasons = recorded(imported)
    deployment = mirror(invocation).deployment()
    drawn = graphs.of(deployment, reasons)
    if invocation.options.format == "text":
        show(invocation.out, graphs.text(drawn))
    else:
        invocation.out.out(graphs.dot(drawn, deployment.id))
    return 0
