"""What the change of one variable means: which containers have read it, and which services need it.

Agents read variables when they start. Later they read them again only for the files of a daemon that has
`on_change`. No message holds a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES, Deployment, Service
from kolla_mesos_start.ctl.directory.findings import ERROR, DataSource, Finding
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.text import NotThere, existing, nearest
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.ctl.zk import connection, containers, published, services, status_records
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.published import places
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.tree.znodes import Znodes


def values(client: OperatorClient, paths: Sequence[str]) -> dict[str, bytes]:
    """The existing values at these paths, in the same order."""
    found = connection.read(client, paths)
    return {path: data for path in paths if (data := found[path]) is not None}


def every_value(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """The value of each variable that an agent would find at this place, by its path, sorted by name."""
    above = [path.rpartition("/")[0] for path in places(znodes, "any")]
    names = connection.children(client, above)
    found = client.read([f"{parent}/{name}" for parent in above for name in names[parent]])
    nearest: dict[str, tuple[str, bytes]] = {}
    for path, znode in found.items():
        # A parent of a host's values is a value only if it has data.
        if znode and (znode.data or not znode.stat.numChildren):
            nearest.setdefault(path.rpartition("/")[2], (path, znode.data))
    return dict(nearest[name] for name in sorted(nearest))


def node(znodes: Znodes, path: str) -> str:
    """The path below the deployment."""
    return path[len(znodes.deployment) + 1 :]


class ChangedVariable(NamedTuple):
    """A variable that is changed at the place of `znodes`. `nodes` are the published values.

    The templates of `readers` use it; `hosts` has the hosts of their present containers by service. `used`
    are all variables that templates use there.
    """

    znodes: Znodes
    name: str
    nodes: published.Nodes
    readers: Sequence[Service]
    hosts: Mapping[str, Sequence[str]]
    used: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        return places(self.znodes, self.name)[0]

    def by_winner(self, service: str, hosts: Iterable[str]) -> dict[str, list[str]]:
        """The hosts by the place whose value they use: the changed one, or one that has precedence.

        Hosts that do not look at the changed place are left out.
        """
        found: dict[str, list[str]] = {}
        for host in hosts:
            ordered = places(self.znodes._replace(service_name=service, host=host), self.name)
            if self.path in ordered:
                nearer = ordered[: ordered.index(self.path)]
                wins = next((each for each in nearer if node(self.znodes, each) in self.nodes), self.path)
                found.setdefault(wins, []).append(host)
        return found

    def effects(self, service: Service, why: str) -> Iterator[str]:
        """Lines that say what the change means to the present containers of a service."""
        name, hosts = service.name, self.hosts.get(service.name, ())
        found = self.by_winner(name, hosts)
        for path, reached in found.items():
            where = containers.on_hosts(reached)
            if path != self.path:
                yield f"{name} has its own value at {path}, which takes precedence: {where}"
            elif services.follows(service.definition):
                yield (
                    f"{name} refreshes its files without a restart;"
                    f" other uses of the variable need one: {where}"
                )
            else:
                yield f"restart {name} {why}: {where}"
        if hosts and not found:
            yield f"no container of {name} is on {self.znodes.host} now: {containers.on_hosts(hosts)}"


def changed(client: OperatorClient, znodes: Znodes, name: str) -> ChangedVariable:
    """Read the services that use a variable at this place."""
    nodes = published.nodes(client, znodes)
    uses = [
        (service, services.used_variables(service.definition, service.files))
        for service in published.deployment(nodes).services
        if service.definition and znodes.service_name in ("", service.name)
    ]
    readers = [service for service, names in uses if name in names]
    used = frozenset().union(*(names for _, names in uses))
    hosts = containers.hosts(client, znodes, [each.name for each in readers])
    return ChangedVariable(znodes, name, nodes, readers, hosts, used)


def check_host(client: OperatorClient, znodes: Znodes) -> None:
    """NotThere if this host has neither values, nor containers of the service, nor status records.

    Before anything is recorded every host is possible.
    """
    own = f"{znodes.definition}/{VARIABLES}"
    names = connection.children(client, [own, znodes.status])
    found = client.read([f"{own}/{name}" for name in names[own]])
    known = {path.rpartition("/")[2] for path, znode in found.items() if znode and znode.stat.numChildren}
    known |= {*names[znodes.status]} - {GLOBAL}
    known |= {*containers.hosts(client, znodes, [znodes.service_name]).get(znodes.service_name, ())}
    if known and znodes.host not in known:
        raise NotThere(f"nothing is recorded of the host {znodes.host!r}{existing(znodes.host, known)}")


def unknown_host(client: OperatorClient, znodes: Znodes) -> str:
    """A warning if the service has had containers, but never on this host: its name may be misspelt."""
    service = znodes.service_name
    owners = status_records.roles(client, znodes)
    known = {path.split("/")[-2] for path, owner in owners.items() if owner == service}
    known |= set(containers.hosts(client, znodes, [service]).get(service, ()))
    known -= {GLOBAL}
    if not known or znodes.host in known:
        return ""
    where = ", ".join(sorted(known)[: containers.SHOWN_HOSTS])
    near = nearest(znodes.host, known).strip(" ()")
    return (
        f"warning: no container of {service} has ever been on {znodes.host}"
        f" (they have been on {where}{near and f'; {near}'})"
    )


# -- which services need the value --------------------------------------------------------------------


def needing(invocation: Invocation, change: ChangedVariable) -> dict[str, str]:
    """Why services could not start without the changed value, by their names."""
    gone = node(change.znodes, change.path)
    before = published.deployment(change.nodes)
    after = published.deployment({each: data for each, data in change.nodes.items() if each != gone})
    found = {}
    for service in change.readers:
        known = {*change.hosts.get(service.name, ()), *service.variables.hosts, change.znodes.host} - {""}
        hosts = change.by_winner(service.name, known).get(change.path, [])
        if known and not hosts:
            continue
        errors, without = (_errors(invocation, each, service.name, hosts) for each in (before, after))
        where = [_where(each, service.name) for each in without if each not in errors]
        if where:
            some = "" if known == set(hosts) else f" on {', '.join(sorted(hosts)[: containers.SHOWN_HOSTS])}"
            found[service.name] = f"{service.name}{some} needs {change.name} ({'; '.join(where)})"
    return found


def _errors(invocation: Invocation, deployment: Deployment, name: str, hosts: Sequence[str]) -> list[Finding]:
    """The errors of a published service on these hosts."""
    service = next(each for each in deployment.services if each.name == name)
    own = {host: service.variables.hosts.get(host, {}) for host in hosts}
    service = service._replace(variables=service.variables._replace(hosts=own))
    nodes = [name, *(f"{name}/{FILES}/{file}" for file in service.files)]
    findings = validate(
        deployment._replace(services=[service], sources={each: DataSource(each) for each in nodes}),
        deployment_id=invocation.settings.deployment_id,
        missing_is_empty=invocation.settings.missing_is_empty,
        given=invocation.given,
    )
    return [each for each in findings if each.severity == ERROR]


def _where(finding: Finding, service: str) -> str:
    """The template with the error: the label of a text in the definition, or a file."""
    template = finding.label or f"file {finding.file.removeprefix(f'{service}/{FILES}/')}"
    return f"{template} line {finding.line}" if finding.line else template
