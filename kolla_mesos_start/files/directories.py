"""Directories as descriptors: create them, sync them, and tell which of their entries are mounts."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def open_directory(path: str) -> int:
    """Open a directory. It and its parents are created if missing, with mode 0755 whatever the umask."""
    missing = []
    while True:
        try:
            directory = existing(path)
            break
        except FileNotFoundError:
            path, name = os.path.split(path)
            if not name:
                raise
            missing.append(name)
    while missing:
        with closing(directory):
            directory = _create(directory, missing.pop())
    return directory


def existing(path: str) -> int:
    """Open a directory that is there."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _create(directory: int, name: str) -> int:
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:  # Created by another agent just now; or `..`; or a link to a missing target.
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    mode = mode_of(child)
    if mode & 0o777 != 0o755:
        os.fchmod(child, mode & ~0o777 | 0o755)  # An inherited setgid bit stays.
    sync_directory(directory)
    return child


def sync_directory(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        # Some network file systems can't, and do not need it.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def is_mount(directory: int, name: str) -> bool:
    """Whether `name` itself is a mount point. True for bind mounts too, which st_dev does not show."""
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)) as fd:
        return _mount_id(fd) != _mount_id(directory)


def _mount_id(fd: int) -> str:
    try:
        with open(f"/proc/self/fdinfo/{fd}") as info:
            return next((line for line in info if line.startswith("mnt_id:")), "")
    except (FileNotFoundError, PermissionError):
        # Without /proc nothing looks like a mount; then the rename fails with EBUSY. Before Linux 5.14 this
        # file is root's, because the agent hides its memory.
        return ""


def mode_of(fd: int) -> int:
    return stat.S_IMODE(os.fstat(fd).st_mode)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def strerror(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__
