"""Collects this host's facts in a child process, while the agent connects to ZooKeeper.

`host.network` says what the facts are. Also waits for an address that is missing.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
from functools import partial

from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.settings import Settings

    T = TypeVar("T")

log = Logger(__name__)

SETTLE = 0.1  # seconds
CHILD_TIMEOUT = 1.0  # seconds without a byte; normally the child takes some hundredths


class HostFacts:
    """Starts to collect the facts; a call waits for them, and raises as `network.facts` does.

    If the child fails or is stopped, the facts are collected here. To be created while this process has a
    single thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._facts: Mapping[str, Any] | None = None
        self._reader, writer = os.pipe()
        try:
            self._child = fork(partial(_collect, settings, writer))
        except OSError:
            self._child = -1  # The process limit is reached.
        os.close(writer)

    def __call__(self) -> Mapping[str, Any]:
        if self._facts is None:
            import json

            output = self._read() if self._reader >= 0 else b""
            self.close()
            try:
                self._facts = json.loads(output)
            except ValueError:
                from kolla_mesos_start.host import network

                self._facts = network.facts(self._settings)
        return self._facts

    def close(self) -> None:
        """End the child if it is still running."""
        if self._reader < 0:
            return
        os.close(self._reader)
        self._reader = -1
        # The loop may have reaped it on SIGCHLD. Its pid can't be reused between these two calls.
        with contextlib.suppress(ChildProcessError):
            if self._child > 0 and os.waitpid(self._child, os.WNOHANG) == (0, 0):
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)

    def _read(self) -> bytes:
        """The output of the child until its end, or until it is silent for too long."""
        output = b""
        while select.select([self._reader], [], [], CHILD_TIMEOUT)[0]:
            part = os.read(self._reader, 65536)
            if not part:
                break
            output += part
        return output


def when_addressed(
    work: Callable[[], T],
    loop: Loop,
    limit: float | None,
    tell: Callable[[str], object],
    check: Callable[[], object],
) -> T:
    """The result of `work`, tried again after each change of the network as long as it raises NoAddress.

    `tell` is called with each reason, `check` after each event. Raises DependenciesNotSatisfied after `limit`
    seconds.
    """
    from kolla_mesos_start.host.network import NoAddress

    try:
        return work()
    except NoAddress:
        from kolla_mesos_start.host.netlink import changes
    begun, due, logged = now(), now(), ""
    events: list[bool] = []
    deadline = math.inf if limit is None else begun + limit

    def note() -> None:
        events.append(True)
        with contextlib.suppress(OSError):  # Nothing more to read; or there were too many messages to keep.
            while kernel.recv(1 << 16):
                pass

    with changes() as kernel:
        loop.listen(kernel.fileno(), note)
        try:
            while True:
                events.clear()
                try:
                    return work()
                except NoAddress as missing:
                    why = "; ".join(missing.issues)
                if now() >= deadline:
                    raise DependenciesNotSatisfied(f"waited {now() - begun:.0f} s for an address: {why}")
                if why != logged or now() >= due:
                    logged, due = why, now() + PROGRESS_INTERVAL
                    tell(why)
                    log.info("waiting for an address for %.0f s: %s", now() - begun, why)
                loop.wait(lambda: events or check(), min(deadline, due))
                loop.sleep(SETTLE)  # Several changes come together.
        finally:
            loop.ignore(kernel.fileno())


def _collect(settings: Settings, writer: int) -> None:
    import json

    from kolla_mesos_start.host import network

    os.write(writer, json.dumps(network.facts(settings)).encode())
