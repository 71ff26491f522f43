"""Children that have ended, our own and those that came to us: somebody has to ask for their status."""

from __future__ import annotations

import os


def reap() -> list[tuple[int, int]]:
    """Reap every child that has ended; returns their pids and wait statuses.

    For SIGCHLD: orphans come to process 1 and to a subreaper, and are zombies until somebody asks.
    """
    reaped = []
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            reaped.append((pid, status))
    except ChildProcessError:
        pass
    return reaped
