"""What the containers of a deployment have recorded below `status`, found without the definitions.

Only reads. A one-time command has a lock, in the scope in which it runs once. No container removes the znodes
of its host, because the host may come back. They pile up for pods that do not know their node: each is a new
host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.text import NotThere, nearest
from kolla_mesos_start.ctl.zk import connection, containers, services
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.containers import HELD, UNKNOWN_HOST
from kolla_mesos_start.ctl.zk.view import read_tree
from kolla_mesos_start.definition.strings import ELECTION, GLOBAL, bad_service
from kolla_mesos_start.tree.states import DONE, printable
from kolla_mesos_start.tree.znodes import CommandZnodes, ElectionZnodes, Znodes
from kolla_mesos_start.zookeeper.view import Znode


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


def roles(client: OperatorClient, znodes: Znodes) -> dict[str, str]:
    """The service that owns each role znode, by the path of that znode, in every scope."""
    paths = [znodes.status]
    for _ in ("scopes", "roles"):
        names = connection.children(client, paths)
        paths = [f"{path}/{name}" for path in paths for name in names[path]]
    data = connection.read(client, paths)
    return {path: (owner or b"").decode(errors="replace") for path, owner in data.items()}


def read(client: OperatorClient, znodes: Znodes, roles: Sequence[str] | None = None) -> Status:
    """What is recorded now, of all roles or below these znodes of roles."""
    return Status(znodes, read_tree(client, [znodes.status] if roles is None else roles))


class Status:
    """The znodes below `status`, as they were read."""

    def __init__(self, znodes: Znodes, nodes: Mapping[str, Znode]) -> None:
        self.znodes, self.nodes = znodes, nodes
        self.names: dict[str, list[str]] = {}
        for path in nodes:
            above, _, name = path.rpartition("/")
            self.names.setdefault(above, []).append(name)

    @property
    def roles(self) -> dict[str, str]:
        """The service that owns each role znode, by the path of that znode, in every scope."""
        depth = self.znodes.status.count("/") + 2
        found = {path: znode.data for path, znode in self.nodes.items() if path.count("/") == depth}
        return {path: owner.decode(errors="replace") for path, owner in found.items()}

    def states(self, roles: Iterable[str] | None = None) -> list[State]:
        """The states of all commands below these role znodes, or below all."""
        found = []
        for role in self.roles if roles is None else roles:
            for name in self.names.get(role, ()):
                path = f"{role}/{name}"
                scope, _, command = path[len(self.znodes.status) + 1 :].partition("/")
                if name != ELECTION:
                    found.append(State(scope, command, CommandZnodes(path), self.names.get(path, ())))
        return found

    def done(self, states: Iterable[State]) -> Iterator[State]:
        """Those one-time commands that are done, for one generation at least."""
        for state in states:
            is_done = self.nodes[state.at.state].data == DONE.encode() or state.at.generations in self.names
            if state.is_one_time and is_done:
                yield state

    @property
    def elections(self) -> dict[str, ElectionZnodes]:
        """The znodes of each election, by the role."""
        tops = {path.split("/")[-1]: f"{path}/{ELECTION}" for path in self.roles if self._is_global(path)}
        return {role: ElectionZnodes(top) for role, top in tops.items() if top in self.nodes}

    def _is_global(self, path: str) -> bool:
        return path.startswith(f"{self.znodes.status}/{GLOBAL}/")

    @property
    def members(self) -> dict[str, Sequence[str]]:
        """The hosts that are recorded as members, by the role; without elections that have none."""
        found = {role: self.names.get(at.members, ()) for role, at in self.elections.items()}
        return {role: names for role, names in found.items() if names}

    # -- hosts ------------------------------------------------------------------------------------

    @property
    def marks(self) -> Mapping[str, Sequence[str]]:
        """By host the marks of commands that have succeeded there, and may run again."""
        found: dict[str, list[str]] = {}
        for state in self.states():
            # A command that runs once in the deployment does not run again for a new host: its mark stays.
            if state.scope == GLOBAL and not state.is_one_time:
                for host in self.names.get(state.at.hosts, ()):
                    found.setdefault(host, []).append(f"{state.at.hosts}/{host}")
        return found

    def named(self, names: Sequence[str]) -> list[str]:
        """These hosts, once each; NotThere if nothing is recorded of one."""
        hosts = sorted({*self.names.get(self.znodes.status, ()), *self.marks} - {GLOBAL})
        for name in names:
            if name not in hosts:
                raise NotThere(f"nothing is recorded of the host {name!r}{nearest(name, hosts)}")
        return sorted(set(names))

    def in_use(self, client: OperatorClient, names: Sequence[str]) -> str:
        """Why these hosts may be in use, for a message; empty if they are not.

        A host is in use by a container that exists, is ready, or contends for a lock.
        """
        by_host = {
            host: f"a container on {host} holds {path.rpartition('/')[0]}" for host, path in self._holding()
        }
        known = {name for name in self.roles.values() if not bad_service(name)}
        known.update(services.definitions(client, self.znodes))
        unknown = []
        for service, some in containers.read(client, self.znodes, known).items():
            for each in some:
                if each.host == UNKNOWN_HOST:
                    who = f"a container of {service} ({printable(each.id)})"
                    unknown.append(f"{who} does not say on which host it is")
                else:
                    by_host[each.host] = f"{each.host} has a container of {service}"
        return "; ".join([*(by_host[name] for name in names if name in by_host), *unknown])

    def _holding(self) -> Iterator[tuple[str, str]]:
        """The hosts whose containers are ready, or contend for a lock of their host or of the deployment."""
        for state in self.states():
            for place in state.held:
                held = [f"{place}/{name}" for name in self.names.get(place, ())]
                for path in held:
                    if self.nodes[path].stat.ephemeralOwner and state.scope != GLOBAL:
                        yield state.scope, path
                    elif self.nodes[path].stat.ephemeralOwner and place == state.at.lock:
                        # A contender for a lock of the deployment holds the name of its host.
                        yield self.nodes[path].data.decode(errors="replace"), path

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
