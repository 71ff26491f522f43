"""Waiting for a condition, with a deadline; a test never sleeps for a fixed time.

The limit says nothing about the agent's speed: only a test that fails waits so long. On a busy machine a
start of Python takes ten times as long as on an idle one.
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
