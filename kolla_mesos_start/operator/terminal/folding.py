"""Plain text for a terminal, for messages that are printed before anything else is imported."""

from __future__ import annotations

import textwrap


def wrapped(text: str, width: int, indent: str = "  ") -> str:
    """A text for a terminal: a line that is too long is folded between words, the others are indented."""
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapper.fill(line) if len(line) > width else line for line in text.split("\n"))
