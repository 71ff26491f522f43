"""What the containers of a deployment have recorded below `status`, found without the definitions.

Only reads. A one-time command has a lock, in the scope in which it runs once. No container removes the znodes
of its host, because the host may come back. They pile up for pods that do not know their node: each is a new
host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from kolla_mesos_start.ctl.text import NotThere, nearest
from kolla_mesos_start.ctl.zk import connection, containers, services
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.containers import HELD, UNKNOWN_HOST
from kolla_mesos_start.definition.strings import ELECTION, GLOBAL, bad_service
from kolla_mesos_start.log import printable
from kolla_mesos_start.tree.states import DONE
from kolla_mesos_start.tree.znodes import CommandZnodes, ElectionZnodes, Znodes


class State(NamedTuple):
    """The state of one command in one scope: `global`, or the name of a host."""

    scope: str
    path: str
    """`role/command`"""
    at: CommandZnodes
    below: Container[str]
    """the names below it"""

    @property
    def is_one_time(self) -> bool:
        """Whether it runs once in this scope."""
        return "lock" in self.below

    @property
    def name(self) -> str:
        """Its name, for a message."""
        return self.path if self.scope == GLOBAL else f"{self.path} on {self.scope}"

    @property
    def held(self) -> list[str]:
        """The existing znodes below it that have a child for each container that holds them."""
        return [f"{self.at.state}/{name}" for name in HELD if name in self.below]


def roles(client: OperatorClient, znodes: Znodes, service: str | None = None) -> dict[str, str]:
    """The service that owns each role znode, by the path of that znode, in every scope.

    With `service` only those that it owns.
    """
    paths = [znodes.status]
    for _ in ("scopes", "roles"):
        names = connection.children(client, paths)
        paths = [f"{path}/{name}" for path in paths for name in names[path]]
    data = connection.read(client, paths)
    found = {path: (owner or b"").decode(errors="replace") for path, owner in data.items()}
    return {path: owner for path, owner in found.items() if service in (None, owner)}


def read(client: OperatorClient, znodes: Znodes, owners: Mapping[str, str] | None = None) -> Status:
    """What is recorded now, of all roles or of some of `roles`."""
    return Status(client, znodes, roles(client, znodes) if owners is None else owners)


class Status:
    """What is recorded below `status`.

    A deployment may have many hosts, so only the names down to those below a state are read at once. What a
    question needs besides is read with it, and no data but what it needs: we may not have the right to.
    `roles`: the service that owns each role znode, by the path of that znode.
    """

    def __init__(self, client: OperatorClient, znodes: Znodes, roles: Mapping[str, str]) -> None:
        self.client, self.znodes, self.roles = client, znodes, roles
        self._names = connection.children(client, roles)
        commands = [path for role in roles for path in self._commands(role)]
        self._names.update(connection.children(client, commands))

    def _commands(self, role: str) -> list[str]:
        return [f"{role}/{name}" for name in self._names[role] if name != ELECTION]

    def states(self) -> list[State]:
        """The states of all commands."""
        found = []
        for path in (path for role in self.roles for path in self._commands(role)):
            scope, _, command = path[len(self.znodes.status) + 1 :].partition("/")
            found.append(State(scope, command, CommandZnodes(path), self._names[path]))
        return found

    def done(self, states: Iterable[State]) -> list[State]:
        """Those one-time commands that are done, for one generation at least."""
        once = [state for state in states if state.is_one_time]
        data = connection.read(self.client, [state.at.state for state in once])
        marks = connection.children(self.client, [state.at.generations for state in once])
        return [
            state for state in once if data[state.at.state] == DONE.encode() or marks[state.at.generations]
        ]

    @property
    def elections(self) -> dict[str, ElectionZnodes]:
        """The znodes of each election, by the role."""
        tops = {path.split("/")[-1]: path for path in self.roles if self._is_global(path)}
        return {
            role: ElectionZnodes(f"{path}/{ELECTION}")
            for role, path in tops.items()
            if ELECTION in self._names[path]
        }

    def _is_global(self, path: str) -> bool:
        return path.startswith(f"{self.znodes.status}/{GLOBAL}/")

    @cached_property
    def members(self) -> dict[str, Sequence[str]]:
        """The hosts that are recorded as members, by the role; without elections that have none."""
        places = {role: at.members for role, at in self.elections.items()}
        names = connection.children(self.client, places.values())
        return {role: names[place] for role, place in places.items() if names[place]}

    # -- hosts ------------------------------------------------------------------------------------

    @cached_property
    def marks(self) -> Mapping[str, Sequence[str]]:
        """By host the marks of commands that have succeeded there, and may run again."""
        # A command that runs once in the deployment does not run again for a new host: its mark stays.
        again = [state for state in self.states() if state.scope == GLOBAL and not state.is_one_time]
        found: dict[str, list[str]] = {}
        for place, hosts in connection.children(self.client, [state.at.hosts for state in again]).items():
            for host in hosts:
                found.setdefault(host, []).append(f"{place}/{host}")
        return found

    def named(self, names: Sequence[str]) -> list[str]:
        """These hosts, once each; NotThere if nothing is recorded of one."""
        scopes = connection.children(self.client, [self.znodes.status])[self.znodes.status]
        hosts = sorted({*scopes, *self.marks} - {GLOBAL})
        for name in names:
            if name not in hosts:
                raise NotThere(f"nothing is recorded of the host {name!r}{nearest(name, hosts)}")
        return sorted(set(names))

    def in_use(self, names: Sequence[str]) -> str:
        """Why these hosts may be in use, for a message; empty if they are not.

        A host is in use by a container that exists, is ready, or contends for a lock.
        """
        by_host = {
            host: f"a container on {host} holds {path.rpartition('/')[0]}" for host, path in self._holding()
        }
        known = {name for name in self.roles.values() if not bad_service(name)}
        known.update(services.definitions(self.client, self.znodes))
        unknown = []
        for service, some in containers.read(self.client, self.znodes, known, stages=False).items():
            for each in some:
                if each.host == UNKNOWN_HOST:
                    who = f"a container of {service} ({printable(each.id)})"
                    unknown.append(f"{who} does not say on which host it is")
                else:
                    by_host[each.host] = f"{each.host} has a container of {service}"
        return "; ".join([*(by_host[name] for name in names if name in by_host), *unknown])

    def _holding(self) -> Iterator[tuple[str, str]]:
        """The hosts whose containers are ready, or contend for a lock of their host or of the deployment."""
        places = {place: state for state in self.states() for place in state.held}
        contenders = []
        for path, session in connection.owners(self.client, places).items():
            state = places[(place := path.rpartition("/")[0])]
            if session and state.scope != GLOBAL:
                yield state.scope, path
            elif session and place == state.at.lock:
                contenders.append(path)
        # A contender for a lock of the deployment holds the name of its host.
        for path, data in connection.read(self.client, contenders).items():
            yield (data or b"").decode(errors="replace"), path

    def counted_less(self, names: Sequence[str], definitions: Iterable[bytes]) -> Iterator[str]:
        """How dependencies that count hosts change if these hosts are forgotten, a line for each command."""
        wanted = frozenset().union(*map(services.counted_commands, definitions))
        marks = self.marks
        counts = Counter(mark.rpartition("/hosts/")[0] for found in marks.values() for mark in found)
        less = Counter(mark.rpartition("/hosts/")[0] for name in names for mark in marks.get(name, ()))
        for state in self.states():
            if less[state.at.state] and state.path in wanted:
                count = counts[state.at.state]
                yield (
                    f"a dependency counts the hosts on which {state.path} has succeeded: "
                    f"{count - less[state.at.state]} then, instead of {count}"
                )
