"""Waiting for something to become true, with a deadline; a test never sleeps for a fixed time.

How long it waits is no promise of the agent's: only whoever fails waits so long. On two cores with ten
times the work a start of Python takes as many seconds as it does tenths when they are idle.
"""

from __future__ import annotations

import time
from typing import Callable, TypeVar

T = TypeVar("T")

LIMIT = 120.0  # seconds


def eventually(condition: Callable[[], T], what: str, *, seconds: float = LIMIT, every: float = 0.02) -> T:
    """Wait until `condition()` is true and return its value; past `seconds` fail, naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what} (last seen: {value!r})")
        time.sleep(every)
