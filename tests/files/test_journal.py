"""Files that are replaced together, by processes that are killed at any step: all are old, or all are new."""

from __future__ import annotations

import fcntl
import itertools
import marshal
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.content import Content
from kolla_mesos_start.files.journal import is_begun, recover
from kolla_mesos_start.files.together import place_all, restore
from kolla_mesos_start.health import JOURNAL
from tests.files.children import (
    NOBODY,
    Mount,
    before_call,
    content,
    end_child,
    in_child,
    kill_at,
    mode_of,
    own,
    start_child,
    temporary_files,
    write,
)
from tests.waiting import eventually

STEPS = ["write", "fsync", "rename", "unlink", "fork", "waitpid"]


def wanted(home: Path, data: bytes = b"new") -> list[Content]:
    """A file that changes, one that is new, one in place of a link, and one of which the mode changes."""
    files = [content(home / name, data, name=name) for name in ("a.conf", "b.conf", "link.conf")]
    return [*files, content(home / "mode.conf", b"same", 0o640, name="mode.conf")]


def make_old(home: Path, uid: int) -> None:
    for name in ("a.conf", "b.conf", "link.conf", "mode.conf"):
        (home / name).unlink(missing_ok=True)
    write(home / "a.conf", b"old", uid)
    write(home / "mode.conf", b"same", uid)
    (home / "link.conf").symlink_to("nowhere")


def is_old(home: Path) -> bool:
    same = (home / "a.conf").read_bytes() == b"old" and mode_of(home / "mode.conf") == 0o600
    return same and not (home / "b.conf").exists() and os.path.islink(home / "link.conf")


def is_new(home: Path) -> bool:
    files = [home / name for name in ("a.conf", "b.conf", "link.conf")]
    same = all(not path.is_symlink() and path.exists() and path.read_bytes() == b"new" for path in files)
    return same and mode_of(home / "mode.conf") == 0o640


@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_at_any_step_no_mixed_files_are_left(
    home: Path, run_dir: str, uid: int, step: str
) -> None:
    """Process and child die at the same step. Without a journal nothing is mixed even before the recovery."""
    for number in itertools.count(1):
        make_old(home, uid)

        def action(number: int = number) -> None:
            kill_at(step, number)
            restore(place_all(wanted(home), run_dir), run_dir)

        outcome = in_child(action, uid)
        assert is_begun(run_dir) or is_old(home) or is_new(home)

        def next_refresh() -> bool:
            recover(run_dir)
            is_mixed = is_begun(run_dir) or not (is_old(home) or is_new(home))
            place_all(wanted(home), run_dir)
            return is_mixed

        assert in_child(next_refresh, uid).value is False
        assert is_new(home)
        assert temporary_files(home) == []
        if outcome.signum is None:
            break
    assert number > 1, f"{step} is not called any more"


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_child_finishes_when_its_parent_is_killed(
    home: Path, run_dir: str, uid: int, number: int
) -> None:
    """So nothing is left half-way where nobody is there to recover."""
    make_old(home, uid)

    def action() -> None:
        before_call("rename", number, lambda: os.kill(os.getppid(), signal.SIGKILL))
        place_all(wanted(home), run_dir)

    assert in_child(action, uid).signum == signal.SIGKILL
    eventually(lambda: not is_begun(run_dir), "the child has finished")
    assert is_new(home)
    assert temporary_files(home) == []


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_parent_finishes_when_its_child_is_killed(
    home: Path, run_dir: str, uid: int, number: int
) -> None:
    """The kernel may choose either of them when memory runs out."""
    make_old(home, uid)

    def action() -> None:
        parent = os.getpid()

        def kill_child() -> None:
            if os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

        before_call("rename", number, kill_child)
        place_all(wanted(home), run_dir)

    assert in_child(action, uid).error is None
    assert is_new(home)
    assert not is_begun(run_dir)


def test_recovery_leaves_a_living_process_alone(home: Path, run_dir: str, uid: int) -> None:
    """It waits for its end, or says that there is one."""
    make_old(home, uid)
    read, write_end = os.pipe()

    def action() -> None:
        os.close(write_end)
        before_call("rename", 3, lambda: os.read(read, 1))
        place_all(wanted(home), run_dir)

    def is_alone() -> bool:
        with suppress(BlockingIOError):
            return recover(run_dir, wait=False)
        return False

    placing = start_child(action, uid)
    eventually(lambda: is_begun(run_dir), "it replaces files")
    assert in_child(is_alone, uid).value is False
    assert not is_new(home)
    recovering = start_child(lambda: recover(run_dir), uid)
    os.write(write_end, b".")
    assert end_child(*placing).error is None
    assert end_child(*recovering).value is False
    assert is_new(home)
    for fd in (read, write_end):
        os.close(fd)


