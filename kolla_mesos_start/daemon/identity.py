"""The id under which this container registers in ZooKeeper; a restarted container keeps it."""

from __future__ import annotations

import logging
import os
import re
import uuid

log = logging.getLogger(__name__)

_MEMBER = re.compile("[0-9a-f]{32}__party__")


def identity(state_dir: str) -> tuple[str, bool]:
    """The id of this container, and whether an earlier run of the container has used it.

    A restarted container keeps its id, and so replaces its own older member. If the id can't be
    stored, each run has a new one.
    """
    path = f"{state_dir}/registration"
    try:
        known = _read(path)
        if _MEMBER.fullmatch(known):
            return known, True
        if known:
            log.warning("%s does not hold the id of a member: writing a new one", path)
    except OSError as error:
        log.warning(
            "%s can't be read (%s): registering under a new id; the old member stays until its session"
            " times out",
            path,
            error.strerror,
        )
    # The suffix is that of kazoo's Party, which counts only members with it.
    fresh = f"{uuid.uuid4().hex}__party__"
    try:
        _write(path, fresh + "\n")
    except OSError as error:
        log.warning(
            "%s can't be written (%s): after a restart the old member stays until its session times out:"
            " let this user write in KOLLA_STATE_DIR",
            path,
            error.strerror,
        )
    return fresh, False


def _read(path: str) -> str:
    # Opening a FIFO would block. Anything that is not a regular file is replaced.
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
