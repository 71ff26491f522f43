"""The one poll loop of a process: descriptors, signals and timers. Nothing else blocks.

Everything runs on the one thread there is, inside `wait`: no state needs a lock, and a fork or an
exec meets no other thread. What a handler raises, `wait` raises. While the process computes for long,
`compute` does the same now and then.
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

    class Source(Protocol):
        """Something that waits for a descriptor, for an instant, or for both.

        `interest`: the descriptor and events it waits for now. `deadline`: when it must run at
        the latest (see `now`). `run` does what can be done without blocking; `ready` says whether
        the events have come. It runs whenever anything happened in the loop.
        """

        @property
        def interest(self) -> Interest: ...

        @property
        def deadline(self) -> float: ...

        def run(self, ready: bool) -> None: ...


TICK = 0.2  # seconds that a computation goes on before everything else has its turn
LONGEST_POLL = 3600.0  # seconds; poll() has a limit of its own, and waking early costs nothing


def now() -> float:
    """Seconds on the clock of all deadlines; it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Interrupted(BaseException):
    """Brings what a handler has raised out of a computation, which may go on after any Exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Loop:
    """Runs sources, handlers of descriptors and signals, and timers."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._readers: dict[int, Handler] = {}
        self._timers: list[tuple[float, int, Handler]] = []
        self._order = itertools.count()
        self._signals: list[int] = []
        self._signal_handlers: dict[int, Callable[[int], object]] = {}
        self._wakeup = -1
        self._computing = False

    def add(self, source: Source) -> None:
        """Run `source` from now on."""
        self._sources.append(source)

    def remove(self, source: Source) -> None:
        """Run `source` no longer."""
        self._sources.remove(source)

    def listen(self, fd: int, handler: Handler) -> None:
        """Have `handler` run whenever `fd` is readable. `handler` must read what is there."""
        self._readers[fd] = handler

    def ignore(self, fd: int) -> None:
        """Take back `listen`; call it before `fd` is closed."""
        del self._readers[fd]

    def call_at(self, when: float, handler: Handler) -> None:
        """Have `handler` run once the clock (see `now`) has reached `when`."""
        heapq.heappush(self._timers, (when, next(self._order), handler))

    def on_signal(self, signum: int, handler: Callable[[int], object]) -> None:
        """Have `handler(signum)` run inside `wait` when the signal comes."""
        if self._wakeup < 0:
            self._wakeup = _wakeup_descriptor()
            self.listen(self._wakeup, self._empty_wakeup)
        self._signal_handlers[signum] = handler
        signal.signal(signum, self._note_signal)
        # A mask is inherited: the launcher may have blocked the signal.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})

    def wait(self, condition: Callable[[], T], deadline: float = math.inf) -> T:
        """Run what happens until `condition()` is true or `deadline` (see `now`) has passed.

        What has happened by the deadline counts. Returns the last value of `condition()`; raises
        whatever a handler raises.
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
        """Run what happens for so long."""
        self.wait(lambda: False, now() + seconds)

    def compute(self, work: Callable[[], T]) -> T:
        """The result of `work`, a computation without effects, while everything else goes on.

        An alarm interrupts it between two steps of the interpreter: a single long operation, as the
        repetition of a huge text, is waited for. What a handler raises ends the computation. What it
        calls must not use the loop, unless it is `uninterrupted`.
        """
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        try:
            try:
                self._computing = True
                return work()
            finally:
                self._computing = False
        except Interrupted as interrupted:
            raise interrupted.error from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # A program that is executed would inherit it.

    def uninterrupted(self, function: Callable[..., T]) -> Callable[..., T]:
        """`function` as a computation may call it: it may use the loop itself."""

        def call(*args: object) -> T:
            computing, self._computing = self._computing, False
            try:
                return function(*args)
            finally:
                self._computing = computing

        return call

    def _on_alarm(self, signum: int, frame: FrameType | None) -> None:
        if self._computing:
            self._computing = False
            try:
                self.sleep(0)
            except Exception as error:
                raise Interrupted(error) from None
            self._computing = True

    def _run_due(self) -> None:
        while self._signals:
            signum = self._signals.pop(0)
            self._signal_handlers[signum](signum)
        while self._timers and self._timers[0][0] <= now():
            heapq.heappop(self._timers)[2]()

    def _poll(self, deadline: float) -> None:
        """Wait for the next thing to happen, and run it."""
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
        # Upwards: a bit too early would mean spinning for the rest of the millisecond.
        ready = {fd for fd, _ in poller.poll(math.ceil(min(max(0.0, deadline - now()), LONGEST_POLL) * 1000))}
        for fd in ready & self._readers.keys():
            if fd in self._readers:  # An earlier handler may have closed it.
                self._readers[fd]()
        for source, interest in interests:
            if source in self._sources:
                source.run(interest is not None and interest[0] in ready)

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)

    def _empty_wakeup(self) -> None:
        os.read(self._wakeup, 4096)


def _wakeup_descriptor() -> int:
    """A descriptor that becomes readable when a signal comes: poll() alone would go on waiting."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read
