"""Errors name the file, the cause and what to do; `plan` says what would change."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from kolla_mesos_start import log
from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.place import TEMPORARY_PREFIX, place
from kolla_mesos_start.files.plan import plan
from tests.process.files.children import (
    NOBODY,
    SECRET,
    before_call,
    content,
    fail_with,
    identity,
    in_child,
    own,
    snapshot,
    temporary_files,
    write,
)

# -- what can't be written --


def test_missing_permission_names_dest_and_the_user(root: None, home: Path, uid: int) -> None:
    """An unprivileged image where /etc/<service> belongs to root: status 73, with what to do."""
    directory = home / "etc"
    directory.mkdir(mode=0o755)
    os.chown(directory, 0, 0)
    write(directory / "app.conf", b"old", 0, 0o644)
    before = snapshot(directory)
    reason = in_child(lambda: place([content(directory / "app.conf")]), NOBODY).reason
    assert f"{directory}/app.conf can't be written: Permission denied" in reason
    assert f"let uid {NOBODY} write in {directory}" in reason
    assert snapshot(directory) == before
    reason = in_child(lambda: place([content(directory / "new" / "app.conf")]), NOBODY).reason
    assert f"{directory}/new/app.conf can't be written: Permission denied" in reason


@pytest.mark.parametrize("there", [None, b"old", SECRET])
def test_only_root_can_give_a_file_away(root: None, home: Path, uid: int, there: bytes | None) -> None:
    """The message names the owner; the file does not change, and no temporary file is left."""
    dest = home / "app.conf"
    if there is not None:
        write(dest, there, NOBODY)
    own(home, NOBODY)
    before = None if there is None else identity(dest)
    reason = in_child(lambda: place([content(dest, uid=4242, gid=4343)]), NOBODY).reason
    assert f"{dest} can't be given to 4242:4343 by uid {NOBODY}" in reason
    assert "leave `owner` out, or run the agent as root" in reason
    assert (identity(dest) if dest.exists() else None) == before
    assert temporary_files(home) == []


def test_a_read_only_file_system_is_named_as_the_cause(root: None, home: Path, uid: int) -> None:
    """Status 73 with dest, the reason, and where to mount a volume; also if only the mode is wrong."""
    write(home / "app.conf", b"old", uid)
    write(home / "mode.conf", SECRET, uid, 0o644)
    read_only = [("--bind", str(home), str(home)), ("-o", "remount,bind,ro", str(home))]
    for name in ("app.conf", "mode.conf", "new.conf"):
        wanted = [content(home / name)]
        reason = in_child(lambda wanted=wanted: place(wanted), uid, read_only).reason  # type: ignore[misc]
        assert f"{home}/{name} can't be written: Read-only file system" in reason
        assert f"mount a writable volume at {home}" in reason


@pytest.mark.parametrize("options", ["size=16k", "nr_inodes=3"])
def test_without_space_the_old_file_stays_and_no_temporary_file_is_left(
    root: None, home: Path, uid: int, options: str
) -> None:
    """A volume without free bytes or inodes: the old content is still complete."""
    volume = home / "volume"
    volume.mkdir()
    mounts = [("-t", "tmpfs", "-o", f"{options},mode=755,uid={uid},gid={uid}", "none", str(volume))]

    def action() -> tuple[str, bytes, list[str]]:
        (volume / "app.conf").write_bytes(b"old")
        if options.startswith("nr_inodes"):
            (volume / "filler").touch()
        try:
            place([content(volume / "app.conf", b"n" * 100_000)])
        except CannotWrite as error:
            assert error.status == 75  # Another start may find space.
            return error.reason, (volume / "app.conf").read_bytes(), os.listdir(volume)
        raise AssertionError("there was enough space")

    reason, data, names = in_child(action, uid, mounts).value
    assert f"{volume}/app.conf can't be written: No space left on device: free space or inodes" in reason
    assert data == b"old"
    assert not any(name.startswith(TEMPORARY_PREFIX) for name in names)


@pytest.mark.parametrize(("cause", "status"), [(errno.EDQUOT, 75), (errno.ESTALE, 75), (errno.EFBIG, 73)])
def test_what_another_start_may_find_gone_is_worth_a_retry(home: Path, cause: int, status: int) -> None:
    """A used-up quota is; a limit of the container is not."""

    def action() -> None:
        before_call("fsync", 1, fail_with(cause))
        place([content(home / "app.conf")])

    error = in_child(action, os.geteuid()).error
    assert error is not None
    assert (error.status, error.retriable) == (status, status == 75)


def test_a_file_that_can_never_be_written_makes_a_full_disk_final(home: Path) -> None:
    """A retry would not write the other one."""
    (home / "closed").mkdir()

    def action() -> None:
        before_call("fsync", 1, fail_with(errno.ENOSPC))
        place([content(home / "app.conf"), content(home / "closed", name="b")])

    error = in_child(action, os.geteuid()).error
    assert error is not None
    assert error.status == 73 and "No space left" in error.reason and "is a directory" in error.reason


@pytest.mark.parametrize(
    ("step", "number"),
    [("fchmod", 1), ("fchmod", 2), ("write", 1), ("fsync", 1), ("rename", 1), ("fsync", 2)],
)
def test_an_error_at_any_step_leaves_no_temporary_file(home: Path, uid: int, step: str, number: int) -> None:
    """The disk fails at this moment: status 75, and the old file or the new one."""
    dest = write(home / "app.conf", b"old", uid)

    def action() -> None:
        before_call(step, number, fail_with(errno.EIO))
        place([content(dest, mode=0o4755)])

    outcome = in_child(action, uid)
    if (step, number, uid) == ("fchmod", 2, 0):
        assert outcome.error is None  # A write by root keeps setuid: there is no second call.
    else:
        assert str(dest) in outcome.reason
        assert "Input/output error" in outcome.reason
    # At the last sync the new file has its name already.
    assert (dest.read_bytes() == SECRET) == ((step, number) == ("fsync", 2) or outcome.error is None)
    assert temporary_files(home) == []


@pytest.mark.parametrize(
    ("below", "cause", "advice"),
    [
        ("file/app.conf", "Not a directory", "remove it"),
        ("dangling/app.conf", "No such file or directory", "a link whose target is missing"),
        ("loop/app.conf", "Too many levels of symbolic links", "a link that leads to itself"),
        ("n" * 256, "File name too long", "choose a shorter dest"),
        ("n" * 256 + "/app.conf", "File name too long", "choose a shorter dest"),
    ],
)
def test_an_impossible_path_says_what_is_wrong_with_it(
    home: Path, uid: int, below: str, cause: str, advice: str
) -> None:
    """Status 73 with dest, the reason, and what to do; nothing is created."""
    write(home / "file", b"", uid)
    (home / "dangling").symlink_to("nowhere")
    (home / "loop").symlink_to("loop")
    before = snapshot(home)
    reason = in_child(lambda: place([content(home / below)]), uid).reason
    assert f"config file app.conf: {home}/{below} can't be written: {cause}" in reason
    assert advice in reason
    assert snapshot(home) == before


def test_a_directory_that_can_not_be_listed_is_written(home: Path, uid: int) -> None:
    """Its mode has w and x, but no r."""
    home.chmod(0o300)
    for data in (b"one", b"two"):
        files = [content(home / "app.conf", data)]
        assert in_child(partial(place, files), uid).error is None
        assert (home / "app.conf").read_bytes() == data
    home.chmod(0o700)
    assert temporary_files(home) == []


@pytest.mark.parametrize("second", ["app.conf", "./app.conf", "sub/../app.conf", "link/app.conf"])
def test_two_files_with_the_same_dest_are_refused_before_anything_is_written(
    tmp_path: Path, second: str
) -> None:
    """Different spellings of a path are the same file."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(".")
    before = snapshot(tmp_path)
    wanted = [
        content(tmp_path / "first.conf", name="first"),
        content(tmp_path / "app.conf", name="one"),
        content(f"{tmp_path}/{second}", name="two"),
    ]
    with pytest.raises(CannotWrite, match="config files one and two have the same dest"):
        place(wanted)
    assert snapshot(tmp_path) == before


