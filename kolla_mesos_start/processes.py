"""Starts, watches and kills processes, and hides the memory of the agent's own.

The guard imports this module too, isolated: only what a bare Python has, and nothing of this package.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import select
import signal
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence
    from typing import Any

    Ids = tuple[int, int, Sequence[int]]  # uid, gid, supplementary groups

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
KILL_TIMEOUT = 0.5  # seconds that `Child.kill` waits; a process that waits for a disk can't be killed
STILL_RUNS = "it can't be killed"


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


class Child:
    """A program that runs as a child of this process, in a process group of its own, whose id is `pid`.

    `status`: its wait status; None until it is reaped, so that until then its pid is not used again.
    """

    def __init__(
        self,
        argv: Sequence[str | bytes],
        environ: Mapping[Any, str | bytes],
        ids: Ids | None = None,
        *,
        output: int | str | bytes | None = None,
        inherited: Sequence[int] = (),
        ignored: Collection[int] = (),
        is_daemon: bool = False,
        outlives_us: bool = False,
    ) -> None:
        """Start the program. Raises OSError if no process can be started.

        It starts with default signals, except for those `ignored`. Its program is searched in the PATH of
        `environ`. `output`: a descriptor, or the path of a new file, for its standard output; /dev/null is
        also for its standard error. `inherited`: descriptors besides the standard ones. A daemon keeps our
        standard input and all that can be inherited, and may take the terminal. Unless it `outlives_us`, the
        kernel kills it when this process ends.
        """
        self.status: int | None = None
        self._failure, fail = os.pipe()
        parent = os.getpid()

        def become() -> None:
            number, at = errno.EINVAL, "fork"  # EINVAL if Python itself refuses: a NUL in argv, a huge uid.
            try:
                if not outlives_us:  # That one hides its memory itself, as far as it can.
                    prctl(PR_SET_DUMPABLE, 0)  # Imports it now: `ids` may not be able to read Python.
                os.setpgid(0, 0)
                if is_daemon:
                    _take_terminal(os.getpgid(parent))
                else:
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                if output is not None:
                    _redirect(output)
                if ids:
                    at = "user"
                    become_user(*ids)
                if not is_daemon:
                    _hide_descriptors()
                at = "program"
                words = [os.fsencode(word) for word in argv]
                env = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
                for name in {b"LISTEN_PID", b"WATCHDOG_PID"} & env.keys():
                    env[name] = b"%d" % os.getpid()
                for fd in inherited:
                    os.set_inheritable(fd, True)
                if not outlives_us:
                    # After setuid, which clears this setting.
                    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() != parent:
                        os._exit(127)
                for signum in SETTABLE:
                    signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                _execute(words, env)
            except OSError as error:
                number = error.errno or number
            except MemoryError:
                number = errno.ENOMEM
            except (ValueError, OverflowError):
                pass
            except Exception as defect:
                at = type(defect).__name__
            finally:
                os.write(fail, marshal.dumps((number, at)))
                os._exit(127)

        try:
            self.pid = fork(become)
        except OSError:
            os.close(self._failure)
            raise
        finally:
            os.close(fail)
        try_call(os.setpgid, self.pid, self.pid)  # Both do it: the group exists when either continues.

    def failure(self) -> tuple[int, str] | None:
        """Why the program was not executed: an errno, and the step: "fork", "user", "program" or a defect.

        Waits until one of the two is known. To be called once.
        """
        said = os.read(self._failure, 64)
        os.close(self._failure)
        if not said:
            return None
        number, at = marshal.loads(said)
        return number, at

    def started(self) -> Child:
        """Wait until the program is executed. Raises OSError if it can't be."""
        failure = self.failure()
        if failure:
            self.wait()
            raise OSError(failure[0], spawn_error(*failure))
        return self

    def signal(self, signum: int) -> None:
        """Send a signal to its process group, unless it has been reaped."""
        if self.status is None:
            try_call(os.killpg, self.pid, signum)

    def wait(self, flags: int = 0) -> int | None:
        """Reap it, and return its wait status; with os.WNOHANG None if it still runs."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
                self.status = status if pid else None
            except ChildProcessError:
                self.status = 0  # Another part of this process has reaped it.
        return self.status

    def kill(self) -> None:
        """Kill its process group, and reap it, unless it can't be killed for now."""
        self.signal(signal.SIGKILL)
        until = time.monotonic() + KILL_TIMEOUT
        while self.wait(os.WNOHANG) is None and time.monotonic() < until:
            time.sleep(0.001)

    def run(self) -> Generator[tuple[int, int], None, str]:
        """Steps for a loop: wait for its end, and return why it failed, or an empty text.

        However the steps end, its process group is killed.
        """
        pidfd = -1
        try:
            pidfd = pidfd_open(self.pid)
            yield pidfd, select.POLLIN
        finally:
            if pidfd >= 0:
                os.close(pidfd)
            self.kill()
        return STILL_RUNS if self.status is None else ending(self.status)


