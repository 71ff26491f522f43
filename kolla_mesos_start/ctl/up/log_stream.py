"""The logs of all containers as one stream, each line behind the name of its container.

Follows the log files and formats each line. A container that is restarted continues its file. The stream
also shows how a container ended: an agent logs that in its last line, a daemon does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.up.progress import row

NO_COLOUR = re.compile(r"\x1b(?!\[[0-9;]*m)")  # the beginning of any other escape sequence
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


class LogStream:
    """What the containers have written since the last look. A line is shown once it is whole."""

    def __init__(self, containers: Iterable[LocalContainer], console: Console) -> None:
        self._containers: Sequence[LocalContainer] = tuple(containers)
        self._console = console
        self._shown = dict.fromkeys(self._containers, 0)  # bytes
        self._ended: dict[LocalContainer, float] = {}  # the start whose end was shown
        self._width = max(len(each.name) for each in self._containers)

    def show(self) -> None:
        """Print what is new."""
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
