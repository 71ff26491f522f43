"""Reads every process's arguments, again and again, as anybody on the machine could."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tests.support.processes import command_line, processes


class CommandLines(threading.Thread):
    """Looks for `needles` (name -> text) in all command lines until it is stopped.

    `found` names the needle and the program; `seen` is what it has looked at, to prove that it
    did look. A process that lives for less than `every` seconds may escape it.
    """

    def __init__(self, needles: Mapping[str, str], *, every: float = 0.1) -> None:
        super().__init__(name="command-lines", daemon=True)
        self.needles = dict(needles)
        self.every = every
        self.seen: set[str] = set()
        self.found: set[str] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.look()
            self.stopping.wait(self.every)

    def look(self) -> bool:
        """Look once; whether anything has been found so far."""
        for line in {command_line(pid) for pid in processes()} - self.seen:
            self.seen.add(line)
            for name, needle in self.needles.items():
                if needle in line:
                    self.found.add(f"{name} in the arguments of {line.split(' ')[0]}")
        return bool(self.found)

    def stop(self) -> None:
        self.stopping.set()
        self.join()
