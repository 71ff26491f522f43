"""One file is written whole or not at all, on real file systems, as root and as an unprivileged user."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from kolla_mesos_start.files.place import TEMPORARY_PREFIX, place
from kolla_mesos_start.files.plan import plan
from tests.process.files.children import (
    NOBODY,
    SECRET,
    before_call,
    content,
    identity,
    in_child,
    kill_at,
    leave_temporary,
    mode_of,
    own,
    owner_of,
    record_calls,
    snapshot,
    temporary_files,
    write,
)

# -- a new file --


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o200, 0o000, 0o777, 0o4755, 0o2755, 0o1644])
def test_a_file_has_its_content_owner_and_mode_whatever_the_umask(
    home: Path, uid: int, mode: int, umask: int
) -> None:
    """Also with setuid and setgid. The owner is the agent's user."""
    dest = home / "app.conf"

    def action() -> None:
        os.umask(umask)
        place([content(dest, mode=mode)])

    assert in_child(action, uid).error is None
    assert mode_of(dest) == mode
    assert owner_of(dest) == ((uid, uid) if uid == NOBODY else (os.geteuid(), os.getegid()))
    dest.chmod(0o600)
    assert dest.read_bytes() == SECRET
    assert temporary_files(home) == []


@pytest.mark.parametrize("mode", [0o640, 0o400, 0o4750, 0o6755])
def test_root_gives_a_file_to_its_owner(root: None, home: Path, uid: int, mode: int) -> None:
    """The mode is right although a change of the owner clears setuid."""
    dest = home / "app.conf"
    assert in_child(lambda: place([content(dest, uid=4242, gid=4343, mode=mode)]), 0).error is None
    assert (owner_of(dest), mode_of(dest)) == ((4242, 4343), mode)


def test_missing_parents_are_created_with_mode_0755(home: Path, uid: int) -> None:
    """New directories have mode 0755 whatever the umask; existing ones keep their mode."""
    there = home / "there"
    there.mkdir()
    own(there, uid).chmod(0o700)
    dest = there / "a" / "b" / "app.conf"

    def action() -> None:
        os.umask(0o077)
        place([content(dest)])

    assert in_child(action, uid).error is None
    assert [mode_of(path) for path in (there, there / "a", there / "a" / "b")] == [0o700, 0o755, 0o755]
    assert (there / "a").lstat().st_uid == uid


def test_an_absent_optional_file_is_no_error(home: Path, uid: int) -> None:
    """Nothing is created for it, and a file that is at its dest stays."""
    write(home / "app.conf", b"the image's", uid)
    before = snapshot(home)
    absent = [content(home / "app.conf", None), content(home / "no" / "parents", None, name="other")]
    assert in_child(lambda: place(absent), uid).error is None
    assert snapshot(home) == before


# -- what is at dest already --


@pytest.mark.parametrize("target", ["target", "nowhere", "."])
def test_a_link_at_dest_is_replaced_and_never_followed(home: Path, uid: int, target: str) -> None:
    """Its target does not change: a file (even with the same content), a missing one, a directory."""
    write(home / "target", SECRET, uid, 0o644)
    before = identity(home / "target"), mode_of(home / "target")
    (home / "app.conf").symlink_to(target)
    assert in_child(lambda: place([content(home / "app.conf")]), uid).error is None
    assert stat.S_ISREG((home / "app.conf").lstat().st_mode)
    assert (home / "app.conf").read_bytes() == SECRET
    assert before == (identity(home / "target"), mode_of(home / "target"))
    assert sorted(os.listdir(home)) == ["app.conf", "target"]


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket"])
def test_what_is_neither_file_nor_link_is_refused(home: Path, uid: int, kind: str) -> None:
    """A directory, a FIFO (which must not block the agent) and a socket stay as they are."""
    dest = home / "app.conf"
    if kind == "directory":
        dest.mkdir()
    elif kind == "fifo":
        os.mkfifo(dest)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(dest))
    own(dest, uid)
    before = snapshot(home)
    reason = in_child(lambda: place([content(dest)]), uid).reason
    assert str(dest) in reason
    assert ("directory" if kind == "directory" else "FIFO") in reason
    assert "choose another dest" in reason
    assert snapshot(home) == before
    assert in_child(lambda: plan(content(dest)), uid).reason == reason


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_link_that_replaces_dest_meanwhile_is_not_followed(
    home: Path, uid: int, kind: str, number: int
) -> None:
    """Another process replaces dest before the agent opens it: no other file changes, nothing blocks."""
    dest = write(home / "app.conf", SECRET, uid, 0o644)
    target = write(home / "target", SECRET, uid, 0o644)

    def swap() -> None:
        dest.unlink()
        if kind == "link":
            dest.symlink_to(target)
        else:
            os.mkfifo(dest)

    def action() -> None:
        before_call("open", len(home.parts) + number, swap)  # After the directories: to compare, to correct.
        place([content(dest)])

    outcome = in_child(action, uid)
    assert outcome.signum is None
    assert mode_of(target) == 0o644
    if kind == "link":
        assert str(dest) in outcome.reason
    else:
        assert stat.S_ISREG(dest.lstat().st_mode)
        assert (dest.read_bytes(), mode_of(dest)) == (SECRET, 0o600)


