"""The containers of each service that are there, by what they show of themselves.

Only reads. A container shows itself below its service, for as long as its session lasts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from kolla_mesos_start.operator.deployment.acl import BY_AGENTS
from kolla_mesos_start.operator.ensemble import connection
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.tree.states import printable
from kolla_mesos_start.tree.znodes import Znodes

SHOWN_HOSTS = 5


def containers(client: OperatorClient, znodes: Znodes, services: Iterable[str]) -> dict[str, list[str]]:
    """The hosts of the containers of each service, one for each container that is there."""
    found: dict[str, list[str]] = {}
    for service, each, host in shown(client, znodes, services):
        found.setdefault(service, []).append(host or each)
    return {service: sorted(hosts) for service, hosts in sorted(found.items())}


def shown(
    client: OperatorClient, znodes: Znodes, services: Iterable[str]
) -> Iterator[tuple[str, str, str | None]]:
    """The service, the name and the host of each container that is there; None for a host it does not say."""
    places = {f"{znodes.service(name)}/{place}": name for name in services for place in BY_AGENTS}
    names = connection.children(client, places)
    # A container shows itself below both by one name.
    ids = {(places[place], each): f"{place}/{each}" for place in places for each in names[place]}
    data = connection.read(client, ids.values())
    for (service, each), path in ids.items():
        yield service, printable(each), _host(data[path])


def _host(data: bytes | None) -> str | None:
    """The host that a container has written of itself; None where it can't be read."""
    try:
        facts = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    host = facts.get("host") if isinstance(facts, dict) else None
    return printable(host) if isinstance(host, str) else None


def on_hosts(hosts: Sequence[str]) -> str:
    """So many containers and where, for a message."""
    count = "1 container" if len(hosts) == 1 else f"{len(hosts)} containers"
    several = sorted(set(hosts))
    more = f" and {len(several) - SHOWN_HOSTS} more" if len(several) > SHOWN_HOSTS else ""
    return f"{count} on {', '.join(several[:SHOWN_HOSTS])}{more}"


def with_containers(client: OperatorClient, znodes: Znodes, services: Iterable[str]) -> frozenset[str]:
    """Those of the services that have containers."""
    paths = {f"{znodes.service(service)}/{name}": service for service in services for name in BY_AGENTS}
    names = connection.children(client, paths)
    return frozenset(paths[path] for path, found in names.items() if found)
