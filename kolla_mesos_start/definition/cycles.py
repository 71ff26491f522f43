"""Finds dependencies inside one definition that can never be satisfied, cycles above all."""

from __future__ import annotations

from kolla_mesos_start.definition.fields import nearest
from kolla_mesos_start.definition.forms import ANY, DAEMON
from kolla_mesos_start.definition.model import Dependency

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kolla_mesos_start.definition.fields import Reading
    from kolla_mesos_start.definition.model import Command, Graph


def check_own_dependencies(reading: Reading, graph: Graph) -> None:
    """Report dependencies on commands that this definition doesn't have, and cycles."""
    by_name = {step.name: step for step in graph.steps}
    edges: dict[str, list[str]] = {}
    for step in graph.steps:
        edges[step.name] = []
        for dependency in step.dependencies:
            if not isinstance(dependency, Dependency) or dependency.role != step.path.split("/")[0]:
                continue
            reason = _why_never(step, dependency, by_name)
            if reason:
                reading.report(f"{step.label}.dependencies", f"{dependency.path}: {reason}")
            else:
                edges[step.name].append(dependency.name)
    for cycle in _cycles(edges):
        reading.report("commands", f"a cycle: {' -> '.join(cycle)}")


def _why_never(step: Command, dependency: Dependency, by_name: Mapping[str, Command]) -> str | None:
    """Why the dependency itself could never be satisfied; None if it could."""
    target = by_name.get(dependency.name)
    if target is step:
        return f"{step.name} depends on itself"
    if target is None:
        return f"this definition has no {dependency.name}{nearest(dependency.name, by_name)}"
    if target.is_daemon:
        return f"a cycle: {step.name} -> {DAEMON} -> {step.name}: the daemon comes last"
    if dependency.generation not in (None, ANY) and target.generation is None:
        return f"{target.name} has no generations"
    return None


def _cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """The cycles of a graph, each as the path that comes back to its start. Without recursion."""
    finished: set[str] = set()
    for root in edges:
        trail = {} if root in finished else {root: iter(edges[root])}
        while trail:
            here = next(reversed(trail))
            name = next(trail[here], None)
            if name is None:
                finished.add(trail.popitem()[0])
            elif name in trail:
                path = list(trail)
                yield [*path[path.index(name) :], name]
            elif name not in finished:
                trail[name] = iter(edges[name])
