"""Who this container is in the tree: its role's znodes below `status/`, and the id of its member.

Presence itself is an ephemeral that `ensemble` keeps; readiness is the registrar's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Callable

import six
from kazoo.exceptions import BadVersionError, NoNodeError

from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.tree.states import WAITING
from kolla_mesos_start.tree.znodes import DAEMON, GLOBAL, LOCAL, Znodes
from kolla_mesos_start.zookeeper.client import Ensemble
from kolla_mesos_start.zookeeper.query import Znode

log = logging.getLogger(__name__)


class StatusTree:
    """The znodes below `status/` that one definition needs; its role is claimed with them."""

    def __init__(self, ensemble: Ensemble, znodes: Znodes, graph: Graph) -> None:
        self._ensemble = ensemble
        self._znodes = znodes
        self._graph = graph

    def ensure(self) -> None:
        """Create what is absent, wherever somebody has deleted it."""
        nodes, _ = self._nodes()
        self._check_owner(self._ensemble.ensure(nodes))

    def _check_owner(self, found: Mapping[str, Znode | None]) -> None:
        """BadDefinition where another service has claimed the role."""
        for scope in (GLOBAL, LOCAL):
            path = self._znodes.owner(scope, self._znodes.role)
            znode = found[path]
            owner = six.ensure_text(znode.data, errors="replace") if znode else ""
            if owner and owner != self._znodes.service_name:
                raise BadDefinition(
                    [
                        f"the role {self._znodes.role} of {self._znodes.service_name} is claimed by {owner} "
                        f"({path}): give one of them another last segment"
                    ]
                )

    def start(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """A container of the role starts on this host: what was done here before is to be done again.

        `meanwhile` is called while the servers write, if they have to.
        """
        found = self._ensemble.ensure(*self._nodes(), meanwhile)
        self._check_owner(found)
        for command in self._graph.steps:
            path = self._znodes.command(LOCAL, command.path).state
            znode = found[path]
            if command.run_once is None and znode is not None and znode.data != WAITING.encode():
                self._set_waiting(path, znode.stat.version)

    def _set_waiting(self, path: str, version: int) -> None:
        try:
            self._ensemble.request(
                lambda client: client.set_async(path, WAITING.encode(), version=version), f"{path}: waiting"
            )
        except (BadVersionError, NoNodeError):
            # Another replica on this host has changed it since: its word is newer than ours.
            log.debug("%s changed meanwhile", path)

    def _nodes(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """What is needed, parents first; and what is implied by the state that it belongs to."""
        znodes, role = self._znodes, self._znodes.role
        nodes, implied = {znodes.status: b""}, {}
        for scope in (GLOBAL, LOCAL):
            nodes[znodes.scope(scope)] = b""
            nodes[znodes.owner(scope, role)] = six.ensure_binary(znodes.service_name)
            for command in self._graph.commands:
                at = znodes.command(scope, command.path)
                below = [at.detail]
                if scope == GLOBAL:
                    below.append(at.hosts)
                if scope == command.run_once:
                    below += [at.lock, at.generations]
                nodes[at.state] = WAITING.encode()
                nodes.update(dict.fromkeys(below, b""))
                implied.update(dict.fromkeys(below, at.state))
            if self._graph.daemon:
                at = znodes.command(scope, f"{role}/{DAEMON}")
                nodes[at.state] = WAITING.encode()
                nodes[at.ready] = b""
                implied[at.ready] = at.state
        return nodes, implied
