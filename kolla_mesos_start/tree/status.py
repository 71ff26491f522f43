"""What one service writes below `status/`, besides the progress of its commands.

Creates the znodes that its definition needs, claims its role, and records how a failed start has ended.
"""

from __future__ import annotations

import time
from types import MappingProxyType

from kolla_mesos_start.definition.strings import DAEMON, GLOBAL, LOCAL
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.log import Logger, printable
from kolla_mesos_start.report import utc, with_texts
from kolla_mesos_start.tree.codec import decode_leniently
from kolla_mesos_start.tree.published import Changed, stamp
from kolla_mesos_start.tree.states import WAITING
from kolla_mesos_start.zookeeper.client import Refused
from kolla_mesos_start.zookeeper.view import data_of
from kolla_mesos_start.zookeeper.wire import (
    OUTAGE,
    BadVersionError,
    GetData,
    NoNodeError,
    SetData,
    in_words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable

    from kolla_mesos_start.definition.model import Graph
    from kolla_mesos_start.tree.published import Stamp
    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.client import Client
    from kolla_mesos_start.zookeeper.view import Znode


log = Logger(__name__)

MAX_OWNER = 200  # bytes that a message shows
MAX_RECORD = 64 * 1024  # bytes
# The stages of a start once its service is known, but `election`: a daemon that runs removes that record.
STAGES = ("read", "register", "wait", "render", "bootstrap", "exec", "passed")


class StatusTree:
    """The status of one service on one host.

    The graph was read from the definition with the mzxid `definition_zxid`, and from all znodes in `stamps`:
    their versions and mzxids then.
    """

    def __init__(
        self,
        client: Client,
        znodes: Znodes,
        graph: Graph,
        definition_zxid: int,
        stamps: Mapping[str, Stamp | None],
    ) -> None:
        self.client, self.znodes, self.graph = client, znodes, graph
        self.definition_zxid, self.stamps = definition_zxid, stamps

    def changed(self) -> str | None:
        """The path of a znode that has changed since the graph was read from it, or None."""
        client, definition = self.client, self.znodes.definition
        paths = [path for path in self.stamps if path != definition]
        found = client.read(paths) if paths else {}
        if definition in self.stamps:
            query = data_of(definition)
            # After an outage it is read again.
            client.until(lambda: client.watches.is_known(query))
            found[definition] = client.watches.results[query]
        return next((path for path, before in self.stamps.items() if stamp(found[path]) != before), None)

    def raise_if_seen_changed(self) -> None:
        """Raise Changed if a watch has shown that one of these znodes has changed. Sends no request."""
        known = self.client.watches.results
        for path, before in self.stamps.items():
            if data_of(path) in known and stamp(known[data_of(path)]) != before:
                raise Changed(f"{path} has changed since it was read")

    def raise_if_changed(self) -> None:
        """Read them, and raise Changed if one has changed."""
        if path := self.changed():
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
        for command in self.graph.all_commands:
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
        znodes, graph = self.znodes, self.graph
        # The first container of a deployment creates `status` and `status/global` together.
        nodes, implied = {znodes.status: b""}, {znodes.status: znodes.scope(GLOBAL)}

        def add(path: str, data: bytes, *below: str) -> None:
            nodes.update({path: data, **dict.fromkeys(below, b"")})
            implied.update(dict.fromkeys(below, path))

        for scope in (GLOBAL, LOCAL):
            owner = znodes.owner(scope, znodes.role)
            is_global = scope == GLOBAL
            nodes[znodes.scope(scope)] = b""
            add(owner, znodes.service_name.encode(), *[znodes.containers] * is_global)
            for command in graph.all_commands:
                at = znodes.command(scope, command.path)
                if command.is_daemon:
                    below = [at.ready, *[znodes.party(znodes.service_name)] * is_global]
                else:
                    below = [at.detail, *[at.hosts] * is_global]
                    below += [at.lock, at.generations] * (scope == command.run_once)
                add(at.state, WAITING.encode(), *below)
            if is_global and graph.daemon and graph.daemon.election:
                election = znodes.election
                add(election.top, b"", election.turn, election.members, election.candidates, election.running)
        if graph.all_commands:
            implied[owner] = znodes.command(LOCAL, graph.all_commands[0].path).state
        return nodes, implied


class FailureRecord:
    """How the last failed start of this service on this host ended; `path` is its znode.

    A start that fails writes it; a later start that passes that stage removes it. A failure before any
    command begins is visible nowhere else. If a daemon ends before it was ready, its registrar writes the
    record with the stage DAEMON; only a ready daemon removes it. `logs`: how to read this container's log.
    """

    def __init__(self, client: Client, znodes: Znodes, logs: str | None) -> None:
        self.path, self._logs = znodes.ended, logs
        self._client, self._znodes = client, znodes
        self._exists, self._stage = False, ""
        self._command: str | None = None
        client.session.request(GetData(self.path, False), self._on_read)

    def _on_read(self, value: Any, error: Exception | None) -> None:
        self._exists = error is None or isinstance(error, OUTAGE)
        # If it is unreadable or was not read, it is removed at the end of a successful start.
        ending = decode_leniently(value[0] if value else b"", MAX_RECORD)
        self._command, self._stage = ending.get("command"), ending.get("stage", "")

    @property
    def leftover(self) -> tuple[str, ...]:
        """The path of a record to remove once the daemon runs."""
        return (self.path,) if self._exists and self._stage != DAEMON else ()

    @property
    def leftover_until_ready(self) -> tuple[str, ...]:
        """The path of a record to remove once the daemon is ready."""
        return (self.path,) if self._exists and self._stage == DAEMON else ()

    def reached(self, stage: str, command: str | None = None) -> None:
        """This start has reached `stage` with `command`: remove the record of a failure before that."""
        if self._command == command and self._stage in STAGES[: STAGES.index(stage)]:
            self.forget()

    def forget(self) -> None:
        """Remove the record."""
        if self._exists:
            self._exists = False
            self._client.ephemerals.discard(self.path)
            self._client.ephemerals.run()  # Perhaps the session is about to be closed.

    def write(self, ending: str) -> None:
        """Record that this start failed; `ending` is its last line. Not awaited, and lost in an outage."""
        znodes, request = self._znodes, self._client.session.request
        logs = {"logs": self._logs} if self._logs else {}
        data = with_texts(ending.encode(), when=utc(time.time()), **logs)
        for path, content in (
            (znodes.status, b""),
            (znodes.scope(LOCAL), b""),
            (znodes.owner(LOCAL, znodes.role), znodes.service_name.encode()),
            (self.path, data),
        ):
            # Existing znodes stay as they are.
            request(self._client.creation(path, content), lambda value, error: None)
        request(SetData(self.path, data, -1), self._on_written)
        self._client.session.flush()

    def _on_written(self, value: Any, error: Exception | None) -> None:
        if error:
            log.warning("%s can't be written: %s", self.path, in_words(error))
