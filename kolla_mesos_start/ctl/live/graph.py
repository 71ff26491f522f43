"""The dependency graph of a deployment, with the state of each step.

What belongs here: one graph, as text and in Graphviz's language, which draws the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.invocation import Line
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService, LiveStep
from kolla_mesos_start.definition.model import Dependency, Members
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY, RUNNING, WAITING

MISSING, OUTSIDE = "missing", "outside"
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
    service: str
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


def of(deployment: LiveDeployment) -> DependencyGraph:
    """The graph of a deployment: every step, and what each waits for."""
    steps = {step.path: (service, step) for service in deployment.services.values() for step in service.steps}
    nodes = [_node(service, step) for service, step in steps.values()]
    edges = [
        _edge(dependency, step, deployment)
        for _, step in steps.values()
        for dependency in step.command.inside
    ]
    outside = [(external, step) for _, step in steps.values() for external in step.command.outside]
    edges += [Edge(external.what, step.path, "") for external, step in outside]
    before = _before(edges)
    for service in deployment.services.values():
        edges += _to_daemon(service, before)
    others = dict.fromkeys(external.what for external, _ in outside)
    nodes += [Node(what, "", OUTSIDE, "outside the deployment") for what in others]
    known = {node.path for node in nodes}
    absent = dict.fromkeys(edge.before for edge in edges if edge.before not in known)
    nodes += [Node(path, "", MISSING, "no service provides it") for path in absent]
    return DependencyGraph(nodes, edges)


def with_reasons(graph: DependencyGraph, reasons: Mapping[tuple[str, str], str]) -> DependencyGraph:
    """The graph with the reason for each edge, which is known by the roles of its two ends."""

    def explained(edge: Edge) -> Edge:
        why = reasons.get((edge.before.partition("/")[0], edge.after.partition("/")[0]), "")
        return edge._replace(label=", ".join(filter(None, (edge.label, why))))

    return graph._replace(edges=[explained(edge) for edge in graph.edges])


def _node(service: LiveService, step: LiveStep) -> Node:
    states = [attempt.state for attempt in step.attempts]
    if step.command.is_daemon:
        label = f"{service.ready} of {service.wanted} ready"
        return Node(step.path, service.name, DONE if step.done else WAITING, label)
    state = DONE if step.done else next((each for each in (ERROR, RETRY, RUNNING) if each in states), WAITING)
    return Node(step.path, service.name, state, state)


def _edge(dependency: Dependency | Members, step: LiveStep, deployment: LiveDeployment) -> Edge:
    if isinstance(dependency, Members):
        service = deployment.services.get(dependency.service)
        daemon = f"{service.role}/daemon" if service else dependency.service
        return Edge(daemon, step.path, f"{dependency.count} present")
    words = [
        "" if dependency.count is None else str(dependency.count),
        dependency.generation or "",
        "" if dependency.scope == "global" else "same host",
    ]
    return Edge(dependency.path, step.path, ", ".join(filter(None, words)))


def _before(edges: Sequence[Edge]) -> Mapping[str, Sequence[Edge]]:
    """The edges to each step, by its path."""
    found: dict[str, list[Edge]] = {}
    for edge in edges:
        found.setdefault(edge.after, []).append(edge)
    return found


def _to_daemon(service: LiveService, before: Mapping[str, Sequence[Edge]]) -> list[Edge]:
    """A daemon waits for all commands of its service: edges from those that no other command waits for."""
    own = [step.path for step in service.steps]
    if service.is_task or not own:
        return []
    followed = {edge.before for path in own for edge in before.get(path, ())}
    return [Edge(path, own[-1], "") for path in own[:-1] if path not in followed]


# -- languages --------------------------------------------------------------------------------------------


def text(graph: DependencyGraph) -> Iterator[Line]:
    """A line for each step, with what it waits for."""
    width = max((len(node.path) for node in graph.nodes), default=0)
    state = max((len(node.label) for node in graph.nodes), default=0)
    styles = {DONE: "green", RUNNING: "cyan", RETRY: "yellow", ERROR: "red", MISSING: "red"}
    edges = _before(graph.edges)
    for node in graph.nodes:
        before = [
            f"{edge.before} ({edge.label})" if edge.label else edge.before
            for edge in edges.get(node.path, ())
        ]
        head = f"{node.path:{width}}  {node.label:{state}}  "
        yield Line(head, styles.get(node.state, ""), f"<- {', '.join(before)}" if before else "")


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
