"""Ctrl-C raises KeyboardInterrupt anywhere in the tool, except within the steps of the ZooKeeper session.

A session that is interrupted while it reads or writes a frame loses bytes, and can't be closed any more.
"""

from __future__ import annotations

import math
import select
from types import FrameType
from typing import Callable, TypeVar

from kolla_mesos_start.loop import Loop

T = TypeVar("T")


class Interrupts:
    """A handler of SIGINT that raises KeyboardInterrupt, at once or after `call`."""

    def __init__(self) -> None:
        self._deferred = self._pending = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        self._pending = True
        self._check()

    def call(self, function: Callable[[], T], *, deferred: bool) -> T:
        """Call `function`, in which interrupts are `deferred` or not."""
        before, self._deferred = self._deferred, deferred
        try:
            self._check()
            return function()
        finally:
            self._deferred = before
            self._check()

    def _check(self) -> None:
        if self._pending and not self._deferred:
            self._pending = False
            raise KeyboardInterrupt


SIGINT = Interrupts()


class InterruptibleLoop(Loop):
    """A loop that SIGINT interrupts only while it waits for the next event."""

    def wait(self, condition: Callable[[], T], deadline: float = math.inf) -> T:
        wait = super().wait
        return SIGINT.call(lambda: wait(condition, deadline), deferred=True)

    def _await_events(self, poller: select.poll, milliseconds: int) -> list[tuple[int, int]]:
        return SIGINT.call(lambda: poller.poll(milliseconds), deferred=False)
