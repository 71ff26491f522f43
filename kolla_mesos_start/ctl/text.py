"""Text for people and from people: safe on a terminal, folded, durations, names that are meant.

It knows no deployment, and imports nothing that may be missing: messages are printed before anything else is
imported.
"""

from __future__ import annotations

import getpass
import math
import os
import socket
import textwrap
from collections.abc import Iterable
from typing import Any, TextIO, cast

from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.log import CONTROLS

# What a container, a program or another user wrote passes through `escaped`, whatever prints it: `print`
# writes to a PrintableStream, and rich to the OutputConsole of `invocation`.
SHOWN_AS = {code: shown for code, shown in CONTROLS.items() if chr(code) not in "\n\t"}


def escaped(text: str) -> str:
    """The text with its control characters written as `repr` does; lines and tabs stay."""
    return text if text.isprintable() else text.translate(SHOWN_AS)


class PrintableStream:
    """A text stream that writes printable text only."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # A console of rich writes to what has this name.

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(escaped(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guarded(stream: TextIO) -> TextIO:
    """The stream, to be used by `print`."""
    return cast(TextIO, PrintableStream(stream))


def wrapped(text: str, width: int, indent: str = "  ") -> str:
    """The text with long lines folded between words; continuation lines are indented."""
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapper.fill(line) if len(line) > width else line for line in text.split("\n"))


# -- durations ------------------------------------------------------------------------------------

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def lasting(seconds: float) -> str:
    """A duration like `2 min 10 s`. A negative one is 0 s: clocks of hosts differ a little."""
    left = max(0, int(seconds))
    words: list[str] = []
    for unit, size in UNITS:
        count, left = divmod(left, size)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
        if len(words) == 2:
            break
    return " ".join(filter(None, words)) or "0 s"


def seconds(text: str) -> float:
    """Parse a number of seconds. Raises ValueError."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


# -- names ----------------------------------------------------------------------------------------

FEW = 3  # names in a line
SHORTEST_SLIP = 5  # letters; shorter names are too similar
NEAR = 0.65  # likeness, as difflib has it, at which a name may be meant
LISTED = 10  # existing names, in a message


class NotThere(AgentError):
    """A directory, deployment or service that was named and does not exist."""

    status = 66


def few(names: Iterable[str], limit: int = FEW) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more


def nearest(name: str, others: Iterable[str]) -> str:
    """The most similar name, for the end of a message; empty if none is similar."""
    from difflib import get_close_matches  # --help needs none.

    found = get_close_matches(name, list(others), n=1, cutoff=NEAR)
    return f" (did you mean {found[0]!r}?)" if found else ""


def existing(name: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    """The existing names, the most similar ones first, for the end of a message.

    `others` may be meant too, and are not listed.
    """

    from difflib import SequenceMatcher

    def likeness(other: str) -> float:
        texts = (other, other.rpartition("/")[2])  # a service may be named by its role
        return max(SequenceMatcher(None, name, text).ratio() for text in texts)

    found = sorted(sorted(names), key=likeness, reverse=True)
    meant = nearest(name, [*found, *others]).strip(" ()")
    there = f"there are: {few(found, LISTED)}" if found else "none exists"
    return f" ({meant}{' ' if meant else ''}{there})"


def slip(name: str, others: Iterable[str]) -> str:
    """As `nearest`, but only for a single typo: one letter wrong, missing, extra, or swapped with the next.

    Names that differ in a digit or in a final s are not typos.
    """
    found = next((other for other in sorted(others) if _is_slip(name, other)), None)
    return f" (did you mean {found!r}?)" if found else ""


def _is_slip(name: str, other: str) -> bool:
    if abs(len(name) - len(other)) > 1 or min(len(name), len(other)) < SHORTEST_SLIP:
        return False
    same = next(
        (at for at, pair in enumerate(zip(name, other)) if pair[0] != pair[1]), min(len(name), len(other))
    )
    a, b = name[same:], other[same:]
    if (a[:1] + b[:1]).isdigit() or {a, b} in ({""}, {"", "s"}):
        return False
    swapped = a[:2] == b[1::-1] and a[2:] == b[2:]
    return swapped or a[1:] in (b, b[1:]) or a == b[1:]


def operator() -> str:
    """The user and the host, as `alice on web1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # The user has no name.
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"
