"""Why a deployment is not up: the causes, and what each of them blocks.

Pure: a `LiveDeployment` in, `Cause`s out. A cause is what would stay if everything else were well. A step
that only waits for others has no cause: it is listed under what blocks it. The nodes of the graph are steps
(`role/command`) and services; an edge leads from a node to one that it blocks.

`dependency_causes` finds dependencies that nothing can satisfy, `service_causes` what is wrong in one
service.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from kolla_mesos_start.ctl.live import dependency_causes, service_causes
from kolla_mesos_start.ctl.live.cause import CLOCK_STEP, MAY_SEEM, OF_ALL, Cause, listed, service_node
from kolla_mesos_start.ctl.live.dependency_causes import target, waits_for
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService


def find(deployment: LiveDeployment, now: float) -> list[Cause]:
    """All causes, in the order in which they should be looked at.

    First what is stuck: newer than the last publication, then older, then what only needs a restart. Then
    what blocks most.
    """
    edges = _edges(deployment)
    found = [*_cycles(edges), *dependency_causes.find(deployment)]
    # A step that waits for a generation names the containers of other ones.
    with_images = all(cause.kind != "generation" for cause in found)
    for service in deployment.services.values():
        found += service_causes.find(service, now, deployment.published, with_images)
    causes = [cause._replace(blocks=tuple(_chains(cause, edges))) for cause in found]
    touched = frozenset().union(*(cause.touches for cause in causes))
    for service in deployment.services.values():
        if not service.is_up and not nodes(service) & touched:
            causes += service_causes.of_older_definitions(service)

    def rank(cause: Cause) -> tuple[object, ...]:
        is_old = cause.at is not None and cause.at + CLOCK_STEP < deployment.published
        age = 2 if cause.kind in ("restart", "keep") else 1 if is_old else 0
        return (not cause.is_stuck, age, -len(cause.touches), cause.nodes[0], cause.kind)

    return [*_publication(deployment), *sorted(causes, key=rank), *_left_out(deployment)]


def confirmed(found: Iterable[Cause], again: Iterable[Cause]) -> list[Cause]:
    """The causes of a second look, without those of MAY_SEEM that the first look did not find."""
    before = {(cause.kind, cause.nodes) for cause in found}
    return [cause for cause in again if cause.kind not in MAY_SEEM or (cause.kind, cause.nodes) in before]


def nodes(service: LiveService) -> frozenset[str]:
    """The nodes of a service in the graph."""
    return frozenset([service_node(service.name), *(step.path for step in service.steps)])


def concerning(causes: Iterable[Cause], service: LiveService) -> list[Cause]:
    """The causes that keep one service from being up."""
    return [cause for cause in causes if cause.kind in OF_ALL or nodes(service) & cause.touches]


def _left_out(deployment: LiveDeployment) -> Iterator[Cause]:
    """What is nobody's, for example in a copied tree, or invalid; it blocks nothing."""
    for service in deployment.services.values():
        if service.left_out:
            yield Cause("left out", listed(service.left_out), (service_node(service.name),))


def _publication(deployment: LiveDeployment) -> Iterator[Cause]:
    """An unfinished publication comes first: other causes may only follow from it."""
    publication = deployment.publication
    if publication.problem:
        kind = "publishing" if publication.is_running else "unfinished"
        yield Cause(kind, publication.problem, ("publication",))


# -- the graph ------------------------------------------------------------------------------------------


def _edges(deployment: LiveDeployment) -> Mapping[str, list[str]]:
    """For each node the nodes that it blocks."""
    edges: dict[str, list[str]] = defaultdict(list)
    roles = deployment.roles
    for service in deployment.services.values():
        if service.role_taken:  # Its steps have the same names as those of another service.
            continue
        open_steps = [step for step in service.steps if not step.done]
        for step in service.steps if open_steps else ():
            for unmet in waits_for(service, step):
                edges[target(unmet, roles)].append(open_steps[-1].path if step.done else step.path)
        for step in open_steps:
            if step.command.is_daemon:  # It comes after all commands.
                for other in open_steps[:-1]:
                    if step.path not in edges[other.path]:
                        edges[other.path].append(step.path)
            # Any container can run the commands; each counts as an instance of the daemon.
            if step.command.is_daemon or not service.live:
                edges[service_node(service.name)].append(step.path)
    return edges


def _chains(cause: Cause, edges: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """What a cause blocks, each step once. Not recursive: a chain may be as long as the deployment is
    large."""
    seen = set(cause.nodes)
    for node in cause.nodes:
        trail = [(node, iter(edges.get(node, ())))]
        chain: list[str] = []
        while trail:
            step = next(trail[-1][1], None)
            if step is None:
                trail.pop()
                if chain:
                    yield tuple(chain)
                chain = []
            elif step not in seen:
                seen.add(step)
                if not chain and len(trail) > 1:
                    chain.append(trail[-1][0])
                chain.append(step)
                trail.append((step, iter(edges.get(step, ()))))


def _cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[Cause]:
    """Each cycle once. The steps are in the order in which each waits for the next."""
    left = {node: set(blocked) for node, blocked in edges.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            path: list[str] = error.args[1]  # The next one blocks each, and the last is the first again.
            first = path.index(min(path))
            path = path[first:-1] + path[:first] + [path[first]]
            left[path[1]].discard(path[0])
            text = f"a cycle, in which each waits for the next: {' -> '.join(path)}; remove a dependency"
            yield Cause("cycle", text, tuple(path[:-1]))
