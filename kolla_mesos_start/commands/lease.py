"""The lease: until when the holder of a lock is certain to have it, and when its command must be killed.

Arithmetic on times that the caller passes in (seconds of `loop.now`). Nothing here sends, waits or
reads a clock. The reason for the rules: a follower that is cut off from its leader goes on answering
its clients, and the leader learns of a client's request only with the follower's next ping reply. So
neither a connection nor a single reply proves that the leader still has the session. Two replies do,
if there is enough time between them.
"""

from __future__ import annotations

from bisect import bisect_right


class Lease:
    """The lease of one session. `timeout` is the negotiated session timeout T, in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._proven_at: float = float("-inf")
        self._acknowledged: list[float] = []

    @property
    def renewal_interval(self) -> float:
        return self.timeout / 6

    @property
    def margin(self) -> float:
        """Seconds from the kill to the expiry: all processes must have ended before the expiry."""
        return max(0.3, self.timeout / 20)

    def proven(self, sent: float) -> None:
        """The leader itself has handled a request that was sent at `sent`: it opened or found the session."""
        self._proven_at = max(self._proven_at, sent)

    def acknowledged(self, sent: float) -> None:
        """A renewal that was sent at `sent` has been answered."""
        self._acknowledged.append(sent)
        # This answer proves the renewals that are at least T/4 older (which is at least half a tick): the
        # follower's link to the leader works, so they have reached the leader.
        known = bisect_right(self._acknowledged, sent - self.timeout / 4)
        if known:
            self.proven(self._acknowledged[known - 1])
            del self._acknowledged[: known - 1]

    @property
    def deadline(self) -> float:
        """When the command must be killed, unless a later renewal is proved before."""
        return self._proven_at + self.timeout - self.margin
