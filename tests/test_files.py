"""Config files are placed whole or not at all, on real file systems, as root and as nobody in particular.

Each action runs in a child process: it can drop its privileges there, have mounts of its own, and die.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import logging
import os
import pickle
import resource
import signal
import socket
import stat
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest

from kolla_mesos_start import files
from kolla_mesos_start.errors import AgentError, CannotWrite
from kolla_mesos_start.files import STAGE_PREFIX, Content, CopyOnce, place, plan

NOBODY = 65534
# Who a test runs as. A developer without root runs what he can; the tests that need root say so.
IDENTITIES = (0, NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
SECRET = b"password = xyzzy\n"

Mount = tuple[str, ...]


class Outcome(NamedTuple):
    """How a child's action ended: with a value, with an error, or by a signal."""

    value: Any
    error: AgentError | None
    signum: int | None

    @property
    def reason(self) -> str:
        assert isinstance(self.error, CannotWrite), self
        assert self.error.status == 73
        return self.error.reason


def in_child(action: Callable[[], Any], uid: int, mounts: Sequence[Mount] = ()) -> Outcome:
    """Run `action` in a child process as `uid`; `mounts` are arguments of mount(8), seen by it alone."""
    return _ended(*_start(action, uid, mounts))


def _start(action: Callable[[], Any], uid: int, mounts: Sequence[Mount] = ()) -> tuple[int, int]:
    """The child's process id, and the descriptor from which its answer is read."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Threads of other tests: none is needed here.
        pid = os.fork()
    if pid == 0:
        _act(action, uid, mounts, write)
    os.close(write)
    return pid, read


def _ended(pid: int, answer: int) -> Outcome:
    with open(answer, "rb") as pipe:
        told = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Outcome(None, None, os.WTERMSIG(status))
    value, error = pickle.loads(told)
    assert not isinstance(error, str), error
    return Outcome(value, error, None)


def _act(action: Callable[[], Any], uid: int, mounts: Sequence[Mount], answer: int) -> None:
    result: tuple[Any, AgentError | str | None]
    signal.alarm(120)  # One that hangs is ended, and its test fails.
    try:
        if mounts:
            _mount_privately(mounts)
        if uid != os.geteuid():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        result = (action(), None)
    except AgentError as error:
        result = (None, error)
    except BaseException:
        result = (None, traceback.format_exc())
    finally:
        # Not by os.write, which the action may have replaced.
        with open(answer, "wb") as pipe:
            pipe.write(pickle.dumps(result))
            pipe.flush()
            os._exit(0)


def _mount_privately(mounts: Sequence[Mount]) -> None:
    clone_newns = 0x20000
    assert ctypes.CDLL(None, use_errno=True).unshare(clone_newns) == 0, os.strerror(ctypes.get_errno())
    for arguments in (("--make-rprivate", "/"), *mounts):
        subprocess.run(["mount", *arguments], check=True)


@pytest.fixture(params=IDENTITIES)
def uid(request: pytest.FixtureRequest) -> int:
    """The user that the agent runs as."""
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def root() -> None:
    """For what only root can set up: other users' files, mounts."""
    assert os.geteuid() == 0, "this test needs root: it makes files of other users, or mounts"


@pytest.fixture
def home(uid: int) -> Iterator[Path]:
    """A directory of that user's. (The parents of tmp_path let nobody but their owner in.)"""
    path = Path(tempfile.mkdtemp(prefix="files-")).resolve()
    own(path, uid)
    path.chmod(0o755)
    yield path
    # rm, for shutil.rmtree recurses as deep as the directories do.
    subprocess.run(["rm", "-rf", "--", str(path)], check=True)


def own(path: Path, uid: int) -> Path:
    os.chown(path, uid, uid if uid == NOBODY else -1, follow_symlinks=False)
    return path


def write(path: Path, data: bytes, uid: int, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return own(path, uid)


def content(
    dest: Path | str,
    data: bytes | None = SECRET,
    mode: int = 0o600,
    uid: int | None = None,
    gid: int | None = None,
    name: str = "app.conf",
) -> Content:
    return Content(name, str(dest), uid, gid, mode, data)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def owner_of(path: Path) -> tuple[int, int]:
    return path.lstat().st_uid, path.lstat().st_gid


def identity(path: Path) -> tuple[int, int]:
    return path.lstat().st_ino, path.lstat().st_mtime_ns


def stages(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.name.startswith(STAGE_PREFIX)]


def snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    """All that could be changed below a directory."""
    return {
        str(path): (path.lstat()[:7], path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
        for path in [directory, *directory.rglob("*")]
    }


# -- a new file --


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o200, 0o000, 0o777, 0o4755, 0o2755, 0o1644])
def test_a_file_has_its_content_owner_and_mode_whatever_the_umask(
    home: Path, uid: int, mode: int, umask: int
) -> None:
    """The mode is the one asked for, setuid and setgid included, and the owner is the agent's own."""
    dest = home / "app.conf"

    def action() -> None:
        os.umask(umask)
        place([content(dest, mode=mode)])

    assert in_child(action, uid).error is None
    assert mode_of(dest) == mode
    assert owner_of(dest) == ((uid, uid) if uid == NOBODY else (os.geteuid(), os.getegid()))
    dest.chmod(0o600)
    assert dest.read_bytes() == SECRET
    assert stages(home) == []


