"""How `kolla_mesos_start refresh` and `stop` reach the agent or its registrar: sockets in the run directory.

The other end is first, then the two commands.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from functools import partial

from kolla_mesos_start.errors import cause
from kolla_mesos_start.health import clear, find_run_dir, is_held
from kolla_mesos_start.loop import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kolla_mesos_start.loop import Loop

REFRESH_SOCKET, STOP_SOCKET = "refresh", "stop"
# What `stop` sends at once: without this client, the registrar does the rest. With STOP, it also sends the
# daemon its stop signal, and answers once the daemon has ended.
DRAIN, STOP = b"D", b"T"

NOT_STARTED = b"0 nothing to drain: the daemon is not started yet\n"
START_ENDED = b"0 the daemon was not started yet; now it will not be\n"

# Seconds: how long `stop` tries to connect while a daemon is started again, and the pause between attempts.
CHANGE, LOOK = 10.0, 0.05
RETRY = 1.0  # seconds until the next attempt to accept a connection, or to start a command
LONG = 10.0  # seconds of a refresh

DENIED = "{path} can't be connected to: run this as the agent's user, or as root"
NOT_REFRESHED = (
    "no daemon can be refreshed here: {path} can't be connected to ({why}). Either it is not started yet, or"
    " its definition has no on_change: then restart the container"
)
NOTHING_TO_DRAIN = (
    "nothing to drain: {path} can't be connected to ({why}). Either no agent runs here, or the"
    " definition of its daemon has neither drain nor before_stop: then stop the container"
)
TAKES_LONG = (
    "it takes long: see `kolla_mesos_start health` and the container's log. The refresh goes on without this"
    " command"
)
UNKNOWN = "its registrar has ended: whether the daemon was drained, and has ended, is unknown"


class RequestSocket:
    """Calls `on_connection` with each new connection of its user or of root, which does not block.

    If no descriptor is free when a client connects, the socket stays readable: it is ignored for a while.
    """

    def __init__(self, path: str, loop: Loop, on_connection: Callable[[socket.socket], object]) -> None:
        self._loop, self._on_connection = loop, on_connection
        clear(path)
        before = os.umask(0o177)
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(path)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        finally:
            os.umask(before)
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


class StopRequests:
    """Serves `stop` during a start, until the registrar of a daemon that drains takes its place.

    There is nothing to drain: `on_stop` is called, as for a stop signal. The client waits for the end of this
    process.
    """

    def __init__(self, run_dir: str, loop: Loop, on_stop: Callable[[int], object]) -> None:
        self._loop, self._on_stop = loop, on_stop
        self._path = f"{run_dir}/{STOP_SOCKET}"
        self._socket = RequestSocket(self._path, loop, self._on_connection)
        self._clients: list[socket.socket] = []

    def close(self) -> None:
        """Serve nobody any more; nobody else will."""
        self._socket.close()
        clear(self._path)

    def _on_connection(self, connection: socket.socket) -> None:
        self._loop.listen(connection.fileno(), partial(self._read, connection))

    def _read(self, connection: socket.socket) -> None:
        request = b""
        with contextlib.suppress(OSError):  # The client has ended.
            request = connection.recv(16)
            connection.send({DRAIN: NOT_STARTED, STOP: START_ENDED}.get(request, b""))
        self._loop.ignore(connection.fileno())
        if request != STOP:
            connection.close()
            return
        self._clients.append(connection)
        self._on_stop(signal.SIGTERM)


# -- the commands -----------------------------------------------------------------------------------


def refresh(environ: Mapping[str, str]) -> int:
    """Have the registrar refresh the files now, print the result, and return the exit status."""
    return _ask(
        environ, REFRESH_SOCKET, b"", NOT_REFRESHED, "the daemon ended during the refresh", TAKES_LONG
    )


def stop(environ: Mapping[str, str], *, with_term: bool) -> int:
    """Drain the daemon and, `with_term`, end it; print the result in a line, and return the exit status."""
    request = STOP if with_term else DRAIN
    return _ask(environ, STOP_SOCKET, request, NOTHING_TO_DRAIN, UNKNOWN, if_absent=int(with_term))


def _ask(
    environ: Mapping[str, str],
    name: str,
    request: bytes,
    absent: str,
    ended: str,
    late: str = "",
    if_absent: int = 1,
) -> int:
    """Send a request to the registrar's socket `name`, print the answer, and return the exit status.

    Texts: `absent` if nobody listens (then the status is `if_absent`), `ended` if the registrar ends without
    an answer, and `late`, which is printed after LONG.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run_dir = find_run_dir(environ)
    path, since, was_taken = f"{run_dir}/{name}", time.monotonic(), False
    while True:
        failure, reply = None, b""
        try:
            reply = _request(path, request, late)
            was_taken = True
        except OSError as error:
            failure = error
        # Who served it was replaced, or ends.
        is_gone = isinstance(failure, ConnectionRefusedError) or not (failure or reply)
        if not (is_gone and name == STOP_SOCKET and time.monotonic() < since + CHANGE):
            break
        if not is_held(f"{run_dir}/lock"):
            break
        time.sleep(LOOK)
    if failure and not was_taken:
        is_denied = isinstance(failure, PermissionError)
        print((DENIED if is_denied else absent).format(path=path, why=cause(failure)))
        return 1 if is_denied else if_absent
    status, _, text = reply.decode("utf-8", "replace").partition(" ")
    print(text.strip() or ended)
    return int(status or 1)


def _request(path: str, request: bytes, late: str) -> bytes:
    """The reply to a request; empty if who has taken it ends without one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with contextlib.suppress(BrokenPipeError):  # What it has sent before can still be read.
            connection.sendall(request)
        return _answer(connection, late)


def _answer(connection: socket.socket, late: str) -> bytes:
    """The reply; empty if it ends before."""
    answer = b""
    connection.settimeout(LONG if late else None)
    while True:
        try:
            part = connection.recv(65536)
        except socket.timeout:
            print(late, file=sys.stderr)
            connection.settimeout(None)
            continue
        except ConnectionResetError:
            part = b""
        if not part:
            return answer if answer.endswith(b"\n") else b""
        answer += part
