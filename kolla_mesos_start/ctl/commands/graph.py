"""`kolla_mesos_ctl graph`: the dependencies between commands and daemons, and the state of each."""

from __future__ import annotations

import argparse
from pathlib import Path

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, show
from kolla_mesos_start.ctl.live.graph import dot, of, text, with_reasons
from kolla_mesos_start.ctl.live.mirror import mirror
from kolla_mesos_start.kolla_ansible import directory


def run(invocation: Invocation) -> int:
    """Print the graph."""
    imported, form = invocation.options.imported, invocation.options.format
    reasons = {} if imported is None else directory.reasons(imported)
    deployment = mirror(invocation).deployment()
    graph = with_reasons(of(deployment), reasons)
    if form == "text":
        show(invocation.out, text(graph))
    else:
        invocation.out.out(dot(graph, deployment.id))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "dot"), default="text", help="default: %(default)s")
    parser.add_argument(
        "--imported",
        metavar="DIR",
        type=Path,
        help="the directory of `kolla_mesos_ctl import`: adds the reason for each dependency",
    )


SUBCOMMAND = Subcommand(
    description="""\
Print every command and daemon of the deployment with its dependencies and its state.

dot is the language of Graphviz, whose program draws it: `dot -Tsvg`.
""",
    example="kolla_mesos_ctl graph --format dot --deployment site | dot -Tsvg >site.svg",
    add_arguments=_add_arguments,
    run=run,
)
