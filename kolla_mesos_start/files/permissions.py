"""Explains why a file can't be read or a program can't be executed; finds credentials that every user can
read.

Only imported after a failure, or if there is a credential. A program whose name comes from a template is not
named: the name may be a secret.
"""

from __future__ import annotations

import errno
import os
import stat

from kolla_mesos_start.errors import cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MISSING = (errno.ENOENT, errno.ENOTDIR)
OTHERS_READ, OTHERS_ENTER = 0o004, 0o001


def execution(number: int, program: str | None, word: str, path: str | None) -> str:
    """Why `word`, the first item of an argv, could not be executed.

    `number` is the errno, `program` the name that may be shown, `path` the PATH that was searched.
    """
    name = f"program {program!r}" if program else "its program"
    if number in MISSING:
        where = "" if "/" in word else " in PATH"
        return (
            f"{name} was not found{where}, or its interpreter is missing: correct the command, or install it"
            " in the image"
        )
    mode = _mode(word, path) if number == errno.EACCES else None
    if mode is not None and not mode & 0o111:
        return (
            f"{name} is not executable (mode {mode:04o}): set its x bit (chmod a+x), or write its interpreter"
            " before it in the command"
        )
    if mode is not None:
        return (
            f"{name} can't be executed by uid {os.geteuid()}: Permission denied (mode {mode:04o}): change its"
            " mode or its owner; its directory, or a noexec mount, may forbid it too"
        )
    if number == errno.ENOEXEC:
        return (
            f"{name} can't be executed: Exec format error: it is for another architecture, or lacks a #! line"
        )
    return f"{name} can't be executed: {os.strerror(number)}"


def _mode(word: str, path: str | None) -> int | None:
    """The permission bits of the file that was found in PATH; None if it can't be seen."""
    places = [""] if "/" in word else (os.defpath if path is None else path).split(os.pathsep)
    for place in places:
        try:
            found = os.stat(os.path.join(place, word))
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            return stat.S_IMODE(found.st_mode)
    return None


def reading(path: str, error: OSError) -> str:
    """Why the file or directory can't be read."""
    if error.errno != errno.EACCES:
        return cause(error)
    uid = os.geteuid()
    try:
        found = os.stat(path)
    except OSError:
        return f"Permission denied: uid {uid}, as which this runs, may not enter a directory above it"
    mode = stat.S_IMODE(found.st_mode)
    return (
        f"Permission denied: this runs as uid {uid}, and the file is of uid {found.st_uid} with mode"
        f" {mode:04o}: let uid {uid} read it (Kubernetes: defaultMode and fsGroup; podman: uid and mode of"
        " the secret)"
    )


def unreadable(path: str) -> str:
    """Why the file can't be opened for reading; empty if it can."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return reading(path, error)
    return ""


def world_readable(environ: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """The credential or key that every user can read: its variable, path and mode.

    Group access is fine: with Kubernetes' fsGroup the agent's own user gets it that way.
    """
    key = "KOLLA_ZK_KEY" if environ.get("KOLLA_ZK_KEY") else "KOLLA_ZK_CERT"  # It may contain the key.
    for variable in ("KOLLA_ZK_AUTH_FILE", key):
        path = environ.get(variable)
        try:
            modes = list(_modes(path)) if path else [0]
        except OSError:
            continue  # It was there a moment ago, and is being replaced.
        if path and others_can_read(modes):
            yield variable, path, modes[0]


def _modes(path: str) -> Iterator[int]:
    """The mode of the file, and of each directory above it. A mounted Secret is behind links."""
    place = os.path.realpath(path)
    yield os.stat(place).st_mode & 0o7777
    while place != "/":
        place = os.path.dirname(place)
        yield os.stat(place).st_mode & 0o7777


def others_can_read(modes: Sequence[int]) -> bool:
    """Whether other users can read a file, given its mode and those of the directories above it."""
    file, *directories = modes
    return bool(file & OTHERS_READ) and all(mode & OTHERS_ENTER for mode in directories)
