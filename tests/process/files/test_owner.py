"""The owner of a file where ids are squashed or not mapped."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kolla_mesos_start.files.place import place
from tests.process.files.children import (
    SECRET,
    content,
    identity,
    in_child,
    mode_of,
    owner_of,
    temporary_files,
    write,
)

ANONYMOUS = 65534


def squash() -> None:
    """Create files as NFS does for root with root_squash: they are nobody's, and stay so."""
    real = os.open

    def create(path: object, flags: int, *rest: object, **more: object) -> int:
        fd = real(path, flags, *rest, **more)  # type: ignore[arg-type]
        if flags & os.O_CREAT:
            chown(fd, ANONYMOUS, ANONYMOUS)
        return fd

    def refuse(fd: int, uid: int, gid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    chown = os.fchown
    os.open, os.fchown = create, refuse


def refuse_unlinked() -> None:
    """Know no file without a name, as some file systems do."""
    real = os.fstat

    def look(fd: int) -> os.stat_result:
        there = real(fd)
        if not there.st_nlink:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return there

    os.fstat = look


@pytest.mark.parametrize("there", [None, b"old"])
def test_without_owner_root_may_be_squashed(root: None, home: Path, there: bytes | None) -> None:
    """None is needed; and a file that is right is not written again."""
    dest = home / "app.conf"
    if there is not None:
        write(dest, there, ANONYMOUS)

    def action() -> bool:
        squash()
        refuse_unlinked()
        place([content(dest)])
        before = identity(dest)
        place([content(dest)])
        return place([content(dest)], can_undo=True) == [] and identity(dest) == before

    assert in_child(action, 0).value is True
    assert (dest.read_bytes(), owner_of(dest), mode_of(dest)) == (SECRET, (ANONYMOUS, ANONYMOUS), 0o600)
    assert temporary_files(home) == []


def test_a_squashed_root_cannot_give_a_file_away(root: None, home: Path) -> None:
    def action() -> None:
        squash()
        place([content(home / "app.conf", uid=4242, gid=4242)])

    assert "no_root_squash" in in_child(action, 0).reason
    assert os.listdir(home) == []


def test_without_owner_another_users_file_is_still_replaced(root: None, home: Path) -> None:
    """Its owner could change it later."""
    dest = write(home / "app.conf", SECRET, ANONYMOUS)
    assert in_child(lambda: place([content(dest)]), 0).error is None
    assert owner_of(dest) == (0, 0)


def test_an_id_that_is_not_mapped_is_named(tmp_path: Path) -> None:
    """In a user namespace with one id."""
    code = (
        "import sys; from kolla_mesos_start.files.place import place\n"
        "from kolla_mesos_start.files.plan import Content\n"
        "place([Content('a', sys.argv[1] + '/a', None, None, 0o600, b'1')])\n"
        "place([Content('b', sys.argv[1] + '/b', 4242, 4343, 0o600, b'1')])\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(
        ["unshare", "-U", "--map-root-user", *words], capture_output=True, text=True, check=False
    )
    assert (
        "b can't be given to 4242:4343 by uid 0: Invalid argument: one of these ids is not mapped"
        in done.stderr
    )
    assert os.listdir(tmp_path) == ["a"]
