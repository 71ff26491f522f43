"""The log: its formats and levels, and its last line, which says how the agent ended.

Not Python's `logging`: its handlers block while nobody reads the log, and then no command would be killed in
time. Here a line that can't be written at once is dropped and counted. `logging` would also cost each
registrar two megabytes.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kolla_mesos_start.errors import AgentError

LEVELS = ("debug", "info", "warning", "error", "critical")
PROGRESS_INTERVAL = 30.0  # seconds between log lines about a long operation
TERMINATION_LOG_LIMIT = 4096  # bytes; Kubernetes cuts longer text, which would break the JSON
CHUNK = 4096  # bytes (PIPE_BUF) that a pipe accepts without blocking once poll() calls it writable
LINE_LIMIT = 60 * 1024  # bytes; a pipe holds 64 KiB, so a longer line could never be written at once
LAST_LINE_TIMEOUT = 1.0  # seconds that the last line waits for a reader
# Control characters in a name must not forge a line, in the log or on a terminal.
# Besides control characters, those that end a line or change the direction of the following ones.
CONTROLS = {
    code: repr(chr(code))[1:-1]
    for code in (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


def printable(text: str) -> str:
    """Text of others that is safe to show: it can't end a line or move a cursor."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


class Output:
    """The log of this process: its descriptor, lowest level and format.

    `dropped` counts the lines that could not be written since the last successful one.
    """

    def __init__(self, fd: int = 2) -> None:
        self.fd = fd
        self.level = LEVELS.index("info")
        self.json_lines = False
        self.program = ""  # named in each line, in place of its time and its logger
        self.dropped = 0
        self._torn = False  # Only a part of the last line was written.

    def write(self, level: str, name: str, message: str) -> None:
        """Write one line, unless its level is too low or nobody reads the log."""
        if LEVELS.index(level) < self.level:
            return
        self._report_dropped()
        if self.dropped or not self._put(self._short_line(level, name, message)):
            self.dropped += 1

    def bare(self, line: str) -> None:
        """Write a line unchanged, whatever the format; wait a moment for a reader."""
        self._report_dropped(LAST_LINE_TIMEOUT)
        self._put(line, LAST_LINE_TIMEOUT)

    def _report_dropped(self, timeout: float = 0.0) -> None:
        notice = f"{self.dropped} log lines were dropped"
        if self.dropped and self._put(self._line("warning", __name__, notice), timeout):
            self.dropped = 0

    def _short_line(self, level: str, name: str, message: str) -> str:
        """The line, with the message cut if a pipe could not hold it."""
        line, keep = self._line(level, name, message), len(message)
        while (size := len(line.encode("utf-8", "backslashreplace"))) > LINE_LIMIT:
            keep = keep * LINE_LIMIT // size - 1  # Characters vary in size.
            line = self._line(level, name, f"{message[:keep]}... ({len(message)} characters)")
        return line

    def _line(self, level: str, name: str, message: str) -> str:
        instant = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(instant)) + f".{int(instant % 1 * 1000):03d}Z"
        if self.json_lines:
            import json

            return json.dumps({"time": stamp, "level": level.upper(), "logger": name, "message": message})
        if self.program:
            return f"{self.program}: {message}".translate(CONTROLS)
        # One record, one line.
        return f"{stamp} {level.upper()} {name}: {message}".translate(CONTROLS)

    def _put(self, line: str, timeout: float = 0.0) -> bool:
        """Write the line without blocking for longer than `timeout` seconds; false if nobody reads."""
        rest = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._torn:
            rest = b"\n" + rest  # Otherwise this line would continue the torn one.
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        deadline = time.monotonic() + timeout
        try:
            while rest:
                ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
                if not ready or not ready[0][1] & select.POLLOUT:
                    return False
                rest = rest[os.write(self.fd, rest[:CHUNK]) :]
                self._torn = bool(rest)
        except OSError:
            return False  # The reader is gone, which must never change the agent's behaviour.
        return True


OUTPUT = Output()


class Logger:
    """The log of one module, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *args: object) -> None:
        self.log("debug", message, *args)

    def info(self, message: str, *args: object) -> None:
        self.log("info", message, *args)

    def warning(self, message: str, *args: object) -> None:
        self.log("warning", message, *args)

    def error(self, message: str, *args: object) -> None:
        self.log("error", message, *args)

    def log(self, level: str, message: str, *args: object) -> None:
        """Write `message % args` as one line."""
        OUTPUT.write(level, self._name, message % args if args else message)


class Ending:
    """How the agent ended; as text it is one JSON object."""

    def __init__(self, stage: str, command: str | None, reason: str, retriable: bool, status: int) -> None:
        self.fields: dict[str, Any] = {
            "stage": stage,
            "command": command,
            "reason": reason,
            "retriable": retriable,
            "status": status,
        }

    def __str__(self) -> str:
        import json

        return json.dumps(self.fields)

    def short(self) -> Ending:
        """The same, with the reason cut if the text does not fit the termination log."""
        cut, reason = self, self.fields["reason"]
        keep = len(reason)
        while (excess := len(str(cut)) - TERMINATION_LOG_LIMIT) > 0 and keep:
            # A character takes up to twelve bytes (two \uXXXX), so a twelfth never cuts too much.
            keep -= min(keep, max(1, excess // 12))
            cut = Ending(**{**self.fields, "reason": reason[:keep] + "..."})
        return cut


def ending(stage: str, error: AgentError) -> Ending:
    """How `error` ends the agent in `stage`."""
    return Ending(stage, error.command, error.reason, error.retriable, error.status)


def configure(level: str, json_lines: bool) -> None:
    """Set the lowest level (`debug`, `info`, `warning` or `error`), and the format: text or JSON objects.

    May be called again; the last call counts.
    """
    if json_lines:
        import json  # noqa: F401 (now: later no descriptor may be free for the import)
    OUTPUT.level, OUTPUT.json_lines = LEVELS.index(level), json_lines


def last_line(end: Ending, termination_log: str | None) -> None:
    """Write how the agent ended, in the last line of the log and in the termination log.

    Both contain the same JSON object, whatever the log's format. A reason that is too long for the
    termination log is logged completely in the line before.
    """
    short = end.short()
    if short is not end:
        Logger(__name__).error("%s", end.fields["reason"])
    if termination_log:
        _write_termination_log(termination_log, str(short))
    OUTPUT.bare(str(short))


def _open_regular(path: str, flags: int) -> int:
    """Open a file for writing. Raises OSError for a FIFO, which would be waited for, and a device."""
    fd = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


def _write_termination_log(path: str, line: str) -> None:
    try:
        with open(path, "w", encoding="ascii", opener=_open_regular) as file:
            file.write(line)
    except OSError as error:
        # The agent is already ending, for a more important reason.
        hint = "set KOLLA_TERMINATION_LOG to a writable file"
        Logger(__name__).warning("termination log %s can't be written: %s; %s", path, error.strerror, hint)
