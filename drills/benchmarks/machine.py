"""What a figure is worth nothing without: on what it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from tests.support.zookeeper import Server


def describe(server: Server) -> dict[str, object]:
    """The machine, the versions, the commit, and who else was at work when it began."""
    return {
        "processor": f"{_field('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores",
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **{name: version(name) for name in ("kazoo", "jinja2", "psutil")},
        "ZooKeeper": server.ask("srvr").partition("version: ")[2].partition("-")[0],
        "commit": _git("rev-parse", "--short", "HEAD") + " with changes" * bool(_changes()),
        "load at the start": " ".join(Path("/proc/loadavg").read_text().split()[:3]),
    }


def _field(path: str, name: str) -> str:
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")


def _changes() -> str:
    return _git("status", "--porcelain", "kolla_mesos_start", "bin")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
