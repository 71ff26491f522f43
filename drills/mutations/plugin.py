"""Notes how each test ends, and which functions of the package it calls; keeps the chosen tests only.

To know the functions, every Python in the virtual environment imports this (`copies.py`), agents too.
PYTEST_DONT_REWRITE, because it is imported before pytest could.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..")) + os.sep
CALLS, NOTES, CHOSEN = (ROOT + name for name in ("calls", "notes", "chosen"))
TEST = "PYTEST_CURRENT_TEST"
seen: set[object] = set()


def record(frame: FrameType, event: str, argument: object) -> None:
    """Note a function's first call in a test."""
    code = frame.f_code
    if event == "call" and code not in seen:
        seen.add(code)
        if code.co_filename.startswith(ROOT + "kolla_mesos_start") and os.path.exists(CALLS):
            test = os.environ.get(TEST, "").rpartition(" ")[0]
            note(CALLS, test, code.co_filename[len(ROOT) :], code.co_name)


def note(file: str, *words: str) -> None:
    try:
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, ("\t".join(words) + "\n").encode())
        os.close(fd)
    except OSError:
        pass  # This process may have no descriptor left, or too few rights.


if os.path.exists(CALLS):
    threading.setprofile(record)
    sys.setprofile(record)


def pytest_configure(config: Any) -> None:
    """Give the name of the test to programs that are started with an environment of their own."""
    plain = subprocess.Popen.__init__

    def start(self: Any, *args: Any, **options: Any) -> None:
        if options.get("env") is not None and TEST in os.environ and os.path.exists(CALLS):
            options["env"] = {**options["env"], TEST: os.environ[TEST]}
        plain(self, *args, **options)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the chosen tests, in their order."""
    if os.path.exists(CHOSEN):
        order = {test: number for number, test in enumerate(Path(CHOSEN).read_text().split("\n"))}
        items[:] = sorted(
            (each for each in items if each.nodeid in order), key=lambda each: order[each.nodeid]
        )


def pytest_runtest_logstart(nodeid: str) -> None:
    seen.clear()
    note(NOTES, "begins", nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # The first process is notified, too.
        note(NOTES, "failed" if report.failed else f"{report.duration:.2f}", report.nodeid)