@pytest.mark.parametrize("data", [SECRET, b"other content, longer than what was there"])
def test_other_names_of_the_same_file_are_left_alone(home: Path, uid: int, data: bytes) -> None:
    """A hard link of dest keeps content and mode, even if only the mode of dest must change."""
    write(home / "app.conf", SECRET, uid, 0o644)
    os.link(home / "app.conf", home / "other")
    before = identity(home / "other")
    assert in_child(lambda: place([content(home / "app.conf", data)]), uid).error is None
    assert (identity(home / "other"), mode_of(home / "other")) == (before, 0o644)
    assert (home / "other").read_bytes() == SECRET
    assert ((home / "app.conf").read_bytes(), mode_of(home / "app.conf")) == (data, 0o600)


# -- unchanged --


def test_unchanged_content_is_not_rewritten(home: Path, uid: int) -> None:
    """The second start changes nothing in the directory."""
    dest = home / "app.conf"
    assert in_child(lambda: place([content(dest)]), uid).error is None
    before = snapshot(home)
    assert in_child(lambda: place([content(dest)]), uid).error is None
    assert snapshot(home) == before


def test_a_wrong_mode_is_corrected_without_rewriting(home: Path, uid: int) -> None:
    """The same inode and modification time, with the right mode."""
    dest = write(home / "app.conf", SECRET, uid, 0o666)
    before = identity(dest)
    assert in_child(lambda: place([content(dest, mode=0o4750)]), uid).error is None
    assert (identity(dest), mode_of(dest)) == (before, 0o4750)


def test_a_wrong_owner_is_corrected_without_rewriting(root: None, home: Path, uid: int) -> None:
    """Root changes the owner, and the mode stays right."""
    dest = write(home / "app.conf", SECRET, uid, 0o4755)
    before = identity(dest)
    assert in_child(lambda: place([content(dest, mode=0o4755, uid=4242, gid=4343)]), 0).error is None
    assert (identity(dest), owner_of(dest), mode_of(dest)) == (before, (4242, 4343), 0o4755)


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("data", [SECRET, b"old"])
def test_a_file_of_another_user_in_a_directory_of_the_agent_is_replaced(
    root: None, home: Path, uid: int, mode: int, data: bytes
) -> None:
    """Readable or not: an unprivileged agent can't correct it, but it can replace it."""
    dest = write(home / "app.conf", data, 0, mode)
    assert in_child(lambda: place([content(dest)]), uid).error is None
    assert (dest.read_bytes(), owner_of(dest), mode_of(dest)) == (SECRET, (uid, uid), 0o600)


def test_unchanged_files_on_a_read_only_file_system_are_fine(root: None, home: Path, uid: int) -> None:
    """A file that the image contains already needs no permission to write."""
    write(home / "app.conf", SECRET, uid)
    read_only = [("--bind", str(home), str(home)), ("-o", "remount,bind,ro", str(home))]
    assert in_child(lambda: place([content(home / "app.conf")]), uid, read_only).error is None


# -- the order: owner and mode, content, sync, rename, sync --


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_owner_and_mode_are_set_before_the_first_byte(root: None, home: Path, uid: int, mode: int) -> None:
    """The agent is killed in the middle of the content: only the owner can read what is left."""
    owner = (4242, 4343) if uid == 0 else (uid, uid)
    left = leave_temporary(home, uid, content(home / "app.conf", SECRET * 1000, mode, *owner))
    assert left.lstat().st_size == 4096
    assert (owner_of(left), mode_of(left)) == (owner, mode)
    assert not (home / "app.conf").exists()


def test_other_users_can_not_open_the_empty_temporary_file(home: Path, uid: int) -> None:
    """A process that opens it before its mode is set could read the content later."""

    def action() -> None:
        os.umask(0)
        kill_at("fchmod", 1)
        place([content(home / "app.conf", mode=0o640)])

    assert in_child(action, uid).signum == signal.SIGKILL
    (left,) = temporary_files(home)
    assert mode_of(Path(left)) == 0o600


def test_a_temporary_file_is_always_a_new_file(home: Path, uid: int) -> None:
    """The agent does not write into a file that another process has created under the same name."""
    planted = write(home / f"{TEMPORARY_PREFIX}{'00' * 8}-", b"somebody's", uid, 0o644)

    def action() -> None:
        os.urandom = bytes  # Returns zeros.
        place([content(home / "app.conf")])

    with planted.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        assert "File exists" in in_child(action, uid).reason
    assert (planted.read_bytes(), mode_of(planted)) == (b"somebody's", 0o644)


def test_content_is_synced_before_the_name_and_the_name_before_the_end(home: Path, uid: int) -> None:
    """A power failure leaves the old file or the new one; after `place`, the new one."""
    dest = home / "app.conf"

    def action() -> list[tuple[str, str]]:
        calls = record_calls("write", "fsync", "rename", "fchown", "fchmod")
        place([content(dest, mode=0o640)])
        return calls

    calls = in_child(action, uid).value
    assert calls == [
        ("fchmod", "file"),
        ("write", "file"),
        ("fsync", "file"),
        ("rename", ""),
        ("fsync", "directory"),
    ]


def test_new_directories_are_synced_too(home: Path, uid: int) -> None:
    """A file is lost if the entry of its directory is lost."""

    def action() -> list[tuple[str, str]]:
        calls = record_calls("mkdir", "fsync")
        place([content(home / "a" / "b" / "app.conf")])
        return calls

    made = [("mkdir", ""), ("fsync", "directory")]
    assert in_child(action, uid).value == [*made, *made, ("fsync", "file"), ("fsync", "directory")]
