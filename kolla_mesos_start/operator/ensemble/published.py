"""What is published: a deployment's znodes, and what they mean as a directory's content.

What lives here: reading the tree, but for what agents write: their status, presence and containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Callable, NamedTuple

from kolla_mesos_start.operator.deployment import directory
from kolla_mesos_start.operator.deployment.directory import FILES, VARIABLES, Deployment, Service, Values
from kolla_mesos_start.operator.ensemble import connection
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.tree.znodes import Znodes

Nodes = Mapping[str, bytes]


def nodes(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """The data of every znode that is published, by its path below the deployment."""
    return walk(client, znodes, lambda node: node == "status")


def walk(client: OperatorClient, znodes: Znodes, is_left_out: Callable[[str], bool]) -> dict[str, bytes]:
    """The data of every znode by its path below the deployment, but for those that are left out.

    What begins with a dot is of agents, and left out as well.
    """
    found: dict[str, bytes] = {}
    level = [""]
    while level:
        read = connection.read_with_children(client, (_path(znodes, node) for node in level))
        below = []
        for node in level:
            data, names = read[_path(znodes, node)]
            if data is not None and node:
                found[node] = data
            below += [f"{node}/{name}" if node else name for name in names if not name.startswith(".")]
        level = [node for node in below if not is_left_out(node)]
    return found


def _path(znodes: Znodes, node: str) -> str:
    return f"{znodes.deployment}/{node}" if node else znodes.deployment


def deployment(nodes: Nodes) -> Deployment:
    """What a directory with these contents holds. A service may have files before it has a definition."""
    above = {node.rpartition("/")[0] for node in nodes}
    services: dict[str, Service] = {}
    for node, data in nodes.items():
        name, kind, names = _parts(node)
        service = services.setdefault(name, Service(name, "", b"", Values({}, {}), {}))
        if not kind:
            services[name] = service._replace(definition=data)
        elif kind == FILES and len(names) == 1:
            services[name] = service._replace(files={**service.files, names[0]: data})
        # The parent of a host's values is no value, unless it holds one.
        elif kind == VARIABLES and len(names) in (1, 2) and (data or node not in above):
            services[name] = service._replace(variables=_with_value(service.variables, names, data))
    shared = services.pop("", None)
    return Deployment(shared.variables.own if shared else {}, list(services.values()), ())


def _with_value(values: Values, names: Sequence[str], data: bytes) -> Values:
    if len(names) == 1:
        return values._replace(own={**values.own, names[0]: data})
    host, name = names
    return values._replace(hosts={**values.hosts, host: {**values.hosts.get(host, {}), name: data}})


def services_of(nodes: Iterable[str]) -> set[str]:
    """The services that these nodes belong to, or that are on the way to one."""
    return {name for name, _, _ in map(_parts, nodes)}


def _parts(node: str) -> tuple[str, str, list[str]]:
    """The service, `variables` or `files` if it is below one of them, and the names below that."""
    names = node.split("/")
    at = next((index for index, name in enumerate(names) if name in (VARIABLES, FILES)), len(names))
    return "/".join(names[:at]), "".join(names[at : at + 1]), names[at + 1 :]


def merged(own: Deployment, around: Deployment) -> Deployment:
    """What will be there when `own` is written over `around`; its sources are those of `own`."""
    known = {service.name: service for service in around.services}
    services = {name: service for name, service in known.items() if service.definition}
    for service in own.services:
        before = known.get(service.name)
        services[service.name] = service if before is None else _over(service, before)
    variables = {**around.variables, **own.variables}
    return own._replace(variables=variables, services=list(services.values()))


def _over(service: Service, before: Service) -> Service:
    hosts = {
        host: {**before.variables.hosts.get(host, {}), **service.variables.hosts.get(host, {})}
        for host in {**before.variables.hosts, **service.variables.hosts}
    }
    values = Values({**before.variables.own, **service.variables.own}, hosts)
    return service._replace(variables=values, files={**before.files, **service.files})


class Removals(NamedTuple):
    """The znodes that a directory no longer has, children before their parents.

    `emptied` are definitions below which another service lies, so that their znodes stay.
    """

    removed: Sequence[str]
    emptied: Sequence[str]

    @property
    def services(self) -> Sequence[str]:
        return [node for node in (*self.removed, *self.emptied) if not _parts(node)[1]]

    def without(self, services: Set[str]) -> Removals:
        """These, except all that belongs to the given services."""
        removed = [node for node in self.removed if _parts(node)[0] not in services]
        return Removals(removed, [node for node in self.emptied if node not in services])

    def apart(self) -> tuple[Removals, Removals]:
        """The variables and files of services that stay; and whole services."""
        services = set(self.services)
        whole = [node for node in self.removed if _parts(node)[0] in services]
        values = [node for node in self.removed if _parts(node)[0] not in services]
        return Removals(values, ()), Removals(whole, self.emptied)


NOTHING = Removals((), ())


def gone(nodes: Nodes, own: Deployment) -> frozenset[str]:
    """The services that are published, and not in the directory."""
    return frozenset(node for node, data in nodes.items() if data and not _parts(node)[1]) - {
        service.name for service in directory.enabled(own)
    }


def removals(nodes: Nodes, own: Deployment, services: Set[str]) -> Removals:
    """What to remove: `services`, and the variables and files that the directory does not have.

    Below a path without a definition nothing is removed: it may have been published by others.
    """
    planned = {**directory.nodes(own), **directory.definitions(own)}
    stays = set(chain.from_iterable(map(_with_parents, planned)))
    known = {"", *(service.name for service in directory.enabled(own))}
    # The parents of all variables and of all files stay where their service does.
    stays.update(node for node in nodes if _parts(node)[0] in known and not _parts(node)[2])
    found = {node for node in nodes if node not in stays and _parts(node)[0] in known | services}
    needed = set(chain.from_iterable(_with_parents(node) for node in nodes if node not in found))
    return Removals(
        sorted(found - needed, key=lambda node: (-node.count("/"), node)),
        sorted(services & (needed | stays)),
    )


def others(nodes: Nodes, wanted: Iterable[str]) -> Removals:
    """What to remove so that `wanted` is left, and what lies above it."""
    left = nodes.keys() - set(chain.from_iterable(map(_with_parents, wanted)))
    return Removals(sorted(left, key=lambda node: (-node.count("/"), node)), ())


def _with_parents(node: str) -> list[str]:
    names = node.split("/")
    return ["/".join(names[: depth + 1]) for depth in range(len(names))]


def places(znodes: Znodes, name: str) -> Sequence[str]:
    """Where a variable may stand for a service on a host, the first one wins; either may be empty."""
    return [path for path in znodes.variable(name) if "//" not in path]
