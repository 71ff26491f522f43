"""This host's facts, found by a child process while the agent connects to ZooKeeper.

They need psutil, whose import is a tenth of the agent's start; what the facts are is `host`'s.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from functools import partial

from kolla_mesos_start.processes import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.published import Facts

CHILD_TIMEOUT = 1.0  # seconds without a byte; it takes some hundredths of one


class HostFacts:
    """Finds the facts from now on; calling it awaits them, and raises as `host.facts` does.

    A child that fails, or that was stopped, says nothing: then the facts are found here. To be made
    while this process has a single thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._facts: Facts | None = None
        self._reader, writer = os.pipe()
        try:
            self._child = fork(partial(_find, settings, writer))
        except OSError:
            self._child = -1  # There is no room for another process: it is done without.
        os.close(writer)

    def __call__(self) -> Facts:
        if self._facts is None:
            import json

            heard = self._hear()
            self.close()
            try:
                self._facts = json.loads(heard)
            except ValueError:
                from kolla_mesos_start import host

                self._facts = host.facts(self._settings)
        return self._facts

    def close(self) -> None:
        """End the child, if there still is one."""
        if self._reader < 0:
            return
        os.close(self._reader)
        self._reader = -1
        # SIGCHLD is handled in the loop, so the child may have been reaped; but between the two looks
        # at it nobody else can take its place.
        with contextlib.suppress(ChildProcessError):
            if self._child > 0 and os.waitpid(self._child, os.WNOHANG) == (0, 0):
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)

    def _hear(self) -> bytes:
        """All that the child says, or as much as it has said when it falls silent."""
        heard = b""
        while select.select([self._reader], [], [], CHILD_TIMEOUT)[0]:
            part = os.read(self._reader, 65536)
            if not part:
                break
            heard += part
        return heard


def _find(settings: Settings, writer: int) -> None:
    import json

    from kolla_mesos_start import host

    os.write(writer, json.dumps(host.facts(settings)).encode())
