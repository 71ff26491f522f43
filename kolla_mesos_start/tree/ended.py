"""Records how the last failed start of this service on this host ended.

A start that fails writes the record; a later start that succeeds at that stage removes it. A failure
before any command begins is visible nowhere else. If a daemon ends before it was ready, its registrar writes
the record with the stage DAEMON; only a ready daemon removes it.
"""

from __future__ import annotations

import time

from kolla_mesos_start.definition.forms import DAEMON, LOCAL
from kolla_mesos_start.log import Logger
from kolla_mesos_start.report import utc, with_texts
from kolla_mesos_start.tree.codec import decode_leniently
from kolla_mesos_start.zookeeper.wire import OUTAGE, GetData, SetData

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.client import Client

log = Logger(__name__)

# The stages of a start once its service is known.
STAGES = ("read", "register", "wait", "render", "bootstrap", "exec")
PASSED = "passed"
MAX_RECORD = 64 * 1024  # bytes
ORDER = (*STAGES, PASSED)


class FailureRecord:
    """The record of an earlier start; `path` is its znode. `logs`: how to read this container's log."""

    def __init__(self, client: Client, znodes: Znodes, logs: str | None) -> None:
        self.path, self._logs = znodes.ended, logs
        self._client, self._znodes = client, znodes
        self._exists = False
        self._command: str | None = None
        self._stage = ""
        client.session.request(GetData(self.path, False), self._on_read)

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
        if self._exists and self._command == command and self._stage in ORDER[: ORDER.index(stage)]:
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
            log.warning("%s can't be written: %s", self.path, type(error).__name__)

    def _on_read(self, value: Any, error: Exception | None) -> None:
        self._exists = error is None or isinstance(error, OUTAGE)
        # If it is unreadable or was not read, it is removed at the end of a successful start.
        ending = decode_leniently(value[0] if value else b"", MAX_RECORD)
        self._command, self._stage = ending.get("command"), ending.get("stage", "")