def become_user(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Become this user for good. Raises OSError.

    The standard descriptors become the user's own, as with runc: it can then open /dev/stderr by its name.
    """
    for fd in range(3):
        with contextlib.suppress(OSError):  # It is closed, or we have no right to.
            # Only what is nobody else's file: neither a log nor /dev/null.
            if stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd):
                os.fchown(fd, uid, -1)
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


def _hide_descriptors() -> None:
    """Keep all but the standard ones from the program: a daemon's sockets are not for its commands."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The descriptor of this listing is closed already.
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def _take_terminal(supervisor: int) -> None:
    """Make this process group the foreground of its terminal, if its supervisor's or none is.

    Otherwise a read, or `stty`, would stop it. SIGTTOU has to be blocked.
    """
    with contextlib.suppress(OSError):  # There is no terminal, or it is not that of this session.
        foreground = os.tcgetpgrp(0)
        try:
            os.killpg(foreground, 0)
        except ProcessLookupError:  # The daemon was started again.
            foreground = supervisor
        if foreground == supervisor:
            os.tcsetpgrp(0, os.getpgrp())


def _redirect(output: int | str | bytes) -> None:
    if isinstance(output, int):
        os.dup2(output, 1)
        return
    is_discarded = os.fsencode(output) == os.fsencode(os.devnull)
    how = 0 if is_discarded else os.O_CREAT | os.O_EXCL
    os.dup2(os.open(output, os.O_WRONLY | how, 0o600), 1)
    if is_discarded:
        os.dup2(1, 2)


def _execute(argv: list[bytes], env: Mapping[bytes, bytes]) -> None:
    """execvp(3) with the command's own PATH. A file that can't be executed is reported before ENOENT."""
    if b"/" in argv[0] or not argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, "not in PATH")
    for directory in env.get(b"PATH", DEFAULT_PATH.encode()).split(b":"):
        try:
            os.execve(os.path.join(directory or b".", argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError as error:
            failure = error
    raise failure


def spawn_error(number: int, at: str | None) -> str:
    """Why a program was not executed, from what `Child.failure` returns."""
    if at == "user":
        return f"its user can't be changed: {os.strerror(number)}"
    return os.strerror(number) if at in (None, "fork", "program") else f"{at} in the new process"


def ending(status: int) -> str:
    """How a process ended, from its wait status; empty if it succeeded."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"killed by {signal_name(-code)}"
    return f"exit status {code}" if code else ""


def signal_name(signum: int) -> str:
    """The name of a signal. Most real-time signals have none."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def try_call(call: Callable[..., object], *args: Any) -> None:
    """Call it, and ignore that the process at the other end has ended, or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError, BrokenPipeError, ConnectionResetError):
        call(*args)


def descendants(spared: Collection[int] = ()) -> dict[int, int]:
    """The pid of every descendant of this process, with the number of its process group.

    Without the children `spared`, and their descendants.

    The result is outdated at once: the caller must ask again until it is empty. (No pid in it belongs to
    another process yet: the kernel uses all other pids before it reuses one.)
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        fields = _stat(name) if name.isdigit() else None
        if fields:
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[2])))
    found: dict[int, int] = {}
    below = [os.getpid()]
    for parent in below:
        for pid, group in children.get(parent, ()):
            if pid not in spared:
                found[pid] = group
                below.append(pid)
    return found


def _stat(pid: int | str) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on; None if it has ended, or belongs to another user."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(1024).rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped: by SIGSTOP, or because it used a terminal that it does not have."""
    try:
        fields = _stat(pid)
    except OSError:
        return False  # No descriptor is free.
    return bool(fields and fields[0] == b"T")


def kill_descendants(until: float) -> bool:
    """Kill and reap all descendants of this process; false if one is left at `until` (CLOCK_BOOTTIME)."""
    while has_children():
        for pid in descendants():
            try_call(os.kill, pid, signal.SIGKILL)
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= until:
            return False
        time.sleep(0.01)
    return True


def has_children() -> bool:
    """Reap all children that have ended; whether one is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return True
    except ChildProcessError:
        return False


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


def prctl(option: int, value: int) -> None:
    """prctl(2), which the standard library does not have. Raises OSError, ImportError without libffi."""
    # Not ctypes, which takes up to 2 MB of each registrar, and 10 ms of each start.
    import _ctypes

    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(function, (option, value, 0, 0, 0)) != 0:
        raise OSError(errno.EPERM, "the system call prctl is refused", "prctl")


def hide_memory() -> bool:
    """Make this process not dumpable (prctl(2)), so that only root can read or trace it, until it execs.

    Its files in /proc belong to root then. False if a Python without libffi can't do it.
    """
    try:
        prctl(PR_SET_DUMPABLE, 0)
        return True
    except (ImportError, OSError):
        return False
