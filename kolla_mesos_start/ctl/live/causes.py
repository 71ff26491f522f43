"""Why a deployment is not up: the causes, and what each of them blocks.

Pure: a `LiveDeployment` in, `Cause`s out. A cause is what would stay if everything else were well. A step
that only waits for others has no cause: it is listed under what blocks it. The nodes of the graph are steps
(`role/command`) and services; an edge leads from a node to one that it blocks.

Dependencies that nothing can satisfy are found here; what is wrong in one service, by `service_causes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from kolla_mesos_start.ctl.live import service_causes
from kolla_mesos_start.ctl.live.model import (
    CLOCK_STEP,
    MAY_SEEM,
    OF_ALL,
    Cause,
    LiveDeployment,
    LiveService,
    LiveStep,
    service_node,
)
from kolla_mesos_start.ctl.text import few, nearest
from kolla_mesos_start.definition.model import Dependency, External, Members
from kolla_mesos_start.definition.strings import LOCAL
from kolla_mesos_start.tree.states import Unmet

NO_PROVIDER = "publish such a service; or correct the dependency, publish, and restart the containers of"
TOO_FEW = "is wanted: lower `count`, or raise `instances` in the definition of that service"


def find(deployment: LiveDeployment, now: float) -> list[Cause]:
    """All causes, in the order in which they should be looked at.

    An unfinished publication comes first, because other causes may only follow from it. Then what is stuck:
    newer than the last publication, then older, then what only needs a restart. Then what blocks most.
    """
    edges, services = _edges(deployment), deployment.services.values()
    found = [*_cycles(edges), *_dependencies(deployment)]
    # A step that waits for a generation names the containers of other ones.
    with_images = all(cause.kind != "generation" for cause in found)
    for service in services:
        found += service_causes.find(service, now, deployment.published_at, with_images)
    causes = [cause._replace(blocks=tuple(_chains(cause, edges))) for cause in found]
    touched = frozenset().union(*(cause.touches for cause in causes))
    for service in services:
        if not service.is_up and not nodes(service) & touched:
            causes += service_causes.of_older_definitions(service)

    def rank(cause: Cause) -> tuple[object, ...]:
        is_old = cause.at is not None and cause.at + CLOCK_STEP < deployment.published_at
        age = 2 if cause.kind in ("restart", "keep") else 1 if is_old else 0
        return (not cause.is_stuck, age, -len(cause.touches), cause.nodes[0], cause.kind)

    publication = deployment.publication
    kind = "publishing" if publication.is_running else "unfinished"
    first = [Cause(kind, publication.problem, ("publication",))] if publication.problem else []
    # What is nobody's, for example in a copied tree, or invalid; it blocks nothing.
    last = [
        Cause("left out", few(each.left_out), (service_node(each.name),))
        for each in services
        if each.left_out
    ]
    return [*first, *sorted(causes, key=rank), *last]


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
            for unmet in _waits_for(service, step):
                edges[_target(unmet, roles)].append(open_steps[-1].path if step.done else step.path)
        for step in open_steps:
            if step.command.is_daemon:  # It comes after all commands.
                for other in open_steps[:-1]:
                    if step.path not in edges[other.path]:
                        edges[other.path].append(step.path)
            # Any container can run the commands; each counts as an instance of the daemon.
            if step.command.is_daemon or not service.live:
                edges[service_node(service.name)].append(step.path)
    return edges


def _waits_for(service: LiveService, step: LiveStep) -> Sequence[Unmet]:
    """The unsatisfied dependencies that hold up a service at a step.

    Containers pass a step that is done without waiting for other steps, but they do wait for external
    services.
    """
    if not step.done:
        return step.unmet
    return [each for each in step.unmet if isinstance(each.dependency, External) and not service.is_up]


def _target(unmet: Unmet, roles: Mapping[str, LiveService]) -> str:
    """The node that a dependency waits for; a text of its own if there is no such node."""
    wanted = unmet.dependency
    if isinstance(wanted, Members):
        return service_node(wanted.service)
    if isinstance(wanted, External):
        return wanted.what
    service = roles.get(wanted.role)
    if service and service.graph is None:
        return service_node(service.name)
    return wanted.path if service and service.step(wanted.path) else f"-> {wanted.path}"


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


# -- dependencies that no published service can satisfy, or not as they ask for it ----------------------


def _dependencies(deployment: LiveDeployment) -> Iterator[Cause]:
    """Each of them once, even if several steps have it."""
    found: dict[tuple[str, tuple[str, ...]], Cause] = {}
    roles = deployment.roles
    for service in deployment.services.values():
        for step in service.steps:
            for unmet in _waits_for(service, step):
                cause = _unsatisfied(service, step, unmet, deployment, roles)
                if cause:
                    found.setdefault((cause.kind, cause.nodes), cause)
    for kind, nodes in found:
        if kind != "unanswered" or ("outside", nodes) not in found:
            yield found[kind, nodes]


def _unsatisfied(
    waiting: LiveService,
    step: LiveStep,
    unmet: Unmet,
    deployment: LiveDeployment,
    roles: Mapping[str, LiveService],
) -> Cause | None:
    wanted = unmet.dependency
    if isinstance(wanted, External):
        # What answers there may depend on another dependency of the step: a load balancer and its backends.
        alone = all(isinstance(each.dependency, External) for each in step.unmet)
        return Cause("outside" if alone else "unanswered", f"{wanted.what}: {unmet.found}", (wanted.what,))
    if isinstance(wanted, Members):
        service = deployment.services.get(wanted.service)
        if service is None:
            why = f"there is no service {wanted.service!r}{nearest(wanted.service, deployment.services)}"
            return Cause("no provider", f"{step.path}: {why}", (service_node(wanted.service),))
        if service.definition_zxid and wanted.count > service.wanted:
            text = f"{step.path} waits for {wanted.count} members of {service.name}, and {service.wanted}"
            return Cause("too many", f"{text} {TOO_FEW}", (step.path,))
        return None
    service = roles.get(wanted.role)
    if service is None:
        others = roles.keys() - {waiting.role}
        why = f"no service has the role {wanted.role!r}{nearest(wanted.role, others)}"
        text = f"{step.path} needs {wanted.path}, but {why}; {NO_PROVIDER} {waiting.name}"
        return Cause("no provider", text, (_target(unmet, roles),))
    if service.graph is None:
        return None  # The service has a cause of its own.
    found = service.step(wanted.path)
    if found is None:
        names = [each.command.name for each in service.steps]
        why = f"{service.name} has no {wanted.name!r}{nearest(wanted.name, names)}"
        return Cause("no provider", f"{step.path}: {why}", (_target(unmet, roles),))
    if found.done and wanted.scope == LOCAL:
        ready = {each.host for each in service.containers if each.ready}
        if {each.host for each in waiting.live} <= ready:
            return None  # It has just become ready: one of its two znodes was read a moment earlier.
    return _of_existing(step, unmet, wanted, service, found)


def _of_existing(
    step: LiveStep, unmet: Unmet, wanted: Dependency, service: LiveService, found: LiveStep
) -> Cause | None:
    """A dependency on a step that exists, but not in the number, generation or place that it asks for."""
    is_daemon, generation = found.command.is_daemon, wanted.generation
    kind, text = "", ""
    if generation is not None and is_daemon:
        # Containers are replaced after everything else is done, such as the migration.
        if step.unmet == (unmet,):
            kind, text = "generation", _of_generation(step, unmet, wanted, service)
    elif generation is not None and generation != found.command.generation:
        has, kind = found.command.generation or "none", "generation"
        text = f"{step.path} waits for generation {generation} of {found.path}, whose definition has {has}"
    elif is_daemon and (wanted.count or 1) > service.wanted:
        kind, what = "too many", f"{step.path} waits for {wanted.count} ready instances of {found.path}"
        text = f"{what}, and {service.wanted} {TOO_FEW}"
    elif found.done:
        where, kind = " on its own host" if wanted.scope == LOCAL else "", "elsewhere"
        text = f"{step.path} waits for {wanted.path}{where}: {unmet.found}"
    return Cause(kind, text, (step.path,)) if text else None


def _of_generation(step: LiveStep, unmet: Unmet, wanted: Dependency, service: LiveService) -> str:
    """Why there are not enough instances of one generation: too few containers have it, or others exist
    beside them; empty if they only have to become ready."""
    generation, count = wanted.generation, wanted.count or 1
    having = [each for each in service.live if each.generation == generation]
    others = [each for each in service.live if each.generation != generation]
    if not having:
        found = ", ".join(sorted({each.generation or "none" for each in others})) or "none at all"
        return (
            f"{step.path} waits for {wanted.path} of generation {generation}, and its containers are of"
            f" {found}: start some of the image of {generation}"
        )
    if sum(each.ready for each in having) >= count:
        return f"{step.path} waits: {unmet.found}: start it with the image of {generation}, or stop it"
    if others and len(having) < count:
        return (
            f"{step.path} waits for {wanted.path}: {unmet.found}; replace the containers of other"
            f" generations, on {few(sorted(each.host for each in others))}"
        )
    return ""
