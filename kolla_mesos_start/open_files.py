"""Warns of a credential, or a key, that every user of the container can read. Imported where one is given.

A group may have it: that of Kubernetes' fsGroup is how the agent's user itself gets it.
"""

from __future__ import annotations

import os

from kolla_mesos_start.log import Logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kolla_mesos_start.settings import Settings

log = Logger(__name__)

OTHERS_READ, OTHERS_ENTER = 0o004, 0o001


def warn_of_open_files(settings: Settings, environ: Mapping[str, str]) -> None:
    """Whoever reads them can do all that this service may."""
    key = "KOLLA_ZK_KEY" if settings.key else "KOLLA_ZK_CERT"  # A certificate without a key holds it.
    for variable in ("KOLLA_ZK_AUTH_FILE", key):
        path = environ.get(variable)
        try:
            modes = list(modes_of(path)) if path else [0]
        except OSError:
            continue  # It has just been read, and is being replaced.
        if is_open(modes):
            log.warning(
                "%s: every user in this container can read %s (mode %04o), and then do in ZooKeeper what this"
                " service may: make it 0440 or 0400 (in Kubernetes by the Secret's defaultMode, and fsGroup"
                " for the agent's user; in podman by the secret's mode and uid)",
                variable,
                path,
                modes[0],
            )


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
