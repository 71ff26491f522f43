"""The lease of a one-time command: when to renew it, and when the command must be killed.

Pure arithmetic on times that the caller passes in (seconds of `loop.now`).

A renewal is a committed transaction that checks the contender: a leader without its quorum can't commit it.
But one renewal does not prove the session for its whole timeout: the leader learns of a client's request only
with the next ping reply of the client's server. Two renewals prove it, if there is enough time between them.
"""

from __future__ import annotations

from bisect import bisect_right


class Lease:
    """The renewals of one attempt. Its claim, sent at `claimed`, is the first one.

    `timeout` is the negotiated session timeout T, in seconds.
    """

    def __init__(self, timeout: float, claimed: float) -> None:
        self.timeout = timeout
        self._acknowledged = [claimed]
        self._proven: float | None = None

    @property
    def renew_at(self) -> float:
        """When to send the next renewal; after the claim, as soon as it can prove the claim."""
        return self._acknowledged[-1] + (self.timeout / 4 if self._proven is None else self.timeout / 6)

    def acknowledged(self, sent: float) -> None:
        """A renewal that was sent at `sent` has been committed."""
        self._acknowledged.append(sent)
        # It proves the renewals that are at least T/4 older (which is at least half a tick): the leader
        # has learned of them by now.
        known = bisect_right(self._acknowledged, sent - self.timeout / 4)
        if known:
            self._proven = self._acknowledged[known - 1]
            del self._acknowledged[: known - 1]

    @property
    def kill_at(self) -> float:
        """When to kill the command, unless a later renewal is proved. The margin is for the kill itself."""
        if self._proven is not None:
            return self._proven + self.timeout - max(0.3, self.timeout / 20)
        # Only the claim so far: the last ping may be T/3 old, and its server reports it up to T/4 later.
        return self._acknowledged[0] + 0.4 * self.timeout - self.timeout / 20
