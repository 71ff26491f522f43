"""Temporary files: what a killed agent leaves, and what the next agent does with it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
from pathlib import Path

import pytest

from kolla_mesos_start.files.place import TEMPORARY_PREFIX, place
from tests.process.files.children import (
    SECRET,
    before_call,
    content,
    end_child,
    fail_with,
    in_child,
    kill_at,
    leave_temporary,
    mode_of,
    start_child,
    temporary_files,
    warnings_of,
    write,
)

# -- death --

STEPS = ["open", "fchown", "fchmod", "write", "fsync", "rename", "close"]


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("step", STEPS)
def test_an_agent_killed_at_any_step_leaves_the_old_or_the_new_file(
    home: Path, uid: int, step: str, old: bytes | None
) -> None:
    """The next start completes it and leaves no temporary file."""
    dest = home / "app.conf"
    # As root the file gets another owner, so that no step is skipped.
    wanted = content(dest, mode=0o4640, uid=4242 if uid == 0 else None)
    for number in itertools.count(1):
        dest.unlink(missing_ok=True)
        if old is not None:
            write(dest, old, uid)

        def action(number: int = number) -> None:
            kill_at(step, number)
            place([wanted])

        outcome = in_child(action, uid)
        found = dest.read_bytes() if dest.exists() else None
        assert found in (old, SECRET)
        if found == SECRET:
            assert mode_of(dest) == 0o4640
        assert in_child(lambda: place([wanted]), uid).error is None
        assert (dest.read_bytes(), mode_of(dest), temporary_files(home)) == (SECRET, 0o4640, [])
        if outcome.signum is None:
            break
        assert outcome.signum == signal.SIGKILL
    assert number > 1 or (step == "fchown" and uid != 0), f"{step} is not called any more"


def test_what_a_killed_agent_left_is_removed_even_if_nothing_is_to_be_written(home: Path, uid: int) -> None:
    """A left-over may hold secrets, so the next start removes it, even if it writes nothing itself."""
    write(home / "other.conf", SECRET, uid)
    leave_temporary(home, uid, content(home / "app.conf", SECRET * 1000))
    assert in_child(lambda: place([content(home / "other.conf")]), uid).error is None
    assert temporary_files(home) == []


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_left_over_on_nfs_is_removed(home: Path, uid: int, mode: int) -> None:
    """It emulates flock with locks of fcntl(2): they need a descriptor to write, or to read."""
    left = write(home / f"{TEMPORARY_PREFIX}0123456789abcdef", SECRET, uid, mode)

    def flock(fd: int, kind: int) -> None:
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        refused = os.O_RDONLY if kind & fcntl.LOCK_EX else os.O_WRONLY
        if access == refused:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(fd, kind)

    def action() -> list[str]:
        fcntl.flock = flock  # type: ignore[assignment]
        return warnings_of(lambda: place([content(home / "app.conf")]))

    real = fcntl.flock
    assert (in_child(action, uid).value, left.exists()) == ([], False)


@pytest.mark.parametrize("cause", [errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_directory_that_cannot_be_synced_is_no_error(home: Path, uid: int, cause: int) -> None:
    """Some network file systems can't, and do not need it."""

    def action() -> None:
        before_call("fsync", 2, fail_with(cause))  # The first one is of the file.
        place([content(home / "app.conf")])

    assert in_child(action, uid).error is None
    assert (home / "app.conf").read_bytes() == SECRET


def test_the_temporary_file_of_a_running_agent_is_left_alone(home: Path, uid: int) -> None:
    """Two containers may share a directory; a file with a lock is being written."""
    temporary = write(home / f"{TEMPORARY_PREFIX}0123456789abcdef", b"half", uid)
    with temporary.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        assert in_child(lambda: place([content(home / "app.conf")]), uid).error is None
        assert temporary_files(home) == [str(temporary)]
    assert in_child(lambda: place([content(home / "app.conf")]), uid).error is None
    assert temporary_files(home) == []


def test_a_left_over_that_cannot_be_removed_is_a_warning(root: None, home: Path, uid: int) -> None:
    """The warning names a file of another user; the start goes on."""
    temporary = write(home / f"{TEMPORARY_PREFIX}0123456789abcdef", b"half", 0)
    warned = in_child(lambda: warnings_of(lambda: place([content(home / "app.conf")])), uid).value
    if uid == 0:
        assert (warned, temporary_files(home)) == ([], [])
    else:
        assert [str(temporary) in line and "remove it" in line for line in warned] == [True]
    assert (home / "app.conf").read_bytes() == SECRET


def test_agents_that_write_the_same_file_at_once_do_not_hurt_each_other(home: Path, uid: int) -> None:
    """Four processes, one dest: no error, one complete content, no temporary file."""
    dest = home / "shared.conf"

    def action(byte: int) -> None:
        for _ in range(25):
            place([content(dest, bytes([byte]) * 50_000)])
            place([content(dest, bytes([byte]) * 40_000)])

    writers = [start_child(lambda byte=byte: action(byte), uid) for byte in b"abcd"]  # type: ignore[misc]
    assert [end_child(*writer).error for writer in writers] == [None] * 4
    assert dest.read_bytes() in [bytes([byte]) * 40_000 for byte in b"abcd"]
    assert os.listdir(home) == ["shared.conf"]
