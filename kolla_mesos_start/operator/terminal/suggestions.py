"""Names that an operator gives: what was probably meant, where there is nothing of that name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kolla_mesos_start.errors import AgentError

SHORTEST_SLIP = 5  # letters; shorter names are too much alike


class NotThere(AgentError):
    """A directory, deployment or service that was named and does not exist."""

    status = 66


def nearest(name: str, others: Iterable[str]) -> str:
    """What was probably meant, for the end of a message; nothing where there is nothing like it."""
    found = difflib.get_close_matches(name, list(others), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def slip(name: str, others: Iterable[str]) -> str:
    """As `nearest`, but only for one letter that is wrong, missing, too many, or swapped with the next.

    Digits, and an s at the end, tell names apart that are both meant.
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