@pytest.mark.parametrize("mode", [0o640, 0o400, 0o4750, 0o6755])
def test_root_gives_a_file_to_its_owner(root: None, home: Path, uid: int, mode: int) -> None:
    """A change of owner takes setuid away; the mode is what was asked for nevertheless."""
    dest = home / "app.conf"
    assert in_child(lambda: place([content(dest, uid=4242, gid=4343, mode=mode)]), 0).error is None
    assert (owner_of(dest), mode_of(dest)) == ((4242, 4343), mode)


def test_missing_parents_are_made_for_all_to_enter(home: Path, uid: int) -> None:
    """New directories are 0755 whatever the umask; those that were there keep their mode."""
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


def test_very_long_paths_are_written(home: Path, uid: int) -> None:
    """The longest name that a file may have, below more directories than Python may recurse."""
    dest = home.joinpath(*["d"] * 1100, "n" * 255)
    assert in_child(lambda: place([content(dest)]), uid).error is None
    assert in_child(lambda: plan(content(dest)), uid).value == "unchanged"


def test_links_among_the_parents_are_followed(home: Path, uid: int) -> None:
    """/var/run is a link to /run, and a dest below it is meant."""
    (home / "real").mkdir()
    own(home / "real", uid)
    (home / "link").symlink_to("real")
    assert in_child(lambda: place([content(home / "link" / "new" / "app.conf")]), uid).error is None
    assert (home / "real" / "new" / "app.conf").read_bytes() == SECRET


def test_an_empty_file_is_a_file(home: Path, uid: int) -> None:
    """Content of zero length is written; it is not the same as no content."""
    assert in_child(lambda: place([content(home / "empty", b"")]), uid).error is None
    assert (home / "empty").read_bytes() == b""


def test_an_absent_optional_file_is_no_error(home: Path, uid: int) -> None:
    """Nothing is made for it, and what stands at its dest stays."""
    write(home / "app.conf", b"the image's", uid)
    before = snapshot(home)
    absent = [content(home / "app.conf", None), content(home / "no" / "parents", None, name="other")]
    assert in_child(lambda: place(absent), uid).error is None
    assert snapshot(home) == before


# -- what stands at dest --


@pytest.mark.parametrize("target", ["target", "nowhere", "."])
def test_a_link_at_dest_is_replaced_and_never_followed(home: Path, uid: int, target: str) -> None:
    """Whatever it led to is as before: a file (with the same content, even), nothing, a directory."""
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
    """A directory, a FIFO (which must not hold the agent up either) and a socket stay as they are."""
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
def test_what_takes_the_place_of_dest_meanwhile_is_not_followed(
    home: Path, uid: int, kind: str, number: int
) -> None:
    """Between a look at dest and its opening somebody swaps it: nothing else is changed, nothing hangs."""
    dest = write(home / "app.conf", SECRET, uid, 0o644)
    target = write(home / "target", SECRET, uid, 0o644)

    def swap() -> None:
        dest.unlink()
        if kind == "link":
            dest.symlink_to(target)
        else:
            os.mkfifo(dest)

    def action() -> None:
        _before("open", number, swap)  # Of the directory, of dest to compare, of dest to mend.
        place([content(dest)])

    outcome = in_child(action, uid)
    assert outcome.signum is None
    assert mode_of(target) == 0o644
    if kind == "link":
        assert str(dest) in outcome.reason
    else:
        assert stat.S_ISREG(dest.lstat().st_mode)
        assert (dest.read_bytes(), mode_of(dest)) == (SECRET, 0o600)


def test_a_device_is_not_replaced(root: None) -> None:
    """A dest of /dev/null by mistake does not take the machine's away."""
    reason = in_child(lambda: place([content("/dev/null")]), 0).reason
    assert "/dev/null is a device" in reason
    assert stat.S_ISCHR(os.lstat("/dev/null").st_mode)


