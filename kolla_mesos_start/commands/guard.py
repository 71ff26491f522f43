"""The guard: a small process that runs the agent's commands, and kills them at their deadline.

It runs with `-I -S`: it imports only `processes` and what it needs of the standard library, and neither logs
nor uses ZooKeeper. It keeps three promises:

1. No command outlives its agent. Only the agent holds the other end of the socketpair. End of file means that
   the agent has ended, by kill -9 too; the guard then kills the command.
2. No command outlives its deadline. The deadline is an absolute time, and only the agent extends it: a
   stopped agent extends nothing. No command is started after its deadline.
3. A command has ended when all its descendants have ended. The guard is a child subreaper: a process that
   loses its parent becomes a child of the guard, even after setsid or a double fork. So when waitpid says "no
   children", no process of the command is left.

Messages from the agent: spawn argv env ids output deadline stop_grace, extend deadline, signal number,
                         end grace.
Messages from the guard: ready, broken why errno, leftovers count,
                         ended wait_status reason errno at unkillable.
Deadlines are seconds of CLOCK_BOOTTIME, which keeps counting while the machine is suspended.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import select
import signal
import sys
import time

from kolla_mesos_start.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    SETTABLE,
    Child,
    descendants,
    prctl,
    try_call,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing typing would make the guard's start half as long again.
    from typing import Any, NoReturn

# All in seconds.
TICK = 0.05  # between checks of a deadline: poll's own clock stops during suspend and in the freezer
LEFTOVER_GRACE = 0.25  # for helper processes of the command to end: `tee` writes its last lines
KILL_TIMEOUT = 10.0  # after KILL; a process that still exists is reported as unkillable
LATE_TIMEOUT = 0.2  # the same after the deadline: reported before others may start the command
NEVER = float("inf")
DEFECT = 70  # exit status


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
        agent.send("broken", f"{error.filename}: {error.strerror}", error.errno)
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
    # The guard only handles SIGCHLD.
    signal.pthread_sigmask(signal.SIG_SETMASK, SETTABLE - {signal.SIGCHLD})
    wakeup, wake = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # It receives environments with secrets.
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
        self, argv: Any, env: Any, ids: Any, output: Any, deadline: float | None, stop_grace: float
    ) -> RunningCommand | None:
        """Start a command. Reports its end instead if the deadline has passed, or if fork fails."""
        if deadline is not None and now() >= deadline:
            self.send("ended", None, "deadline", None, None, False)
            return None
        try:
            return RunningCommand(Child(argv, env, ids, output=output), deadline, stop_grace)
        except OSError as error:
            self.send("ended", None, "spawn-failed", error.errno, "fork", False)
            return None


class RunningCommand:
    """A command that was started and has not ended yet. `leader`: the process that the guard started."""

    def __init__(self, leader: Child, deadline: float | None, stop_grace: float) -> None:
        self.leader = leader
        self.deadline = NEVER if deadline is None else deadline
        self.stop_grace = stop_grace
        self.reason = "exited"  # Why the leader ended.
        self.left_at = NEVER  # When the leader ended.
        self.kill_at = NEVER  # When to send KILL. Once it is set, TERM was sent, or will not be sent.
        self.killed_at = NEVER  # When KILL was first sent.
        self.reported = False

    def step(self, agent: AgentConnection) -> bool:
        """Reap, and send the signals that are due. True if all processes have ended."""
        if self.reap():
            self.report(agent, unkillable=False)
            return True
        time = now()
        if time >= self.deadline and self.killed_at == NEVER:
            self.reason = "deadline" if self.leader.status is None else self.reason
            self.kill_at = time
        if time >= self.left_at + LEFTOVER_GRACE and self.kill_at == NEVER:
            agent.send("leftovers", self.terminate(self.stop_grace))
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
                if pid == self.leader.pid:
                    self.leader.status, self.left_at = status, now()
                elif pid == 0:
                    return False
        except ChildProcessError:
            return True

    def report(self, agent: AgentConnection, *, unkillable: bool) -> None:
        """Tell the agent how the command ended; only once."""
        if not self.reported:
            self.reported = True
            status = self.leader.status
            failure = None if status is None else self.leader.failure()
            reason = "spawn-failed" if failure else self.reason
            number, at = failure or (None, None)
            agent.send("ended", status, reason, number, at, unkillable)

    def handle(self, verb: str, value: Any) -> None:
        """Handle a request about this command."""
        if verb == "extend":
            self.deadline = value  # Too late once `kill_at` is in the past: the command is being killed.
        elif verb == "signal":
            self.leader.signal(value)
        elif verb == "end":
            self.reason = "ended" if self.leader.status is None else self.reason
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
            self.leader.signal(signum)
        found = descendants()
        # After the leader is reaped its pid may be reused, unless a descendant is still in its group.
        leader = self.leader.pid
        group_is_left = self.leader.status is not None and leader in found.values()
        for signum in signums:
            if group_is_left:
                try_call(os.killpg, leader, signum)
            for pid in [pid for pid, group in found.items() if group != leader]:
                try_call(os.kill, pid, signum)
        return len(found)

    def pause(self) -> float | None:
        """Milliseconds until the next step; None if only an event can change anything."""
        if self.killed_at != NEVER:  # Send KILL again, with increasing pauses up to 1 s.
            return 1000 * min(max((now() - self.killed_at) / 4, 0.01), 1.0)
        timed = min(self.deadline, self.left_at, self.kill_at) != NEVER
        return 1000 * min(TICK, max(self.deadline - now(), 0.001)) if timed else None


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
