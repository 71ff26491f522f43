"""How the last start on this host that went wrong ended.

A start that fails writes it, and the next start that gets past that point removes it. A failure before a
command begins is visible nowhere else: there was no attempt, and the container is gone. If a daemon ends
before it was ready, its registrar writes this in the stage DAEMON; only a daemon that is ready removes it.
"""

from __future__ import annotations

import json
import time

from kolla_mesos_start.definition.forms import DAEMON, LOCAL
from kolla_mesos_start.log import Logger
from kolla_mesos_start.report import utc, with_texts
from kolla_mesos_start.zookeeper.wire import OUTAGE, GetData, SetData

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.client import Client

log = Logger(__name__)

# The stages of a start from where its service is known, and what lies past the last one.
STAGES = ("read", "register", "wait", "render", "bootstrap", "exec")
PASSED = "passed"
ORDER = (*STAGES, PASSED)


class Ended:
    """The record of an earlier start, as this start finds it; `path` is its znode."""

    def __init__(self, client: Client, znodes: Znodes) -> None:
        self.path = znodes.ended
        self._client, self._znodes = client, znodes
        self._there = False
        self._command: str | None = None
        self._stage = ""
        client.session.request(GetData(self.path, False), self._on_read)

    @property
    def leftover(self) -> tuple[str, ...]:
        """The path of what this start comes past once its daemon runs, if there is any."""
        return (self.path,) if self._there and self._stage != DAEMON else ()

    @property
    def leftover_until_ready(self) -> tuple[str, ...]:
        """The path of what this start comes past only once its daemon is ready, if there is any."""
        return (self.path,) if self._there and self._stage == DAEMON else ()

    def reached(self, stage: str, command: str | None = None) -> None:
        """This start has come to `stage` with `command`: what ended before there is past."""
        if self._there and self._command == command and self._stage in ORDER[: ORDER.index(stage)]:
            self.forget()

    def forget(self) -> None:
        """This start is past everything."""
        if self._there:
            self._there = False
            self._client.ephemerals.discard(self.path)
            self._client.ephemerals.run()  # Perhaps the session is about to be closed.

    def tell(self, ending: str) -> None:
        """This start ends: `ending` is its last line. Sent, and not waited for; lost in an outage."""
        znodes, request = self._znodes, self._client.session.request
        data = with_texts(ending.encode(), when=utc(time.time()))
        for path, content in (
            (znodes.status, b""),
            (znodes.scope(LOCAL), b""),
            (znodes.owner(LOCAL, znodes.role), znodes.service_name.encode()),
            (self.path, data),
        ):
            # What is there already stays as it is.
            request(self._client.creation(path, content), lambda value, error: None)
        request(SetData(self.path, data, -1), self._on_told)
        self._client.session.flush()

    def _on_told(self, value: Any, error: Exception | None) -> None:
        if error:
            log.warning("%s can't be written: %s", self.path, type(error).__name__)

    def _on_read(self, value: Any, error: Exception | None) -> None:
        self._there = error is None or isinstance(error, OUTAGE)
        try:
            ending = json.loads(value[0] if value else b"")
            self._command, self._stage = ending["command"], ending["stage"]
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # Not one of ours, or not read: it goes at the end of a start.