@pytest.mark.parametrize("step", ["write", "ftruncate", "fchmod", "unlink", "rename"])
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_mounted_file_is_never_left_half_written(
    mounted: tuple[Path, Path, list[Mount]], run_dir: str, uid: int, step: str, is_checked: bool
) -> None:
    """It is rewritten in place, from a copy that stays until that is done."""
    source, dest, mounts = mounted
    files = [
        content(dest, b"new" * 100, name="mounted")._replace(check=("true",) if is_checked else None),
        content(dest.parent / "b.conf", b"new"),
    ]
    for number in itertools.count(1):
        write(source, b"old", uid)
        (dest.parent / "b.conf").unlink(missing_ok=True)

        def action(number: int = number) -> None:
            kill_at(step, number)
            place_all(files, run_dir)

        outcome = in_child(action, uid, mounts)
        in_child(lambda: recover(run_dir), uid, mounts)
        found = (source.read_bytes(), (dest.parent / "b.conf").exists())
        assert found in [(b"old", False), (b"new" * 100, True)]
        if outcome.signum is None:
            break
    assert in_child(lambda: place_all(files, run_dir), uid, mounts).error is None
    assert temporary_files(dest.parent) + temporary_files(Path(run_dir)) == []


def test_a_mount_that_can_not_be_written_is_found_before_anything_is_replaced(
    mounted: tuple[Path, Path, list[Mount]], run_dir: str, uid: int
) -> None:
    """A read-only ConfigMap among the files."""
    _, dest, mounts = mounted
    files = [content(dest.parent / "b.conf", b"new"), content(dest, b"new", name="mounted")]

    def action() -> None:
        before_call("fork", 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
        place_all(files, run_dir)

    outcome = in_child(action, uid, [*mounts, ("-o", "remount,bind,ro", str(dest))])
    assert "is a mount of its own and can't be written" in outcome.reason
    assert not (dest.parent / "b.conf").exists()


# -- the journal itself --


def test_a_journal_of_another_user_is_not_followed(root: None, home: Path, run_dir: str) -> None:
    """Nor one that others may write, a link or a FIFO."""
    (home / "victim").write_text("precious")
    plain = tuple(content(home / "victim")._replace(data=None))
    path = Path(run_dir, JOURNAL)
    path.parent.mkdir(mode=0o700)

    def refused() -> None:
        with pytest.raises(CannotWrite, match="journal"):
            recover(run_dir)
        assert (home / "victim").read_text() == "precious"

    path.write_bytes(marshal.dumps([(plain, None)]))
    path.chmod(0o600)
    own(path, NOBODY)
    with path.open("rb") as planted:  # Whoever wrote it can lock it: that must not hold up anybody.
        fcntl.flock(planted, fcntl.LOCK_EX)
        refused()
    own(path, 0)
    path.chmod(0o660)
    refused()
    path.rename(home / "elsewhere")
    path.symlink_to(home / "elsewhere")
    refused()
    path.unlink()
    os.mkfifo(path, 0o600)
    refused()


@pytest.mark.parametrize("data", [b"", b"garbage", marshal.dumps([1]), marshal.dumps([(("a",), None)])])
def test_garbage_in_the_journal_is_an_error(tmp_path: Path, data: bytes) -> None:
    """It names the file."""
    (tmp_path / JOURNAL).parent.mkdir(mode=0o700)
    write(tmp_path / JOURNAL, data, os.geteuid())
    with pytest.raises(CannotWrite, match="journal is not a journal of this version"):
        recover(str(tmp_path))


def test_without_room_for_the_journal_nothing_is_replaced(home: Path, run_dir: str, uid: int) -> None:
    """The message names the directory and the variable."""
    make_old(home, uid)
    subprocess.run(["rm", "-r", run_dir], check=True)
    reason = in_child(lambda: place_all(wanted(home), run_dir), uid).reason
    assert f"{run_dir}/{JOURNAL} can't be written: No such file or directory" in reason
    assert "KOLLA_RUN_DIR" in reason
    assert is_old(home)
    assert temporary_files(home) == []


def test_the_journal_holds_no_content(home: Path, run_dir: str, uid: int) -> None:
    """Paths and modes only, in a private file."""
    make_old(home, uid)

    def action() -> None:
        kill_at("rename", 3)
        place_all(wanted(home, b"xyzzy"), run_dir)

    assert in_child(action, uid).signum == signal.SIGKILL
    journal = Path(run_dir, JOURNAL)
    assert b"xyzzy" not in journal.read_bytes()
    assert mode_of(journal) == 0o600


def test_a_mounted_file_keeps_its_mode_if_nothing_is_replaced(
    mounted: tuple[Path, Path, list[Mount]], run_dir: str, uid: int
) -> None:
    """A check of another file fails."""
    source, dest, mounts = mounted
    source.chmod(0o400)
    files = [content(dest, b"new", name="mounted"), content(dest.parent / "b.conf", b"new")]
    files[1] = files[1]._replace(check=("false",))

    def refuse(content: Content, path: str) -> None:
        raise CannotWrite("refused")

    assert in_child(lambda: place_all(files, run_dir, refuse), uid, mounts).reason == "refused"
    assert (source.read_bytes(), mode_of(source)) == (b"old", 0o400)
    assert temporary_files(Path(run_dir)) == []
