"""The guard: a small process that runs the agent's commands, and kills them at their deadline.

It runs with `-I -S`: it imports only what it needs of the standard library, and neither logs nor uses
ZooKeeper.

This file alone keeps three promises:

1. No command outlives its agent. Only the agent holds the other end of the socketpair. End of file means that
   the agent has ended, by kill -9 too; the guard then kills the command.
2. No command outlives its deadline. The deadline is an absolute time, and only the agent extends it: a
stopped
   agent extends nothing. No command is started after its deadline.
3. A command has ended when all its descendants have ended. The guard is a child subreaper: a process that
loses
   its parent becomes a child of the guard, even after setsid or a double fork. So when waitpid says "no
   children", no process of the command is left.

Messages from the agent: spawn argv env ids deadline stop_grace, extend deadline, signal number, end grace.
Messages from the guard: ready, broken why, leftovers count,
                         ended wait_status reason leftovers errno at unkillable.
Deadlines are seconds of CLOCK_BOOTTIME, which keeps counting while the machine is suspended.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing typing would make the guard's start half as long again.
    from typing import Any, Callable, NoReturn

# All in seconds.
TICK = 0.05  # between checks of a deadline: poll's own clock stops during suspend and in the freezer
LEFTOVER_GRACE = 0.25  # for helper processes of the command to end: `tee` writes its last lines
KILL_TIMEOUT = 10.0  # after KILL; a process that still exists is reported as unkillable
LATE_TIMEOUT = 0.2  # the same after the deadline: reported before others may start the command
NEVER = float("inf")
DEFECT = 70  # exit status
DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def main(fd: int) -> NoReturn:
    """Run the guard process; `fd` is its end of the socketpair."""
    try:
        serve(fd)
    except Exception as defect:
        # As in `errors.where`. Its message is left out: it may contain a value of an environment.
        here = defect.__traceback__
        while here:
            code = here.tb_frame.f_code
            print(f'  File "{code.co_filename}", line {here.tb_lineno}, in {code.co_name}', file=sys.stderr)
            here = here.tb_next
        print(f"this is a defect of the guard: {type(defect).__name__}", file=sys.stderr, flush=True)
        os._exit(DEFECT)
    os._exit(0)  # The agent waits for this exit, and there is nothing to clean up.


def serve(fd: int) -> None:
    """Run commands for the agent at the other end of `fd`, until agent and command have ended."""
    agent = AgentConnection(fd)
    try:
        wakeup = prepare(fd)
    except OSError as error:
        agent.send("broken", f"{error.filename}: {error.strerror}")
        return
    agent.send("ready")
    command: RunningCommand | None = None
    while command or not agent.closed:
        # After end of file the socket stays readable, and poll would always return at once.
        wait([wakeup] if agent.closed else [wakeup, fd], command.pause() if command else None)
        command = agent.receive(command)
        if command and agent.closed:
            command.kill_at = 0.0
        if command and command.step(agent):
            command = None


def prepare(fd: int) -> int:
    """Set up the guard process; returns a descriptor that is readable after a child has ended."""
    if os.readlink("/proc/self") != str(os.getpid()):
        raise OSError(errno.EINVAL, "is not that of this pid namespace; mount one", "/proc")
    # Descriptors that the launcher left open must not reach commands. Later ones are close-on-exec.
    for other in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, fd}:
        with contextlib.suppress(OSError):  # The descriptor of this listing is closed already.
            os.close(other)
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    # Leave the agent's process group: a kill -9 of that group must not kill the guard too.
    os.setpgid(0, 0)
    # The guard only handles SIGCHLD. All other signals are blocked and have their default action, even those
    # that Python ignores: a command then only has to clear the mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, SETTABLE - {signal.SIGCHLD})
    for signum in SETTABLE:
        signal.signal(signum, signal.SIG_DFL)
    wakeup, wake = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # It receives environments with secrets. The programs that it executes are dumpable again.
    prctl(PR_SET_DUMPABLE, 0)
    return wakeup


class AgentConnection:
    """The socket to the agent. `closed` is true after its end of file: the agent has ended."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self.buffer = bytearray()

    def send(self, *message: Any) -> None:
        try_call(os.write, self.fd, frame(message))

    def receive(self, command: RunningCommand | None) -> RunningCommand | None:
        """Handle the agent's requests; returns the running command.

        After end of file, requests that are still in the buffer are dropped.
        """
        try:
            while not self.closed:
                data = os.read(self.fd, 65536)
                self.buffer += data
                self.closed = not data
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.closed = True
        for verb, *values in [] if self.closed else unframe(self.buffer):
            if verb == "spawn":
                command = self.spawn(*values)
            elif command:  # Otherwise the request and our `ended` have crossed.
                command.handle(verb, *values)
        return command

    def spawn(
        self,
        argv: Any,
        env: Any,
        ids: Any,
        deadline: float | None,
        stop_grace: float,
        output: bytes | None = None,
    ) -> RunningCommand | None:
        """Start a command. Reports its end instead if the deadline has passed, or if fork fails."""
        if deadline is not None and now() >= deadline:
            self.send("ended", None, "deadline", 0, None, None, False)
            return None
        try:
            return RunningCommand(argv, env, ids, deadline, stop_grace, output)
        except OSError as error:
            self.send("ended", None, "spawn-failed", 0, error.errno, "fork", False)
            return None


