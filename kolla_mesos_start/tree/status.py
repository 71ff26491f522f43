"""Creates the znodes below `status/` that one definition needs, and claims its role."""

from __future__ import annotations

from types import MappingProxyType

from kolla_mesos_start.definition.forms import DAEMON, GLOBAL, LOCAL
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.log import Logger
from kolla_mesos_start.tree.published import Changed, stamp
from kolla_mesos_start.tree.states import WAITING, printable
from kolla_mesos_start.zookeeper.client import Refused
from kolla_mesos_start.zookeeper.view import data_of
from kolla_mesos_start.zookeeper.wire import BadVersionError, NoNodeError, SetData

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Callable

    from kolla_mesos_start.definition.model import Graph
    from kolla_mesos_start.tree.published import Stamp
    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.client import Client
    from kolla_mesos_start.zookeeper.view import Znode


log = Logger(__name__)

MAX_OWNER = 200  # bytes that a message shows


class StatusTree:
    """The status of one service on one host.

    `definition` is the mzxid of the definition that the graph was read from, `stamps` those of all znodes
    that it was read from.
    """

    def __init__(
        self,
        client: Client,
        znodes: Znodes,
        graph: Graph,
        definition: int,
        stamps: Mapping[str, Stamp | None],
    ) -> None:
        self.client, self.znodes, self.graph = client, znodes, graph
        self.definition, self.stamps = definition, stamps

    def changed(self) -> str | None:
        """The path of a znode that has changed since the graph was read from it, or None."""
        known = self.client.watches.results
        definition = self.znodes.definition
        paths = [path for path in self.stamps if path != definition]
        variables = self.client.read(paths) if paths else {}
        for path, before in self.stamps.items():
            if path == definition:
                query = data_of(path)
                same = self.client.watches.is_known(query) and stamp(known[query]) == before
            else:
                same = stamp(variables[path]) == before
            if not same:
                return path
        return None

    def raise_if_changed(self) -> None:
        """Raise Changed if one of these znodes has changed, as far as they are watched."""
        known = self.client.watches.results
        for path, before in self.stamps.items():
            if data_of(path) in known and stamp(known[data_of(path)]) != before:
                raise Changed(f"{path} has changed since it was read")

    def ensure(self) -> None:
        """Create the znodes that are missing, after they were deleted."""
        nodes, _ = self._nodes()
        self._check_owner(self._create(nodes))

    def start(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Create missing znodes at the start of a container, and reset its plain commands.

        `meanwhile` is called while the server writes, if it must.
        """
        found = self._create(*self._nodes(), meanwhile)
        self._check_owner(found)
        for command in self.graph.steps:
            path = self.znodes.command(LOCAL, command.path).state
            znode = found[path]
            if command.run_once is None and znode is not None and znode.data != WAITING.encode():
                self._set_waiting(path, znode.stat.version)

    def _create(
        self,
        nodes: Mapping[str, bytes],
        implied: Mapping[str, str] = MappingProxyType({}),
        meanwhile: Callable[[], object] | None = None,
    ) -> Mapping[str, Znode | None]:
        """Like `Client.ensure`, but raises Changed if the deployment is gone; it is never created."""
        try:
            return self.client.ensure(nodes, implied, meanwhile)
        except Refused as refused:
            raise Changed(f"{self.znodes.definition} was deleted") from refused

    def _check_owner(self, found: Mapping[str, Znode | None]) -> None:
        """Raise BadDefinition if another service has claimed the role."""
        path = self.znodes.owner(GLOBAL, self.znodes.role)
        znode = found[path]
        if znode and znode.data and znode.data != self.znodes.service_name.encode():
            owner = printable(znode.data[:MAX_OWNER].decode("utf-8", "replace"))
            raise BadDefinition(
                [
                    f"the role {self.znodes.role} of {self.znodes.service_name} is claimed by {owner} "
                    f"({path}): give one of them another last segment"
                ]
            )

    def _set_waiting(self, path: str, version: int) -> None:
        try:
            self.client.request(SetData(path, WAITING.encode(), version), f"{path}: waiting")
        except (BadVersionError, NoNodeError):
            # Another replica on this host has changed it: its state is newer.
            log.debug("%s changed meanwhile", path)

    def _nodes(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """The needed znodes, parents first; and those that are always created together with another one."""
        znodes, role = self.znodes, self.znodes.role
        # The first container of a deployment creates `status` and `status/global` together.
        nodes, implied = {znodes.status: b""}, {znodes.status: znodes.scope(GLOBAL)}
        for scope in (GLOBAL, LOCAL):
            owner = znodes.owner(scope, role)
            nodes[znodes.scope(scope)] = b""
            nodes[owner] = znodes.service_name.encode()
            for command in self.graph.commands:
                at = znodes.command(scope, command.path)
                below = [at.detail]
                if scope == GLOBAL:
                    below.append(at.hosts)
                if scope == command.run_once:
                    below += [at.lock, at.generations]
                nodes[at.state] = WAITING.encode()
                nodes.update(dict.fromkeys(below, b""))
                implied.update(dict.fromkeys(below, at.state))
            if self.graph.daemon:
                at = znodes.command(scope, f"{role}/{DAEMON}")
                nodes[at.state] = WAITING.encode()
                nodes[at.ready] = b""
                implied[at.ready] = at.state
            if scope == GLOBAL and self.graph.daemon and self.graph.daemon.election:
                election = znodes.election
                below = [election.turn, election.members, election.candidates, election.running]
                nodes.update(dict.fromkeys([election.top, *below], b""))
                implied.update(dict.fromkeys(below, election.top))
            if scope == GLOBAL and self.graph.daemon:
                party = znodes.party(znodes.service_name)
                nodes[party] = b""
                implied[party] = at.state
            if scope == GLOBAL:
                nodes[znodes.containers] = b""
                implied[znodes.containers] = owner
            if scope == LOCAL and self.graph.steps:
                implied[owner] = znodes.command(LOCAL, self.graph.steps[0].path).state
        return nodes, implied
