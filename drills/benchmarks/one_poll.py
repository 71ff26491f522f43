"""One poll for a whole process: the loops of many threads, of which only one runs at a time.

The agent's code waits inside of its loop, so each container needs a stack of its own: a thread. Left to
themselves thousands of threads would fight for the interpreter at each system call. Here a loop that has
nothing to do passes a baton on, to a loop for which something has come; the last one polls for all.
"""

from __future__ import annotations

import heapq
import itertools
import math
import select
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Callable

from kolla_mesos_start import loop


class Seat:
    """A thread that runs, or that waits for its turn: for one of `descriptors`, or until `deadline`."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.descriptors: frozenset[int] = frozenset()
        self.deadline = math.inf
        self.looked_at = math.inf  # when its deadline is looked at next
        self.found: list[tuple[int, int]] = []
        self.queued = False


class OnePoll:
    """Takes the place of `select.poll` in the loops of the threads that `start` has started."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._owners: dict[int, Seat] = {}
        self._deadlines: list[tuple[float, int, Seat]] = []
        self._order = itertools.count()
        self._runnable: deque[Seat] = deque()
        self._here = threading.local()

    def start(self, runs: list[Callable[[], None]]) -> None:
        """Begin each of `runs`, which never return, in a thread of its own."""
        loop.select = SimpleNamespace(  # type: ignore[assignment, attr-defined]
            poll=lambda: _Poll(self), POLLIN=select.POLLIN, POLLOUT=select.POLLOUT
        )
        threading.stack_size(256 * 1024)
        for run in runs:
            seat = Seat()
            self._queue(seat)
            threading.Thread(target=self._sit, args=(seat, run), daemon=True).start()
        self._take().baton.release()

    def wait(self, events: dict[int, int], timeout: float) -> list[tuple[int, int]]:
        """What comes on the descriptors within `timeout` seconds; the other threads run meanwhile."""
        seat: Seat = self._here.seat
        for fd, mask in events.items():
            self._owners[fd] = seat
            # Once: what comes while its thread runs is of interest at its next wait. A descriptor that
            # was closed meanwhile has left by itself.
            try:
                self._epoll.modify(fd, mask | select.EPOLLONESHOT)
            except FileNotFoundError:
                self._epoll.register(fd, mask | select.EPOLLONESHOT)
        seat.descriptors, seat.deadline = frozenset(events), time.monotonic() + timeout
        if seat.deadline < seat.looked_at:
            self._look_at(seat)
        following = self._take()
        if following is not seat:
            following.baton.release()
            seat.baton.acquire()
        found, seat.found = seat.found, []
        seat.descriptors, seat.deadline = frozenset(), math.inf
        return found

    def _sit(self, seat: Seat, run: Callable[[], None]) -> None:
        self._here.seat = seat
        seat.baton.acquire()
        run()

    def _take(self) -> Seat:
        """The next one that is to run."""
        while not self._runnable:
            self._poll()
        seat = self._runnable.popleft()
        seat.queued = False
        return seat

    def _poll(self) -> None:
        timeout = max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None
        for fd, event in self._epoll.poll(timeout):
            seat = self._owners[fd]
            if fd in seat.descriptors:
                seat.found.append((fd, event))
                self._queue(seat)
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            when, _, seat = heapq.heappop(self._deadlines)
            if when == seat.looked_at:
                seat.looked_at = math.inf
            if seat.deadline <= when:
                self._queue(seat)
            elif seat.deadline < seat.looked_at:
                self._look_at(seat)  # It has moved on, as that of a ping does with each request.

    def _queue(self, seat: Seat) -> None:
        if not seat.queued:
            seat.queued = True
            self._runnable.append(seat)

    def _look_at(self, seat: Seat) -> None:
        seat.looked_at = seat.deadline
        heapq.heappush(self._deadlines, (seat.deadline, next(self._order), seat))


class _Poll:
    """What a loop takes for an object of `select.poll`."""

    def __init__(self, one_poll: OnePoll) -> None:
        self._one_poll = one_poll
        self._events: dict[int, int] = {}

    def register(self, fd: int, events: int) -> None:
        self._events[fd] = events

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        if milliseconds > 0:
            return self._one_poll.wait(self._events, milliseconds / 1000)
        poller = select.poll()  # Only a look: nobody else runs in between.
        for fd, events in self._events.items():
            poller.register(fd, events)
        return poller.poll(0)
