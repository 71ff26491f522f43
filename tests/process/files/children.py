"""Actions in child processes, and what a test of files looks at.

A child can drop its privileges, have mounts of its own, and be killed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import resource
import signal
import stat
import subprocess
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from kolla_mesos_start import log
from kolla_mesos_start.errors import AgentError, CannotWrite
from kolla_mesos_start.files.place import TEMPORARY_PREFIX, place
from kolla_mesos_start.files.plan import Content

NOBODY = 65534
# The users that tests run as. Without root that is one; a test that needs root says so.
IDENTITIES = (0, NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
SECRET = b"password = xyzzy\n"

Mount = tuple[str, ...]


class Outcome(NamedTuple):
    """The result of an action in a child: a value, an error, or the signal that ended the child."""

    value: Any
    error: AgentError | None
    signum: int | None

    @property
    def reason(self) -> str:
        assert isinstance(self.error, CannotWrite), self
        passes = any(why in self.error.reason for why in ("No space left", "Input/output error"))
        assert (self.error.status, self.error.retriable) == ((75, True) if passes else (73, False))
        return self.error.reason


def in_child(action: Callable[[], Any], uid: int, mounts: Sequence[Mount] = ()) -> Outcome:
    """Run `action` in a child process as `uid`; `mounts` are arguments of mount(8), seen by it alone."""
    return end_child(*start_child(action, uid, mounts))


def start_child(action: Callable[[], Any], uid: int, mounts: Sequence[Mount] = ()) -> tuple[int, int]:
    """The child's process id, and the descriptor of its answer."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Other tests may have threads; the child needs none.
        pid = os.fork()
    if pid == 0:
        _act(action, uid, mounts, write)
    os.close(write)
    return pid, read


def end_child(pid: int, answer: int) -> Outcome:
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
    signal.alarm(120)  # A child that hangs is ended, and its test fails.
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
        # Not os.write: the action may have replaced it.
        with open(answer, "wb") as pipe:
            pipe.write(pickle.dumps(result))
            pipe.flush()
            os._exit(0)


def _mount_privately(mounts: Sequence[Mount]) -> None:
    clone_newns = 0x20000
    assert ctypes.CDLL(None, use_errno=True).unshare(clone_newns) == 0, os.strerror(ctypes.get_errno())
    for arguments in (("--make-rprivate", "/"), *mounts):
        subprocess.run(["mount", *arguments], check=True)


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


def temporary_files(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


def snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory that a write could change."""
    return {
        str(path): (path.lstat()[:7], path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
        for path in [directory, *directory.rglob("*")]
    }


def record_calls(*names: str) -> list[tuple[str, str]]:
    """Record each call of these functions, and what it was made on; only in a child process."""
    calls: list[tuple[str, str]] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(first: Any, *rest: Any, **more: Any) -> Any:
            kind = ""
            if isinstance(first, int):
                kind = "directory" if stat.S_ISDIR(os.fstat(first).st_mode) else "file"
            if first != 2:  # That would be a line of the log.
                calls.append((name, kind))
            return real(first, *rest, **more)

        return call

    for name in names:
        setattr(os, name, noted(name))
    return calls


def kill_at(step: str, number: int) -> None:
    """Kill this process before its call number `number` of a function."""
    before_call(step, number, lambda: os.kill(os.getpid(), signal.SIGKILL))


def before_call(step: str, number: int, event: Callable[[], object]) -> None:
    """Call `event` before call number `number` of a function; only in a child process."""
    real, calls = getattr(os, step), itertools.count(1)

    def call(*arguments: Any, **more: Any) -> Any:
        if next(calls) == number:
            event()
        return real(*arguments, **more)

    setattr(os, step, call)


def fail_with(cause: int) -> Callable[[], object]:
    def event() -> None:
        raise OSError(cause, os.strerror(cause))

    return event


def leave_temporary(home: Path, uid: int, half: Content) -> Path:
    """Kill an agent after 4096 bytes of a file; returns the temporary file that it leaves."""
    assert in_child(lambda: write_half_and_die(half), uid).signum == signal.SIGXFSZ
    (left,) = temporary_files(home)
    return Path(left)


def write_half_and_die(half: Content) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    place([half])


def warnings_of(action: Callable[[], object]) -> list[str]:
    """The warnings that the agent logs; only in a child process."""
    lines: list[tuple[str, str]] = []
    log.OUTPUT.write = lambda level, name, message: lines.append((level, message))  # type: ignore[method-assign]
    action()
    return [message for level, message in lines if level == "warning"]
