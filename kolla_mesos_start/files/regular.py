"""Reads a whole regular file of limited size: a FIFO would be waited for, and a device has no end."""

from __future__ import annotations

import errno
import os
import stat

from kolla_mesos_start.files.directories import open_file

LIMIT = 16 << 20  # bytes


def read_regular(path: str, limit: int = LIMIT) -> bytes:
    """The content of the file. Raises OSError, with a text for everything else."""
    return read_descriptor(open_file(path), limit)


def read_descriptor(fd: int, limit: int = LIMIT) -> bytes:
    """The content of an open file, which is closed. Raises OSError, with a text for everything else."""
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
