"""The command `kolla_mesos_start stop`: have the registrar drain the daemon, and stop it.

Only the client of the registrar's socket is here. `daemon.drain` answers it.
"""

from __future__ import annotations

import os
import signal
import socket

from kolla_mesos_start.errors import cause
from kolla_mesos_start.health import default_run_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING = (
    "nothing to drain: {path} can't be connected to ({why}). Either the daemon is not started yet, or its"
    " definition has neither drain nor before_stop: then stop the container"
)
DENIED = "{path} can't be connected to: run this as the agent's user, or as root"
MARGIN = 10.0  # seconds after the KILL of a supervisor


def stop(environ: Mapping[str, str], *, with_term: bool) -> int:
    """Drain the daemon and, `with_term`, end it; print the result in a line, and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    path = f"{environ.get('KOLLA_RUN_DIR') or default_run_dir(os.getuid())}/stop"
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except PermissionError:
            print(DENIED.format(path=path))
            return 1
        except OSError as error:
            print(NOTHING.format(path=path, why=cause(error)))
            return 1 if with_term else 0
        return _drain_and_stop(connection, with_term)


def _drain_and_stop(connection: socket.socket, with_term: bool) -> int:
    answer = b""
    while not answer.endswith(b"\n"):
        part = _received(connection)
        if not part:
            print("the daemon, or its registrar, has ended while it was being drained")
            return 1
        answer += part
    status, grace, text = answer.decode("utf-8", "replace").rstrip("\n").split(" ", 2)
    if not with_term:
        print(text)
        return int(status)
    connection.settimeout(float(grace) + MARGIN)
    try:
        connection.sendall(b"T")
        while _received(connection):
            pass
    except socket.timeout:
        print(f"{text}; the daemon has not ended {float(grace):g} s after SIGTERM")
        return 1
    except OSError:
        pass  # It has ended already.
    print(f"{text}; the daemon has ended")
    return int(status)


def _received(connection: socket.socket) -> bytes:
    """What the registrar sends; empty if it has ended."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""
