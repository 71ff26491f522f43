"""This host's facts, found by a child process while the agent imports kazoo.

They need psutil, whose import is a tenth of the agent's start; what the facts are is `host`'s.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
from typing import TYPE_CHECKING, Callable, NoReturn

if TYPE_CHECKING:
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.published import Facts

CHILD_TIMEOUT = 1.0  # seconds without a word; it takes some hundredths of one


def begin(settings: Settings) -> Callable[[], Facts]:
    """Begin to find the facts; returns what awaits them, and raises as `host.facts` does.

    A child that fails, or that somebody stops, says nothing; what it has met is met again here.
    To be called while this process has a single thread.
    """
    told, tell = os.pipe()
    try:
        child = os.fork()
    except OSError:
        child = -1  # There is no room for another process: it is done without.
    if child == 0:
        _find(settings, tell)
    os.close(tell)

    @functools.cache
    def facts() -> Facts:
        import json

        heard = _hear(told)
        _end(child)
        try:
            found: Facts = json.loads(heard)
        except ValueError:
            from kolla_mesos_start import host

            return host.facts(settings)
        return found

    return facts


def _find(settings: Settings, tell: int) -> NoReturn:
    try:
        import json

        from kolla_mesos_start import host

        os.write(tell, json.dumps(host.facts(settings)).encode())
    finally:
        os._exit(0)


def _hear(told: int) -> bytes:
    """All that the child says, or as much as it has said when it falls silent."""
    heard = b""
    while select.select([told], [], [], CHILD_TIMEOUT)[0]:
        part = os.read(told, 65536)
        if not part:
            break
        heard += part
    os.close(told)
    return heard


def _end(child: int) -> None:
    # It is reaped by us or, where it is long gone, by whoever heard of that: SIGCHLD is handled in the
    # loop, so between the two looks at it nobody else can take its place.
    with contextlib.suppress(ChildProcessError):
        if child > 0 and os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
