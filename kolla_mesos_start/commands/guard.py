"""The guard: a small process that starts the agent's commands, and kills them when they may run no longer.

What lives here: starting one command at a time, its deadline, its end, and the frames in which
agent and guard talk. What never does: ZooKeeper, logging, any decision on what to run, any import
that is not in the standard library (it runs with `-I -S`) or that it can do without.

Three promises are kept by this file alone:

1. No command outlives its agent. The agent holds the other end of a socketpair, and nobody else
   does: end of file means that it is gone, kill -9 included, and then all is killed.
2. No command outlives its deadline, an absolute time that only the agent moves. An agent that is
   stopped moves nothing. No command is started past it.
3. A command has ended when all its descendants are gone. The guard is a child subreaper: whoever
   loses his parent becomes the guard's child, whatever he did with setsid or a double fork. So
   "there are no children", said by waitpid, is the kernel's word that nobody is left.

The agent says:  spawn argv env ids deadline stop_grace, extend deadline, signal number, end grace.
The guard says:  ready, broken why, heard (a signal, an end), leftovers count,
                 ended wait_status reason leftovers errno at unkillable.
Deadlines are seconds of CLOCK_BOOTTIME, which goes on while the machine is suspended.
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
if TYPE_CHECKING:  # The import of typing would be half of the guard's start.
    from typing import Any, Callable

TICK = 0.05  # How often a deadline is looked at: poll's own clock stands still in suspend and freezer.
LINGER = 0.25  # What a command's helpers get to end by themselves: a `tee` has its last lines to write.
KILL_TIMEOUT = 10.0  # What survives KILL for so long is reported as unkillable;
LATE_TIMEOUT = 0.2  # past the deadline for so long: before others may start the command.
NEVER = float("inf")
DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def main(fd: int) -> None:
    """Serve the agent at the other end of `fd` until it is gone, and all that it started too."""
    agent = Agent(fd)
    try:
        wakeup = prepare(fd)
    except OSError as error:
        agent.say("broken", f"{error.filename}: {error.strerror}")
        return
    agent.say("ready")
    command: Command | None = None
    while command or not agent.gone:
        # At end of file the agent is left out: it would wake us for ever.
        wait([wakeup] if agent.gone else [wakeup, fd], command.pause() if command else None)
        command = agent.hear(command)
        if command and agent.gone:
            command.kill_at = 0.0
        if command and command.step(agent):
            command = None


def prepare(fd: int) -> int:
    """Make this process a guard; returns the descriptor that is readable once a child has ended."""
    if os.readlink("/proc/self") != str(os.getpid()):
        raise OSError(errno.EINVAL, "is not that of this pid namespace; mount one", "/proc")
    # Whatever the launcher left open is not for the commands; what is opened from here on is close-on-exec.
    for other in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, fd}:
        with contextlib.suppress(OSError):  # Among them is that of the listing itself.
            os.close(other)
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    # Out of the agent's group: a kill -9 of that must leave somebody who ends the command.
    os.setpgid(0, 0)
    # No signal is for the guard. Blocked, all keep their default, even those that Python ignores: a command
    # has only to empty the mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, SETTABLE - {signal.SIGCHLD})
    for signum in SETTABLE:
        signal.signal(signum, signal.SIG_DFL)
    wakeup, wake = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    return wakeup


class Agent:
    """What is said to the agent, and heard from it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.gone = False
        self.heard = bytearray()

    def say(self, *message: Any) -> None:
        attempt(os.write, self.fd, frame(message))

    def hear(self, command: Command | None) -> Command | None:
        """Do what the agent has said; returns the command that runs now. The dead are not obeyed."""
        try:
            while not self.gone:
                data = os.read(self.fd, 65536)
                self.heard += data
                self.gone = not data
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.gone = True
        for verb, *words in [] if self.gone else unframe(self.heard):
            if verb == "spawn":
                command = self.spawn(*words)
            elif command:  # Otherwise it has crossed our word that the command has ended.
                command.obey(verb, *words)
            if verb in ("signal", "end"):
                self.say("heard")  # One who is stopped does not say so, and the agent does without him.
        return command

    def spawn(
        self, argv: Any, env: Any, ids: Any, deadline: float | None, stop_grace: float
    ) -> Command | None:
        """Start a command, unless it is too late or the kernel has no room for it."""
        if deadline is not None and now() >= deadline:
            self.say("ended", None, "deadline", 0, None, None, False)
            return None
        try:
            return Command(argv, env, ids, deadline, stop_grace)
        except OSError as error:
            self.say("ended", None, "spawn-failed", 0, error.errno, "fork", False)
            return None


