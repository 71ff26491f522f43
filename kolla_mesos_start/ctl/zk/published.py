"""What is published: a deployment's znodes, and the directory that has the same content.

What belongs here: everything in the tree that agents do not write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES, Deployment, Service, Values
from kolla_mesos_start.ctl.zk import connection, containers
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.view import json_object, read_tree
from kolla_mesos_start.definition.strings import RESTARTED
from kolla_mesos_start.tree.znodes import Znodes

Nodes = Mapping[str, bytes]
OF_UP = "up_variables"  # in the data of a deployment that `up` runs: the names of the variables that it sets


def nodes(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """The data of every published znode, by its path below the deployment."""
    found = read_tree(client, [znodes.deployment], lambda path: is_published(znodes, path))
    start = len(znodes.deployment) + 1
    return {path[start:]: znode.data for path, znode in found.items() if path[start:]}


def is_published(znodes: Znodes, path: str) -> bool:
    """Whether a path below the deployment belongs to what is published; all else is written by agents."""
    return not path.rpartition("/")[2].startswith(".") and path != znodes.status


def deployment(nodes: Nodes) -> Deployment:
    """The directory with these contents. A service may have files before it has a definition."""
    above = {node.rpartition("/")[0] for node in nodes}
    definitions: dict[str, bytes] = {}
    files: dict[str, dict[str, bytes]] = defaultdict(dict)
    values: dict[str, dict[str, dict[str, bytes]]] = defaultdict(dict)  # by service and host
    for node, data in nodes.items():
        service, kind, names = _parts(node)
        definitions[service] = definitions.get(service, b"") if kind else data
        if kind == FILES and len(names) == 1:
            files[service][names[0]] = data
        # The parent of a host's values is a value only if it has data.
        elif kind == VARIABLES and len(names) in (1, 2) and (data or node not in above):
            *host, name = names
            values[service].setdefault("".join(host), {})[name] = data
    own = {service: each.pop("", {}) for service, each in values.items()}
    definitions.pop("", None)
    services = [
        Service(name, "", data, Values(own.get(name, {}), values[name]), files[name])
        for name, data in definitions.items()
    ]
    return Deployment(own.get("", {}), services, ())


def services_of(nodes: Iterable[str]) -> set[str]:
    """The services that these nodes belong to, and the parents of services among them."""
    return {name for name, _, _ in map(_parts, nodes)}


def _parts(node: str) -> tuple[str, str, list[str]]:
    """The service, `variables` or `files` if it is below one of them, and the names below that."""
    names = node.split("/")
    at = next((index for index, name in enumerate(names) if name in (VARIABLES, FILES)), len(names))
    return "/".join(names[:at]), "".join(names[at : at + 1]), names[at + 1 :]


def defined(nodes: Nodes) -> frozenset[str]:
    """The services that have a definition."""
    return frozenset(node for node, data in nodes.items() if data and not _parts(node)[1])


def after(nodes: Nodes, own: Deployment, old: Removals) -> Deployment:
    """The content after `own` is published over `nodes`, and `old` is removed."""
    leaves = {*old.removed, *old.emptied}
    return merged(own, deployment({node: data for node, data in nodes.items() if node not in leaves}))


def merged(own: Deployment, around: Deployment) -> Deployment:
    """The content after `own` is written over `around`; its sources are those of `own`."""
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
    """Znodes that are not in the directory, children before their parents.

    `emptied` are definitions whose znodes stay, because they are parents of another service.
    """

    removed: Sequence[str]
    emptied: Sequence[str]

    @property
    def services(self) -> Sequence[str]:
        return [node for node in (*self.removed, *self.emptied) if not _parts(node)[1]]

    def written(self, nodes: Nodes) -> list[str]:
        """Those that somebody has written: not the mere parents of others."""
        found = [*self.removed, *self.emptied]
        above = {node.rpartition("/")[0] for node in found}
        return [node for node in found if nodes[node] or node not in above]

    def without(self, services: Set[str]) -> Removals:
        """These, except all that belongs to the given services."""
        removed = [node for node in self.removed if _parts(node)[0] not in services]
        return Removals(removed, [node for node in self.emptied if node not in services])

    def apart(self) -> tuple[Removals, Removals]:
        """Variables and files of services that stay; and whole services."""
        services = set(self.services)
        whole = [node for node in self.removed if _parts(node)[0] in services]
        values = [node for node in self.removed if _parts(node)[0] not in services]
        return Removals(values, ()), Removals(whole, self.emptied)


NOTHING = Removals((), ())


def prunable(
    client: OperatorClient, znodes: Znodes, nodes: Nodes, own: Deployment
) -> tuple[Removals, Sequence[str]]:
    """What --prune removes, and the services that stay although they are not in the directory, because they
    have containers."""
    missing = defined(nodes) - {service.name for service in own.services}
    busy = containers.read(client, znodes, missing, stages=False).keys()
    restarted = {node for node in nodes if _parts(node)[2][1:] == [RESTARTED]}
    found = removals(nodes, own, missing - busy, _of_up(client, znodes, nodes) | restarted)
    return found, sorted(busy)


def _of_up(client: OperatorClient, znodes: Znodes, nodes: Nodes) -> set[str]:
    """The values that `up` has set for its containers, which are not in any directory."""
    names = connection.read(client, [znodes.deployment])[znodes.deployment]
    found = json_object(names or b"").get(OF_UP) or ()
    return {node for node in nodes if len(_parts(node)[2]) == 2 and _parts(node)[2][1] in found}


def removals(nodes: Nodes, own: Deployment, services: Set[str], needed: Set[str] = frozenset()) -> Removals:
    """What to remove: `services`, and variables and files that are not in the directory, nor in `needed`.

    Nothing is removed below a path without a definition: somebody else may have published it.
    """
    planned = [*directory.nodes(own), *directory.definitions(own)]
    known = {"", *(service.name for service in own.services)}
    planned += (node for node in needed if _parts(node)[0] in known)
    stays = set(chain.from_iterable(map(_with_parents, planned)))
    # The parents of all variables and of all files stay where their service does.
    stays.update(node for node in nodes if _parts(node)[0] in known and not _parts(node)[2])
    found = {node for node in nodes if node not in stays and _parts(node)[0] in known | services}
    above = set(chain.from_iterable(_with_parents(node) for node in nodes if node not in found))
    return Removals(
        sorted(found - above, key=lambda node: (-node.count("/"), node)),
        sorted(services & (above | stays)),
    )


def others(nodes: Nodes, wanted: Iterable[str]) -> Removals:
    """What to remove so that only `wanted` and its parents are left."""
    left = nodes.keys() - set(chain.from_iterable(map(_with_parents, wanted)))
    return Removals(sorted(left, key=lambda node: (-node.count("/"), node)), ())


def _with_parents(node: str) -> list[str]:
    names = node.split("/")
    return ["/".join(names[: depth + 1]) for depth in range(len(names))]


def places(znodes: Znodes, name: str) -> Sequence[str]:
    """The possible paths of a variable for a service on a host, the first one wins; either may be empty."""
    return [path for path in znodes.variable(name) if "//" not in path]
