"""Text of others on a terminal: control characters are shown, never sent.

What a container, a program or another user wrote passes through here whatever prints it: `print` writes to a
PrintableStream, and rich to the OutputConsole of `invocation`.
"""

from __future__ import annotations

from typing import Any, TextIO, cast

from kolla_mesos_start.log import CONTROLS

SHOWN_AS = {code: shown for code, shown in CONTROLS.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with its control characters written as `repr` does; lines and tabs stay."""
    return text if text.isprintable() else text.translate(SHOWN_AS)


class PrintableStream:
    """A text stream that writes printable text only."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # A console of rich writes to what has this name.

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guarded(stream: TextIO) -> TextIO:
    """The stream, to be used by `print`."""
    return cast(TextIO, PrintableStream(stream))


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for escape sequences of our own."""
    found: TextIO = getattr(stream, "rich_proxied_file", stream)
    return found
