"""Detects that the connection is repeatedly lost because a request is too large for the servers.

A server closes the connection on a request larger than its `jute.maxbuffer`, without an answer, which looks
like an outage. But in an outage, the same large request is not sent right before each of three losses in a
row. Pure.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SMALL = 1024  # bytes; lower than any real limit
SOON = 1.0  # seconds from sending a request to the loss of the connection
TIMES = 3


class Losses:
    """Counts the losses of each large request."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def lost(self, path: str, size: int, *, soon: bool) -> None:
        """Count a loss of the connection before the request was answered; `soon`: right after it was sent."""
        self._counts[path] = self._counts.get(path, 0) + 1 if soon else 0
        self._sizes[path] = size

    def answered(self, path: str) -> None:
        """Reset the count: the request was answered, so its size is not the cause."""
        self._counts.pop(path, None)

    def culprit(self) -> tuple[str, int] | None:
        """The path and size of the largest request that was lost too often; then the counts are reset."""
        found = [path for path, count in self._counts.items() if count >= TIMES]
        if not found:
            return None
        self._counts.clear()
        path = max(found, key=self._sizes.__getitem__)
        return path, self._sizes[path]


def size_of(operation: Any) -> int:
    """The bytes of a request."""
    return len(operation.serialize())


def largest_path(operation: Any) -> str:
    """The path of a request; of a transaction that of its largest part."""
    parts = getattr(operation, "operations", None) or [operation]
    return str(getattr(max(parts, key=size_of), "path", ""))