class Command:
    """The command that runs, and how far its end has come.

    Its leader is the process that was started; the leader's pid is the number of its process group.
    """

    def __init__(self, argv: Any, env: Any, ids: Any, deadline: float | None, stop_grace: float) -> None:
        self.deadline = NEVER if deadline is None else deadline
        self.stop_grace = stop_grace
        self.reason = "exited"  # Why the leader ended.
        self.status: int | None = None  # Its wait status; until then its pid can't be anybody else's.
        self.left_at = NEVER  # When it ended.
        self.leftovers = 0
        self.kill_at = NEVER  # When politeness ends; TERM has been sent, or will not be.
        self.killed_at = NEVER  # When KILL was first sent.
        self.reported = False
        self.leader, self.failure = fork(argv, env, ids)

    def step(self, agent: Agent) -> bool:
        """Reap, look at the clock, signal whom it concerns. True once nobody is left."""
        if self.reap():
            self.report(agent, unkillable=False)
            return True
        time = now()
        if time >= self.deadline and self.killed_at == NEVER:
            self.reason = "deadline" if self.status is None else self.reason
            self.kill_at = time
        if time >= self.left_at + LINGER and self.kill_at == NEVER:
            self.leftovers = self.terminate(self.stop_grace)
            agent.say("leftovers", self.leftovers)
        if time >= self.kill_at:
            self.killed_at = min(self.killed_at, time)
            self.signal_all(signal.SIGKILL)
            late = max(self.killed_at, self.deadline) + LATE_TIMEOUT
            if time >= min(self.killed_at + KILL_TIMEOUT, late):
                self.report(agent, unkillable=True)
        return False

    def reap(self) -> bool:
        """Take in whoever has ended. True if nobody is left: no child, and so no descendant."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self.leader:
                    self.status, self.left_at = status, now()
                elif pid == 0:
                    return False
        except ChildProcessError:
            return True

    def report(self, agent: Agent, *, unkillable: bool) -> None:
        """Say how the command ended; once."""
        if not self.reported:
            self.reported = True
            said = b"" if self.status is None else os.read(self.failure, 64)
            number, at = marshal.loads(said) if said else (None, None)
            reason = "spawn-failed" if said else self.reason
            agent.say("ended", self.status, reason, self.leftovers, number, at, unkillable)
            os.close(self.failure)

    def obey(self, verb: str, value: Any) -> None:
        """Do what the agent says about this command."""
        if verb == "extend":
            self.deadline = value  # Once it has passed, `kill_at` has too: nothing brings a command back.
        elif verb == "signal":
            self.signal_group(value)
        elif verb == "end":
            self.reason = "ended" if self.status is None else self.reason
            if value > 0 and self.kill_at == NEVER:
                self.terminate(value)
            self.kill_at = min(self.kill_at, now() + value)

    def terminate(self, grace: float) -> int:
        """TERM to everybody now, KILL after `grace` seconds; returns to how many."""
        self.kill_at = now() + grace
        return self.signal_all(signal.SIGTERM, signal.SIGCONT)  # One that is stopped would not hear TERM.

    def signal_all(self, *signums: int) -> int:
        """To each process of the command once; to the group at one stroke: no fork slips through that."""
        for signum in signums:
            self.signal_group(signum)
        found = descendants()
        # With the leader reaped, a member that is ours is the proof that the number is still our group's.
        group_is_left = self.status is not None and self.leader in found.values()
        for signum in signums:
            if group_is_left:
                attempt(os.killpg, self.leader, signum)
            for pid in [pid for pid, group in found.items() if group != self.leader]:
                attempt(os.kill, pid, signum)
        return len(found)

    def signal_group(self, signum: int) -> None:
        if self.status is None:
            attempt(os.killpg, self.leader, signum)

    def pause(self) -> float | None:
        """Milliseconds to the next step; None if only an event can change anything."""
        if self.killed_at != NEVER:  # Quick at first, ever more patient with what can't be killed.
            return 1000 * min(max((now() - self.killed_at) / 4, 0.01), 1.0)
        timed = min(self.deadline, self.left_at, self.kill_at) != NEVER
        return 1000 * min(TICK, max(self.deadline - now(), 0.001)) if timed else None


def fork(argv: Any, env: Any, ids: Any) -> tuple[int, int]:
    """Start a program in a process group of its own.

    Returns its pid, and a descriptor: nothing can be read there if the program was executed, else
    the errno and where it came up ("user" or "program").
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
        become(argv, env, ids, guard, fail)
    os.close(fail)
    attempt(os.setpgid, pid, pid)  # Both do it, so that no signal to the group can come too early.
    return pid, failure


