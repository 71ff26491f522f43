"""Lines of text, cut or folded to the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from kolla_mesos_start.ctl.terminal.printable import printable


class Line(NamedTuple):
    """A line: `text` with a style, then `rest` without one."""

    text: str
    style: str = ""
    rest: str = ""

    def cut(self, width: int) -> Text:
        """One line, cut to the width."""
        shown = self.whole()
        shown.truncate(width, overflow="ellipsis")
        return shown

    def folded(self, width: int) -> Text:
        """The line folded to the width; the continuation lines are indented to where `rest` begins."""
        indent = min(len(self.text), width * 9 // 10)
        folded = textwrap.wrap(printable(self.rest), max(width - indent, 1), break_on_hyphens=False)
        if len(folded) < 2:
            return self.whole()
        return Text.assemble((self.text, self.style), f"\n{' ' * indent}".join(folded))

    def whole(self) -> Text:
        """The whole line, for a file or a pipe."""
        text = self.text if self.rest else self.text.rstrip()
        return Text.assemble((printable(text), self.style), printable(self.rest))


def joined(lines: Iterable[Text]) -> Text:
    return Text("\n").join(lines)


def show(out: Console, lines: Iterable[Line]) -> None:
    """Print the lines, folded on a terminal."""
    out.print(joined(line.folded(out.width) if out.is_terminal else line.whole() for line in lines))
