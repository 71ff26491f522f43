"""Finds a credential, or a key, that every user of this system can read. Imported where one is given.

A group may have it: that of Kubernetes' fsGroup is how the agent's user itself gets it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OTHERS_READ, OTHERS_ENTER = 0o004, 0o001


def open_files(environ: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """The variable that names such a file, its path and its mode.

    A user who reads it has our rights in ZooKeeper.
    """
    key = "KOLLA_ZK_KEY" if environ.get("KOLLA_ZK_KEY") else "KOLLA_ZK_CERT"  # Without a key that holds it.
    for variable in ("KOLLA_ZK_AUTH_FILE", key):
        path = environ.get(variable)
        try:
            modes = list(modes_of(path)) if path else [0]
        except OSError:
            continue  # It has just been read, and is being replaced.
        if path and is_open(modes):
            yield variable, path, modes[0]


def modes_of(path: str) -> Iterator[int]:
    """Of the file, and of each directory above it. A Secret is mounted behind links."""
    place = os.path.realpath(path)
    yield os.stat(place).st_mode & 0o7777
    while place != "/":
        place = os.path.dirname(place)
        yield os.stat(place).st_mode & 0o7777


def is_open(modes: Sequence[int]) -> bool:
    """Whether others can read a file: its mode, and those of the directories above it."""
    file, *directories = modes
    return bool(file & OTHERS_READ) and all(mode & OTHERS_ENTER for mode in directories)
