"""Durations: formatted for people, and parsed from the command line."""

from __future__ import annotations

import math

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
