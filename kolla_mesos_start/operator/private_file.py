"""A file that holds secrets is replaced as a whole.

What lives here: the writing. Readers find what was there before, or all that is new; never a part of it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kolla_mesos_start.errors import CannotWrite


def write(file: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Have `data` in the file, or what was there before.

    Only its owner can read it, or whoever can read a file that is `like` that.
    """
    file = file.resolve()  # A link stays one.
    if file.exists() and not file.is_file():
        raise CannotWrite(f"{file} can't be replaced: it is a directory or a device")
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as stage:
            try:
                if like is not None:
                    os.fchown(stage.fileno(), like.st_uid, like.st_gid)
                    os.fchmod(stage.fileno(), like.st_mode & 0o777)
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
    """Have the new name outlive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
