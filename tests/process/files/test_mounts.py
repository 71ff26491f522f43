"""A dest that is a mount, or that is on one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.place import place, restore
from kolla_mesos_start.files.plan import Content, plan
from tests.process.files.children import (
    SECRET,
    Mount,
    content,
    identity,
    in_child,
    mode_of,
    owner_of,
    temporary_files,
    write,
    write_half_and_die,
)

# -- mounts --


@pytest.mark.parametrize("data", [SECRET, b"n", b""])
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o4755])
def test_a_bind_mounted_file_is_rewritten_in_place(
    mounted: tuple[Path, Path, list[Mount]], uid: int, mode: int, data: bytes
) -> None:
    """A rename can't replace it: the same inode gets the new content, and no temporary file is left."""
    source, dest, mounts = mounted
    inode = source.stat().st_ino
    assert in_child(lambda: place([content(dest, data, mode)]), uid, mounts).error is None
    assert (source.read_bytes(), mode_of(source), source.stat().st_ino) == (data, mode, inode)
    assert temporary_files(dest.parent) == []
    # A second time: with mode 0400 even an unprivileged owner can't open it for writing.
    assert in_child(lambda: place([content(dest, b"third", mode)]), uid, mounts).error is None
    assert (source.read_bytes(), mode_of(source)) == (b"third", mode)


