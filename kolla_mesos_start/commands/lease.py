"""For how long a holder may be sure of its lock: renewals, the expiry, the instant to kill at.

Pure arithmetic over times that are given to it (seconds of `loop.now`); nothing here sends,
waits or looks at a clock. Why each rule is as it is: a follower that is cut off from its leader
goes on answering its clients, and the leader learns of a client's request only with the
follower's next reply to its ping. So neither a connection nor a single reply proves anything;
two replies do, a while apart.
"""

from __future__ import annotations

from bisect import bisect_right


class Lease:
    """What one session has proved to the leader. `timeout` is the negotiated session timeout T."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._proven_at: float = float("-inf")
        self._acknowledged: list[float] = []

    @property
    def renewal_interval(self) -> float:
        return self.timeout / 6

    @property
    def margin(self) -> float:
        """How long before the expiry a command is killed: the kill must be over by then."""
        return max(0.3, self.timeout / 20)

    def proven(self, sent: float) -> None:
        """The leader itself dealt with a request sent at `sent`: it opened or revalidated the session."""
        self._proven_at = max(self._proven_at, sent)

    def acknowledged(self, sent: float) -> None:
        """A round trip through the quorum that began at `sent` has come back."""
        self._acknowledged.append(sent)
        # An older renewal is proved by the last one: the follower's link to the leader works, and
        # whatever went over it T/4 earlier (half a tick at least) has reached the leader's clock.
        known = bisect_right(self._acknowledged, sent - self.timeout / 4)
        if known:
            self.proven(self._acknowledged[known - 1])
            del self._acknowledged[: known - 1]

    @property
    def deadline(self) -> float:
        """When the command must be killed unless a further renewal is proved."""
        return self._proven_at + self.timeout - self.margin
