"""The poll loop of a process: descriptors, signals and timers. Nothing else blocks.

Everything runs in a single thread, inside `wait`: no state needs a lock, and fork and exec are safe. `wait`
raises the exceptions of handlers.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import select
import signal
import time

TYPE_CHECKING = False  # The registrar imports this for months: `typing` would cost it a megabyte.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Optional, Protocol, TypeVar

    T = TypeVar("T")
    Handler = Callable[[], object]
    Interest = Optional[tuple[int, int]]  # a descriptor, and the events of poll() to wait for

    class EventSource(Protocol):
        """Something that waits for a descriptor, for an instant, or for both.

        `interest`: the descriptor and events that it waits for. `deadline`: when it must run at the latest
        (see `now`). `run` is called after every event in the loop, and must not block; `ready`: its own
        events have come.
        """

        @property
        def interest(self) -> Interest: ...

        @property
        def deadline(self) -> float: ...

        def run(self, ready: bool) -> None: ...


LONGEST_POLL = 3600.0  # seconds; poll() has a limit of its own, and waking early costs nothing


def now() -> float:
    """Seconds on the clock of all deadlines; it continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Loop:
    """Runs sources, handlers of descriptors and signals, and timers."""

    def __init__(self) -> None:
        self._sources: list[EventSource] = []
        self._readers: dict[int, Handler] = {}
        self._timers: list[tuple[float, int, Handler]] = []
        self._order = itertools.count()
        self._signals: list[int] = []
        self._signal_handlers: dict[int, Callable[[int], object]] = {}
        self._wakeup = -1

    def add(self, source: EventSource) -> None:
        """Run `source` from now on."""
        self._sources.append(source)

    def remove(self, source: EventSource) -> None:
        """Run `source` no longer."""
        self._sources.remove(source)

    def listen(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever `fd` is readable. It must read what is there."""
        self._readers[fd] = handler

    def ignore(self, fd: int) -> None:
        """Undo `listen`; call it before `fd` is closed."""
        del self._readers[fd]

    def call_at(self, when: float, handler: Handler) -> None:
        """Call `handler` once the clock (see `now`) has reached `when`."""
        heapq.heappush(self._timers, (when, next(self._order), handler))

    def on_signal(self, signum: int, handler: Callable[[int], object]) -> None:
        """Call `handler(signum)` inside `wait` when the signal comes."""
        if self._wakeup < 0:
            self._wakeup = _wakeup_descriptor()
            self.listen(self._wakeup, self._empty_wakeup)
        self._signal_handlers[signum] = handler
        signal.signal(signum, self._note_signal)
        # The launcher may have blocked the signal; the mask is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})

    def wait(self, condition: Callable[[], T], deadline: float = math.inf) -> T:
        """Run the loop until `condition()` is true or `deadline` (see `now`) has passed.

        Events up to the deadline are handled. Returns the last value of `condition()`; raises whatever a
        handler raises.
        """
        expired = False
        while True:
            self._run_due()
            value = condition()
            if value or expired:
                return value
            expired = now() >= deadline
            self._poll(deadline)

    def sleep(self, seconds: float) -> None:
        """Run the loop for so long."""
        self.wait(lambda: False, now() + seconds)

    def _run_due(self) -> None:
        while self._signals:
            signum = self._signals.pop(0)
            self._signal_handlers[signum](signum)
        while self._timers and self._timers[0][0] <= now():
            heapq.heappop(self._timers)[2]()

    def _poll(self, deadline: float) -> None:
        """Wait for the next events, and handle them."""
        poller = select.poll()
        for fd in self._readers:
            poller.register(fd, select.POLLIN)
        interests = [(source, source.interest) for source in self._sources]
        for source, interest in interests:
            if interest is not None:
                poller.register(*interest)
            deadline = min(deadline, source.deadline)
        if self._timers:
            deadline = min(deadline, self._timers[0][0])
        # Rounded up: otherwise the loop would spin for the rest of the millisecond.
        milliseconds = math.ceil(min(max(0.0, deadline - now()), LONGEST_POLL) * 1000)
        ready = {fd for fd, _ in self._await_events(poller, milliseconds)}
        for fd in ready & self._readers.keys():
            if fd in self._readers:  # An earlier handler may have closed it.
                self._readers[fd]()
        for source, interest in interests:
            if source in self._sources:
                source.run(interest is not None and interest[0] in ready)

    def _await_events(self, poller: select.poll, milliseconds: int) -> list[tuple[int, int]]:
        """A step of its own: the tool's loop lets SIGINT interrupt only this."""
        return poller.poll(milliseconds)

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)

    def _empty_wakeup(self) -> None:
        os.read(self._wakeup, 4096)


def _wakeup_descriptor() -> int:
    """A descriptor that becomes readable when a signal comes; otherwise poll() would continue to wait."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read
