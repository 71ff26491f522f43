"""Lines of text that fit a terminal, and are whole in a file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.text import Text


class Line(NamedTuple):
    """`text` is what comes first and has a colour; `rest`, which may be long, has none."""

    text: str
    style: str = ""
    rest: str = ""

    def cut(self, width: int) -> Text:
        """As one line of a terminal."""
        shown = self.whole()
        shown.truncate(width, overflow="ellipsis")
        return shown

    def folded(self, width: int) -> Text:
        """As several lines, the others indented; a tenth of the width is left to them at least."""
        indent = min(len(self.text), width * 9 // 10)
        folded = textwrap.wrap(self.rest, max(width - indent, 1), break_on_hyphens=False)
        if len(folded) < 2:
            return self.whole()
        return Text.assemble((self.text, self.style), f"\n{' ' * indent}".join(folded))

    def whole(self) -> Text:
        """As it is, for a file or a pipe."""
        return Text.assemble((self.text if self.rest else self.text.rstrip(), self.style), self.rest)


def joined(lines: Iterable[Text]) -> Text:
    return Text("\n").join(lines)


def show(out: Console, lines: Iterable[Line]) -> None:
    """Print them, folded where a terminal is too narrow."""
    out.print(joined(line.folded(out.width) if out.is_terminal else line.whole() for line in lines))
