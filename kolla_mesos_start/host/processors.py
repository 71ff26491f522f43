"""How many processors this container may use: those of its affinity, or less if its cgroups have a quota."""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HALVES = {"cgroup2": ("cpu.max",), "cgroup": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}


def usable(proc: str = "/proc/self") -> int:
    """The number of processors, a part of one counted as one. `proc` is this process's folder in /proc."""
    counts = [len(os.sched_getaffinity(0))]
    # What can't be read, or has no such limit, is no limit.
    with contextlib.suppress(OSError, ValueError):
        for folder, files in _cgroups(proc):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (int(word) for file in files for word in _read(f"{folder}/{file}").split())
                if quota > 0:
                    counts.append(-(-quota // period))
    return min(counts)


def _cgroups(proc: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The folder of each cgroup that limits this process, from its own up, and the files of its limit."""
    own = {}
    for line in _read(f"{proc}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own["cgroup2" if not controllers else "cgroup" if "cpu" in controllers.split(",") else ""] = path
    for line in _read(f"{proc}/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        if kind not in own or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        root, folder = mount.split(" ")[3:5]
        # Without a cgroup namespace, the path is the host's, and the mount may show a part of it only.
        path = os.path.relpath(own[kind], root) if os.path.commonpath([own[kind], root]) == root else "."
        while path:
            yield f"{folder}/{path}", _HALVES[kind]
            path = "" if path == "." else os.path.dirname(path) or "."


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
