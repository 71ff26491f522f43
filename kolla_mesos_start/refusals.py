"""Why a program can't be executed or a file can't be read, and what to do about it.

Imported only after a failure. A program whose name comes from a template is not named: it may be a secret.
"""

from __future__ import annotations

import errno
import os
import stat

from kolla_mesos_start.errors import cause

MISSING = (errno.ENOENT, errno.ENOTDIR)


def execution(number: int, program: str | None, word: str, path: str | None) -> str:
    """Why `word`, the first of an argv, could not be executed.

    `number` is the errno, `program` the name that may be shown, `path` the PATH in which it was looked for.
    """
    name = f"program {program!r}" if program else "its program"
    if number in MISSING:
        where = "" if "/" in word else " in PATH"
        return (
            f"{name} not found{where} (or its interpreter is missing): correct the command, or install it in"
            " the image"
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
    """The permission bits of the file that was tried; None if there is no such file that we can see."""
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
    """Why the file, or directory, can't be read."""
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
    """Why an attempt to open the file for reading fails; empty if it succeeds."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return reading(path, error)
    return ""
