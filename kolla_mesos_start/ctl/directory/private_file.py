"""Replaces files atomically: readers find the old content or the new one, never a part."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Callable

from kolla_mesos_start.errors import CannotWrite


def write(file: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Replace the content of the file. Only its owner can read it, unless it is `like` another file."""
    file = file.resolve()  # A link stays a link.
    if file.exists() and not file.is_file():
        raise CannotWrite(f"{file} can't be replaced: it is a directory or a device")

    def make_like(stage: int) -> None:
        if like is not None:
            os.fchown(stage, like.st_uid, like.st_gid)
            os.fchmod(stage, like.st_mode & 0o777)

    _replace(file, data, make_like)


def write_public(file: Path, data: bytes) -> None:
    """Replace a file without secrets; it gets the usual mode. A link is replaced, not followed."""
    mask = os.umask(0)
    os.umask(mask)
    _replace(file, data, lambda stage: os.fchmod(stage, 0o666 & ~mask))


def _replace(file: Path, data: bytes, prepare: Callable[[int], object]) -> None:
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as stage:
            try:
                prepare(stage.fileno())
                stage.write(data)
                stage.flush()
                os.fsync(stage.fileno())
                os.replace(stage.name, file)
            except BaseException:
                os.unlink(stage.name)
                raise
        _sync(file.parent)
    except OSError as error:
        raise CannotWrite(f"{file} can't be written: {error.strerror}") from error


def _sync(directory: Path) -> None:
    """Make the new name durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems can't, and do not need it.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)
