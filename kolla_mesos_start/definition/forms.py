"""The syntax of single strings of a definition: names, paths, modes, owners, URLs.

Each form is a function that returns None for a valid string, else what was expected. No message
repeats the string: the result of a template may hold a secret.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

    Form = Callable[[str], Optional[str]]


DAEMON = "daemon"  # the name of the daemon beside the commands
ENDED = "ended"  # a znode beside the states of commands, so no command may have this name
ELECTION = "election"  # another one
GLOBAL, LOCAL = "global", "local"  # scopes
RESERVED = ("variables", "status", "files")  # names that the last segment of a service can't have
ANY = "any"  # of a dependency: any generation that is done is enough
RESTARTED = "restarted"  # the variable that a daemon with `on_change: {restart: true}` follows
# Signals that a daemon may handle as a notification.
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "URG", "WINCH", "IO", "PWR")

# Not compiled here, but by re when a definition first needs one: not every start does.
_PERM = r"[0-7]{3,4}|0o0*[0-7]{1,4}"
HOST = r"(\[[0-9A-Fa-f:.%]+\]|[^\s/:?#@\[\]]+)"
PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"  # 1 to 65535
ENDPOINT = f"{HOST}:{PORT}"
URL = rf"https?://{HOST}(:[0-9]{{1,5}})?([/?]\S*)?"
EXTERNAL_URL = rf"https?://{HOST}(:{PORT})?([/?]\S*)?"
_USER = r"[^\s:/]+"
# ZooKeeper refuses these in paths; the last range because Java stores it as surrogates.
_NOT_IN_ZNODES = "[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"


def parse_perm(text: str) -> int:
    """The mode bits of `0600`, `755` or `0o640`. Raises ValueError for anything else."""
    if not re.fullmatch(_PERM, text):
        raise ValueError('expected octal text such as "0600"')
    return int(text, 8)


def any_text(text: str) -> str | None:
    """Every string is valid."""
    return None


def unusable(text: str) -> str | None:
    """Why `text` can't be written to a file, an argv or a znode; None if it can."""
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which UTF-8 can't encode"
    return None


def bad_perm(text: str) -> str | None:
    return None if re.fullmatch(_PERM, text) else 'expected octal text such as "0600"'


def bad_segment(text: str) -> str | None:
    """One segment of a znode's path: the name of a role, a command or a file."""
    plain = text.isascii() and text.isprintable()
    if text in ("", ".", "..") or "/" in text or (not plain and re.search(_NOT_IN_ZNODES, text)):
        return "expected a name that can be one segment of a znode's path"
    return None


def bad_path(text: str) -> str | None:
    """`role/command`"""
    parts = text.split("/")
    return "expected role/command" if len(parts) != 2 or any(map(bad_segment, parts)) else None


def bad_service(text: str) -> str | None:
    if any(map(bad_segment, text.split("/"))):
        return "expected the path of a service, such as openstack/keystone/keystone-api"
    return None


def bad_scope(text: str) -> str | None:
    return None if text in (GLOBAL, LOCAL) else f"expected {GLOBAL!r} or {LOCAL!r}"


def bad_generation(text: str) -> str | None:
    return None if text.strip() else "expected the name of a generation, such as an image tag"


def bad_signal(text: str) -> str | None:
    """The name of a signal, with SIG or without."""
    good = text.removeprefix("SIG") in SIGNALS
    return None if good else f"expected the name of a signal, one of {', '.join(SIGNALS)}"


def bad_variable(text: str) -> str | None:
    """The name of an environment variable."""
    return "expected the name of an environment variable, without =" if not text or "=" in text else None


def bad_file(text: str) -> str | None:
    """The path of a file in the container."""
    good = text.startswith("/") and text.rsplit("/", 1)[-1] not in ("", ".", "..")
    return None if good else "expected the absolute path of a file"


def bad_user(text: str) -> str | None:
    return None if re.fullmatch(_USER, text) else "expected a user's name or number"


def bad_owner(text: str) -> str | None:
    parts = text.split(":")
    return "expected user or user:group" if len(parts) > 2 or any(map(bad_user, parts)) else None


def bad_endpoint(text: str) -> str | None:
    return None if re.fullmatch(ENDPOINT, text) else "expected host:port, an IPv6 address in brackets"


def bad_url(text: str) -> str | None:
    return None if re.fullmatch(URL, text) else "expected http[s]://host[:port][/path]"


def bad_external_url(text: str) -> str | None:
    """As `bad_url`; its port must be valid too."""
    if re.fullmatch(EXTERNAL_URL, text):
        return None
    return "expected http[s]://host[:port][/path], a port from 1 to 65535"
