"""Forks, reaps, and hides the memory of the agent's processes.

`commands.guard` starts commands and daemons itself, because it must not import this package.
"""

from __future__ import annotations

import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_DUMPABLE = 4


def fork(work: Callable[[], object]) -> int:
    """Do `work` in a new process, and return its pid. Raises OSError if no process can be started.

    The process starts with all signals blocked, so that our handlers never run there. Its exit status is 127,
    unless `work` executes a program or exits.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(127)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def pidfd_open(pid: int) -> int:
    """A descriptor of the process."""
    return _allowed(os.pidfd_open, pid)


def memfd(name: str) -> int:
    """A descriptor of an anonymous file."""
    return _allowed(os.memfd_create, name)


def _allowed(call: Callable[[Any], int], argument: Any) -> int:
    """The result of a system call. The error says if the call itself is refused."""
    try:
        return call(argument)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        raise OSError(
            error.errno,
            f"the system call {call.__name__} is refused ({error.strerror}): allow it in the container's"
            " seccomp profile, or update the container engine with its libseccomp, or the kernel",
        ) from error


def signal_name(signum: int) -> str:
    """The name of a signal. Most real-time signals have none."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped: by SIGSTOP, or because it used a terminal that it does not have."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(1024).rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False  # It has ended, or no descriptor is free.


def reap() -> list[tuple[int, int]]:
    """Reap every child that has ended; returns their pids and wait statuses.

    For SIGCHLD: orphans come to process 1 and to a subreaper, and are zombies until they are reaped.
    """
    reaped = []
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            reaped.append((pid, status))
    except ChildProcessError:
        pass
    return reaped


def hide_memory() -> bool:
    """Make this process not dumpable (prctl(2)), so that only root can read or trace it, until it execs.

    Its files in /proc belong to root then. False if a Python without libffi can't do it.
    """
    try:
        # Not ctypes, which takes up to 2 MB of each registrar, and 10 ms of each start.
        import _ctypes
    except ImportError:
        return False
    this_program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(this_program, "prctl")
    return bool(_ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0)
