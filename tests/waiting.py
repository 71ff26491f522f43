"""Waiting for a condition, with a deadline; a test never sleeps for a fixed time.

The limit says nothing about the agent's speed: only a test that fails waits so long. On a busy machine a
start of Python takes ten times as long as on an idle one.
"""

from __future__ import annotations

import time
from typing import Callable, TypeVar

T = TypeVar("T")

LIMIT = 120.0  # seconds
SOON, LATER = 0.02, 0.2  # seconds between two looks: at first, and after some time


def eventually(
    condition: Callable[[], T], what: str, *, seconds: float = LIMIT, every: float | None = None
) -> T:
    """Wait until `condition()` is true and return its value; past `seconds` fail, naming `what`.

    Many conditions read znodes or processes, and that takes processor time from the programs that are
    waited for. So the looks become rarer: by a tenth of what was waited. `every` is another interval, for
    a state that lasts only a moment.
    """
    begun = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - begun
        if waited > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what} (last seen: {value!r})")
        time.sleep(min(max(SOON, waited / 10), LATER) if every is None else every)
