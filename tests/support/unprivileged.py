"""Launch a program as a user that may do nothing special, wherever Python and the checkout lie.

python unprivileged.py UID PROGRAM...

Whoever has their Python below a home directory that is closed to others finds it open in there:
the program has a view of the file system of its own, with the same paths. The user has no
account, no group but its own number, and UID 0 is root all the same. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS = 0x20000
ROOT = Path(__file__).resolve().parents[2]
NEEDED = (Path(sys.base_prefix), Path(sys.prefix), ROOT)


def launcher(uid: int) -> Sequence[str]:
    """What launches an agent as this user; whoever isn't root is unprivileged already."""
    return (sys.executable, __file__, f"{uid}") if os.geteuid() == 0 else ()


def main(uid: int, program: list[str]) -> None:
    assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
    mount("--make-rprivate", "/")
    open_up([path.resolve() for path in NEEDED])
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    os.execvp(program[0], program)


def open_up(paths: Sequence[Path]) -> None:
    """Put an open directory, otherwise empty, in the place of each closed one on the way to `paths`."""
    closed = {path: closed_on_the_way(path) for path in paths}
    closed = {path: directory for path, directory in closed.items() if directory}
    if not closed:
        return
    mount("-t", "tmpfs", "none", "/mnt")
    kept = {path: Path(f"/mnt/{number}") for number, path in enumerate(closed)}
    for path, place in kept.items():
        place.mkdir()
        mount("--rbind", str(path), str(place))
    for directory in set(closed.values()):
        mount("-t", "tmpfs", "-o", "mode=0755", "none", str(directory))
    for path, place in kept.items():
        path.mkdir(parents=True, exist_ok=True)
        mount("--rbind", str(place), str(path))


def closed_on_the_way(path: Path) -> Path | None:
    """The outermost directory above `path` that others can't pass."""
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & stat.S_IXOTH), None)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
