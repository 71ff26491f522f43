"""What any user of the machine can see of its processes; nothing of those that have ended or are hidden."""

from __future__ import annotations

import os
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def processes() -> list[int]:
    """All process ids of this machine."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def command_line(pid: int) -> str:
    """A process's arguments, separated by spaces."""
    return os.fsdecode(_read(pid, "cmdline").replace(b"\0", b" "))


def environment(pid: int) -> str:
    """A process's environment, a line for each variable."""
    return os.fsdecode(_read(pid, "environ").replace(b"\0", b"\n"))


def working_directory(pid: int) -> str:
    """Where a process works."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except GONE:
        return ""


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except GONE:
        return b""
