"""The hosts of a deployment: what is recorded of each, and on which of them a container is.

Only reads. A host leaves znodes behind that no container removes, since none can know whether it comes back:
a pod that does not know its node is a new host each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.definition.forms import GLOBAL, bad_service
from kolla_mesos_start.operator.ensemble import connection, presence, services, status_records
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.operator.ensemble.status_records import State
from kolla_mesos_start.operator.terminal.suggestions import NotThere, nearest
from kolla_mesos_start.tree.znodes import Znodes


class Recorded(NamedTuple):
    """What is recorded in a deployment: its `hosts`, the `states` of commands, and by host the `marks` that
    count it among those on which a command has succeeded. `services` are published, or own a role."""

    hosts: Sequence[str]
    states: Sequence[State]
    marks: Mapping[str, Sequence[str]]
    services: Iterable[str]


def read(client: OperatorClient, znodes: Znodes) -> Recorded:
    """What is recorded now."""
    owners = status_records.roles(client, znodes)
    states = status_records.states(client, znodes, owners)
    # What runs once in the whole deployment does not run again for a host that is forgotten: its mark stays.
    counted = [state.at.hosts for state in states if state.scope == GLOBAL and not state.is_one_time]
    names = connection.children(client, [znodes.status, *counted])
    marks: dict[str, list[str]] = {}
    for path in counted:
        for name in names[path]:
            marks.setdefault(name, []).append(f"{path}/{name}")
    hosts = {*names[znodes.status], *marks} - {GLOBAL}
    known = {name for name in owners.values() if not bad_service(name)}
    return Recorded(sorted(hosts), states, marks, known.union(services.definitions(client, znodes)))


class HostPresence(NamedTuple):
    """`by_host` says of each host with a container how that shows; `unknown` are the containers that do not
    say where they are."""

    by_host: Mapping[str, str]
    unknown: Sequence[str]


def there(client: OperatorClient, znodes: Znodes, found: Recorded) -> HostPresence:
    """Where containers are: by what they show of themselves, who is ready, and who contends for a lock."""
    by_host, unknown = _holding(client, found.states), []
    for service, name, host in presence.shown(client, znodes, found.services):
        if host is None:
            unknown.append(f"a container of {service} ({name}) does not say on which host it is")
        else:
            by_host[host] = f"{host} has a container of {service}"
    return HostPresence(by_host, unknown)


def named(found: Recorded, names: Sequence[str]) -> list[str]:
    """These hosts, once each; NotThere for one of which nothing is recorded."""
    for name in names:
        if name not in found.hosts:
            raise NotThere(f"nothing is recorded of the host {name!r}{nearest(name, found.hosts)}")
    return sorted(set(names))


def absent(found: Recorded, there: HostPresence) -> list[str]:
    """The hosts without a container."""
    return [host for host in found.hosts if host not in there.by_host]


def in_use(there: HostPresence, names: Sequence[str]) -> str:
    """Why these hosts may be in use, for a message; empty if they are not."""
    return "; ".join([*(there.by_host[name] for name in names if name in there.by_host), *there.unknown])


def counted_less(found: Recorded, names: Sequence[str], definitions: Iterable[bytes]) -> Iterator[str]:
    """What forgetting these hosts means for the dependencies that count hosts, a line for each command."""
    wanted = frozenset().union(*map(services.counted_commands, definitions))
    counts = Counter(mark.rpartition("/hosts/")[0] for marks in found.marks.values() for mark in marks)
    less = Counter(mark.rpartition("/hosts/")[0] for name in names for mark in found.marks.get(name, ()))
    for state in found.states:
        if less[state.at.state] and state.path in wanted:
            count = counts[state.at.state]
            yield (
                f"a dependency counts the hosts on which {state.path} has succeeded: "
                f"{count - less[state.at.state]} then, instead of {count}"
            )


def _holding(client: OperatorClient, states: Iterable[State]) -> dict[str, str]:
    """The hosts whose containers are ready, or contend for a lock of their host or of the deployment."""
    places = {
        f"{state.at.state}/{place}": state.scope
        for state in states
        for place in ("lock", "ready")
        if place in state.below
    }
    names = connection.children(client, places)
    holders = [(scope, path) for path, scope in places.items() if names[path] and scope != GLOBAL]
    # A contender for a lock of the deployment holds the name of its host.
    locks = [path for path, scope in places.items() if scope == GLOBAL and path.endswith("/lock")]
    contenders = connection.read(client, [f"{lock}/{name}" for lock in locks for name in names[lock]])
    holders += [
        ((data or b"").decode(errors="replace"), path.rpartition("/")[0]) for path, data in contenders.items()
    ]
    return {host: f"a container on {host} holds {path}" for host, path in holders}
