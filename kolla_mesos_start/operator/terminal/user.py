"""Who runs the tool, for what is recorded of a change."""

from __future__ import annotations

import getpass
import os
import socket


def operator() -> str:
    """Who changes something, and from where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # The user has no name.
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"
