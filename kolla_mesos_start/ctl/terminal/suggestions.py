"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kolla_mesos_start.errors import AgentError

SHORTEST_SLIP = 5  # letters; shorter names are too similar
NEAR = 0.65  # likeness, as difflib has it, at which a name may be meant
LISTED = 10  # existing names, in a message


class NotThere(AgentError):
    """A directory, deployment or service that was named and does not exist."""

    status = 66


def nearest(name: str, others: Iterable[str]) -> str:
    """The most similar name, for the end of a message; empty if none is similar."""
    found = difflib.get_close_matches(name, list(others), n=1, cutoff=NEAR)
    return f" (did you mean {found[0]!r}?)" if found else ""


def existing(name: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    """The existing names, the most similar ones first, for the end of a message.

    `others` may be meant too, and are not listed.
    """

    def likeness(other: str) -> float:
        texts = (other, other.rpartition("/")[2])  # a service may be named by its role
        return max(difflib.SequenceMatcher(None, name, text).ratio() for text in texts)

    found = sorted(sorted(names), key=likeness, reverse=True)
    meant = nearest(name, [*found, *others]).strip(" ()")
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    there = f"there are: {', '.join(found[:LISTED])}{more}" if found else "none exists"
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