class RunningCommand:
    """A command that was started and has not ended yet.

    Its leader is the process that the guard started; the leader's pid is also that of the process group.
    """

    def __init__(
        self,
        argv: Any,
        env: Any,
        ids: Any,
        deadline: float | None,
        stop_grace: float,
        output: bytes | None = None,
    ) -> None:
        """`output`: a file for its standard output; /dev/null is also for its standard error."""
        self.deadline = NEVER if deadline is None else deadline
        self.stop_grace = stop_grace
        self.reason = "exited"  # Why the leader ended.
        self.status: int | None = None  # The leader's wait status. Until it is set the pid is not reused.
        self.left_at = NEVER  # When the leader ended.
        self.leftovers = 0
        self.kill_at = NEVER  # When to send KILL. Once it is set, TERM was sent, or will not be sent.
        self.killed_at = NEVER  # When KILL was first sent.
        self.reported = False
        self.leader, self.failure = fork(argv, env, ids, output)

    def step(self, agent: AgentConnection) -> bool:
        """Reap, and send the signals that are due. True if all processes have ended."""
        if self.reap():
            self.report(agent, unkillable=False)
            return True
        time = now()
        if time >= self.deadline and self.killed_at == NEVER:
            self.reason = "deadline" if self.status is None else self.reason
            self.kill_at = time
        if time >= self.left_at + LEFTOVER_GRACE and self.kill_at == NEVER:
            self.leftovers = self.terminate(self.stop_grace)
            agent.send("leftovers", self.leftovers)
        if time >= self.kill_at:
            self.killed_at = min(self.killed_at, time)
            self.signal_all(signal.SIGKILL)
            late = max(self.killed_at, self.deadline) + LATE_TIMEOUT
            if time >= min(self.killed_at + KILL_TIMEOUT, late):
                self.report(agent, unkillable=True)
        return False

    def reap(self) -> bool:
        """Reap all children that have ended. True if there is no child left, and so no descendant."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self.leader:
                    self.status, self.left_at = status, now()
                elif pid == 0:
                    return False
        except ChildProcessError:
            return True

    def report(self, agent: AgentConnection, *, unkillable: bool) -> None:
        """Tell the agent how the command ended; only once."""
        if not self.reported:
            self.reported = True
            failure = b"" if self.status is None else os.read(self.failure, 64)
            number, at = marshal.loads(failure) if failure else (None, None)
            reason = "spawn-failed" if failure else self.reason
            agent.send("ended", self.status, reason, self.leftovers, number, at, unkillable)
            os.close(self.failure)

    def handle(self, verb: str, value: Any) -> None:
        """Handle a request about this command."""
        if verb == "extend":
            self.deadline = value  # Too late once `kill_at` is in the past: the command is being killed.
        elif verb == "signal":
            self.signal_group(value)
        elif verb == "end":
            self.reason = "ended" if self.status is None else self.reason
            if value > 0 and self.kill_at == NEVER:
                self.terminate(value)
            self.kill_at = min(self.kill_at, now() + value)

    def terminate(self, grace: float) -> int:
        """Send TERM to all processes now, KILL after `grace` seconds; returns the number of processes."""
        self.kill_at = now() + grace
        return self.signal_all(signal.SIGTERM, signal.SIGCONT)  # A stopped process does not act on TERM.

    def signal_all(self, *signums: int) -> int:
        """Signal each process of the command once. The group in one call, which no fork can escape."""
        for signum in signums:
            self.signal_group(signum)
        found = descendants()
        # After the leader is reaped its pid may be reused, unless a descendant is still in its group.
        group_is_left = self.status is not None and self.leader in found.values()
        for signum in signums:
            if group_is_left:
                try_call(os.killpg, self.leader, signum)
            for pid in [pid for pid, group in found.items() if group != self.leader]:
                try_call(os.kill, pid, signum)
        return len(found)

    def signal_group(self, signum: int) -> None:
        if self.status is None:
            try_call(os.killpg, self.leader, signum)

    def pause(self) -> float | None:
        """Milliseconds until the next step; None if only an event can change anything."""
        if self.killed_at != NEVER:  # Send KILL again, with increasing pauses up to 1 s.
            return 1000 * min(max((now() - self.killed_at) / 4, 0.01), 1.0)
        timed = min(self.deadline, self.left_at, self.kill_at) != NEVER
        return 1000 * min(TICK, max(self.deadline - now(), 0.001)) if timed else None


def fork(
    argv: Any, env: Any, ids: Any, output: bytes | None = None, *, is_daemon: bool = False
) -> tuple[int, int]:
    """Start a program in its own process group.

    Returns its pid and a descriptor, from which the errno and the failed step ("user" or "program") can be
    read if the program was not executed.
    """
    failure, fail = os.pipe()
    guard = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(failure)
        os.close(fail)
        raise
    if pid == 0:
        become(argv, env, ids, guard, fail, output, is_daemon)
    os.close(fail)
    try_call(os.setpgid, pid, pid)  # Parent and child both do it: the group exists when either continues.
    return pid, failure


def start(argv: Any, environ: Any, ids: Any, *, is_daemon: bool = False) -> int:
    """Start a program as `fork` does; returns its pid once it is executed. Raises OSError if it can't be."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid, failure = fork(
            [os.fsencode(word) for word in argv],
            {os.fsencode(name): os.fsencode(value) for name, value in environ.items()},
            ids,
            is_daemon=is_daemon,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    said = os.read(failure, 64)
    os.close(failure)
    if said:
        os.waitpid(pid, 0)
        number, at = marshal.loads(said)
        raise OSError(number, spawn_error(number, at))
    return pid


