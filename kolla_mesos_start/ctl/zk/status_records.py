"""What the containers of a deployment have recorded below `status`, found without the definitions.

Only reads. A one-time command has a lock, in the scope in which it runs once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.definition.strings import ELECTION, GLOBAL
from kolla_mesos_start.tree.states import DONE
from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes


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


def roles(client: OperatorClient, znodes: Znodes) -> dict[str, str]:
    """The service that owns each role znode, by the path of that znode, in every scope."""
    scopes = _below(client, [znodes.status])
    data = connection.read(client, _below(client, scopes))
    return {path: (owner or b"").decode(errors="replace") for path, owner in data.items()}


def states(client: OperatorClient, znodes: Znodes, owners: Iterable[str]) -> list[State]:
    """The states of all commands below these role znodes."""
    paths = [path for path in _below(client, list(owners)) if not path.endswith(f"/{ELECTION}")]
    names = connection.children(client, paths)
    found = []
    for path in paths:
        scope, _, command = path[len(znodes.status) + 1 :].partition("/")
        found.append(State(scope, command, CommandZnodes(path), names[path]))
    return found


def done(client: OperatorClient, found: Sequence[State]) -> Iterator[State]:
    """Those one-time commands that are done, for one generation at least."""
    once = [state for state in found if state.is_one_time]
    texts = connection.read(client, [state.at.state for state in once])
    marks = connection.children(client, [state.at.generations for state in once])
    for state in once:
        if texts[state.at.state] == DONE.encode() or marks[state.at.generations]:
            yield state


def _below(client: OperatorClient, paths: Sequence[str]) -> list[str]:
    names = connection.children(client, paths)
    return [f"{path}/{name}" for path in paths for name in names[path]]
