"""The ACL and other extended attributes of a file that is replaced."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from kolla_mesos_start.files.attributes import ACL
from kolla_mesos_start.files.place import place
from tests.process.files.children import (
    NOBODY,
    SECRET,
    before_call,
    content,
    fail_with,
    in_child,
    mode_of,
    warnings_of,
    write,
)

READER = 4711
NO_ID = 0xFFFFFFFF


def acl(mode: int, group: int, mask: int | None = None, reader: int = 4) -> bytes:
    """An ACL for this mode, where the owning group has `group`, and READER `reader`."""
    entries = [
        (1, mode >> 6 & 7, NO_ID),
        (2, reader, READER),
        (4, group, NO_ID),
        (0x10, mode >> 3 & 7 if mask is None else mask, NO_ID),
        (0x20, mode & 7, NO_ID),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.fixture
def old(home: Path, uid: int) -> Path:
    path = write(home / "app.conf", b"old", uid, 0o640)
    os.setxattr(path, "user.note", b"mine")
    os.setxattr(path, ACL, acl(0o640, group=0))
    return path


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def test_a_replaced_file_keeps_its_attributes(old: Path, uid: int) -> None:
    inode = old.stat().st_ino
    assert in_child(lambda: place([content(old, mode=0o640)]), uid).error is None
    assert old.read_bytes() == SECRET and old.stat().st_ino != inode
    assert attributes(old) == {"user.note": b"mine", ACL: acl(0o640, group=0)}


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660])
def test_perm_limits_the_acl(old: Path, uid: int, mode: int) -> None:
    """As chmod does: by its mask."""
    assert in_child(lambda: place([content(old, mode=mode)]), uid).error is None
    assert (mode_of(old), os.getxattr(old, ACL)) == (mode, acl(mode, group=0))


def test_no_byte_is_readable_by_more_than_the_acl_says(old: Path, uid: int) -> None:
    """The owning group has no right in it, although the mode seems to give one; nobody else has one yet."""

    def action() -> list[tuple[int, bytes | None]]:
        seen: list[tuple[int, bytes | None]] = []
        for step in ("setxattr", "fchmod", "write"):
            real = getattr(os, step)

            def noted(fd: int, *rest: object, real: object = real) -> object:
                done = real(fd, *rest)  # type: ignore[operator]
                if fd != 2:
                    seen.append((os.fstat(fd).st_mode & 0o777, dict_of(fd).get(ACL)))
                return done

            setattr(os, step, noted)
        place([content(old, mode=0o640)])
        return seen

    def dict_of(fd: int) -> dict[str, bytes]:
        return {name: os.getxattr(fd, name) for name in os.listxattr(fd)}

    seen = in_child(action, uid).value
    assert seen and {each for each in seen if each[0] & 0o077} == {(0o640, acl(0o640, group=0))}


def test_file_capabilities_are_not_given_to_new_content(root: None, home: Path) -> None:
    old = write(home / "app.conf", b"old", 0, 0o755)
    os.setxattr(old, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    assert in_child(lambda: place([content(old, mode=0o755)]), 0).error is None
    assert attributes(old) == {}


def test_another_users_acl_is_not_kept(root: None, home: Path) -> None:
    """They could give themselves a right to the new file."""
    old = write(home / "app.conf", b"old", NOBODY, 0o640)
    os.setxattr(old, ACL, acl(0o640, group=0))
    assert in_child(lambda: place([content(old, mode=0o640)]), 0).error is None
    assert attributes(old) == {}


def test_a_file_without_an_acl_does_not_get_one(old: Path, home: Path, uid: int) -> None:
    """A default ACL of the directory is for new files."""
    os.removexattr(old, ACL)
    os.setxattr(home, "system.posix_acl_default", acl(0o750, group=5))
    assert in_child(lambda: place([content(old, mode=0o640)]), uid).error is None
    assert attributes(old) == {"user.note": b"mine"}


@pytest.mark.parametrize("cause", [errno.EPERM, errno.ENOTSUP, errno.ENOSPC])
@pytest.mark.parametrize("step", ["listxattr", "getxattr", "setxattr"])
def test_a_file_system_that_refuses_attributes_stops_no_start(
    old: Path, uid: int, step: str, cause: int
) -> None:
    """A warning names an attribute that is lost."""

    def action() -> list[str]:
        before_call(step, 1, fail_with(cause))
        return warnings_of(lambda: place([content(old, mode=0o640)]))

    told = in_child(action, uid).value
    assert (old.read_bytes(), mode_of(old)) == (SECRET, 0o640)
    if step == "setxattr":
        assert f"{old}: its attribute " in told[0] and os.strerror(cause) in told[0]