@pytest.mark.parametrize("data", [SECRET, b"other content, longer than what was there"])
def test_other_names_of_the_same_file_are_left_alone(home: Path, uid: int, data: bytes) -> None:
    """A hard link of dest keeps content and mode, whether content or only the mode must change."""
    write(home / "app.conf", SECRET, uid, 0o644)
    os.link(home / "app.conf", home / "other")
    before = identity(home / "other")
    assert in_child(lambda: place([content(home / "app.conf", data)]), uid).error is None
    assert (identity(home / "other"), mode_of(home / "other")) == (before, 0o644)
    assert (home / "other").read_bytes() == SECRET
    assert ((home / "app.conf").read_bytes(), mode_of(home / "app.conf")) == (data, 0o600)


def test_changed_content_is_replaced_whole(home: Path, uid: int) -> None:
    """Who has the old file open goes on reading the old one."""
    dest = write(home / "app.conf", b"old", uid)
    with dest.open("rb") as reader:
        assert in_child(lambda: place([content(dest)]), uid).error is None
        assert reader.read() == b"old"
    assert dest.read_bytes() == SECRET


def test_nobody_ever_reads_half_a_file(home: Path, uid: int) -> None:
    """While two contents are written in turns, a reader finds one or the other."""
    dest = home / "app.conf"
    contents = [b"a" * 300_000, b"b" * 200_000]
    assert in_child(lambda: place([content(dest, contents[0], 0o644)]), uid).error is None

    def action() -> None:
        for data in itertools.cycle(contents):
            place([content(dest, data, 0o644)])

    pid, answer = _start(action, uid)
    try:
        seen: set[int] = set()
        reads, deadline = 0, time.monotonic() + 60
        while reads < 300 or len(seen) < 2:
            assert time.monotonic() < deadline, seen
            data = dest.read_bytes()
            assert data in contents
            seen.add(len(data))
            reads += 1
    finally:
        os.kill(pid, signal.SIGKILL)
        assert _ended(pid, answer).signum == signal.SIGKILL


# -- unchanged --


def test_unchanged_content_is_not_rewritten(home: Path, uid: int) -> None:
    """The second start leaves the same file, and not one byte of the directory differs."""
    dest = home / "app.conf"
    assert in_child(lambda: place([content(dest)]), uid).error is None
    before = snapshot(home)
    assert in_child(lambda: place([content(dest)]), uid).error is None
    assert snapshot(home) == before


def test_a_wrong_mode_is_mended_without_rewriting(home: Path, uid: int) -> None:
    """The same inode with the same modification time, but now with the mode that was asked for."""
    dest = write(home / "app.conf", SECRET, uid, 0o666)
    before = identity(dest)
    assert in_child(lambda: place([content(dest, mode=0o4750)]), uid).error is None
    assert (identity(dest), mode_of(dest)) == (before, 0o4750)


def test_a_wrong_owner_is_mended_without_rewriting(root: None, home: Path, uid: int) -> None:
    """Root gives the file to the owner that was asked for, and the mode survives it."""
    dest = write(home / "app.conf", SECRET, uid, 0o4755)
    before = identity(dest)
    assert in_child(lambda: place([content(dest, mode=0o4755, uid=4242, gid=4343)]), 0).error is None
    assert (identity(dest), owner_of(dest), mode_of(dest)) == (before, (4242, 4343), 0o4755)


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("data", [SECRET, b"old"])
def test_a_file_of_somebody_else_in_an_own_directory_becomes_the_agents(
    root: None, home: Path, uid: int, mode: int, data: bytes
) -> None:
    """Whether it can be read or not: it can't be mended by an unprivileged agent, but be replaced."""
    dest = write(home / "app.conf", data, 0, mode)
    assert in_child(lambda: place([content(dest)]), uid).error is None
    assert (dest.read_bytes(), owner_of(dest), mode_of(dest)) == (SECRET, (uid, uid), 0o600)


def test_unchanged_files_on_a_read_only_file_system_are_fine(root: None, home: Path, uid: int) -> None:
    """What an image brings already needs no right to write."""
    write(home / "app.conf", SECRET, uid)
    read_only = [("--bind", str(home), str(home)), ("-o", "remount,bind,ro", str(home))]
    assert in_child(lambda: place([content(home / "app.conf")]), uid, read_only).error is None


# -- order: owner and mode, content, sync, rename, sync --


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_owner_and_mode_are_set_before_the_first_byte(root: None, home: Path, uid: int, mode: int) -> None:
    """The kernel ends the agent in the middle of the content: what it leaves is its owner's only."""
    owner = (4242, 4343) if uid == 0 else (uid, uid)
    left = _leave_stage(home, uid, content(home / "app.conf", SECRET * 1000, mode, *owner))
    assert left.lstat().st_size == 4096
    assert (owner_of(left), mode_of(left)) == (owner, mode)
    assert not (home / "app.conf").exists()


