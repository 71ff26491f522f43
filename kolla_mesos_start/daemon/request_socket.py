"""A Unix socket in the run directory on which the registrar takes requests of its user and of root.

If no descriptor is free when a client connects, the socket stays readable: it is ignored for a while then.
"""

from __future__ import annotations

import contextlib
import os
import socket

from kolla_mesos_start.health import clear
from kolla_mesos_start.loop import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kolla_mesos_start.loop import Loop

RETRY = 1.0  # seconds until the next attempt to accept a connection


class RequestSocket:
    """Calls `on_connection` with each new connection, which does not block."""

    def __init__(self, path: str, loop: Loop, on_connection: Callable[[socket.socket], object]) -> None:
        self._loop, self._on_connection = loop, on_connection
        clear(path)
        before = os.umask(0o177)
        try:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(path)
        finally:
            os.umask(before)
        self._socket.listen()
        self._socket.setblocking(False)
        loop.listen(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(KeyError):  # `_accept` may have paused it.
            self._loop.ignore(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            self._loop.ignore(self._socket.fileno())
            self._loop.call_at(now() + RETRY, self._accept_again)
            return
        connection.setblocking(False)
        self._on_connection(connection)

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.listen(self._socket.fileno(), self._accept)
