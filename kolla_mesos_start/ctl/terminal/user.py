"""The user of the tool, for the records of a change."""

from __future__ import annotations

import getpass
import os
import socket


def operator() -> str:
    """The user and the host, as `alice on web1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # The user has no name.
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"
