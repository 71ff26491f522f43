"""Plain text for a terminal, for messages that are printed before anything else is imported."""

from __future__ import annotations

import textwrap


def wrapped(text: str, width: int, indent: str = "  ") -> str:
    """The text with long lines folded between words; continuation lines are indented."""
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapper.fill(line) if len(line) > width else line for line in text.split("\n"))
