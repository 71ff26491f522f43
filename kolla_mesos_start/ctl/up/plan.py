"""Which containers `up` starts, on which hosts: by the command line, launch.yml and the definitions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kolla_mesos_start.ctl.directory import instances
from kolla_mesos_start.ctl.directory.directory import Deployment, Service
from kolla_mesos_start.ctl.directory.findings import refuse
from kolla_mesos_start.ctl.directory.launch import LaunchFile, bad_host, hosts_from
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.ctl.validate.rules import rendered
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.tree.znodes import Znodes


def pairs(option: str, words: Sequence[str], form: str = "SERVICE=VALUE") -> list[tuple[str, str]]:
    """Parse the `service=value` words of an option."""
    found = [word.partition("=") for word in words]
    for name, sign, value in found:
        if not (name and sign and value):
            raise BadUsage(f"{option} {name}{sign}{value}: expected {form}")
    return [(name, value) for name, _, value in found]


def with_roles(launch: LaunchFile, given: Sequence[tuple[str, str]]) -> LaunchFile:
    """launch.yml with the hosts of `--role` in place of its own."""
    hosts = dict(launch.hosts)
    for role, value in given:
        names = value.split(",")
        wrong = next(filter(None, map(bad_host, names)), None)
        if role not in hosts:
            near = nearest(role, hosts) if hosts else ", or the directory has none"
            wrong = f"no such role in `hosts` of launch.yml{near}"
        elif len(set(names)) < len(names):
            wrong = "a host is named twice"
        if wrong:
            raise BadUsage(f"--role {role}={value}: {wrong}")
        hosts[role] = names
    return launch._replace(hosts=hosts)


def plan(
    deployment: Deployment,
    replicas: Sequence[tuple[str, str]],
    hosts: Sequence[tuple[str, str]],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    """The service and the host of each container; `variables` are given besides those of the directory.

    BadUsage for what the command line can't mean.
    """
    services = deployment.services
    names = [service.name for service in services]
    counts: dict[str, int] = {}
    for given, value in replicas:
        if not value.isdecimal():
            raise BadUsage(f"--replicas {given}={value}: expected a number")
        counts[_named(given, names)] = int(value)
    by_service: dict[str, list[str]] = {name: [] for name in names}
    for given, host in hosts:
        own = by_service[_named(given, names)]
        wrong = bad_host(host) or (f"{host} is named twice" if host in own else None)
        if wrong:
            raise BadUsage(f"--host {given}={host}: {wrong}")
        own.append(host)
    found = []
    for service in services:
        own = by_service[service.name]
        wanted = counts.get(service.name, len(own) or _wanted(deployment, service, variables))
        if len(own) > wanted:
            raise BadUsage(f"--host: {len(own)} names for {wanted} containers of {service.name}")
        if not own and service.name not in counts:
            refuse(deployment.launch.located(deployment.launch.too_few(service.name, wanted)))
        named = [*own, *deployment.launch.hosts_of(service.name)]
        found += [(service.name, host) for host in hosts_from(named, wanted)]
    if not found:
        raise BadUsage("there is no container to start")
    return found


def _named(given: str, names: Sequence[str]) -> str:
    """The service with this name or role."""
    found = [name for name in names if given in (name, name.rpartition("/")[2])]
    if len(found) != 1:
        what = (
            f"is that of several services: {', '.join(found)}" if found else "is no service of the directory"
        )
        raise BadUsage(f"{given!r} {what}{nearest(given, names)}")
    return found[0]


def _wanted(deployment: Deployment, service: Service, variables: Mapping[str, str]) -> int:
    """How many containers: one on each host of the role, or `instances` of the definition."""
    if deployment.launch.is_on_each(service.name):
        return len(deployment.launch.hosts_of(service.name))
    values = {**deployment.variables, **service.variables.own}
    texts = {**{name: data.decode(errors="replace") for name, data in values.items()}, **variables}
    znodes = Znodes("", "", service.name, "")
    found = instances.wanted(json.loads(service.definition), lambda text: rendered(text, znodes, texts))
    return 1 if found is None else found


def ports_in(contents: Deployment) -> set[int]:
    """All numbers in variables that may be ports, although nothing may listen there yet."""
    own = (service.variables for service in contents.services)
    all_values = [contents.variables, *(each for one in own for each in (one.own, *one.hosts.values()))]
    texts = (data for values in all_values for data in values.values())
    return {int(number) for data in texts for number in re.findall(rb"\b[0-9]{1,5}\b", data)}
