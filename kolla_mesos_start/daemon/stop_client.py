"""The command `kolla_mesos_start stop`: have the registrar drain the daemon, and stop it.

Only the client of the registrar's socket is here. `daemon.drain` answers it.
"""

from __future__ import annotations

import contextlib
import signal
import socket

from kolla_mesos_start.daemon.request_client import Unreachable, connect
from kolla_mesos_start.health import find_run_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "stop"  # in the run directory
# The requests, sent at once: without this client, the registrar does the rest.
DRAIN, STOP = b"D", b"T"  # with STOP, it sends the daemon its stop signal after the answer
ENDED = b"E"  # the second answer to STOP, once the daemon has ended
NOTHING = (
    "nothing to drain: {path} can't be connected to ({why}). Either the daemon is not started yet, or its"
    " definition has neither drain nor before_stop: then stop the container"
)
UNKNOWN = "its registrar has ended: whether the daemon has ended is unknown"
MARGIN = 10.0  # seconds after the KILL of a supervisor


def stop(environ: Mapping[str, str], *, with_term: bool) -> int:
    """Drain the daemon and, `with_term`, end it; print the result in a line, and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        connection = connect(f"{find_run_dir(environ)}/{SOCKET}", NOTHING)
    except Unreachable as error:
        print(error.text)
        return 0 if error.is_absent and not with_term else 1
    with connection:
        signame = environ.get("KOLLA_STOP_SIGNAL") or "SIGTERM"
        return _drain_and_stop(connection, with_term, signame)


def _drain_and_stop(connection: socket.socket, with_term: bool, signame: str) -> int:
    answer = b""
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
        print(f"{text}; the daemon has not ended {float(grace):g} s after {signame}")
        return 1
    print(f"{text}; {'the daemon has ended' if has_ended else UNKNOWN}")
    return int(status) if has_ended else 1


def _received(connection: socket.socket) -> bytes:
    """What the registrar sends; empty if it has ended."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""
