"""Temporary files beside `dest`, each of which is renamed to its `dest` when it is complete.

An agent locks the temporary file that it writes. One without a lock is left over from a killed agent, and the
next agent removes it.
"""

from __future__ import annotations

import fcntl
import os

from kolla_mesos_start.files.paths import O_CAREFUL, closing, strerror
from kolla_mesos_start.log import Logger

log = Logger(__name__)

# The name does not contain that of dest, so it is always short enough, and matches no `conf.d/*.conf`.
TEMPORARY_PREFIX = ".kolla_mesos_start-stage-"


def open_temporary(directory: int) -> tuple[int, str]:
    """Create an empty, locked file in `directory`; returns its descriptor and its name."""
    while True:
        name = temporary_name()
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        if _lock(fd):
            return fd, name
        os.close(fd)


def temporary_name() -> str:
    """A name that no other file has."""
    return TEMPORARY_PREFIX + os.urandom(8).hex()


def _lock(fd: int) -> bool:
    """Lock a new file; False if another agent has already removed it as a left-over."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # This file system has no locks: left-overs can't be recognised, and stay.
        log.debug("can't lock a temporary file: %s", strerror(error))
    return os.fstat(fd).st_nlink > 0


def remove_leftovers(directory: int, path: str) -> None:
    """Remove the temporary files of agents that were killed: no process has a lock on them."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        log.debug("%s can't be listed: %s", path, strerror(error))
        return
    for name in names:
        if not name.startswith(TEMPORARY_PREFIX):
            continue
        try:
            with closing(_open_left(directory, name)) as fd:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=directory)
        except BlockingIOError:
            log.debug("%s/%s: another agent is writing it", path, name)
        except FileNotFoundError:
            log.debug("%s/%s: removed meanwhile", path, name)
        except OSError as error:
            log.warning(
                "%s/%s: an agent that was killed left this file, and it can't be removed (%s): remove it",
                path,
                name,
                strerror(error),
            )


def _open_left(directory: int, name: str) -> int:
    """Open it for a lock: on NFS an exclusive one needs the right to write, a shared one that to read."""
    try:
        return os.open(name, os.O_RDWR | O_CAREFUL, dir_fd=directory)
    except PermissionError:  # Its mode may be 0400.
        return os.open(name, os.O_RDONLY | O_CAREFUL, dir_fd=directory)


def discard(directory: int, name: str) -> None:
    """Remove a temporary file, unless it has been moved to its place."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        # An earlier error is being raised. The next start tries again to remove the file.
        log.warning("%s can't be removed: %s", name, strerror(error))
