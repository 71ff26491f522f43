"""How log lines look, where they go, and the last of them: how the agent ended.

What lives here: the formats, the levels and the termination log. What a line may say is the
business of whoever writes it; only kazoo is kept from saying too much, here.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, NamedTuple, TextIO

from kolla_mesos_start.errors import AgentError

log = logging.getLogger(__name__)

AGENT = "kolla_mesos_start"
LIBRARIES_REPEAT_AFTER = 30.0  # seconds
TERMINATION_LOG_LIMIT = 4096  # bytes; Kubernetes cuts there, and would cut the JSON in two


class Ending(NamedTuple):
    """How the agent ended; as text it is one JSON object."""

    stage: str
    command: str | None
    reason: str
    retriable: bool
    status: int

    def __str__(self) -> str:
        return _json(self._asdict())

    def short(self) -> Ending:
        """The same with its reason cut, if need be, so that the text fits the termination log."""
        cut, keep = self, len(self.reason)
        while (excess := len(str(cut)) - TERMINATION_LOG_LIMIT) > 0 and keep:
            # A character takes up to twelve bytes (two \uXXXX): a twelfth is never too much.
            keep -= min(keep, max(1, excess // 12))
            cut = self._replace(reason=self.reason[:keep] + "...")
        return cut


def ending(stage: str, error: AgentError) -> Ending:
    """What `error` makes of the agent, which is in `stage`."""
    return Ending(stage, error.command, error.reason, error.retriable, error.status)


def configure(level: str, json_lines: bool, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (standard error), as text or as one JSON object a line.

    `level` is `debug`, `info`, `warning` or `error`, and meant for the agent itself. Libraries
    never go below WARNING: kazoo's debug lines hold the data of znodes, and passwords. May be
    called again; the last call counts.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if json_lines else _TextLines())
    handler.addFilter(_Sparing())
    own = getattr(logging, level.upper())
    others = max(own, logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(others)
    logging.getLogger("kazoo").setLevel(others)
    logging.getLogger(AGENT).setLevel(own)


def last_line(end: Ending, termination_log: str | None) -> None:
    """Say how the agent ended, in the last line of the log and in the termination log.

    It stands bare in the log whatever the format, so that both places hold the same object. A
    reason that is too long for the termination log is logged whole in the line before.
    """
    short = end.short()
    if short != end:
        log.error("%s", end.reason)
    if termination_log:
        _write_termination_log(termination_log, str(short))
    log.critical(short)


def _write_termination_log(path: str, line: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(line)
    except OSError as error:
        # The agent is ending already, and for a better reason than this one.
        log.warning("%s can't be written: %s; set KOLLA_TERMINATION_LOG", path, error.strerror)


class _Sparing(logging.Filter):
    """Lets the same line of a library pass once in a while: of an outage kazoo tells every second."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(AGENT):
            return True
        line, instant = record.getMessage(), time.monotonic()
        if line in self._told and instant < self._told[line] + LIBRARIES_REPEAT_AFTER:
            return False
        self._told[line] = instant
        return True


class _Lines(logging.Formatter):
    """What both formats share: times in UTC with milliseconds, and a bare last line."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        return str(record.msg) if isinstance(record.msg, Ending) else self.line(record)

    def line(self, record: logging.LogRecord) -> str:
        return super().format(record)


class _TextLines(_Lines):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        # One record, one line: a newline in a name must not forge another one.
        return super().formatMessage(record).replace("\n", "\\n")


class _JsonLines(_Lines):
    def line(self, record: logging.LogRecord) -> str:
        return _json(
            {
                "time": self.formatTime(record),
                "level": record.levelname,
                "logger": record.name,
                "message": super().line(record),
            }
        )


def _json(fields: dict[str, Any]) -> str:
    import json  # The registrar logs too, and most often as text.

    return json.dumps(fields)
