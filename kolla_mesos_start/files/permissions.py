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
    place = _place(word, path)
    if number in MISSING:
        if place:
            return f"{name} is there, but {_interpreter(place, bool(program))}"
        where = "" if "/" in word else " in PATH"
        return f"{name} was not found{where}: correct the command, or install it in the image"
    why = os.strerror(number)
    if number == errno.ENOEXEC:
        why = "Exec format error: it is for another architecture, or lacks a #! line"
    if number == errno.EACCES and place:
        mode = stat.S_IMODE(os.stat(place).st_mode)
        if not mode & 0o111:
            return (
                f"{name} is not executable (mode {mode:04o}): set its x bit (chmod a+x), or write its"
                " interpreter before it in the command"
            )
        if os.statvfs(place).f_flag & os.ST_NOEXEC:
            return f"{name} can't be executed: it is on a mount with the option noexec: put it elsewhere"
        return (
            f"{name} can't be executed by uid {os.geteuid()}: Permission denied (mode {mode:04o}): change its"
            " mode or its owner; its directory or its interpreter may forbid it too"
        )
    return f"{name} can't be executed: {why}"


def _place(word: str, path: str | None) -> str | None:
    """The file that was found in PATH; None if it can't be seen."""
    places = [""] if "/" in word else (os.defpath if path is None else path).split(os.pathsep)
    return next(filter(os.path.isfile, (os.path.join(place, word) for place in places)), None)


def _interpreter(place: str, is_shown: bool) -> str:
    """Why the interpreter of a program that exists was not found."""
    try:
        with open(place, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            line = file.readline(256).rstrip(b"\n")
    except OSError:
        line = b""
    if line.startswith(b"#!"):
        if line.endswith(b"\r"):
            return (
                "its first line ends with a carriage return, as in files of Windows, so its interpreter was"
                " not found: write it with the line ends of Unix"
            )
        words = line[2:].split()
        shown = f" {os.fsdecode(words[0])!r}" if words and is_shown else ""
        return f"its interpreter{shown} was not found: correct its first line, or install it in the image"
    return "its loader was not found: it is for another C library, or for another architecture"


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
