"""The command `kolla_mesos_start refresh`: have the registrar refresh the daemon's files now.

Only the client of the registrar's socket is here. `daemon.refresher` answers it.
"""

from __future__ import annotations

import signal
import socket
import sys

from kolla_mesos_start.daemon.request_client import Unreachable, connect
from kolla_mesos_start.health import find_run_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NOBODY = (
    "no daemon can be refreshed here: {path} can't be connected to ({why}). Either it is not started yet, or"
    " its definition has no on_change: then restart the container"
)
LONG = 10.0  # seconds
TAKES_LONG = (
    "it takes long: see `kolla_mesos_start health` and the container's log. The refresh goes on without this"
    " command"
)


def ask(environ: Mapping[str, str]) -> int:
    """Have the registrar refresh the files now, print the result, and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        connection = connect(f"{find_run_dir(environ)}/refresh", NOBODY)
    except Unreachable as error:
        print(error.text)
        return 1
    with connection:
        answer = _answer(connection)
    status, _, text = answer.decode("utf-8", "replace").partition(" ")
    print(text.strip() or "the daemon ended during the refresh")
    return int(status or 1)


def _answer(connection: socket.socket) -> bytes:
    """The reply of the registrar; empty if it ends before."""
    answer = b""
    connection.settimeout(LONG)
    while True:
        try:
            part = connection.recv(65536)
        except socket.timeout:
            print(TAKES_LONG, file=sys.stderr)
            connection.settimeout(None)
            continue
        except ConnectionResetError:
            return b""
        if not part:
            return answer
        answer += part
