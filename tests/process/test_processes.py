"""How processes are started: signals, descriptors, and their end. `reap` is tested in test_loop.py."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kolla_mesos_start.processes import Child

Ids = tuple[int, int, tuple[int, ...]]

SCRIPT = """
import os, signal
from kolla_mesos_start.processes import fork

def ends(work):
    return os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])

def blocked():
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())

def fail():
    raise ValueError("of the child")

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
before = blocked()
assert ends(lambda: None) == 127
assert ends(lambda: os._exit(7)) == 7
assert ends(lambda: os._exit(0 if signal.SIGTERM in blocked() else 1)) == 0
assert ends(fail) == 127
assert blocked() == before == {signal.SIGUSR1}
print("once")
"""


def test_a_forked_process_never_returns_and_begins_with_signals_blocked() -> None:
    """Whatever its work does, it ends; the signal mask of its parent stays as it was."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "once\n"


def test_a_daemons_sockets_are_hidden_from_commands() -> None:
    """The supervisor keeps them open for a daemon that is started again."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_inheritable(fd, True)
    there = f"test -e /proc/$$/fd/{reader} && exit 3; test -e /proc/$$/fd/{writer}"
    child = Child(["sh", "-c", there], os.environ, inherited=[writer])
    assert os.waitstatus_to_exitcode(child.wait() or 0) == 0
    assert os.get_inheritable(reader)
    for fd in (reader, writer):
        os.close(fd)


def test_a_process_that_outlives_us_needs_no_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without libffi can't hide memory; its daemons are registered all the same."""
    monkeypatch.setitem(sys.modules, "_ctypes", None)
    child = Child([shutil.which("true") or ""], {}, outlives_us=True).started()
    assert child.wait() == 0


# -- the standard descriptors of another user --------------------------------------------------------

NOBODY = (65534, 65534, ())
OPENS = "exec 3<>/proc/self/fd/0 4>/dev/stdout 5>>/proc/$$/fd/2"


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_another_user_may_open_its_pipes_and_terminal_by_name(kind: str) -> None:
    """Programs such as httpd log to /dev/stderr."""
    other, own = os.pipe() if kind == "pipe" else pty.openpty()
    before = os.fstat(own)
    child = _as_nobody([OPENS], own)
    assert (child.wait(), os.fstat(own).st_uid, os.fstat(own).st_gid) == (0, 65534, before.st_gid)
    second = _as_nobody([OPENS], own, ids=(65533, 65533, ()))  # The next command, of yet another user.
    assert second.wait() == 0
    for fd in (other, own):
        os.close(fd)


@pytest.mark.parametrize("kind", ["file", "null", "socket"])
def test_other_standard_descriptors_keep_their_owner(kind: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix, open(tmp_path / "log", "wb") as log, open(os.devnull) as null:
        fd = {"file": log.fileno(), "null": null.fileno(), "socket": unix.fileno()}[kind]
        before = os.fstat(fd).st_uid
        assert _as_nobody(["true"], fd).wait() == 0
        assert os.fstat(fd).st_uid == before == 0


def test_a_closed_standard_descriptor_is_no_failure() -> None:
    assert _as_nobody(["true"], None).wait() == 0


def _as_nobody(script: list[str], fd: int | None, ids: Ids = NOBODY) -> Child:
    """A shell of another user, with `fd` as its standard descriptors."""
    kept = [os.dup(number) for number in range(3)]
    try:
        for number in range(3):
            os.close(number) if fd is None else os.dup2(fd, number)
        return Child(["sh", "-c", *script], os.environ, ids, is_daemon=True, outlives_us=True)
    finally:
        for number in range(3):
            os.dup2(kept[number], number)
            os.close(kept[number])
