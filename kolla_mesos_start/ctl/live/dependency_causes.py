"""Dependencies that no published service can satisfy, or not as they ask for it.

Pure, a part of `causes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kolla_mesos_start.ctl.live.cause import Cause, on_hosts, service_node
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService, LiveStep
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.definition.model import Dependency, External, Members
from kolla_mesos_start.definition.strings import LOCAL
from kolla_mesos_start.tree.states import Unmet

NO_PROVIDER = "publish such a service; or correct the dependency, publish, and restart the containers of"
TOO_FEW = "is wanted: lower `count`, or raise `instances` in the definition of that service"


def find(deployment: LiveDeployment) -> Iterator[Cause]:
    """Each of them once, even if several steps have it."""
    found: dict[tuple[str, tuple[str, ...]], Cause] = {}
    roles = deployment.roles
    for service in deployment.services.values():
        for step in service.steps:
            for unmet in waits_for(service, step):
                cause = _cause(service, step, unmet, deployment, roles)
                if cause:
                    found.setdefault((cause.kind, cause.nodes), cause)
    for kind, nodes in found:
        if kind != "unanswered" or ("outside", nodes) not in found:
            yield found[kind, nodes]


def waits_for(service: LiveService, step: LiveStep) -> Sequence[Unmet]:
    """The unsatisfied dependencies that hold up a service at a step.

    Containers pass a step that is done without waiting for other steps, but they do wait for external
    services.
    """
    if not step.done:
        return step.unmet
    return [each for each in step.unmet if isinstance(each.dependency, External) and not service.is_up]


def target(unmet: Unmet, roles: Mapping[str, LiveService]) -> str:
    """The node that a dependency waits for; a text of its own if there is no such node."""
    dependency = unmet.dependency
    if isinstance(dependency, Members):
        return service_node(dependency.service)
    if isinstance(dependency, External):
        return dependency.what
    service = roles.get(dependency.role)
    if service and service.graph is None:
        return service_node(service.name)
    return dependency.path if service and _step(service, dependency.path) else f"-> {dependency.path}"


def _step(service: LiveService, path: str) -> LiveStep | None:
    return next((step for step in service.steps if step.path == path), None)


def _cause(
    waiting: LiveService,
    step: LiveStep,
    unmet: Unmet,
    deployment: LiveDeployment,
    roles: Mapping[str, LiveService],
) -> Cause | None:
    dependency = unmet.dependency
    if isinstance(dependency, Members):
        return _of_members(step, dependency, deployment)
    if isinstance(dependency, External):
        # What answers there may depend on another dependency of the step: a load balancer and its backends.
        alone = all(isinstance(each.dependency, External) for each in step.unmet)
        kind = "outside" if alone else "unanswered"
        return Cause(kind, f"{dependency.what}: {unmet.found}", (dependency.what,))
    node = target(unmet, roles)
    service = roles.get(dependency.role)
    if service is None:
        others = roles.keys() - {step.path.partition("/")[0]}
        why = f"no service has the role {dependency.role!r}{nearest(dependency.role, others)}"
        text = f"{step.path} needs {dependency.path}, but {why}; {NO_PROVIDER} {waiting.name}"
        return Cause("no provider", text, (node,))
    if service.graph is None:
        return None  # The service has a cause of its own.
    found = _step(service, dependency.path)
    if found is None:
        names = [each.command.name for each in service.steps]
        why = f"{service.name} has no {dependency.name!r}{nearest(dependency.name, names)}"
        return Cause("no provider", f"{step.path}: {why}", (node,))
    if found.done and dependency.scope == LOCAL and _is_beside(service, waiting):
        return None  # It has just become ready: one of its two znodes was read a moment earlier.
    return _of_existing(step, unmet, dependency, service, found)


def _of_members(step: LiveStep, members: Members, deployment: LiveDeployment) -> Cause | None:
    service = deployment.services.get(members.service)
    if service is None:
        why = f"there is no service {members.service!r}{nearest(members.service, deployment.services)}"
        return Cause("no provider", f"{step.path}: {why}", (service_node(members.service),))
    if service.definition and members.count > service.wanted:
        text = f"{step.path} waits for {members.count} members of {service.name}, and {service.wanted}"
        return Cause("too many", f"{text} {TOO_FEW}", (step.path,))
    return None


def _is_beside(service: LiveService, waiting: LiveService) -> bool:
    """Whether the daemon of a service is ready on every host where another service waits."""
    ready = {each.host for each in service.containers if each.ready}
    return {each.host for each in waiting.live} <= ready


def _of_existing(
    step: LiveStep, unmet: Unmet, dependency: Dependency, service: LiveService, found: LiveStep
) -> Cause | None:
    """A dependency on a step that exists, but not in the number, generation or place that it asks for."""
    wants = dependency.generation
    if wants is not None and found.command.is_daemon:
        # Containers are replaced after everything else is done, such as the migration.
        return _of_generation(step, unmet, dependency, service) if step.unmet == (unmet,) else None
    if wants is not None and wants != found.command.generation:
        has = found.command.generation or "none"
        text = f"{step.path} waits for generation {wants} of {found.path}, whose definition has {has}"
        return Cause("generation", text, (step.path,))
    if found.command.is_daemon and (dependency.count or 1) > service.wanted:
        text = f"{step.path} waits for {dependency.count} ready instances of {found.path}"
        return Cause("too many", f"{text}, and {service.wanted} {TOO_FEW}", (step.path,))
    if found.done:
        where = " on its own host" if dependency.scope == LOCAL else ""
        text = f"{step.path} waits for {dependency.path}{where}: {unmet.found}"
        return Cause("elsewhere", text, (step.path,))
    return None


def _of_generation(
    step: LiveStep, unmet: Unmet, dependency: Dependency, service: LiveService
) -> Cause | None:
    """A dependency on instances of one generation: too few containers have it, or others exist beside
    them."""
    wants, count = dependency.generation, dependency.count or 1
    having = [each for each in service.live if each.generation == wants]
    others = [each for each in service.live if each.generation != wants]
    if not having:
        found = ", ".join(sorted({each.generation or "none" for each in others})) or "none at all"
        text = (
            f"{step.path} waits for {dependency.path} of generation {wants}, and its containers are of"
            f" {found}: start some of the image of {wants}"
        )
    elif sum(each.ready for each in having) >= count:
        text = f"{step.path} waits: {unmet.found}: start it with the image of {wants}, or stop it"
    elif others and len(having) < count:
        text = (
            f"{step.path} waits for {dependency.path}: {unmet.found}; replace the containers of other"
            f" generations, on {on_hosts(others)}"
        )
    else:
        return None
    return Cause("generation", text, (step.path,))
