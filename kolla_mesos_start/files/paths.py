"""Opens directories and files where another user may have put a link, and reads regular files only.

Directories are descriptors from then on: what is opened, created or renamed in one stays in it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress

from kolla_mesos_start.errors import PASSING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_LINKS = 40  # of a path, as in Linux
LIMIT = 16 << 20  # bytes of a file that is read
# For files that another process may replace meanwhile: follow no link, and do not block on a FIFO.
O_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK


class UnsafePath(PermissionError):
    """A directory that root reaches through a link of another user, or in a directory of another user."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EPERM, "a part of it is a link that another user may have made", path)


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


def existing(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory that is there.

    Links are followed, as in /var/run. But as root none in a directory of another user, who may have put it
    there to make us write elsewhere: raises UnsafePath. systemd-tmpfiles has the same rule.
    """
    names, links = _parts(path), 0
    directory = os.open("/" if path.startswith("/") else ".", os.O_PATH)
    try:
        while names:
            name = names.pop(0)
            if name == "..":
                _refuse_untrusted(directory, path)
            try:
                child = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            except NotADirectoryError:
                target = _target(directory, name, path)
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
                names[:0] = _parts(target)
                if not target.startswith("/"):
                    continue
                child = os.open("/", os.O_PATH)
            os.close(directory)
            directory = child
        try:
            return os.open(".", flags | os.O_DIRECTORY, dir_fd=directory)
        except PermissionError:  # We may still write in it, but neither list nor sync it.
            return os.open(".", os.O_PATH | os.O_DIRECTORY, dir_fd=directory)
    finally:
        os.close(directory)


def read_regular(path: str, limit: int = LIMIT) -> bytes:
    """The content of a regular file. Raises OSError, for others too: a FIFO blocks, a device has no end."""
    return read_descriptor(_open_file(path), limit)


def read_descriptor(fd: int, limit: int = LIMIT) -> bytes:
    """As `read_regular`, from an open file, which is closed."""
    with open(fd, "rb") as file:
        there = os.fstat(fd)
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return data


def _open_file(path: str) -> int:
    """Open a file for reading, without waiting for a FIFO. Links are followed like those of `existing`."""
    for _ in range(MOST_LINKS):
        parent, name = os.path.split(path)
        with closing(existing(parent, os.O_PATH)) as directory:
            try:
                return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=directory)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
            path = os.path.join(parent, _target(directory, name, path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _target(directory: int, name: str, path: str) -> str:
    """Where the link leads. Raises NotADirectoryError if it is none."""
    try:
        target = os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    _refuse_untrusted(directory, path)
    if not _is_trusted(os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid):
        raise UnsafePath(path)
    return target


def _refuse_untrusted(directory: int, path: str) -> None:
    if not _is_trusted(os.fstat(directory).st_uid):
        raise UnsafePath(path)


def _is_trusted(uid: int) -> bool:
    """Whether root may follow a link of this user: its own links, and those of a user that no process of this
    container can become. In a rootless container, links of the host's root are such.
    """
    if uid == 0 or os.geteuid() != 0:
        return True
    with open("/proc/sys/kernel/overflowuid") as file:  # shown for each user that the namespace lacks
        if uid != int(file.read()):
            return False
    with open("/proc/self/uid_map") as file:
        first_and_count = [(int(inside), int(count)) for inside, _, count in map(str.split, file)]
    return not any(first <= uid < first + count for first, count in first_and_count)


def _create(directory: int, name: str) -> int:
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:  # Created by another agent just now; or `..`; or a link to a missing target.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        with suppress(NotADirectoryError):
            return os.open(name, flags, dir_fd=directory)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
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