def become(
    argv: Any, env: Any, ids: Any, guard: int, fail: int, output: bytes | None, is_daemon: bool
) -> None:
    """The child's part of `fork`: execute the program. Does not return."""
    number, at = errno.EINVAL, "user"  # EINVAL if Python itself refuses: a NUL in argv, a huge uid.
    try:
        libc()  # Imports ctypes now: the other user may not be able to read Python.
        os.setpgid(0, 0)
        if is_daemon:
            take_terminal(os.getpgid(guard))
        else:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            is_discarded = output == b"/dev/null"
            how = 0 if is_discarded else os.O_CREAT | os.O_EXCL
            os.dup2(os.open(output, os.O_WRONLY | how, 0o600), 1)
            if is_discarded:
                os.dup2(1, 2)
        if ids:
            uid, gid, groups = ids
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        at = "program"
        for name in {b"LISTEN_PID", b"WATCHDOG_PID"} & env.keys():
            env[name] = b"%d" % os.getpid()
        # If guard and agent are killed together, the kernel kills at least the leader. After setuid, which
        # clears this setting.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(127)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)  # Python ignores them, and exec leaves that as it is.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # exec resets our handlers.
        execute(argv, env)
    except OSError as error:
        number = error.errno or number
    except (ValueError, OverflowError):
        pass
    except Exception as defect:
        at = type(defect).__name__
    finally:
        os.write(fail, marshal.dumps((number, at)))
        os._exit(127)


def take_terminal(supervisor: int) -> None:
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


def spawn_error(number: int, at: str | None) -> str:
    """Why a program was not executed, from what `become` has reported."""
    if at == "user":
        return f"its user can't be changed: {os.strerror(number)}"
    return os.strerror(number) if at in (None, "fork", "program") else f"{at} in the new process"


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """execvp(3) with the command's own PATH. A file that can't be executed is reported before ENOENT."""
    if b"/" in argv[0] or not argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, "not in PATH")
    for directory in env.get(b"PATH", DEFAULT_PATH).split(b":"):
        try:
            os.execve(os.path.join(directory or b".", argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError as error:
            failure = error
    raise failure


def descendants() -> dict[int, int]:
    """The pid of every descendant of this process, with the number of its process group.

    The result is outdated at once: the caller must ask again until it is empty. (No pid in it belongs to
    another process yet: the kernel uses all other pids before it reuses one.)
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    fields = file.read(1024).rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # It has ended, or /proc hides other users' processes.
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[2])))
    found: dict[int, int] = {}
    below = [os.getpid()]
    for parent in below:
        for pid, group in children.get(parent, ()):
            found[pid] = group
            below.append(pid)
    return found


def try_call(call: Callable[..., object], *args: Any) -> None:
    """Call it, and ignore that the process or the agent has ended, or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError, BrokenPipeError, ConnectionResetError):
        call(*args)


def prctl(option: int, value: int) -> None:
    """prctl(2), which the standard library does not have."""
    result, number = libc()(option, value)
    if result != 0:
        raise OSError(number, f"the system call prctl is refused ({os.strerror(number)})", "prctl")


@functools.cache
def libc() -> Callable[[int, int], tuple[int, int]]:
    """prctl of the C library; returns its result and errno."""
    import ctypes  # Not at the top: the agent imports this file before it needs prctl.

    library = ctypes.CDLL(None, use_errno=True)
    library.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return lambda option, value: (library.prctl(option, value, 0, 0, 0), ctypes.get_errno())


def frame(message: tuple[Any, ...]) -> bytes:
    """A message as bytes: four bytes of length, then marshal."""
    data = marshal.dumps(message)
    return len(data).to_bytes(4, "big") + data


def unframe(buffer: bytearray) -> list[tuple[Any, ...]]:
    """Remove the complete messages from the front of `buffer`; an incomplete one stays there."""
    messages = []
    while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
        messages.append(marshal.loads(bytes(buffer[4:end])))
        del buffer[:end]
    return messages


def wait(fds: list[int], milliseconds: float | None) -> None:
    """Wait until one of `fds` is readable, or the time is over. Empties the first one, the wake-up pipe."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(milliseconds)
    with contextlib.suppress(BlockingIOError):
        os.read(fds[0], 4096)


def now() -> float:
    """Seconds on the clock that all deadlines use."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