def test_of_two_optional_files_at_one_dest_the_one_with_content_is_written(tmp_path: Path) -> None:
    """An override and a default may have the same dest if only one of them has content."""
    place([content(tmp_path / "f", None, name="override"), content(tmp_path / "f", name="default")])
    assert (tmp_path / "f").read_bytes() == SECRET


def test_all_files_that_cannot_be_written_are_named_at_once(home: Path, uid: int) -> None:
    """One message for all of them; no file is written."""
    (home / "one").mkdir()
    (home / "two").mkdir()
    wanted = [content(home / name, name=name) for name in ("one", "good", "two")]
    reason = in_child(lambda: place(wanted), uid).reason
    assert "config file one:" in reason
    assert "config file two:" in reason
    assert "good" not in reason
    assert not (home / "good").exists()


def test_content_appears_in_no_message(
    home: Path, uid: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in log lines, errors, or the text of the record."""
    monkeypatch.setattr(log.OUTPUT, "level", log.LEVELS.index("debug"))
    if uid == os.geteuid():
        place([content(home / "app.conf")])
        place([content(home / "app.conf", mode=0o640)])
        place([content(home / "app.conf", mode=0o640)])
        with pytest.raises(CannotWrite) as caught:
            place([content(home / "app.conf" / "below")])
        assert "xyzzy" not in caught.value.reason
    assert "xyzzy" not in repr(content(home / "app.conf"))
    assert "xyzzy" not in capfd.readouterr().err


def test_a_mode_that_the_kernel_drops_is_an_error(root: None, home: Path, uid: int) -> None:
    """The kernel drops setgid silently for a group that the agent is not in."""
    dest = write(home / "app.conf", SECRET, NOBODY)
    os.chown(dest, NOBODY, 4343)
    own(home, NOBODY)
    reason = in_child(lambda: place([content(dest, mode=0o2755, gid=4343)]), NOBODY).reason
    assert str(dest) in reason


# -- plan --


@pytest.mark.parametrize(
    ("there", "mode", "owner", "expected"),
    [
        (None, 0o600, None, "create"),
        (b"old", 0o600, None, "rewrite"),
        (SECRET, 0o600, None, "unchanged"),
        (SECRET, 0o640, None, "mode"),
        (SECRET, 0o600, 4242, "owner"),
        (SECRET, 0o640, 4242, "owner"),
        (b"old", 0o640, 4242, "rewrite"),
    ],
)
def test_plan_returns_what_place_would_do(
    home: Path, uid: int, there: bytes | None, mode: int, owner: int | None, expected: str
) -> None:
    """It changes nothing."""
    if there is not None:
        write(home / "app.conf", there, uid)
    before = snapshot(home)
    wanted = content(home / "app.conf", mode=mode, uid=owner)
    assert in_child(lambda: plan(wanted), uid).value == expected
    assert snapshot(home) == before


def test_plan_makes_no_parents(home: Path, uid: int) -> None:
    """A file in a missing directory would be created."""
    assert in_child(lambda: plan(content(home / "a" / "b" / "app.conf")), uid).value == "create"
    assert os.listdir(home) == []
