"""A dest that is a mount, or lies on one, is written all the same."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files import place, plan
from tests.files.children import (
    SECRET,
    Mount,
    content,
    die_half_way,
    identity,
    in_child,
    mode_of,
    owner_of,
    record_calls,
    stages,
    write,
)

# -- mounts --


@pytest.mark.parametrize("data", [SECRET, b"n", b""])
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o4755])
def test_a_bind_mounted_file_is_rewritten_in_place(
    mounted: tuple[Path, Path, list[Mount]], uid: int, mode: int, data: bytes
) -> None:
    """It can't be renamed over: the same inode holds the new content, and no stage is left."""
    source, dest, mounts = mounted
    inode = source.stat().st_ino
    assert in_child(lambda: place([content(dest, data, mode)]), uid, mounts).error is None
    assert (source.read_bytes(), mode_of(source), source.stat().st_ino) == (data, mode, inode)
    assert stages(dest.parent) == []
    # Once more: 0400 keeps even its own unprivileged owner from opening it for writing.
    assert in_child(lambda: place([content(dest, b"third", mode)]), uid, mounts).error is None
    assert (source.read_bytes(), mode_of(source)) == (b"third", mode)


def test_a_mounted_file_is_synced(mounted: tuple[Path, Path, list[Mount]], uid: int) -> None:
    """Mode, content, mode once more if the kernel took setuid away; then everything is synced."""
    _, dest, mounts = mounted

    def action() -> list[tuple[str, str]]:
        calls = record_calls("fchmod", "write", "fsync")
        place([content(dest, mode=0o644)])
        return calls

    assert in_child(action, uid, mounts).value == [("fchmod", "file"), ("write", "file"), ("fsync", "file")]


def test_owner_and_mode_of_a_mounted_file_are_set_before_the_first_byte(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """The kernel ends the agent in the middle of the content: those who may not read it can't."""
    source, dest, mounts = mounted
    write(source, b"o" * 10_000, uid, 0o666)
    owner = (4242, 4343) if uid == 0 else (uid, uid)
    half = content(dest, b"n" * 10_000, 0o600, *owner)
    assert in_child(lambda: die_half_way(half), uid, mounts).signum == signal.SIGXFSZ
    assert source.read_bytes() == b"n" * 4096 + b"o" * 5904
    assert (owner_of(source), mode_of(source)) == (owner, 0o600)
    assert in_child(lambda: place([half]), uid, mounts).error is None
    assert source.read_bytes() == b"n" * 10_000


def test_a_mounted_file_is_cut_back_if_room_was_made_in_part(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """Where the C library makes room by writing zeros, the old content is whole again after no space."""
    source, dest, mounts = mounted

    def fills_up(fd: int, offset: int, size: int) -> None:
        os.pwrite(fd, b"\0" * 10, os.fstat(fd).st_size)
        raise OSError(errno.ENOSPC, "full")

    def action() -> None:
        os.posix_fallocate = fills_up
        place([content(dest)])

    assert "No space left" in in_child(action, uid, mounts).reason
    assert source.read_bytes() == b"old"


@pytest.mark.parametrize("cause", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_mounted_file_is_rewritten_where_room_cannot_be_made_beforehand(
    mounted: tuple[Path, Path, list[Mount]], uid: int, cause: int
) -> None:
    """Some file systems can't reserve: that is no reason not to write."""
    source, dest, mounts = mounted

    def unsupported(fd: int, offset: int, size: int) -> None:
        raise OSError(cause, "unsupported")

    def action() -> None:
        os.posix_fallocate = unsupported
        place([content(dest)])

    assert in_child(action, uid, mounts).error is None
    assert source.read_bytes() == SECRET


def test_a_bind_mounted_file_is_rewritten_where_there_is_no_proc(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """Where mounts can't be told apart, EBUSY tells it."""
    source, dest, mounts = mounted

    def action() -> str:
        assert not os.path.exists("/proc/self")
        place([content(dest)])
        return plan(content(dest))

    assert in_child(action, uid, [*mounts, ("-t", "tmpfs", "none", "/proc")]).value == "unchanged"
    assert (source.read_bytes(), mode_of(source)) == (SECRET, 0o600)
    assert stages(dest.parent) == []


def test_a_writable_file_mounted_into_a_read_only_file_system_is_rewritten(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """`docker run --read-only -v file:dest`: no stage is possible beside it, and none is needed."""
    source, dest, mounts = mounted
    parent = str(dest.parent)
    read_only = [("--bind", parent, parent), ("-o", "remount,bind,ro", parent)]
    assert in_child(lambda: place([content(dest)]), uid, [*read_only, *mounts]).error is None
    assert source.read_bytes() == SECRET


def test_an_unchanged_mount_is_only_mended(mounted: tuple[Path, Path, list[Mount]], uid: int) -> None:
    """Its mode, that is; another hard link of it is the mount's own business."""
    source, dest, mounts = mounted
    os.link(source, source.parent / "other")
    before = identity(source)
    assert in_child(lambda: place([content(dest, b"old", 0o640)]), uid, mounts).error is None
    assert (identity(source), mode_of(source)) == (before, 0o640)


def test_a_read_only_mount_says_that_it_is_one(mounted: tuple[Path, Path, list[Mount]], uid: int) -> None:
    """A ConfigMap's file can't be written: 73, and the mount is named as the cause."""
    source, dest, mounts = mounted
    mounts = [*mounts, ("-o", "remount,bind,ro", str(dest))]
    reason = in_child(lambda: place([content(dest)]), uid, mounts).reason
    assert f"{dest} is a mount of its own" in reason
    assert "mount it writable" in reason
    assert source.read_bytes() == b"old"


def test_a_mounted_file_stays_whole_where_there_is_no_room_for_the_new_content(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """In place means that the old content is at stake: it is not touched before there is room."""
    _, dest, _ = mounted
    small = dest.parent.parent / "outside"
    mounts = [
        ("-t", "tmpfs", "-o", f"size=32k,mode=755,uid={uid},gid={uid}", "none", str(small)),
        ("--bind", str(small), str(small)),
    ]

    def action() -> tuple[bytes, int, str]:
        source = small / "source"
        source.write_bytes(b"old" * 1000)
        os.chmod(source, 0o600)
        _mount_at(source, dest)
        drop(uid)
        try:
            place([content(dest, b"n" * 100_000, 0o640)])
        except CannotWrite as error:
            return dest.read_bytes(), mode_of(dest), error.reason
        raise AssertionError("it fitted")

    def drop(uid: int) -> None:
        os.chown(small / "source", uid, uid)
        os.setgid(uid)
        os.setuid(uid)

    data, mode, reason = in_child(action, 0, mounts).value
    assert (data, mode) == (b"old" * 1000, 0o600)
    assert str(dest) in reason
    assert "No space left" in reason


def _mount_at(source: Path, dest: Path) -> None:
    subprocess.run(["mount", "--bind", str(source), str(dest)], check=True)


def test_dest_on_another_file_system_is_renamed_there(root: None, home: Path, uid: int) -> None:
    """The stage is beside dest, never in a directory for temporary files."""
    volume = home / "volume"
    volume.mkdir()
    mounts = [("-t", "tmpfs", "-o", f"mode=755,uid={uid},gid={uid}", "none", str(volume))]

    def action() -> tuple[bytes, list[str]]:
        place([content(volume / "app.conf")])
        return (volume / "app.conf").read_bytes(), os.listdir(volume)

    assert in_child(action, uid, mounts).value == (SECRET, ["app.conf"])
