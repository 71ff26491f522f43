"""An agent that is held, or gets a signal, at a chosen line before its exec.

python held_agent.py hold TEXT FILE PYTHON PROGRAM...
    It stops before the first line that contains TEXT (in a claim, where the generation is checked, or
    from Launch.exec on) until FILE exists; it creates FILE.reached when it stops.

python held_agent.py signal N FILE PYTHON PROGRAM...
    It gets SIGTERM right before the Nth line of the last steps (0: never). Each line is written to FILE
    before it is executed.
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

MODULE = os.path.join("kolla_mesos_start", "daemon", "launch.py")
BEGIN = "exec"
OTHERS = ("_claim", "_check_generation", "check_generation")
LAST_STEPS = (BEGIN, "_handle_pending_signals", "_report_not_started")


def on_lines(happens: Callable[[str], None], others: tuple[str, ...] = ()) -> None:
    """Call `happens` with each line of the last steps before it is executed, once for each.

    Also with each line of the functions `others`.
    """
    seen = set()
    begun = False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal begun
        code = frame.f_code
        if code.co_name in others:
            if event == "line":
                happens(linecache.getline(code.co_filename, frame.f_lineno))
            return trace
        if not code.co_filename.endswith(MODULE) or code.co_name not in LAST_STEPS:
            return None
        begun = begun or code.co_name == BEGIN
        if begun and event == "line" and frame.f_lineno not in seen:
            seen.add(frame.f_lineno)
            happens(linecache.getline(code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)


def hold(text: str, file: Path) -> None:
    def happens(line: str) -> None:
        if text in line:
            sys.settrace(None)
            Path(f"{file}.reached").touch()
            while not file.exists():
                time.sleep(0.01)

    on_lines(happens, OTHERS)


def send(number: int, file: Path) -> None:
    lines = []

    def happens(line: str) -> None:
        lines.append(line)
        file.write_text("".join(lines))
        if len(lines) == number:
            os.kill(os.getpid(), signal.SIGTERM)

    on_lines(happens)


if __name__ == "__main__":
    how, what, place = sys.argv[1:4]
    if how == "hold":
        hold(what, Path(place))
    else:
        send(int(what), Path(place))
    del sys.argv[:5]
    runpy.run_path(sys.argv[0], run_name="__main__")