def become(argv: Any, env: Any, ids: Any, guard: int, fail: int) -> None:
    """The child's part of fork: from a copy of the guard to the program. Does not return."""
    number, at = errno.EINVAL, "user"  # EINVAL is for what Python itself refuses: a NUL in argv, a huge uid.
    try:
        os.setpgid(0, 0)
        if ids:
            uid, gid, groups = ids
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        at = "program"
        # If guard and agent are killed at once, the leader at least goes too. After setuid, which undoes it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(127)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # exec itself takes our handler of SIGCHLD away.
        execute(argv, env)
    except OSError as error:
        number = error.errno or number
    except (ValueError, OverflowError):
        pass
    finally:
        os.write(fail, marshal.dumps((number, at)))
        os._exit(127)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """execvp(3) by the command's own PATH: what is there but can't be executed is told rather than ENOENT."""
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
    """Every process below this one, with the number of its group.

    A picture that is old at once: who acts on it looks again until nobody is left. (A pid in it is not
    somebody else's by then: pids are given out in a circle.)
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    fields = file.read(1024).rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # It has ended, or /proc hides the processes of others.
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[2])))
    found: dict[int, int] = {}
    below = [os.getpid()]
    for parent in below:
        for pid, group in children.get(parent, ()):
            found[pid] = group
            below.append(pid)
    return found


def attempt(call: Callable[..., object], *args: Any) -> None:
    """Call it on somebody who may be gone already, or may be another user's: what counts is who is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError, BrokenPipeError, ConnectionResetError):
        call(*args)


def prctl(option: int, value: int) -> None:
    """prctl(2), which the standard library unmet."""
    result, number = libc()(option, value)
    if result != 0:
        raise OSError(number, os.strerror(number), "prctl")


@functools.cache
def libc() -> Callable[[int, int], tuple[int, int]]:
    """prctl as it stands in the C library: returns its result and errno."""
    import ctypes  # Not above: the agent imports this file too, and this takes as long as all the rest.

    library = ctypes.CDLL(None, use_errno=True)
    library.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return lambda option, value: (library.prctl(option, value, 0, 0, 0), ctypes.get_errno())


def frame(message: tuple[Any, ...]) -> bytes:
    """A message as it goes over the socketpair: four bytes of length, then marshal."""
    data = marshal.dumps(message)
    return len(data).to_bytes(4, "big") + data


def unframe(heard: bytearray) -> list[tuple[Any, ...]]:
    """Take the whole messages off the front of `heard`; what is left is the start of one to come."""
    messages = []
    while len(heard) >= 4 and len(heard) >= (end := 4 + int.from_bytes(heard[:4], "big")):
        messages.append(marshal.loads(bytes(heard[4:end])))
        del heard[:end]
    return messages


def wait(fds: list[int], milliseconds: float | None) -> None:
    """Until one of `fds` is readable (the first is the wake-up pipe, and is emptied) or the time is over."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(milliseconds)
    with contextlib.suppress(BlockingIOError):
        os.read(fds[0], 4096)


def now() -> float:
    """Seconds on the clock of all deadlines."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # The agent waits for it, and there is nothing to tidy up.
