"""The id under which this container registers; it outlives a restart of the container."""

from __future__ import annotations

import logging
import os
import re
import uuid

log = logging.getLogger(__name__)

_MEMBER = re.compile("[0-9a-f]{32}__party__")


def identity(state_dir: str) -> tuple[str, bool]:
    """The id under which this container registers, and whether an earlier run of it has used it.

    It outlives a restart of the container, so that a restarted one replaces its own older
    member. Where it can't be kept, each run has an id of its own.
    """
    path = f"{state_dir}/registration"
    try:
        known = _read(path)
        if _MEMBER.fullmatch(known):
            return known, True
        if known:
            log.warning("%s holds no id of a member: replaced", path)
    except OSError as error:
        log.warning("%s can't be read (%s): a restart will register as another member", path, error.strerror)
    # The suffix is kazoo's: its Party counts such members only.
    fresh = f"{uuid.uuid4().hex}__party__"
    try:
        _write(path, fresh + "\n")
    except OSError as error:
        log.warning(
            "%s can't be written (%s): after a restart the old member stays for a session timeout",
            path,
            error.strerror,
        )
    return fresh, False


def _read(path: str) -> str:
    # A FIFO would be waited for, and whatever else is not a file of ours is replaced.
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return file.read(100).decode("ascii", "replace").strip()


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path) and not os.path.isfile(path):
        os.unlink(path)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
