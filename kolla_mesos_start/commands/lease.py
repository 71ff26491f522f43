"""For how long a holder may be sure of its lock: renewals, the deadline, the instant to kill at.

Pure arithmetic over times that are given to it (seconds of `loop.now`); nothing here sends, waits or
looks at a clock.

A renewal is a committed transaction that checks the contender: a leader without its quorum can't
commit it. But a single one doesn't prove the session for its whole timeout: the leader learns of a
client's request only with its server's next reply to a ping. Two do, a while apart.
"""

from __future__ import annotations

from bisect import bisect_right


class Lease:
    """What the holder of a lock has proved since it sent its claim, the first renewal, at `claimed`.

    `timeout` is the negotiated session timeout T.
    """

    def __init__(self, timeout: float, claimed: float) -> None:
        self.timeout = timeout
        self._acknowledged = [claimed]
        self._proven: float | None = None

    @property
    def renew_at(self) -> float:
        """When the next renewal is to be sent: the first one as soon as it can prove the claim."""
        return self._acknowledged[-1] + (self.timeout / 4 if self._proven is None else self.timeout / 6)

    def acknowledged(self, sent: float) -> None:
        """A renewal that was sent at `sent` has been committed."""
        self._acknowledged.append(sent)
        # It proves the older one: what went to the leader T/4 earlier (half a tick at least) has
        # reached its clock by then.
        known = bisect_right(self._acknowledged, sent - self.timeout / 4)
        if known:
            self._proven = self._acknowledged[known - 1]
            del self._acknowledged[: known - 1]

    @property
    def kill_at(self) -> float:
        """When the command is killed unless a further renewal is proved: the kill must be over in time."""
        if self._proven is not None:
            return self._proven + self.timeout - max(0.3, self.timeout / 20)
        # Right after the claim a ping may be T/3 old, and a server reports it up to half a tick (T/4) later.
        return self._acknowledged[0] + 0.4 * self.timeout - self.timeout / 20
