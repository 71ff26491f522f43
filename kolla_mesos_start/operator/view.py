"""What the containers of a site do, shown to somebody who watches: who waits for what, since when.

What lives here: rows, and how they are written. What a container does it says itself, to its probes.
"""

from __future__ import annotations

import shutil
import time
from typing import NamedTuple

from kolla_mesos_start.operator.containers import Container
from kolla_mesos_start.operator.site import Site

NOT_YET = "not ready yet"


class Row(NamedTuple):
    """What one container does, and since when (seconds since the epoch)."""

    name: str
    stage: str
    text: str
    since: float

    def told(self, began: float) -> str:
        """As a line of a log: when it began, seconds after `began`."""
        return f"  {self.since - began:7.2f} s  {self.name:20} {self.stage:13} {self.text}".rstrip()

    def shown(self, instant: float, width: int) -> str:
        """As a line of a live view: for how long it has been so."""
        line = f"  {self.name:20} {self.stage:13} {instant - self.since:6.1f} s  {self.text}"
        return line[: width - 1].rstrip()


def row(container: Container) -> Row:
    """What the container tells its probes, or how it ended."""
    status, (stage, text, since) = container.status, container.state
    if status is None:
        if stage == "ended":  # The one before it has.
            stage, text, since = "begins", "", container.started_at
        if stage == "starting" and (not text or NOT_YET in text):
            text = NOT_YET
        # `api/daemon waits for ...` in a line that begins with api@web-1.
        return Row(container.name, stage, text.replace(f"{container.role}/", ""), since)
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return Row(container.name, "finished" if status == 0 else "ended", how, since)


class View:
    """The containers as they are: one block drawn again and again, or a line for each change."""

    def __init__(self, site: Site, live: bool, known: bool = False) -> None:
        """`live`: one block. `known`: how they are now has been told already."""
        self.site, self.live = site, live
        self.rows: list[Row] = []
        self.rows = self._look() if known else []

    def _look(self) -> list[Row]:
        before = {each[:3]: each for each in self.rows}
        rows = map(row, self.site.containers)
        # What is told again has not begun again.
        return [before.get(each[:3], each) for each in rows]

    def show(self) -> None:
        """Look, and show what is."""
        before, self.rows = self.rows, self._look()
        if self.live:
            width = shutil.get_terminal_size().columns
            up = f"\x1b[{len(before)}A" if before else ""
            lines = (f"{each.shown(time.time(), width)}\x1b[K\n" for each in self.rows)
            print(up + "".join(lines), end="", flush=True)
            return
        for each in sorted(set(self.rows) - set(before), key=lambda each: each.since):
            print(each.told(self.site.started_at), flush=True)
