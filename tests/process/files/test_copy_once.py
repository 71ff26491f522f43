"""COPY_ONCE: config files are written on the first start of a container only."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kolla_mesos_start.files.copy_once import CopyOnce
from kolla_mesos_start.files.place import place
from kolla_mesos_start.files.plan import Content
from tests.process.files.children import (
    NOBODY,
    SECRET,
    content,
    identity,
    in_child,
    kill_at,
    mode_of,
    record_calls,
    temporary_files,
    write,
)

# -- COPY_ONCE --


def start(state: Path, commands: dict[str, Content]) -> None:
    """Do what a start with COPY_ONCE does for each command."""
    for path, wanted in commands.items():
        once = CopyOnce(str(state), path)
        if once.written() is None:
            with once.recorded(0x1F):
                place([wanted])


def test_copy_once_writes_on_the_first_start_only(home: Path, uid: int) -> None:
    """Changes of content and mode in the container stay; a new command gets its files."""
    dest, late = home / "app.conf", home / "late.conf"
    assert in_child(lambda: start(home / "state", {"role/a": content(dest)}), uid).error is None
    assert dest.read_bytes() == SECRET
    write(dest, b"edited", uid, 0o644)
    before = identity(dest)
    again = {"role/a": content(dest), "role/late": content(late)}
    assert in_child(lambda: start(home / "state", again), uid).error is None
    assert (identity(dest), mode_of(dest), late.read_bytes()) == (before, 0o644, SECRET)


def test_a_first_start_that_was_killed_is_completed_by_the_next(home: Path, uid: int) -> None:
    """Files of a finished command stay as they are; those of the interrupted command are written."""
    first, second = home / "first.conf", home / "second.conf"

    def action() -> None:
        kill_at("rename", 3)  # The first file, its marker, the second file.
        start(home / "state", {"role/a": content(first), "role/b": content(second)})

    assert in_child(action, uid).signum == signal.SIGKILL
    write(first, b"edited", uid)
    again = {"role/a": content(first), "role/b": content(second)}
    assert in_child(lambda: start(home / "state", again), uid).error is None
    assert (first.read_bytes(), second.read_bytes()) == (b"edited", SECRET)
    assert temporary_files(home) == []


def test_nothing_is_written_if_copy_once_can_not_be_recorded(root: None, home: Path, uid: int) -> None:
    """Status 73 before the first file; the message names KOLLA_STATE_DIR."""
    state = home / "state"
    state.mkdir()
    read_only = [("--bind", str(state), str(state)), ("-o", "remount,bind,ro", str(state))]
    wanted = {"role/a": content(home / "app.conf")}
    reason = in_child(lambda: start(state, wanted), uid, read_only).reason
    assert f"COPY_ONCE can't be recorded in {state}/copied: Read-only file system" in reason
    assert "KOLLA_STATE_DIR" in reason
    os.chown(state, 0, 0)
    reason = in_child(lambda: start(state, wanted), NOBODY).reason
    assert "Permission denied: set KOLLA_STATE_DIR" in reason
    assert f"uid {NOBODY} may write" in reason
    (state / "copied").touch()
    reason = in_child(lambda: start(state, wanted), uid).reason
    assert "Not a directory" in reason
    assert not (home / "app.conf").exists()


def test_a_state_directory_that_cannot_be_entered_is_an_error_not_a_first_start(
    root: None, home: Path, uid: int
) -> None:
    """It is unknown whether the files were written, so they are not written again."""
    state = home / "state"
    (state / "copied").mkdir(parents=True)
    state.chmod(0o700)
    os.chown(state, 0, 0)
    assert "Permission denied" in in_child(lambda: CopyOnce(str(state), "role/a").written(), NOBODY).reason


NAMES = ["role/a", "role/b", "other/a", "role/a%2Fb", "role/a/b", "../../etc", "role/ü", "role/" + "n" * 300]


def test_a_strangers_state_is_not_believed(root: None, home: Path, uid: int) -> None:
    """Links instead of markers, and a directory that somebody else may have made where everybody may."""
    once, wanted = CopyOnce(str(home / "state"), "role/a"), {"role/a": content(home / "app.conf")}
    (home / "state").mkdir()
    (home / "elsewhere").mkdir()
    (home / "state" / "copied").symlink_to(home / "elsewhere")
    reason = in_child(lambda: start(home / "state", wanted), 0).reason
    assert "copied: it is a link, which the agent does not make: remove it: set KOLLA_STATE_DIR" in reason
    assert os.listdir(home / "elsewhere") == []
    (home / "state" / "copied").unlink()
    (home / "state" / "copied").mkdir()
    (home / "state" / "copied" / "role%2Fa").symlink_to(home / "elsewhere")
    assert once.written() is None
    home.chmod(0o1777)
    os.chown(home / "state", 4711, 4711)
    reason = in_child(lambda: start(home / "state", wanted), 0).reason
    assert "it belongs to uid 4711, not to uid 0: remove it, or choose another directory" in reason
    assert not (home / "app.conf").exists()


def test_each_command_has_a_marker_of_its_own(tmp_path: Path) -> None:
    """Whatever the name of the command, its marker is in the state directory and unique."""
    names = [*NAMES, "role/" + "n" * 301]
    markers = [CopyOnce(str(tmp_path / "state"), name) for name in names]
    for number, marker in enumerate(markers):
        assert [each.written() for each in markers] == [0x1F] * number + [None] * (len(names) - number)
        for read in (1, 0x1F):
            with marker.recorded(read):
                pass
    assert os.listdir(tmp_path) == ["state"]
    assert os.listdir(tmp_path / "state") == ["copied"]
    assert len(os.listdir(tmp_path / "state" / "copied")) == len(names)


def test_the_marker_is_synced_after_the_files(tmp_path: Path) -> None:
    """After a power failure there must be no marker without its files."""

    def action() -> list[tuple[str, str]]:
        calls = record_calls("rename", "fsync")
        start(tmp_path / "state", {"role/a": content(tmp_path / "app.conf")})
        return calls

    calls = in_child(action, os.geteuid()).value
    synced, renamed, kept = ("fsync", "file"), ("rename", ""), ("fsync", "directory")
    assert calls[-6:] == [synced, synced, renamed, kept, renamed, kept]
