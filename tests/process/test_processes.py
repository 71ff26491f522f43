"""How processes are started: signals, descriptors, and their end. `reap` is tested in test_loop.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from kolla_mesos_start.processes import Child

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
