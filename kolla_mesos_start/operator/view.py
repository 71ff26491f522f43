"""What the containers of a site do, shown to somebody who watches: who waits for what, since when.

What lives here: rows, and how they are written. What a container does it says itself, to its probes.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple

from kolla_mesos_start.operator.containers import Container

NOT_YET = "not ready yet"
# A stage is waiting already, and what it waits for has to find room beside it.
SHORTER = (
    (r" of (\d+) instances ready", r" of \1"),
    (r"not passed by this container yet", "not yet"),
    (r" waits for ", " for "),
    (r" waits: ", ": "),
)
MOST_LINES = 3  # for what one container waits for
UP, TO_LINE_END, TO_SCREEN_END, TOP = "\x1b[{}A", "\x1b[K", "\x1b[J", "\x1b[H"


class Size(NamedTuple):
    """Of a terminal, in characters."""

    columns: int
    lines: int


class Row(NamedTuple):
    """What one container does, since when, and since when it is in this stage (seconds since the epoch)."""

    name: str
    stage: str
    text: str
    since: float
    began: float

    def told(self, began: float) -> str:
        """As a line of a log: when it began, seconds after `began`."""
        return f"  {self.since - began:7.2f} s  {self.name:20} {self.stage:13} {self.text}".rstrip()

    def shown(self, instant: float, name_width: int) -> str:
        """As a line of a live view: for how long it has been in its stage, and what it says of it."""
        text = self.text
        for long, short in SHORTER:
            text = re.sub(long, short, text)
        return f"  {self.name:{name_width}} {self.stage:13} {instant - self.began:5.1f} s  {text}".rstrip()


def row(container: Container) -> Row:
    """What the container tells its probes, or how it ended."""
    status, (stage, text, since) = container.status, container.state
    if status is None:
        if stage == "ended" or since < container.started_at:  # The one before it has said that.
            stage, text, since = "begins", "", container.started_at
        if stage == "starting" and (not text or NOT_YET in text):
            text = NOT_YET
        # `api/daemon waits for ...` in a line that begins with api@web-1.
        return Row(container.name, stage, text.replace(f"{container.role}/", ""), since, since)
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return Row(container.name, "finished" if status == 0 else "ended", how, since, since)


def terminal() -> Size | None:
    """The terminal that the standard output is; None where it is none that lines can be drawn anew on."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return None
    size = os.get_terminal_size(sys.stdout.fileno())
    return Size(size.columns or 80, size.lines or 24)  # A serial line knows no size.


class View:
    """The containers as they are: one block drawn again and again, or a line for each change."""

    def __init__(self, look: Callable[[], Sequence[Row]], start: float, live: bool, known: bool = False):
        """`look`: how they are now; `start`: of them all, seconds since the epoch.

        `live`: one block. `known`: how they are now has been told already.
        """
        self.look, self.start = look, start
        self.block = Block() if live else None
        self.rows: list[Row] = []
        self.rows = self._look() if known else []

    def _look(self) -> list[Row]:
        before = {each.name: each for each in self.rows}
        return [after(before.get(each.name), each) for each in self.look()]

    def show(self) -> None:
        """Look, and show what is."""
        before, self.rows = self.rows, self._look()
        size = terminal()
        if self.block and size:
            self.block.draw(drawn(self.rows, time.time(), size), size)
            return
        for each in sorted(set(self.rows) - set(before), key=lambda each: each.since):
            print(each.told(self.start), flush=True)


def after(before: Row | None, row: Row) -> Row:
    """The row, but what is told again has not begun again."""
    if before is None or before.stage != row.stage:
        return row
    return before if before.text == row.text else row._replace(began=before.began)


def drawn(rows: Sequence[Row], instant: float, size: Size) -> list[str]:
    """All rows as lines, fewer than the terminal has, and none as long as it is wide."""
    width = max(len(each.name) for each in rows)
    lines = [each.shown(instant, width) for each in rows]
    folded = [part for line in lines for part in _folded(line, size.columns)]
    # What scrolls away can't be drawn anew.
    lines = folded if len(folded) < size.lines else lines
    return [line[: size.columns - 1] for line in lines][: size.lines - 1]


def _folded(line: str, columns: int) -> list[str]:
    """What has no room behind its time goes below it."""
    head, end, text = line.partition(" s  ")
    if len(line) < columns or not text:
        return [line]
    below = textwrap.wrap(text, max(20, columns - 7), max_lines=MOST_LINES, placeholder=" ...")
    return [head + end.rstrip(), *(f"      {part}" for part in below)]


class Block:
    """Lines of a terminal that are written over again and again; the cursor stays below them."""

    def __init__(self) -> None:
        self._lines: Sequence[str] = ()
        self._size: Size | None = None

    def draw(self, lines: Sequence[str], size: Size) -> None:
        """Show these lines in the place of those before."""
        if (lines, size) == (self._lines, self._size):
            return
        start = UP.format(len(self._lines)) if self._lines else ""
        if self._size not in (None, size):
            # Nobody knows where a terminal has put the old lines when it was made narrower.
            start = TOP
        text = "".join(f"{line}{TO_LINE_END}\n" for line in lines)
        # At once: whoever looks in between would see half of each.
        print(f"{start}{text}{TO_SCREEN_END}", end="", flush=True)
        self._lines, self._size = lines, size
