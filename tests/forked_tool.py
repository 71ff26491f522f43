"""Becomes `kolla_mesos_ctl` in a process that is forked from one that has imported it.

Most of what a run costs are the imports. This module imports no pytest: the process that forks
(`multiprocessing`) imports it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kolla_mesos_start.operator import cli

for _each in cli.SUBCOMMANDS:
    _each.load()
gc.freeze()  # A collection in a forked process would copy these pages.

STREAMS = ("in", "out", "err")


def become(argv: Sequence[str], environ: Mapping[str, str], directory: str, streams: Path) -> None:
    """Run the tool in this directory, with the files of STREAMS as its standard streams, and exit."""
    for number, name in enumerate(STREAMS):
        opened = os.open(streams / name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    sys.argv = [cli.PROGRAM, *argv]
    cli.main()