def _leave_stage(home: Path, uid: int, half: Content) -> Path:
    """Have an agent killed when it has written 4096 bytes of a file; the stage that it leaves."""
    assert in_child(lambda: _die_half_way(half), uid).signum == signal.SIGXFSZ
    (left,) = stages(home)
    return Path(left)


def _die_half_way(half: Content) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    place([half])


def test_not_even_the_empty_stage_is_open_to_others(home: Path, uid: int) -> None:
    """Who opened it before its mode is set could read the content later through his descriptor."""

    def action() -> None:
        os.umask(0)
        _kill_at("fchmod", 1)
        place([content(home / "app.conf", mode=0o640)])

    assert in_child(action, uid).signum == signal.SIGKILL
    (left,) = stages(home)
    assert mode_of(Path(left)) == 0o600


def test_a_stage_is_never_a_file_that_was_there(home: Path, uid: int) -> None:
    """Nothing is written into a file that somebody else has made under the stage's name."""
    planted = write(home / f"{STAGE_PREFIX}{'00' * 8}", b"somebody's", uid, 0o644)

    def action() -> None:
        os.urandom = bytes  # As many zeros.
        place([content(home / "app.conf")])

    with planted.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        assert "File exists" in in_child(action, uid).reason
    assert (planted.read_bytes(), mode_of(planted)) == (b"somebody's", 0o644)


def test_content_is_synced_before_the_name_and_the_name_before_the_end(home: Path, uid: int) -> None:
    """A power failure leaves the old file or the new one, and after `place` the new one."""
    dest = home / "app.conf"

    def action() -> list[tuple[str, str]]:
        calls = _record("write", "fsync", "rename", "fchown", "fchmod")
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


def test_a_mended_mode_is_synced(home: Path, uid: int) -> None:
    """What was readable for all must not be so again after a power failure."""
    dest = write(home / "app.conf", SECRET, uid, 0o666)

    def action() -> list[tuple[str, str]]:
        calls = _record("fchmod", "fsync")
        place([content(dest)])
        return calls

    assert in_child(action, uid).value == [("fchmod", "file"), ("fsync", "file")]


def test_new_directories_are_synced_too(home: Path, uid: int) -> None:
    """A file is not safe as long as the names of its parents are not."""

    def action() -> list[tuple[str, str]]:
        calls = _record("mkdir", "fsync")
        place([content(home / "a" / "b" / "app.conf")])
        return calls

    made = [("mkdir", ""), ("fsync", "directory")]
    assert in_child(action, uid).value == [*made, *made, ("fsync", "file"), ("fsync", "directory")]


def _record(*names: str) -> list[tuple[str, str]]:
    """From now on note each of these calls, and on what it was made; only for a child process."""
    calls: list[tuple[str, str]] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(first: Any, *rest: Any, **more: Any) -> Any:
            kind = ""
            if isinstance(first, int):
                kind = "directory" if stat.S_ISDIR(os.fstat(first).st_mode) else "file"
            calls.append((name, kind))
            return real(first, *rest, **more)

        return call

    for name in names:
        setattr(os, name, noted(name))
    return calls


# -- death --

STEPS = ["open", "fchown", "fchmod", "write", "fsync", "rename", "close"]


