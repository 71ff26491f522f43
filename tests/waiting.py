"""Waiting for something to become true, with a deadline; a test never sleeps for a fixed time."""

from __future__ import annotations

import time
from typing import Callable, TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], what: str, *, seconds: float = 30.0, every: float = 0.02) -> T:
    """Wait until `condition()` is true and return its value; past `seconds` fail, naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what} (last seen: {value!r})")
        time.sleep(every)
