"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kolla_mesos_start.errors import AgentError

SHORTEST_SLIP = 5  # letters; shorter names are too similar


class NotThere(AgentError):
    """A directory, deployment or service that was named and does not exist."""

    status = 66


def nearest(name: str, others: Iterable[str]) -> str:
    """The most similar name, for the end of a message; empty if none is similar."""
    found = difflib.get_close_matches(name, list(others), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


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