def _kill_at(step: str, number: int) -> None:
    """Have this process killed before its call number `number` of a function."""
    _before(step, number, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _before(step: str, number: int, event: Callable[[], object]) -> None:
    """Have something happen before call number `number` of a function; only for a child process."""
    real, calls = getattr(os, step), itertools.count(1)

    def call(*arguments: Any, **more: Any) -> Any:
        if next(calls) == number:
            event()
        return real(*arguments, **more)

    setattr(os, step, call)


def _fail(cause: int) -> Callable[[], object]:
    def event() -> None:
        raise OSError(cause, os.strerror(cause))

    return event


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("step", STEPS)
def test_an_agent_killed_at_any_step_leaves_the_old_or_the_new_file(
    home: Path, uid: int, step: str, old: bytes | None
) -> None:
    """And the next start puts it right and leaves no stage."""
    dest = home / "app.conf"
    # As root the file goes to another owner, so that each step is really taken.
    wanted = content(dest, mode=0o4640, uid=4242 if uid == 0 else None)
    for number in itertools.count(1):
        dest.unlink(missing_ok=True)
        if old is not None:
            write(dest, old, uid)

        def action(number: int = number) -> None:
            _kill_at(step, number)
            place([wanted])

        outcome = in_child(action, uid)
        found = dest.read_bytes() if dest.exists() else None
        assert found in (old, SECRET)
        if found == SECRET:
            assert mode_of(dest) == 0o4640
        assert in_child(lambda: place([wanted]), uid).error is None
        assert (dest.read_bytes(), mode_of(dest), stages(home)) == (SECRET, 0o4640, [])
        if outcome.signum is None:
            break
        assert outcome.signum == signal.SIGKILL
    assert number > 1 or (step == "fchown" and uid != 0), f"{step} is no step any more"


def test_what_a_killed_agent_left_is_removed_even_if_nothing_is_to_be_written(home: Path, uid: int) -> None:
    """A left-over may hold secrets, so it goes with the next start, whatever that has to do."""
    write(home / "other.conf", SECRET, uid)
    _leave_stage(home, uid, content(home / "app.conf", SECRET * 1000))
    assert in_child(lambda: place([content(home / "other.conf")]), uid).error is None
    assert stages(home) == []


def test_the_stage_of_a_living_agent_is_left_alone(home: Path, uid: int) -> None:
    """Two containers may share a directory; a stage that is locked is being written."""
    stage = write(home / f"{STAGE_PREFIX}0123456789abcdef", b"half", uid)
    with stage.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        assert in_child(lambda: place([content(home / "app.conf")]), uid).error is None
        assert stages(home) == [str(stage)]
    assert in_child(lambda: place([content(home / "app.conf")]), uid).error is None
    assert stages(home) == []


def test_a_left_over_that_cannot_be_removed_is_a_warning(root: None, home: Path, uid: int) -> None:
    """One that belongs to another user is named for the operator; the start goes on."""
    stage = write(home / f"{STAGE_PREFIX}0123456789abcdef", b"half", 0)
    warned = in_child(lambda: _warnings_of(lambda: place([content(home / "app.conf")])), uid).value
    if uid == 0:
        assert (warned, stages(home)) == ([], [])
    else:
        assert [str(stage) in line and "remove it" in line for line in warned] == [True]
    assert (home / "app.conf").read_bytes() == SECRET


def _warnings_of(action: Callable[[], object]) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kolla_mesos_start").addHandler(handler)
    action()
    return lines


def test_agents_that_write_the_same_file_at_once_do_not_hurt_each_other(home: Path, uid: int) -> None:
    """Four processes, one dest: no error, one whole content at the end, no stage."""
    dest = home / "shared.conf"

    def action(byte: int) -> None:
        for _ in range(25):
            place([content(dest, bytes([byte]) * 50_000)])
            place([content(dest, bytes([byte]) * 40_000)])

    writers = [_start(lambda byte=byte: action(byte), uid) for byte in b"abcd"]  # type: ignore[misc]
    assert [_ended(*writer).error for writer in writers] == [None] * 4
    assert dest.read_bytes() in [bytes([byte]) * 40_000 for byte in b"abcd"]
    assert os.listdir(home) == ["shared.conf"]


# -- mounts --


@pytest.fixture
def mounted(root: None, home: Path, uid: int) -> tuple[Path, Path, list[Mount]]:
    """A file of the user's outside, the dest that it is mounted at, and the mounts that do it."""
    outside = Path(home / "outside")
    outside.mkdir()
    source = write(own(outside, uid) / "source", b"old", uid)
    inside = home / "etc"
    inside.mkdir()
    dest = own(inside, uid) / "app.conf"
    dest.touch()
    return source, dest, [("--bind", str(source), str(dest))]


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
        calls = _record("fchmod", "write", "fsync")
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
    assert in_child(lambda: _die_half_way(half), uid, mounts).signum == signal.SIGXFSZ
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


# -- what can't be written --


def test_no_permission_names_dest_and_who_lacks_it(root: None, home: Path, uid: int) -> None:
    """An unprivileged image, /etc/<service> left to root: 73, with what to do about it."""
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
    """The owner in question is named, and neither a half-owned file nor a stage is left."""
    dest = home / "app.conf"
    if there is not None:
        write(dest, there, NOBODY)
    own(home, NOBODY)
    before = None if there is None else identity(dest)
    reason = in_child(lambda: place([content(dest, uid=4242, gid=4343)]), NOBODY).reason
    assert f"{dest} can't be given to 4242:4343 by uid {NOBODY}" in reason
    assert "leave `owner` out, or run the agent as root" in reason
    assert (identity(dest) if dest.exists() else None) == before
    assert stages(home) == []


def test_a_mode_that_the_kernel_drops_is_an_error(root: None, home: Path, uid: int) -> None:
    """setgid for a group that the agent is not in vanishes silently; the agent does not go on with less."""
    dest = write(home / "app.conf", SECRET, NOBODY)
    os.chown(dest, NOBODY, 4343)
    own(home, NOBODY)
    reason = in_child(lambda: place([content(dest, mode=0o2755, gid=4343)]), NOBODY).reason
    assert str(dest) in reason


def test_a_read_only_file_system_is_named_as_the_cause(root: None, home: Path, uid: int) -> None:
    """73 with dest, the reason, and the volume that would help; for a wrong mode alone, too."""
    write(home / "app.conf", b"old", uid)
    write(home / "mode.conf", SECRET, uid, 0o644)
    read_only = [("--bind", str(home), str(home)), ("-o", "remount,bind,ro", str(home))]
    for name in ("app.conf", "mode.conf", "new.conf"):
        wanted = [content(home / name)]
        reason = in_child(lambda wanted=wanted: place(wanted), uid, read_only).reason  # type: ignore[misc]
        assert f"{home}/{name} can't be written: Read-only file system" in reason
        assert f"mount a writable volume at {home}" in reason


@pytest.mark.parametrize("options", ["size=16k", "nr_inodes=3"])
def test_no_space_keeps_the_old_file_and_leaves_no_stage(
    root: None, home: Path, uid: int, options: str
) -> None:
    """A full volume, of bytes or of inodes: the old content is still there, whole."""
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
            return error.reason, (volume / "app.conf").read_bytes(), os.listdir(volume)
        raise AssertionError("it fitted")

    reason, data, names = in_child(action, uid, mounts).value
    assert f"{volume}/app.conf can't be written: No space left on device: free space or inodes" in reason
    assert data == b"old"
    assert not any(name.startswith(STAGE_PREFIX) for name in names)


def test_a_limit_of_file_size_leaves_no_stage(home: Path, uid: int) -> None:
    """A write that fails in the middle of the content takes its stage along."""

    def action() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        place([content(home / "app.conf", b"n" * 10_000)])

    reason = in_child(action, uid).reason
    assert f"{home}/app.conf can't be written: File too large" in reason
    assert os.listdir(home) == []


@pytest.mark.parametrize(
    ("step", "number"),
    [("fchmod", 1), ("fchmod", 2), ("write", 1), ("fsync", 1), ("rename", 1), ("fsync", 2)],
)
def test_an_error_at_any_step_leaves_no_stage(home: Path, uid: int, step: str, number: int) -> None:
    """A disk that breaks at this moment: 73, and the old file or the new one."""
    dest = write(home / "app.conf", b"old", uid)

    def action() -> None:
        _before(step, number, _fail(errno.EIO))
        place([content(dest, mode=0o4755)])

    outcome = in_child(action, uid)
    if (step, number, uid) == ("fchmod", 2, 0):
        assert outcome.error is None  # Root's writes keep setuid: there is no second time.
    else:
        assert str(dest) in outcome.reason
        assert "Input/output error" in outcome.reason
    # The last sync comes when the new file has its name already.
    assert (dest.read_bytes() == SECRET) == ((step, number) == ("fsync", 2) or outcome.error is None)
    assert stages(home) == []


def test_a_directory_that_cannot_be_synced_is_no_error(home: Path, uid: int) -> None:
    """Some network file systems answer EINVAL, and keep their promise otherwise."""

    def action() -> None:
        _before("fsync", 2, _fail(errno.EINVAL))
        place([content(home / "app.conf")])

    assert in_child(action, uid).error is None
    assert (home / "app.conf").read_bytes() == SECRET


@pytest.mark.parametrize(
    ("below", "cause", "advice"),
    [
        ("file/app.conf", "Not a directory", "remove it"),
        ("dangling/app.conf", "No such file or directory", "a link that leads nowhere"),
        ("loop/app.conf", "Too many levels of symbolic links", "a link that leads to itself"),
        ("n" * 256, "File name too long", "choose a shorter dest"),
        ("n" * 256 + "/app.conf", "File name too long", "choose a shorter dest"),
    ],
)
def test_an_impossible_path_says_what_is_wrong_with_it(
    home: Path, uid: int, below: str, cause: str, advice: str
) -> None:
    """73 with dest, the reason, and what to do; nothing is made on the way."""
    write(home / "file", b"", uid)
    (home / "dangling").symlink_to("nowhere")
    (home / "loop").symlink_to("loop")
    before = snapshot(home)
    reason = in_child(lambda: place([content(home / below)]), uid).reason
    assert f"config file app.conf: {home}/{below} can't be written: {cause}" in reason
    assert advice in reason
    assert snapshot(home) == before


@pytest.mark.parametrize(
    "dest", ["", "relative", "./relative", "/", "/etc/", "/etc/.", "/etc/..", "/a\0b", "/\ud800"]
)
def test_a_dest_that_names_no_file_is_refused(dest: str) -> None:
    """Not absolute, a directory's name, or no name that the system knows: 73, never a traceback."""
    for action in (lambda: place([content(dest)]), lambda: plan(content(dest))):
        with pytest.raises(CannotWrite, match=r"config file app\.conf: dest .* give an absolute path"):
            action()


@pytest.mark.parametrize("number", [-1, 2**32 - 1, 2**70])
def test_an_id_that_no_user_has_is_refused(tmp_path: Path, number: int) -> None:
    """-1 would mean to the kernel: leave the owner as it is."""
    for wanted in (content(tmp_path / "f", uid=number), content(tmp_path / "f", gid=number)):
        with pytest.raises(CannotWrite, match=f"can't belong to .id {number}"):
            place([wanted])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("second", ["app.conf", "./app.conf", "sub/../app.conf", "link/app.conf"])
def test_two_files_with_the_same_dest_are_refused_before_anything_is_written(
    tmp_path: Path, second: str
) -> None:
    """Which one would win is nobody's guess; spelled differently it is still the same file."""
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
    """An override and its default may share a dest as long as only one is there."""
    place([content(tmp_path / "f", None, name="override"), content(tmp_path / "f", name="default")])
    assert (tmp_path / "f").read_bytes() == SECRET


def test_all_files_that_cannot_be_written_are_named_at_once(home: Path, uid: int) -> None:
    """An operator mends an image once, not once for each file; the others are written."""
    (home / "one").mkdir()
    (home / "two").mkdir()
    wanted = [content(home / name, name=name) for name in ("one", "good", "two")]
    reason = in_child(lambda: place(wanted), uid).reason
    assert "config file one:" in reason
    assert "config file two:" in reason
    assert "good" not in reason
    assert (home / "good").read_bytes() == SECRET


def test_content_appears_in_no_message(home: Path, uid: int, caplog: pytest.LogCaptureFixture) -> None:
    """Neither log lines nor errors nor the record's own text hold a byte of it."""
    caplog.set_level(logging.DEBUG)
    if uid == os.geteuid():
        place([content(home / "app.conf")])
        place([content(home / "app.conf", mode=0o640)])
        place([content(home / "app.conf", mode=0o640)])
        with pytest.raises(CannotWrite) as caught:
            place([content(home / "app.conf" / "below")])
        assert "xyzzy" not in caught.value.reason
    assert "xyzzy" not in repr(content(home / "app.conf"))
    assert "xyzzy" not in caplog.text


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
def test_plan_tells_what_place_would_do(
    home: Path, uid: int, there: bytes | None, mode: int, owner: int | None, expected: str
) -> None:
    """And it does nothing itself."""
    if there is not None:
        write(home / "app.conf", there, uid)
    before = snapshot(home)
    wanted = content(home / "app.conf", mode=mode, uid=owner)
    assert in_child(lambda: plan(wanted), uid).value == expected
    assert snapshot(home) == before


def test_plan_makes_no_parents(home: Path, uid: int) -> None:
    """A file in a directory that is not there yet would be created."""
    assert in_child(lambda: plan(content(home / "a" / "b" / "app.conf")), uid).value == "create"
    assert os.listdir(home) == []


def test_plan_of_a_link_is_a_rewrite(home: Path, uid: int) -> None:
    """Even if it leads to the right content: the link itself is replaced."""
    write(home / "target", SECRET, uid)
    (home / "app.conf").symlink_to("target")
    assert in_child(lambda: plan(content(home / "app.conf")), uid).value == "rewrite"


def test_plan_of_an_absent_optional_file_is_unchanged(tmp_path: Path) -> None:
    """Nothing would be done for it."""
    assert plan(content(tmp_path / "a" / "app.conf", None)) == "unchanged"


# -- COPY_ONCE --


def start(state: Path, commands: dict[str, Content]) -> None:
    """What a start with COPY_ONCE does, one command after the other."""
    once = CopyOnce(str(state))
    for path, wanted in commands.items():
        if not once.done(path):
            once.require()
            place([wanted])
            once.record(path)


def test_copy_once_writes_on_the_first_start_only(home: Path, uid: int) -> None:
    """What an operator changed in the container stays, and so does a mode; a new command gets its files."""
    dest, late = home / "app.conf", home / "late.conf"
    assert in_child(lambda: start(home / "state", {"role/a": content(dest)}), uid).error is None
    assert dest.read_bytes() == SECRET
    write(dest, b"edited", uid, 0o644)
    before = identity(dest)
    again = {"role/a": content(dest), "role/late": content(late)}
    assert in_child(lambda: start(home / "state", again), uid).error is None
    assert (identity(dest), mode_of(dest), late.read_bytes()) == (before, 0o644, SECRET)


def test_a_first_start_that_died_half_way_is_finished_by_the_next(home: Path, uid: int) -> None:
    """The command whose files were written stays as it is; the one that was being written is written."""
    first, second = home / "first.conf", home / "second.conf"

    def action() -> None:
        _kill_at("rename", 3)  # The first file, its marker, the second file.
        start(home / "state", {"role/a": content(first), "role/b": content(second)})

    assert in_child(action, uid).signum == signal.SIGKILL
    write(first, b"edited", uid)
    again = {"role/a": content(first), "role/b": content(second)}
    assert in_child(lambda: start(home / "state", again), uid).error is None
    assert (first.read_bytes(), second.read_bytes()) == (b"edited", SECRET)
    assert stages(home) == []


def test_a_start_that_died_before_its_marker_writes_again(home: Path, uid: int) -> None:
    """Files without a marker were never finished."""

    def action() -> None:
        _kill_at("rename", 2)
        start(home / "state", {"role/a": content(home / "app.conf")})

    assert in_child(action, uid).signum == signal.SIGKILL
    assert not in_child(lambda: CopyOnce(str(home / "state")).done("role/a"), uid).value
    write(home / "app.conf", b"edited", uid)
    assert in_child(lambda: start(home / "state", {"role/a": content(home / "app.conf")}), uid).error is None
    assert (home / "app.conf").read_bytes() == SECRET
    assert stages(home) == []


def test_where_copy_once_cannot_be_recorded_nothing_is_written(root: None, home: Path, uid: int) -> None:
    """73 before the first file, with KOLLA_STATE_DIR named: never a silent second time."""
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


def test_a_state_directory_without_room_is_found_before_anything_is_written(
    root: None, home: Path, uid: int
) -> None:
    """That it may be written is not enough: a marker is tried, not asked for."""
    state = home / "state"
    state.mkdir()
    full = [("-t", "tmpfs", "-o", f"nr_inodes=2,mode=755,uid={uid},gid={uid}", "none", str(state))]
    reason = in_child(lambda: start(state, {"role/a": content(home / "app.conf")}), uid, full).reason
    assert "No space left" in reason
    assert not (home / "app.conf").exists()


def test_a_state_directory_that_cannot_be_entered_is_an_error_not_a_first_start(
    root: None, home: Path, uid: int
) -> None:
    """Whether the files were written can't be known, so they are not written again."""
    state = home / "state"
    (state / "copied").mkdir(parents=True)
    state.chmod(0o700)
    os.chown(state, 0, 0)
    assert "Permission denied" in in_child(lambda: CopyOnce(str(state)).done("role/a"), NOBODY).reason


def test_asking_leaves_nothing_behind(home: Path, uid: int) -> None:
    """`done` makes nothing at all, `require` only the directory."""
    once = CopyOnce(str(home / "state"))
    assert in_child(lambda: once.done("role/a"), uid).value is False
    assert os.listdir(home) == []
    assert in_child(once.require, uid).error is None
    assert os.listdir(home / "state" / "copied") == []
    assert in_child(lambda: once.done("role/a"), uid).value is False


NAMES = ["role/a", "role/b", "other/a", "role/a%2Fb", "role/a/b", "../../etc", "role/ü", "role/" + "n" * 300]


def test_each_command_has_a_marker_of_its_own(tmp_path: Path) -> None:
    """Whatever its name holds, the marker lies in the state directory and is nobody else's."""
    once = CopyOnce(str(tmp_path / "state"))
    names = [*NAMES, "role/" + "n" * 301, "role/\ud800"]
    for number, name in enumerate(names):
        assert [once.done(other) for other in names] == [True] * number + [False] * (len(names) - number)
        once.require()
        once.record(name)
        once.record(name)
    assert os.listdir(tmp_path) == ["state"]
    assert os.listdir(tmp_path / "state") == ["copied"]
    assert len(os.listdir(tmp_path / "state" / "copied")) == len(names)


def test_the_marker_is_synced_after_the_files(tmp_path: Path) -> None:
    """A marker that outlives a power failure must not outlive the files that it speaks of."""

    def action() -> list[tuple[str, str]]:
        calls = _record("rename", "fsync")
        start(tmp_path / "state", {"role/a": content(tmp_path / "app.conf")})
        return calls

    calls = in_child(action, os.geteuid()).value
    step = [("fsync", "file"), ("rename", ""), ("fsync", "directory")]
    assert calls[-6:] == [*step, *step]


def test_the_module_needs_nothing_heavy() -> None:
    """Every start pays for it: no jinja2, psutil, tempfile, shutil or hashlib at import."""
    assert not {"jinja2", "psutil", "tempfile", "shutil", "hashlib"} & set(vars(files))
