"""`kolla_mesos_ctl graph`: the dependencies between commands and daemons, and the state of each."""

from __future__ import annotations

import argparse

from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.live.graph import dot, mermaid, of, svg, text
from kolla_mesos_start.operator.live.mirror import mirror
from kolla_mesos_start.operator.terminal.lines import show


def run(invocation: Invocation) -> int:
    """Print the graph."""
    deployment = mirror(invocation).deployment()
    graph = of(deployment)
    form = invocation.options.format
    if form == "text":
        show(invocation.out, text(graph))
    elif form == "svg":
        invocation.out.out(svg(dot(graph, deployment.id)))
    else:
        invocation.out.out(dot(graph, deployment.id) if form == "dot" else mermaid(graph))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "dot", "mermaid", "svg"), default="text", help="default: %(default)s"
    )


SUBCOMMAND = Subcommand(
    description="""\
Print every command and daemon of the deployment with its dependencies and its state.

dot is the language of Graphviz, mermaid that of many wikis and forges; svg needs the program dot of Graphviz.
""",
    example="kolla_mesos_ctl graph --format svg --deployment site > site.svg",
    add_arguments=_add_arguments,
    run=run,
)
