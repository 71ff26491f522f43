"""Connects a command of the container to its registrar, which listens in the run directory."""

from __future__ import annotations

import socket

from kolla_mesos_start.errors import cause

DENIED = "{path} can't be connected to: run this as the agent's user, or as root"


class Unreachable(Exception):
    """`text` says why, for the command's output. `is_absent`: nobody listens."""

    def __init__(self, text: str, *, is_absent: bool) -> None:
        super().__init__(text)
        self.text, self.is_absent = text, is_absent


def connect(path: str, absent: str) -> socket.socket:
    """A connection to the socket at `path`. Raises Unreachable.

    `absent` is the text if nobody listens; it may contain {path} and {why}.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except PermissionError:
        connection.close()
        raise Unreachable(DENIED.format(path=path), is_absent=False) from None
    except OSError as error:
        connection.close()
        raise Unreachable(absent.format(path=path, why=cause(error)), is_absent=True) from None
    return connection
