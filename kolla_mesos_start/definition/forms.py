"""What the single strings of a definition must look like: names, paths, modes, owners, URLs.

Each form answers what was expected instead, or None for a good string. No answer repeats the
string, for what a template gave may hold a secret.
"""

from __future__ import annotations

import re
from typing import Callable, Optional

from kolla_mesos_start.tree.znodes import GLOBAL, LOCAL

Form = Callable[[str], Optional[str]]

# Left to re's own cache: compiled when a definition first needs them, not by every start.
_PERM = r"[0-7]{3,4}|0o0*[0-7]{1,4}"
_URL = r"https?://(\[[0-9A-Fa-f:.%]+\]|[^\s/:?#@\[\]]+)(:[0-9]{1,5})?([/?]\S*)?"
_USER = r"[^\s:/]+"
# Refused by ZooKeeper in any path; the last range because Java sees it as surrogates.
_NOT_IN_ZNODES = "[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"


def parse_perm(text: str) -> int:
    """The mode that `0600`, `755` or `0o640` stands for. Raises ValueError for anything else."""
    if not re.fullmatch(_PERM, text):
        raise ValueError('expected octal text such as "0600"')
    return int(text, 8)


def any_text(text: str) -> str | None:
    """Nothing is wrong with any text."""
    return None


def unusable(text: str) -> str | None:
    """Why no file, process or znode can be given `text`, if that is so."""
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return None


def bad_perm(text: str) -> str | None:
    return None if re.fullmatch(_PERM, text) else 'expected octal text such as "0600"'


def bad_segment(text: str) -> str | None:
    """For what becomes one segment of a znode's path: a role, a command, a file."""
    plain = text.isascii() and text.isprintable()
    if text in ("", ".", "..") or "/" in text or (not plain and re.search(_NOT_IN_ZNODES, text)):
        return "expected a name that can be one segment of a znode's path"
    return None


def bad_path(text: str) -> str | None:
    """For `role/command`."""
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


def bad_variable(text: str) -> str | None:
    """For the name of an environment variable."""
    return "expected a name without = for a variable" if not text or "=" in text else None


def bad_file(text: str) -> str | None:
    """For the place of a file in the container."""
    good = text.startswith("/") and text.rsplit("/", 1)[-1] not in ("", ".", "..")
    return None if good else "expected the absolute path of a file"


def bad_user(text: str) -> str | None:
    return None if re.fullmatch(_USER, text) else "expected a user's name or number"


def bad_owner(text: str) -> str | None:
    parts = text.split(":")
    return "expected user or user:group" if len(parts) > 2 or any(map(bad_user, parts)) else None


def bad_url(text: str) -> str | None:
    return None if re.fullmatch(_URL, text) else "expected http[s]://host[:port][/path]"
