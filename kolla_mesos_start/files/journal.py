"""Replaces several config files as one step, even if the process is killed.

    <run_dir>/private/journal    exists while files are being replaced: which ones, and by what

All new files are complete, under temporary names, before the journal is written; it is removed when all are
in place. A process that finds a journal completes it (`recover`). It contains paths, owners and modes, but no
content. The process that replaces files holds a lock on it.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import stat
from contextlib import contextmanager, suppress
from functools import partial

from kolla_mesos_start.errors import CannotWrite, cannot_write
from kolla_mesos_start.files.content import Content
from kolla_mesos_start.files.directories import closing, strerror, sync_directory
from kolla_mesos_start.files.placement import explained
from kolla_mesos_start.files.temporary import O_CAREFUL, discard, open_temporary, remove_leftovers
from kolla_mesos_start.files.writing import take, write_all
from kolla_mesos_start.health import JOURNAL, private_directory
from kolla_mesos_start.processes import fork
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = os.path.basename(JOURNAL)


class Replacement(NamedTuple):
    """One file to replace by the temporary file `new`; None: to remove. A content with `link` is a link."""

    content: Content
    new: str | None = None


def is_begun(run_dir: str) -> bool:
    """Whether files are being replaced, or a process that did so was killed."""
    return os.path.lexists(f"{run_dir}/{JOURNAL}")


def clear(run_dir: str) -> None:
    """Remove temporary files of a process that was killed before it began to replace files."""
    with _writable(run_dir) as directory:
        remove_leftovers(directory, run_dir)


def replace_all(replacements: Sequence[Replacement], run_dir: str) -> None:
    """Do all replacements; if this process is killed, all or none. Replaces the journal of an earlier call.

    Raises CannotWrite if one fails: then the journal stays.
    """
    if not replacements:
        with suppress(FileNotFoundError):
            os.unlink(f"{run_dir}/{JOURNAL}")
        return
    with closing(_write(replacements, run_dir)):  # It stays locked.
        _finish_in_child(replacements, run_dir)
        if is_begun(run_dir):  # The child was killed or has failed.
            _finish(replacements, run_dir)


def recover(run_dir: str, *, wait: bool = True) -> bool:
    """Complete the replacements of a killed process; returns whether there were any.

    If another process is doing them, waits for its end, or raises BlockingIOError. Raises CannotWrite if one
    fails.
    """
    path = f"{run_dir}/{JOURNAL}"
    try:
        with closing(private_directory(run_dir)) as directory:
            fd = os.open(NAME, os.O_RDWR | O_CAREFUL, dir_fd=directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CannotWrite(f"{path} can't be read: {strerror(error)}: remove it") from error
    with open(fd, "rb") as file:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid() or there.st_mode & 0o077:
            raise CannotWrite(
                f"{path} is not a private file of uid {os.geteuid()}: restart the container, or remove it"
            )
        _lock(fd, wait)  # No other process can have locked it.
        if os.fstat(fd).st_nlink == 0:  # The other process has finished, or has written another journal.
            return recover(run_dir, wait=wait)
        try:
            replacements = [Replacement(Content(*content), new) for content, new in marshal.load(file)]
        except (EOFError, TypeError, ValueError) as error:
            raise CannotWrite(f"{path} is not a journal of this version: remove it") from error
        _finish(replacements, run_dir)
    return True


def _write(replacements: Sequence[Replacement], run_dir: str) -> int:
    """Write the journal; returns the descriptor that keeps it locked."""
    plain = [(tuple(each.content._replace(data=None, check=None)), each.new) for each in replacements]
    with _writable(run_dir) as directory:
        fd, temporary = open_temporary(directory)
        try:
            write_all(fd, marshal.dumps(plain))
            os.fsync(fd)
            os.rename(temporary, NAME, src_dir_fd=directory, dst_dir_fd=directory)
            sync_directory(directory)
        except BaseException:
            os.close(fd)
            discard(directory, temporary)
            raise
        return fd


@contextmanager
def _writable(run_dir: str) -> Iterator[int]:
    try:
        with closing(private_directory(run_dir)) as directory:
            yield directory
    except OSError as error:
        raise cannot_write(
            f"{run_dir}/{JOURNAL} can't be written: {strerror(error)}: free space there, let uid"
            f" {os.geteuid()} write there, or set KOLLA_RUN_DIR to another directory",
            error,
        ) from error


def _finish_in_child(replacements: Sequence[Replacement], run_dir: str) -> None:
    """Do the replacements in a process that survives a kill of this one and its registrar.

    If that process fails, the caller repeats the replacements, and gets the error itself.
    """
    try:
        child = fork(partial(_finish_alone, replacements, run_dir))
    except OSError:
        return
    with suppress(ChildProcessError):  # The parent of the agent may ignore SIGCHLD.
        os.waitpid(child, 0)


def _finish_alone(replacements: Sequence[Replacement], run_dir: str) -> None:
    os.setsid()
    _finish(replacements, run_dir)


def _finish(replacements: Sequence[Replacement], run_dir: str) -> None:
    for content, new in replacements:
        with explained(content):
            take(content, new, run_dir)
    with closing(private_directory(run_dir)) as directory:
        os.unlink(NAME, dir_fd=directory)
        sync_directory(directory)


def _lock(fd: int, wait: bool) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        pass  # This file system has no locks.
