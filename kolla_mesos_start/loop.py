"""The one queue that the main thread reads: whatever happens outside arrives here, and nothing else blocks.

Session events and replies come from kazoo's threads, the guard's messages from a descriptor,
signals from the kernel. Each is a function that runs on the main thread, inside `wait`; so all
state of the agent is touched by one thread only, and no lock is needed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections import deque
from types import FrameType
from typing import Callable, TypeVar

T = TypeVar("T")
Handler = Callable[[], object]


def now() -> float:
    """Seconds on the clock of all deadlines; it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Loop:
    """Functions to run on the main thread, in the order in which they were posted."""

    def __init__(self) -> None:
        self._posted: deque[Handler] = deque()
        self._timers: list[tuple[float, int, Handler]] = []
        self._order = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.listen(self._wake_read, self._drain)

    def post(self, handler: Handler) -> None:
        """Have `handler` run on the main thread. From any thread, and from a signal handler."""
        self._posted.append(handler)
        # A full pipe wakes the reader anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def listen(self, fd: int, handler: Handler) -> None:
        """Have `handler` run whenever `fd` is readable. `handler` must read what is there."""
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def ignore(self, fd: int) -> None:
        """Take back `listen`; call it before `fd` is closed."""
        self._selector.unregister(fd)

    def call_at(self, when: float, handler: Handler) -> None:
        """Have `handler` run inside `wait` once the clock (see `now`) has reached `when`."""
        heapq.heappush(self._timers, (when, next(self._order), handler))

    def on_signal(self, signum: int, handler: Callable[[int], object]) -> None:
        """Have `handler(signum)` run on the main thread, inside `wait`, when the signal comes."""

        def deliver(number: int, frame: FrameType | None) -> None:
            self.post(lambda: handler(number))

        signal.signal(signum, deliver)
        # A mask is inherited: whoever launched us may have had it blocked.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})

    def wait(self, condition: Callable[[], T], deadline: float | None = None) -> T:
        """Run what arrives until `condition()` is true or `deadline` (see `now`) has passed.

        Returns the last value of `condition()`; raises whatever a handler raises.
        """
        while True:
            self._run_due()
            value = condition()
            if value or (deadline is not None and now() >= deadline):
                return value
            for key, _ in self._selector.select(self._timeout(deadline)):
                key.data()

    def sleep(self, seconds: float) -> None:
        """Run what arrives for so long."""
        self.wait(lambda: False, now() + seconds)

    def _run_due(self) -> None:
        while self._posted:
            self._posted.popleft()()
        while self._timers and self._timers[0][0] <= now():
            heapq.heappop(self._timers)[2]()

    def _timeout(self, deadline: float | None) -> float | None:
        """Seconds until something is due; None where only an event can be awaited."""
        if self._posted:
            return 0
        instants = [when for when, _, _ in self._timers[:1]]
        if deadline is not None:
            instants.append(deadline)
        # An hour at most: epoll takes no more than 24 days at once, and to wake early costs nothing.
        return max(0.0, min(min(instants) - now(), 3600.0)) if instants else None

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
