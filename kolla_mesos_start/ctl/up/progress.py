"""What `up` shows of its containers: what each waits for and for how long, or their logs as one stream.

The state of a container is read from the same file that its own probes read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Callable, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

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
NO_COLOUR = re.compile(r"\x1b(?!\[[0-9;]*m)")  # the beginning of any other escape sequence
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


class ProgressRow(NamedTuple):
    """What one container is doing. `since`: this text; `began`: this stage (seconds since the epoch)."""

    name: str
    stage: str
    text: str
    since: float
    began: float


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


class ProgressView:
    """The rows of all containers: a line for each change, but one table on a terminal while they start."""

    def __init__(self, look: Callable[[], Sequence[ProgressRow]], console: Console) -> None:
        """`look` returns the rows of this moment."""
        self._look, self._console = look, console
        self._start = time.time()
        self._rows: Sequence[ProgressRow] = ()
        self._live: Live | None = None

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Meanwhile the containers start."""
        if not self._console.is_interactive:
            yield
            return
        # All is printed to the console: the streams need not be redirected.
        live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        with live as self._live:
            yield
        self._live = None

    def show(self) -> None:
        """Show what has changed since the last time."""
        known, before = set(self._rows), {each.name: each for each in self._rows}
        self._rows = [merge(before.get(each.name), each) for each in self._look()]
        if self._live:
            self._live.update(table(self._rows, time.time(), self._console.height), refresh=True)
            return
        width = max(LEAST_NAME, *(len(each.name) for each in self._rows))
        for each in sorted(set(self._rows) - known, key=lambda each: each.since):
            line = f"  {each.since - self._start:7.2f} s  {each.name:{width}} {each.stage:13} {each.text}"
            self._console.print(line.rstrip())


def merge(before: ProgressRow | None, row: ProgressRow) -> ProgressRow:
    """The row, with the times of the one before it where they say the same."""
    if before is None or before.stage != row.stage:
        return row
    return before if before.text == row.text else row._replace(began=before.began)


def table(rows: Sequence[ProgressRow], instant: float, height: int) -> RenderableType:
    """For how long each has been in its stage, and what it is doing there.

    Where there is no room for all, what is up is only counted.
    """
    shown = [each for each in rows if len(rows) < height or each.stage not in UP_STAGES]
    width = max(len(each.name) for each in rows)
    found = Table.grid(padding=(0, 2))
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for each in shown:
        text = each.text
        for long, short in SHORTER:
            text = re.sub(long, short, text)
        found.add_row(f"  {each.name:{width}} {each.stage:13} {instant - each.began:5.1f} s", text)
    if len(shown) == len(rows):
        return found
    return Group(f"  {len(rows) - len(shown)} of {len(rows)} are up", found)


class LogStream:
    """What the containers have written since the last look, each line behind the name of its container.

    A line is shown once it is whole. Also shown is how a container ended: an agent logs that, a daemon does
    not.
    """

    def __init__(self, containers: Sequence[LocalContainer], console: Console) -> None:
        self._containers, self._console = containers, console
        self._shown = dict.fromkeys(containers, 0)  # bytes
        self._ended: dict[LocalContainer, float] = {}  # the start whose end was shown
        self._width = max(len(each.name) for each in containers)

    def show(self) -> None:
        """Show what has changed since the last time."""
        for number, container in enumerate(self._containers):
            name = Text(f"{container.name:{self._width}} | ", COLOURS[number % len(COLOURS)])
            # Before its log is read: then its last line is there.
            is_over = container.status is not None
            for line in self._new_lines(container):
                # A daemon may colour its lines. Other sequences, such as links, are shown as text.
                coloured = Text.from_ansi(NO_COLOUR.sub(r"\\x1b", line))
                self._console.print(Text.assemble(name, coloured), soft_wrap=True)
            if is_over and self._ended.get(container) != container.started_at:
                self._ended[container] = container.started_at
                seen = row(container)
                self._console.print(
                    Text.assemble(name, (f"{seen.stage} {seen.text}", "bold")), soft_wrap=True
                )

    def _new_lines(self, container: LocalContainer) -> list[str]:
        try:
            with container.log.open("rb") as log:
                log.seek(self._shown[container])
                whole, end, _ = log.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._shown[container] += len(whole) + len(end)
        # Only `\n` ends a line; of a line that ends in `\r\n`, a terminal would show nothing.
        return [line.rstrip("\r") for line in whole.decode(errors="replace").split("\n")] if end else []
