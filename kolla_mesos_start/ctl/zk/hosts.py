"""The hosts of a deployment: what is recorded of each, and which of them have a container.

Only reads. No container removes the znodes of its host, because the host may come back. They pile up for pods
that do not know their node: each is a new host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.text import NotThere, nearest
from kolla_mesos_start.ctl.zk import connection, containers, services, status_records
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.containers import UNKNOWN_HOST
from kolla_mesos_start.ctl.zk.status_records import State
from kolla_mesos_start.definition.strings import GLOBAL, bad_service
from kolla_mesos_start.tree.states import printable
from kolla_mesos_start.tree.znodes import Znodes


class Recorded(NamedTuple):
    """What is recorded in a deployment: its `hosts`, the `states` of commands, and by host the `marks` of
    commands that have succeeded there. `services` are published, or own a role."""

    hosts: Sequence[str]
    states: Sequence[State]
    marks: Mapping[str, Sequence[str]]
    services: Iterable[str]


def read(client: OperatorClient, znodes: Znodes) -> Recorded:
    """What is recorded now."""
    owners = status_records.roles(client, znodes)
    states = status_records.states(client, znodes, owners)
    # A command that runs once in the deployment does not run again for a new host: its mark stays.
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
    """`by_host` has a sentence for each host with a container, `unknown` one for each container whose host is
    unknown."""

    by_host: Mapping[str, str]
    unknown: Sequence[str]


def there(client: OperatorClient, znodes: Znodes, found: Recorded) -> HostPresence:
    """The hosts with a container: one that exists, is ready, or contends for a lock."""
    by_host, unknown = _holding(client, found.states), []
    for service, some in containers.read(client, znodes, found.services).items():
        for each in some:
            if each.host == UNKNOWN_HOST:
                unknown.append(
                    f"a container of {service} ({printable(each.id)}) does not say on which host it is"
                )
            else:
                by_host[each.host] = f"{each.host} has a container of {service}"
    return HostPresence(by_host, unknown)


def named(found: Recorded, names: Sequence[str]) -> list[str]:
    """These hosts, once each; NotThere if nothing is recorded of one."""
    for name in names:
        if name not in found.hosts:
            raise NotThere(f"nothing is recorded of the host {name!r}{nearest(name, found.hosts)}")
    return sorted(set(names))


def in_use(there: HostPresence, names: Sequence[str]) -> str:
    """Why these hosts may be in use, for a message; empty if they are not."""
    return "; ".join([*(there.by_host[name] for name in names if name in there.by_host), *there.unknown])


def counted_less(found: Recorded, names: Sequence[str], definitions: Iterable[bytes]) -> Iterator[str]:
    """How dependencies that count hosts change if these hosts are forgotten, a line for each command."""
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
    places = {path: state for state in states for path in containers.held(state)}
    held = [path for path, session in connection.owners(client, places).items() if session]
    above = {path.rpartition("/")[0] for path in held}
    by_host = {state.scope: path for path, state in places.items() if path in above and state.scope != GLOBAL}
    # A contender for a lock of the deployment holds the name of its host.
    locks = {path for path, state in places.items() if state.scope == GLOBAL and path == state.at.lock}
    contenders = [path for path in held if path.rpartition("/")[0] in locks]
    for path, data in connection.read(client, contenders).items():
        by_host[(data or b"").decode(errors="replace")] = path.rpartition("/")[0]
    return {host: f"a container on {host} holds {path}" for host, path in by_host.items()}
