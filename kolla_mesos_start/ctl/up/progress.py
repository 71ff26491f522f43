"""Progress of a starting deployment: which container waits for what, and for how long.

Makes the rows, and writes them to a terminal or a log. The state of a container is read from the same file
that its own probes read.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple

from kolla_mesos_start.ctl.terminal.printable import printable, unguarded
from kolla_mesos_start.ctl.up.containers import LocalContainer

NOT_YET = "not ready yet"
# The stage says `waiting` already, and what it waits for needs the room.
SHORTER = (
    (r" of (\d+) instances ready", r" of \1"),
    (r"not run by this container yet", "not yet"),
    (r" waits for ", " for "),
    (r" waits: ", ": "),
)
UP_STAGES = ("ready", "finished")
LEAST_NAME = 20  # characters, in a log
MAX_LINES = 3  # for what one container waits for
UP, TO_LINE_END, TO_SCREEN_END, TOP = "\x1b[{}A", "\x1b[K", "\x1b[J", "\x1b[H"


class Size(NamedTuple):
    """Of a terminal, in characters."""

    columns: int
    lines: int


class ProgressRow(NamedTuple):
    """What one container is doing. `since`: this text; `began`: this stage (seconds since the epoch)."""

    name: str
    stage: str
    text: str
    since: float
    began: float

    def log_line(self, began: float, name_width: int) -> str:
        """For a log: how many seconds after `began` this was first so."""
        name = f"{self.name:{name_width}}"
        return f"  {self.since - began:7.2f} s  {name} {self.stage:13} {self.text}".rstrip()

    def live_line(self, instant: float, name_width: int) -> str:
        """For a live view: for how long it has been in its stage, and what it is doing there."""
        text = self.text
        for long, short in SHORTER:
            text = re.sub(long, short, text)
        return f"  {self.name:{name_width}} {self.stage:13} {instant - self.began:5.1f} s  {text}".rstrip()


def row(container: LocalContainer) -> ProgressRow:
    """What the container's probes read, or how it ended."""
    status, (stage, text, since) = container.status, container.state
    if status is None:
        if stage == "ended" or since < container.started_at:  # left by its previous run
            stage, text, since = "begins", "", container.started_at
        if stage == "starting" and (not text or NOT_YET in text):
            text = NOT_YET
        # Not `api/daemon waits for ...` in a line that begins with api@web-1.
        return ProgressRow(container.name, stage, text.replace(f"{container.role}/", ""), since, since)
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return ProgressRow(container.name, "finished" if status == 0 else "ended", how, since, since)


def terminal() -> Size | None:
    """The size of the terminal on standard output; None if there is none whose cursor can be moved."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return None
    size = os.get_terminal_size(sys.stdout.fileno())
    return Size(size.columns or 80, size.lines or 24)  # A serial line has no size.


class ProgressView:
    """The rows of all containers: one block of lines that is redrawn, or a line for each change."""

    def __init__(
        self, look: Callable[[], Sequence[ProgressRow]], start: float, live: bool, known: bool = False
    ):
        """`look` returns the rows of this moment; `start`: of the deployment, seconds since the epoch.

        `live`: one block. `known`: the rows of this moment have been shown already.
        """
        self.look, self.start = look, start
        self.block = Block() if live else None
        self.rows: list[ProgressRow] = []
        self.rows = self._look() if known else []

    def _look(self) -> list[ProgressRow]:
        before = {each.name: each for each in self.rows}
        return [merge(before.get(each.name), each) for each in self.look()]

    def show(self) -> None:
        """Show the rows of this moment."""
        before, self.rows = self.rows, self._look()
        size = terminal()
        if self.block and size:
            self.block.draw(fit(self.rows, time.time(), size), size)
            return
        width = max(len(each.name) for each in self.rows)
        for each in sorted(set(self.rows) - set(before), key=lambda each: each.since):
            print(each.log_line(self.start, max(width, LEAST_NAME)), flush=True)


def merge(before: ProgressRow | None, row: ProgressRow) -> ProgressRow:
    """The row, with the times of the one before it where they say the same."""
    if before is None or before.stage != row.stage:
        return row
    return before if before.text == row.text else row._replace(began=before.began)


def fit(rows: Sequence[ProgressRow], instant: float, size: Size) -> list[str]:
    """The rows as lines: fewer than the terminal has, and each shorter than it is wide.

    Where there is no room for all, what is up is only counted.
    """
    width = max(len(each.name) for each in rows)
    shown = [each for each in rows if len(rows) < size.lines or each.stage not in UP_STAGES]
    lines = [each.live_line(instant, width) for each in shown]
    folded = [part for line in lines for part in _folded(line, size.columns)]
    head = [] if len(shown) == len(rows) else [f"  {len(rows) - len(shown)} of {len(rows)} are up"]
    # A line that has scrolled away can't be redrawn.
    room = size.lines - 1 - len(head)
    lines = folded if len(folded) <= room else lines
    if len(lines) > room > 0:
        lines[room - 1 :] = [f"  and {len(lines) - room + 1} more"]
    return [line[: size.columns - 1] for line in (*head, *lines[: max(room, 0)])]


def _folded(line: str, columns: int) -> list[str]:
    """The line; if it is too long, the text after the time is wrapped into the lines below."""
    head, end, text = line.partition(" s  ")
    if len(line) < columns or not text:
        return [line]
    below = textwrap.wrap(text, max(20, columns - 7), max_lines=MAX_LINES, placeholder=" ...")
    return [head + end.rstrip(), *(f"      {part}" for part in below)]


class Block:
    """Lines of a terminal that are overwritten each time; the cursor stays below them."""

    def __init__(self) -> None:
        self._lines: Sequence[str] = ()
        self._size: Size | None = None

    def draw(self, lines: Sequence[str], size: Size) -> None:
        """Replace the lines before by these."""
        if (lines, size) == (self._lines, self._size):
            return
        start = UP.format(len(self._lines)) if self._lines else ""
        if self._size not in (None, size):
            # A terminal that was made narrower may have put the old lines anywhere.
            start = TOP
        text = "".join(f"{printable(line)}{TO_LINE_END}\n" for line in lines)
        # In one write: in between, half of each would be visible.
        print(f"{start}{text}{TO_SCREEN_END}", end="", file=unguarded(sys.stdout), flush=True)
        self._lines, self._size = lines, size
