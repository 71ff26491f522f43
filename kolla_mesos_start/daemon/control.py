"""How `kolla_mesos_start refresh` and `stop` reach their registrar: sockets in the run directory.

The registrar's end is first, then the two commands.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from kolla_mesos_start.errors import cause
from kolla_mesos_start.health import clear, find_run_dir
from kolla_mesos_start.loop import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kolla_mesos_start.loop import Loop

REFRESH_SOCKET, STOP_SOCKET = "refresh", "stop"
# What `stop` sends at once: without this client, the registrar does the rest.
DRAIN, STOP = b"D", b"T"  # with STOP, it sends the daemon its stop signal after the answer
ENDED = b"E"  # the second answer to STOP, once the daemon has ended

RETRY = 1.0  # seconds until the next attempt to accept a connection
LONG = 10.0  # seconds of a refresh
MARGIN = 10.0  # seconds after the KILL of a supervisor

DENIED = "{path} can't be connected to: run this as the agent's user, or as root"
NOT_REFRESHED = (
    "no daemon can be refreshed here: {path} can't be connected to ({why}). Either it is not started yet, or"
    " its definition has no on_change: then restart the container"
)
NOTHING_TO_DRAIN = (
    "nothing to drain: {path} can't be connected to ({why}). Either the daemon is not started yet, or its"
    " definition has neither drain nor before_stop: then stop the container"
)
TAKES_LONG = (
    "it takes long: see `kolla_mesos_start health` and the container's log. The refresh goes on without this"
    " command"
)
UNKNOWN = "its registrar has ended: whether the daemon has ended is unknown"


class RequestSocket:
    """Calls `on_connection` with each new connection of its user or of root, which does not block.

    If no descriptor is free when a client connects, the socket stays readable: it is ignored for a while.
    """

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


# -- the commands -----------------------------------------------------------------------------------


def refresh(environ: Mapping[str, str]) -> int:
    """Have the registrar refresh the files now, print the result, and return the exit status."""
    connection = _connect(f"{find_run_dir(environ)}/{REFRESH_SOCKET}", NOT_REFRESHED)
    if isinstance(connection, OSError):
        return 1
    with connection:
        answer = _refreshed(connection)
    status, _, text = answer.decode("utf-8", "replace").partition(" ")
    print(text.strip() or "the daemon ended during the refresh")
    return int(status or 1)


def _refreshed(connection: socket.socket) -> bytes:
    """The registrar's reply to a refresh; empty if it ends before."""
    answer = b""
    connection.settimeout(LONG)
    while True:
        try:
            part = _received(connection)
        except socket.timeout:
            print(TAKES_LONG, file=sys.stderr)
            connection.settimeout(None)
            continue
        if not part:
            return answer if answer.endswith(b"\n") else b""
        answer += part


def stop(environ: Mapping[str, str], *, with_term: bool) -> int:
    """Drain the daemon and, `with_term`, end it; print the result in a line, and return the exit status."""
    connection = _connect(f"{find_run_dir(environ)}/{STOP_SOCKET}", NOTHING_TO_DRAIN)
    if isinstance(connection, OSError):
        return int(with_term or isinstance(connection, PermissionError))
    answer = b""
    with connection:
        with contextlib.suppress(BrokenPipeError):  # What it has sent before can still be read.
            connection.sendall(STOP if with_term else DRAIN)
        while b"\n" not in answer:
            part = _received(connection)
            if not part:
                print("the daemon, or its registrar, has ended while it was being drained")
                return 1
            answer += part
        line, _, confirmation = answer.partition(b"\n")
        status, grace, text = line.decode("utf-8", "replace").split(" ", 2)
        if not with_term:
            print(text)
            return int(status)
        connection.settimeout(float(grace) + MARGIN)
        try:
            has_ended = (confirmation or _received(connection)) == ENDED
        except socket.timeout:
            signame = environ.get("KOLLA_STOP_SIGNAL") or "SIGTERM"
            print(f"{text}; the daemon has not ended {float(grace):g} s after {signame}")
            return 1
    print(f"{text}; {'the daemon has ended' if has_ended else UNKNOWN}")
    return int(status) if has_ended else 1


def _connect(path: str, absent: str) -> socket.socket | OSError:
    """A connection to the socket at `path`, or why there is none; that is printed (`absent`: nobody listens).

    Ctrl-C ends this process from here on.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        return connection
    except OSError as error:
        connection.close()
        text = DENIED if isinstance(error, PermissionError) else absent
        print(text.format(path=path, why=cause(error)))
        return error


def _received(connection: socket.socket) -> bytes:
    """What the registrar sends; empty if it has ended."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""
