"""Spans of time: how long something has lasted, for people, and those of the command line."""

from __future__ import annotations

import math

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def lasting(seconds: float) -> str:
    """`2 min 10 s`. Clocks differ a little: what seems to begin in the future has just begun."""
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
    """A span of the command line. ValueError for what is none."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value