def test_owner_and_mode_of_a_mounted_file_are_set_before_the_first_byte(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """The agent is killed in the middle of the content: other users can't read it."""
    source, dest, mounts = mounted
    write(source, b"o" * 10_000, uid, 0o666)
    owner = (4242, 4343) if uid == 0 else (uid, uid)
    half = content(dest, b"n" * 10_000, 0o600, *owner)
    assert in_child(lambda: write_half_and_die(half), uid, mounts).signum == signal.SIGXFSZ
    assert source.read_bytes() == b"n" * 4096 + b"o" * 5904
    assert (owner_of(source), mode_of(source)) == (owner, 0o600)
    assert in_child(lambda: place([half]), uid, mounts).error is None
    assert source.read_bytes() == b"n" * 10_000


def test_a_mounted_file_grows_where_space_is_reserved_by_writing_zeros(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """As the C library does on NFS: it reads each block below the old size, and can't."""
    source, dest, mounts = mounted

    def action() -> None:
        def emulated(fd: int, start: int, length: int) -> None:
            if start < os.fstat(fd).st_size:
                os.pread(fd, 1, start)
            os.pwrite(fd, bytes(length), start)

        os.posix_fallocate = emulated
        place([content(dest)])

    assert in_child(action, uid, mounts).error is None
    assert source.read_bytes() == SECRET


def test_a_mounted_file_is_restored_if_there_is_no_space_for_it(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """Also if the C library has reserved a part of the space by writing zeros."""
    source, dest, mounts = mounted

    def action() -> None:
        def fills_up(fd: int, start: int, length: int) -> None:
            os.pwrite(fd, bytes(10), start)
            raise OSError(errno.ENOSPC, "full")

        os.posix_fallocate = fills_up
        place([content(dest)])

    assert "No space left" in in_child(action, uid, mounts).reason
    assert source.read_bytes() == b"old"


@pytest.mark.parametrize("cause", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_mounted_file_is_rewritten_where_space_can_not_be_reserved(
    mounted: tuple[Path, Path, list[Mount]], uid: int, cause: int
) -> None:
    source, dest, mounts = mounted

    def action() -> None:
        def unsupported(fd: int, start: int, length: int) -> None:
            raise OSError(cause, "unsupported")

        os.posix_fallocate = unsupported
        place([content(dest)])

    assert in_child(action, uid, mounts).error is None
    assert source.read_bytes() == SECRET


def test_a_device_is_not_replaced(mounted: tuple[Path, Path, list[Mount]], uid: int) -> None:
    """/dev/null as a `dest`; a mount, so that a test that fails does not replace that of the machine."""
    _, dest, _ = mounted

    def action() -> bool:
        with pytest.raises(CannotWrite, match=f"{dest} is a device, FIFO or socket; .* choose another dest"):
            place([content(dest)])
        return os.stat(dest).st_rdev == os.stat("/dev/null").st_rdev

    assert in_child(action, uid, [("--bind", "/dev/null", str(dest))]).value is True


def test_a_bind_mounted_file_is_rewritten_where_there_is_no_proc(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """There the rename fails with EBUSY."""
    source, dest, mounts = mounted

    def action() -> str:
        assert not os.path.exists("/proc/self")
        place([content(dest)])
        return plan(content(dest))

    assert in_child(action, uid, [*mounts, ("-t", "tmpfs", "none", "/proc")]).value == "unchanged"
    assert (source.read_bytes(), mode_of(source)) == (SECRET, 0o600)
    assert temporary_files(dest.parent) == []


def test_a_writable_file_mounted_into_a_read_only_file_system_is_rewritten(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """`docker run --read-only -v file:dest`: no temporary file is possible beside it, and none is needed."""
    source, dest, mounts = mounted
    parent = str(dest.parent)
    read_only = [("--bind", parent, parent), ("-o", "remount,bind,ro", parent)]
    assert in_child(lambda: place([content(dest)]), uid, [*read_only, *mounts]).error is None
    assert source.read_bytes() == SECRET


def test_the_mode_of_an_unchanged_mount_is_corrected(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """Its mode is corrected, although the file has another hard link."""
    source, dest, mounts = mounted
    os.link(source, source.parent / "other")
    before = identity(source)
    assert in_child(lambda: place([content(dest, b"old", 0o640)]), uid, mounts).error is None
    assert (identity(source), mode_of(source)) == (before, 0o640)


def test_a_mount_that_can_not_be_written_is_found_before_anything_is_replaced(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """A read-only ConfigMap among the files."""
    _, dest, mounts = mounted
    files = [content(dest.parent / "b.conf", b"new"), content(dest, b"new", name="mounted")]
    outcome = in_child(lambda: place(files), uid, [*mounts, ("-o", "remount,bind,ro", str(dest))])
    assert f"{dest} is a mount of its own and can't be written" in outcome.reason
    assert "mount it writable" in outcome.reason
    assert not (dest.parent / "b.conf").exists()


def test_a_mounted_file_is_put_back(mounted: tuple[Path, Path, list[Mount]], uid: int) -> None:
    """From memory: it can't be replaced by a copy."""
    source, dest, mounts = mounted
    source.chmod(0o400)
    files = [content(dest, b"new", name="mounted"), content(dest.parent / "b.conf", b"new")]

    def action() -> list[bytes]:
        before = place(files, can_undo=True)
        placed = source.read_bytes()
        restore(before)
        return [placed, source.read_bytes()]

    assert in_child(action, uid, mounts).value == [b"new", b"old"]
    assert (mode_of(source), (dest.parent / "b.conf").exists()) == (0o400, False)


def test_a_mounted_file_keeps_its_mode_if_nothing_is_replaced(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """A check of another file fails."""
    source, dest, mounts = mounted
    source.chmod(0o400)
    files = [content(dest, b"new", name="mounted"), content(dest.parent / "b.conf", b"new")]
    files[1] = files[1]._replace(check=("false",))

    def refuse(content: Content, path: str) -> None:
        raise CannotWrite("refused")

    assert in_child(lambda: place(files, refuse, can_undo=True), uid, mounts).reason == "refused"
    assert (source.read_bytes(), mode_of(source)) == (b"old", 0o400)


def test_a_mounted_file_does_not_change_without_space_for_the_new_content(
    mounted: tuple[Path, Path, list[Mount]], uid: int
) -> None:
    """The old content is not overwritten before there is space for the new one."""
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
        raise AssertionError("there was enough space")

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
