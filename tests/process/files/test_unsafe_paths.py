"""Root writes and reads nothing that another user can redirect with a link among the parents of a path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.paths import existing, open_directory, read_regular
from kolla_mesos_start.files.place import place, restore
from kolla_mesos_start.files.plan import plan
from tests.process.files.children import (
    NOBODY,
    before_call,
    content,
    in_child,
    own,
    owner_of,
    snapshot,
    write,
)

pytestmark = pytest.mark.usefixtures("root")


def link(path: Path, target: Path) -> None:
    """A link of the daemon's user."""
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture
def uid() -> int:
    return 0


@pytest.fixture
def theirs(home: Path) -> Path:
    """A directory of the daemon's user, beside one of root's."""
    path = home / "theirs"
    path.mkdir()
    (home / "etc").mkdir()
    return own(path, NOBODY)


@pytest.fixture
def untouched(home: Path, theirs: Path) -> Iterator[None]:
    """Root's directory is the same after the test."""
    (home / "etc" / "app.conf").write_text("root's")
    before = snapshot(home / "etc")
    yield
    assert snapshot(home / "etc") == before


def absolute(home: Path, theirs: Path) -> Path:
    link(theirs / "link", home / "etc")
    return theirs / "link"


def relative(home: Path, theirs: Path) -> Path:
    link(theirs / "link", Path("../etc"))
    return theirs / "link"


def to_a_missing_directory(home: Path, theirs: Path) -> Path:
    link(theirs / "link", home / "etc" / "new")
    return theirs / "link"


def in_the_middle(home: Path, theirs: Path) -> Path:
    link(theirs / "link", home)
    return theirs / "link" / "etc"


def of_root(home: Path, theirs: Path) -> Path:
    """They may have moved it here."""
    (theirs / "link").symlink_to(home / "etc")
    return theirs / "link"


def in_a_directory_of_root(home: Path, theirs: Path) -> Path:
    """One that their group may write, or /tmp."""
    link(home / "link", home / "etc")
    return home / "link"


def upwards(home: Path, theirs: Path) -> Path:
    """They may have moved the directory."""
    return theirs / ".." / "etc"


PATHS = [absolute, relative, in_the_middle, of_root, in_a_directory_of_root, upwards]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("make", [*PATHS, to_a_missing_directory])
def test_a_dest_behind_a_link_of_another_user_is_refused(
    home: Path, theirs: Path, make: Callable[[Path, Path], Path]
) -> None:
    file = content(make(home, theirs) / "app.conf", b"ours")
    with pytest.raises(CannotWrite, match=r"app.conf can't be written: a part of .* is a link"):
        place([file])
    if make is not to_a_missing_directory:
        with pytest.raises(CannotWrite, match="is a link"):
            plan(file)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("make", [absolute, relative])
def test_files_are_not_brought_back_through_a_link(
    home: Path, theirs: Path, make: Callable[[Path, Path], Path]
) -> None:
    """They may put it there while a refresh runs."""
    (theirs / "link").mkdir()
    own(theirs / "link", NOBODY)
    before = place([content(theirs / "link" / "app.conf", b"ours")], can_undo=True)
    (theirs / "link" / "app.conf").unlink()
    (theirs / "link").rmdir()
    make(home, theirs)
    with pytest.raises(CannotWrite, match="is a link"):
        restore(before)


@pytest.mark.parametrize("make", PATHS)
def test_a_file_behind_a_link_of_another_user_is_not_read(
    home: Path, theirs: Path, make: Callable[[Path, Path], Path]
) -> None:
    """Its content would become theirs in a rendered file."""
    (home / "etc" / "secret").write_text("root's")
    with pytest.raises(PermissionError, match="a link that another user may have made"):
        read_regular(str(make(home, theirs) / "secret"))
    link(theirs / "file", home / "etc" / "secret")
    with pytest.raises(PermissionError, match="a link that another user may have made"):
        read_regular(str(theirs / "file"))


def test_links_of_whom_no_process_here_can_be_are_followed(home: Path, theirs: Path) -> None:
    """A rootless container has no number for the host's root, who has made the link."""
    (home / "etc" / "secret").write_text("the host's")
    link(theirs / "file", home / "etc" / "secret")
    code = (
        "import sys; from kolla_mesos_start.files.paths import *; print(read_regular(sys.argv[1]).decode())"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code, str(theirs / "file")]
    assert subprocess.check_output(command, text=True) == "the host's\n"


def test_another_file_that_is_moved_to_dest_is_not_given_away(home: Path, theirs: Path) -> None:
    """Between the look at the file that is there, and the correction of its owner."""
    dest, secret = theirs / "app.conf", theirs / "secret"
    write(dest, b"ours", 0, 0o600)
    write(secret, b"root's", 0, 0o600)
    file = content(dest, b"ours", uid=NOBODY, gid=NOBODY)

    def action() -> None:
        before_call("open", len(home.parts) + 4, lambda: secret.rename(dest))
        place([file])

    assert in_child(action, 0).error is None
    assert dest.read_bytes() == b"ours"
    assert owner_of(dest) == (NOBODY, NOBODY)


def test_a_link_that_appears_while_parents_are_created_is_not_followed(
    home: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and mkdir."""
    mkdir = os.mkdir

    def plant(name: str, *mode: int, **directory: int) -> None:
        absolute(home, theirs)
        mkdir(name, *mode, **directory)

    monkeypatch.setattr(os, "mkdir", plant)
    with pytest.raises(FileNotFoundError):
        open_directory(str(theirs / "link"))
    assert os.listdir(home / "etc") == []


@pytest.mark.parametrize("target", ["etc", "./etc/../etc/", "/proc/self/cwd/../"])
def test_links_of_root_are_followed(home: Path, theirs: Path, target: str) -> None:
    """As /var/run is."""
    (home / "link").symlink_to(target)
    fd = existing(str(home / "link"))
    assert os.path.samestat(os.fstat(fd), os.stat(home / "link"))
    os.close(fd)


def test_a_directory_of_another_user_is_written_without_a_link(home: Path, theirs: Path) -> None:
    place([content(theirs / "new" / "app.conf", b"ours")])
    assert (theirs / "new" / "app.conf").read_bytes() == b"ours"


def test_a_user_may_follow_their_own_links(home: Path, theirs: Path) -> None:
    """Without root there is nothing to gain."""
    (theirs / "real").mkdir()
    own(theirs / "real", NOBODY)
    link(theirs / "link", theirs / "real")
    assert in_child(lambda: place([content(theirs / "link" / "app.conf", b"theirs")]), NOBODY).error is None
    assert (theirs / "real" / "app.conf").read_bytes() == b"theirs"


def test_a_circle_of_links_ends(home: Path) -> None:
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        existing(str(home / "a"))
    with pytest.raises(NotADirectoryError):
        (home / "file").touch()
        existing(str(home / "file"))
