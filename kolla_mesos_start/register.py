"""Who this container is in the tree: its role's znodes below `status/`, and the id of its member.

Presence itself is an ephemeral that `ensemble` keeps; readiness is the registrar's.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Mapping
from typing import Callable

import six
from kazoo.exceptions import BadVersionError, NoNodeError

from kolla_mesos_start.ensemble import Ensemble
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.graph import Graph
from kolla_mesos_start.states import WAITING
from kolla_mesos_start.znodes import DAEMON, GLOBAL, LOCAL, Znode, Znodes

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


_MEMBER = re.compile("[0-9a-f]{32}__party__")


def identity(state_dir: str) -> tuple[str, bool]:
    """The id under which this container registers, and whether an earlier run of it has used it.

    It outlives a restart of the container, so that a restarted one replaces its own older
    member. Where it can't be kept, each run has an id of its own.
    """
    path = f"{state_dir}/registration"
    try:
        known = _read(path)
        if _MEMBER.fullmatch(known):
            return known, True
        if known:
            log.warning("%s holds no id of a member: replaced", path)
    except OSError as error:
        log.warning("%s can't be read (%s): a restart will register as another member", path, error.strerror)
    # The suffix is kazoo's: its Party counts such members only.
    fresh = f"{uuid.uuid4().hex}__party__"
    try:
        _write(path, fresh + "\n")
    except OSError as error:
        log.warning(
            "%s can't be written (%s): after a restart the old member stays for a session timeout",
            path,
            error.strerror,
        )
    return fresh, False


def _read(path: str) -> str:
    # A FIFO would be waited for, and whatever else is not a file of ours is replaced.
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return file.read(100).decode("ascii", "replace").strip()


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path) and not os.path.isfile(path):
        os.unlink(path)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
