"""Launch a program whose Python, and the package of the agent, only root can read. Needs root.

unshare --mount python unreadable_python.py PROGRAM...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNUSED = shutil.ignore_patterns("test", "site-packages", "dist-packages", "idlelib", "config-*")


def main(program: list[str]) -> None:
    mount("-t", "tmpfs", "none", "/mnt")
    for number, path in enumerate((Path(sysconfig.get_path("stdlib")), ROOT / "kolla_mesos_start")):
        copy = Path(f"/mnt/{number}")
        shutil.copytree(path, copy, symlinks=True, ignore=UNUSED)
        copy.chmod(0o700)
        mount("--bind", str(copy), str(path))
    os.execvp(program[0], program)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
