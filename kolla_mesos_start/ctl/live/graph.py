"""The dependency graph of a deployment, with the state of each step.

What belongs here: one graph, as text and in Graphviz's language, which draws the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kolla_mesos_start.ctl.invocation import Line
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService, LiveStep
from kolla_mesos_start.definition.model import Dependency, Members
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY, RUNNING, WAITING

MISSING, OUTSIDE = "missing", "outside"
STYLES = {DONE: "green", RUNNING: "cyan", RETRY: "yellow", ERROR: "red", MISSING: "red"}
# Fill colours on which black text is readable.
COLOURS = {
    DONE: "#b7e4c7",
    RUNNING: "#a9d6f5",
    RETRY: "#ffd99a",
    ERROR: "#f5a9a9",
    WAITING: "#eeeeee",
    MISSING: "#ffffff",
    OUTSIDE: "#dccff0",
}


class Node(NamedTuple):
    """A step, or a dependency that no service provides. `state` has a colour, `label` says it in words."""

    path: str
    state: str
    label: str


class Edge(NamedTuple):
    """`after` waits for `before`; `label` has what the dependency asks for besides, and why."""

    before: str
    after: str
    label: str


class DependencyGraph(NamedTuple):
    """Nodes in the order of the definitions."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]


def of(
    deployment: LiveDeployment, reasons: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> DependencyGraph:
    """The graph of a deployment: every step, and what each waits for. `reasons` are known by the roles of the
    two ends of an edge."""
    nodes: dict[str, Node] = {}
    outside: dict[str, Node] = {}
    edges: list[Edge] = []
    for service in deployment.services.values():
        own: list[Edge] = []
        for step in service.steps:
            nodes[step.path] = _node(service, step)
            own += [_edge(each, step, deployment, reasons) for each in step.command.inside]
            own += [Edge(each.what, step.path, "") for each in step.command.outside]
            for each in step.command.outside:
                outside[each.what] = Node(each.what, OUTSIDE, "outside the deployment")
        # A daemon waits for all commands of its service: edges from those that no other command waits for.
        followed = {edge.before for edge in own}
        paths = [] if service.is_task else [step.path for step in service.steps]
        edges += own + [Edge(path, paths[-1], "") for path in paths[:-1] if path not in followed]
    nodes.update(outside)
    absent = dict.fromkeys(edge.before for edge in edges if edge.before not in nodes)
    missing = [Node(path, MISSING, "no service provides it") for path in absent]
    return DependencyGraph([*nodes.values(), *missing], edges)


def _node(service: LiveService, step: LiveStep) -> Node:
    states = [attempt.state for attempt in step.attempts]
    if step.command.is_daemon:
        label = f"{service.ready} of {service.wanted} ready"
        return Node(step.path, DONE if step.done else WAITING, label)
    state = DONE if step.done else next((each for each in (ERROR, RETRY, RUNNING) if each in states), WAITING)
    return Node(step.path, state, state)


def _edge(
    dependency: Dependency | Members,
    step: LiveStep,
    deployment: LiveDeployment,
    reasons: Mapping[tuple[str, str], str],
) -> Edge:
    if isinstance(dependency, Members):
        service = deployment.services.get(dependency.service)
        before = service.daemon if service else dependency.service
        words = [f"{dependency.count} present"]
    else:
        before = dependency.path
        words = ["" if dependency.count is None else str(dependency.count), dependency.generation or ""]
        words.append("" if dependency.scope == "global" else "same host")
    words.append(reasons.get((before.partition("/")[0], step.path.partition("/")[0]), ""))
    return Edge(before, step.path, ", ".join(filter(None, words)))


# -- languages --------------------------------------------------------------------------------------------


def text(graph: DependencyGraph) -> Iterator[Line]:
    """A line for each step, with what it waits for."""
    width = max((len(node.path) for node in graph.nodes), default=0)
    state = max((len(node.label) for node in graph.nodes), default=0)
    before: dict[str, list[str]] = {}
    for edge in graph.edges:
        before.setdefault(edge.after, []).append(edge.before + (f" ({edge.label})" if edge.label else ""))
    for node in graph.nodes:
        head, waits_for = f"{node.path:{width}}  {node.label:{state}}  ", ", ".join(before.get(node.path, ()))
        yield Line(head, STYLES.get(node.state, ""), f"<- {waits_for}" if waits_for else "")


def dot(graph: DependencyGraph, name: str) -> str:
    """Graphviz's language."""
    lines = [
        f"digraph {_quoted(name)} {{",
        "  rankdir=LR",
        '  bgcolor="transparent"',
        '  node [shape=box style="rounded,filled" fontname="sans-serif" fontsize=11]',
        '  edge [color="#888888" fontcolor="#888888" fontname="sans-serif" fontsize=9]',
    ]
    for node in graph.nodes:
        style = ' style="dashed,filled"' if node.state == MISSING else ""
        label = _quoted(f"{node.path}\n{node.label}")
        lines.append(f'  {_quoted(node.path)} [label={label} fillcolor="{COLOURS[node.state]}"{style}]')
    for edge in graph.edges:
        label = f" [label={_quoted(edge.label)}]" if edge.label else ""
        lines.append(f"  {_quoted(edge.before)} -> {_quoted(edge.after)}{label}")
    return "\n".join([*lines, "}"])


def _quoted(words: str) -> str:
    # Graphviz takes `&lt;` for a character, as HTML does.
    escaped = words.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
