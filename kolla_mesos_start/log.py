"""Log formats and levels, the last line of the log, and the termination log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, NamedTuple, TextIO

from kolla_mesos_start.errors import AgentError

log = logging.getLogger(__name__)

AGENT = "kolla_mesos_start"
REPEAT_INTERVAL = 30.0  # seconds between two equal lines of a library
TERMINATION_LOG_LIMIT = 4096  # bytes; Kubernetes cuts off the rest, so that the JSON would be broken


class Ending(NamedTuple):
    """How the agent ended; str() makes one JSON object of it."""

    stage: str
    command: str | None
    reason: str
    retriable: bool
    status: int

    def __str__(self) -> str:
        return _json(self._asdict())

    def short(self) -> Ending:
        """The same with the reason cut so far that the text fits the termination log."""
        cut, keep = self, len(self.reason)
        while (excess := len(str(cut)) - TERMINATION_LOG_LIMIT) > 0 and keep:
            # A character takes up to twelve bytes (two \uXXXX), so a twelfth never cuts too much.
            keep -= min(keep, max(1, excess // 12))
            cut = self._replace(reason=self.reason[:keep] + "...")
        return cut


def ending(stage: str, error: AgentError) -> Ending:
    """How the agent ends if `error` is raised in `stage`."""
    return Ending(stage, error.command, error.reason, error.retriable, error.status)


def configure(level: str, json_lines: bool, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (standard error), as text or as one JSON object a line.

    `level` is `debug`, `info`, `warning` or `error`, for the agent's own lines. Libraries log
    WARNING and above only: kazoo's debug lines hold the data of znodes, and passwords. Each call
    replaces the configuration of the previous one.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if json_lines else _TextLines())
    handler.addFilter(_RepeatFilter())
    own = getattr(logging, level.upper())
    others = max(own, logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(others)
    logging.getLogger("kazoo").setLevel(others)
    logging.getLogger(AGENT).setLevel(own)


def last_line(end: Ending, termination_log: str | None) -> None:
    """Write how the agent ended to the log and to the termination log.

    The line has no time or level in either log format, so that both places hold the same object.
    A reason that is too long for the termination log is logged in full in the line before.
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
        # Only a warning: the reason for the end of the agent must stay in the last line.
        hint = "set KOLLA_TERMINATION_LOG to a writable file"
        log.warning("termination log %s can't be written: %s; %s", path, error.strerror, hint)


class _RepeatFilter(logging.Filter):
    """Drops equal lines of a library for a while: in an outage kazoo logs one every second."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(AGENT):
            return True
        line, instant = record.getMessage(), time.monotonic()
        if line in self._logged_at and instant < self._logged_at[line] + REPEAT_INTERVAL:
            return False
        self._logged_at[line] = instant
        return True


class _Lines(logging.Formatter):
    """Both formats: times in UTC with milliseconds, and a last line that is JSON only."""

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
        # One record, one line: a newline in a name must not make another line.
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
    import json  # The registrar logs too, usually as text.

    return json.dumps(fields)
