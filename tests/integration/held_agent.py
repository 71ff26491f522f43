"""An agent that something happens to on its way to exec, as chance would have it once in a while.

python held_agent.py hold FILE PYTHON PROGRAM...
    It comes no further than the first line of Launch.exec until FILE is there; FILE.reached says
    that it has come so far.

python held_agent.py signal N FILE PYTHON PROGRAM...
    SIGTERM arrives just before the Nth line from there on (0: never), of those that belong to the
    last steps. Each line goes to FILE before it is executed.
"""

from __future__ import annotations

import linecache
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable

MODULE = os.path.join("kolla_mesos_start", "launch.py")
BEGIN = "exec"
LAST_STEPS = (BEGIN, "_settle_signals", "_become")


def on_lines(happens: Callable[[FrameType], None]) -> None:
    """Have `happens` run before each line of the last steps, once for each line."""
    seen = set()
    begun = False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal begun
        name = frame.f_code.co_name
        if not frame.f_code.co_filename.endswith(MODULE) or name not in LAST_STEPS:
            return None
        begun = begun or name == BEGIN
        if begun and event == "line" and frame.f_lineno not in seen:
            seen.add(frame.f_lineno)
            happens(frame)
        return trace

    sys.settrace(trace)


def hold(file: Path) -> None:
    def happens(frame: FrameType) -> None:
        sys.settrace(None)
        Path(f"{file}.reached").touch()
        while not file.exists():
            time.sleep(0.01)

    on_lines(happens)


def send(number: int, file: Path) -> None:
    lines = []

    def happens(frame: FrameType) -> None:
        lines.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
        file.write_text("".join(lines))
        if len(lines) == number:
            os.kill(os.getpid(), signal.SIGTERM)

    on_lines(happens)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(Path(sys.argv[2]))
        del sys.argv[:4]
    else:
        send(int(sys.argv[2]), Path(sys.argv[3]))
        del sys.argv[:5]
    runpy.run_path(sys.argv[0], run_name="__main__")
