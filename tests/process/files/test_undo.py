"""Several files are placed together or not at all, and put back as they were."""

from __future__ import annotations

import errno
import glob
import os
from pathlib import Path

import pytest

from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.files.place import place, restore
from kolla_mesos_start.files.plan import Content
from tests.process.files.children import NOBODY, SECRET, content, in_child, own, write


def held(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """What each file holds, its mode and its owner."""
    files = [path for path in directory.iterdir() if path.is_file()]
    return {path.name: (path.read_bytes(), path.stat().st_mode, path.stat().st_uid) for path in files}


def fail_rename_to(failing: str) -> None:
    """The disk fails when this file is put in its place; only in a child process."""
    rename = os.rename

    def renamed(source: str, dest: str, **directories: int) -> None:
        if dest == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, dest, **directories)

    setattr(os, "rename", renamed)  # noqa: B010 (its type is another one)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_in_the_middle_leaves_the_files_as_they_were(home: Path, uid: int, failing: int) -> None:
    """The disk may fail after the first file is in its place; a file that was not there goes again."""
    write(home / "a.conf", b"old", uid, 0o640)
    write(home / "b.conf", b"old", uid, 0o600)
    own(home, uid)
    before = held(home)
    names = ["a.conf", "new.conf", "b.conf"]

    def work() -> None:
        fail_rename_to(names[failing])
        place([content(home / name, b"new", name=name) for name in names], can_undo=True)

    assert f"{names[failing]} can't be written: Input/output error" in in_child(work, uid).reason
    assert held(home) == before


def test_what_was_placed_can_be_undone(home: Path, uid: int) -> None:
    """The daemon could not be told: then its files are what it has read."""
    write(home / "a.conf", b"old", uid, 0o640)
    write(home / "same.conf", SECRET, uid, 0o600)
    own(home, uid)
    before = held(home)
    wanted = [content(home / name, name=name) for name in ("a.conf", "new.conf", "same.conf")]

    def work() -> None:
        placed = place(wanted, can_undo=True)
        assert [each.name for each in placed] == ["a.conf", "new.conf"]
        restore(placed)

    assert in_child(work, uid).error is None
    assert held(home) == before


def test_a_link_that_was_replaced_comes_back(home: Path, uid: int) -> None:
    """Whether it leads anywhere or not."""
    write(home / "real.conf", b"old", uid, 0o640)
    (home / "a.conf").symlink_to("real.conf")
    (home / "b.conf").symlink_to("/nowhere")
    own(home, uid)

    def work() -> None:
        restore(place([content(home / name, name=name) for name in ("a.conf", "b.conf")], can_undo=True))

    assert in_child(work, uid).error is None
    assert [os.readlink(home / name) for name in ("a.conf", "b.conf")] == ["real.conf", "/nowhere"]
    assert (home / "real.conf").read_bytes() == b"old"


def test_what_could_not_be_brought_back_is_not_replaced(root: None, home: Path, uid: int) -> None:
    """Another user's file, which can't be read."""
    write(home / "a.conf", b"old", 0, 0o600)
    os.chown(home, NOBODY, NOBODY)
    reason = in_child(lambda: place([content(home / "a.conf")], can_undo=True), NOBODY).reason
    assert "a.conf can't be written: Permission denied" in reason
    assert (home / "a.conf").read_bytes() == b"old"


def test_a_new_file_must_pass_its_check(home: Path, uid: int) -> None:
    """The check sees the complete new file beside its dest, before any file is changed."""
    write(home / "a.conf", b"old", uid, 0o640)
    own(home, uid)
    before = held(home)
    checked = content(home / "b.conf", name="b.conf")._replace(check=("true", "{}"))

    def refuse(content: Content, path: str) -> None:
        assert Path(path).read_bytes() == SECRET
        assert Path(path).parent == home
        raise CannotRender("refused")

    with pytest.raises(CannotRender):
        place([checked, content(home / "a.conf")], refuse)
    assert held(home) == before
    with pytest.raises(CannotRender):
        place([checked, content(home / "a.conf")], refuse, can_undo=True)
    assert held(home) == before
    write(home / "b.conf", SECRET, os.geteuid(), checked.mode)
    place([checked], refuse)  # It is there already, and was checked then.


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("app.yaml", "app.yaml"),
        ("app.conf.j2", "app.conf.j2"),
        (".my.cnf", ".my.cnf"),
        ("sudoers", "sudoers"),
        (f"{'é' * 125}.conf", "é.conf"),
        ("x" * 255, "x"),
    ],
)
def test_a_check_may_decide_by_the_end_of_the_name(home: Path, name: str, end: str) -> None:
    """And a daemon that reads `conf.d/*` does not find the temporary file."""
    seen = []

    def check(content: Content, path: str) -> None:
        seen.append((path, glob.glob(f"{home}/*")))

    place([content(home / name)._replace(check=("true", "{}"))], check)
    ((path, found),) = seen
    assert path.endswith(end) and os.path.dirname(path) == str(home) and found == []
    assert os.listdir(home) == [name]


def test_at_a_start_a_check_may_need_a_file_before_it(home: Path) -> None:
    """For example, a load balancer's configuration that names a certificate."""
    seen = []
    first, second = content(home / "a.pem"), content(home / "b.cfg")._replace(check=("true", "{}"))
    place([first, second], lambda *_: seen.append((home / "a.pem").read_bytes()))
    assert seen == [SECRET]
