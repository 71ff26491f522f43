"""Waiting for a condition, with a deadline; a test never sleeps for a fixed time.

The limit says nothing about the agent's speed: only a test that fails waits so long. On a busy machine a
start of Python takes ten times as long as on an idle one.
"""

from __future__ import annotations

import time
from typing import Callable, TypeVar

T = TypeVar("T")

LIMIT = 120.0  # seconds


def eventually(
    condition: Callable[[], T], what: str, *, seconds: float = LIMIT, every: float | None = None
) -> T:
    """Wait until `condition()` is true and return its value; past `seconds` fail, naming `what`.

    `every`: seconds between two looks. By default they grow with the time that has passed, because many
    conditions start a program, and other tests need the processor.
    """
    begun = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        passed = time.monotonic() - begun
        if passed > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what} (last seen: {value!r})")
        time.sleep(min(max(0.02, passed / 10), 0.25) if every is None else every)
