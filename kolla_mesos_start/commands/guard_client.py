"""The agent's side of the guard: starts a command, extends its deadline, signals and ends it.

If the guard dies, the agent itself ends the command: while a `Guard` exists, this process is a child
subreaper, so the processes of a killed guard's command become its children. `close` ends that, because the
setting would survive exec and make the daemon a subreaper. This process has no other children then: when the
guard dies, all children are killed.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys

from kolla_mesos_start.commands import guard
from kolla_mesos_start.errors import AgentError, Unkillable
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import (
    PR_SET_CHILD_SUBREAPER,
    Child,
    kill_descendants,
    prctl,
    signal_name,
    spawn_error,
)
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kolla_mesos_start.host.accounts import Ids
    from kolla_mesos_start.loop import Loop

log = Logger(__name__)

# All in seconds.
START_TIMEOUT = 60.0  # for a guard to start on a busy machine, and to read a long environment
SEND_TIMEOUT = 0.1  # for any later message: the socket is only full if the guard is stopped
OVERDUE = 0.25  # for the guard to report the kill at the deadline; then the agent kills the command
KILLED = 128 + signal.SIGKILL

# Imported, not run as a script: Python would compile a script at every start. The path is an argument,
# because -I and -S skip site-packages and the search for it. The second argument is for `ps`.
BOOT = (
    "import sys; sys.path.append(sys.argv[3]); "
    "from kolla_mesos_start.commands.guard import main; main(int(sys.argv[1]))"
)


class Ended(NamedTuple):
    """How a command ended. All its descendants have ended too, unless `unkillable`."""

    status: int
    """The exit status; 128 + n after signal n; 126 or 127, as in a shell, if it could not be started."""
    signum: int | None
    """The signal that ended the leader; None if there was none, or if the command never ran."""
    reason: str
    """Why the leader ended.

    `exited`: on its own. `ended`: by `Guard.end`. `deadline`: killed at its deadline, or not started because
    the deadline had passed (then `signum` is None). `spawn-failed`: see `errno` and `at`. `lost`: the guard
    died while the command ran, and the agent killed the command.
    """
    leftovers: int
    """The number of processes that were still running after the leader, and were ended."""
    errno: int | None
    unkillable: bool
    """A process could not be killed; it ends only with the whole container."""
    at: str | None = None
    """The step at which the start failed: `fork`, `user` (changing to that user) or `program`, or the
    name of an exception."""

    @property
    def failure(self) -> str:
        """Why it did not end with status 0; empty if it did."""
        if self.reason == "lost":
            return "killed: its guard process died"
        if self.errno is not None:
            return f"could not be started: {spawn_error(self.errno, self.at)}"
        if self.signum is not None:
            return f"killed by {signal_name(self.signum)}"
        return f"exit status {self.status}" if self.status else ""


class Guard:
    """A guard process, which runs one command at a time.

    `gone`: the guard is closed, or has died. `ended` and `gone` change during `Loop.wait`, or in a method of
    this class that finds the guard dead. Both raise Unkillable if the guard has died and a process of its
    command can't be killed.
    """

    def __init__(self, loop: Loop, service: str) -> None:
        """Start the guard process without waiting until it is ready. `service` is its name in `ps`.

        Raises AgentError if it can't be started.
        """
        self.ready = False
        self.gone = False
        self.ended: Ended | None = None
        self._loop = loop
        self._buffer = bytearray()
        self._running = False
        self._name = ""
        self._deadline: float | None = None
        self._stop_grace = 0.0
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start(theirs.fileno(), service)
            except AgentError:
                self._socket.close()
                raise
        self.pid = self._process.pid
        loop.listen(self._socket.fileno(), self._receive)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    @property
    def running(self) -> bool:
        """Whether a command was started and has not ended."""
        return self._running

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        ids: Ids | None = None,
        deadline: float | None = None,
        stop_grace: float = 10.0,
        *,
        name: str = "the command",
        output: str | None = None,
    ) -> None:
        """Start a command. `ended` is None until the command and all its descendants have ended.

        `argv[0]` is looked up in the PATH of `env`, which is the whole environment. The command is killed at
        `deadline` (on the clock of `loop.now`), and not started after it. Processes that are still running
        after the command's leader get TERM and, `stop_grace` seconds later, KILL. `name` is for log lines.
        `output`: a file for its standard output; /dev/null is also for its standard error.
        """
        if self._running or self.gone or (self.ended and self.ended.unkillable):
            raise AgentError(f"{name} can't be started: the guard has ended, or another command still runs")
        self.ended = None
        self._running = True
        self._name = name
        self._stop_grace = stop_grace
        self._set_deadline(deadline)
        self._send(
            "spawn",
            [os.fsencode(word) for word in argv],
            {os.fsencode(key): os.fsencode(value) for key, value in env.items()},
            ids and (ids.uid, ids.gid, list(ids.groups)),
            output,
            deadline,
            stop_grace,
        )

    def extend(self, deadline: float) -> None:
        """Set a new deadline. It has no effect once the old one has passed."""
        if self._running:
            self._set_deadline(deadline)
            self._send("extend", deadline)

    def signal(self, signum: int) -> None:
        """Pass a signal to the command's process group."""
        if self._running:
            self._send("signal", int(signum))

    def end(self, grace: float) -> None:
        """Send TERM to the command and its descendants, and KILL after `grace` seconds; 0: KILL at once."""
        if self._running:
            self._send("end", float(grace))

    def close(self) -> None:
        """End the guard, which kills a running command; this process stops being a subreaper.

        If a process is known to be unkillable, the guard is left running, and continues to send KILL.
        """
        if not self.gone:
            self.gone = True
            self._running = False
            self._loop.ignore(self._socket.fileno())
            self._socket.shutdown(socket.SHUT_WR)
            if not (self.ended and self.ended.unkillable):
                if not _at_end_of_file(self._socket, now() + guard.KILL_TIMEOUT):
                    end_children(now() + guard.KILL_TIMEOUT)
                self._process.wait()
            self._socket.close()
        prctl(PR_SET_CHILD_SUBREAPER, 0)

    def _set_deadline(self, deadline: float | None) -> None:
        self._deadline = deadline
        if deadline is not None:
            self._loop.call_at(deadline + OVERDUE, self._enforce)

    def _enforce(self) -> None:
        """Kill the command if the guard has not done so at the deadline: it may be stopped."""
        # If this process was stopped, the guard's messages may be waiting in the socket.
        while self._running and select.select([self._socket], [], [], 0)[0]:
            self._receive()
        if self._running and self._deadline is not None and now() >= self._deadline + OVERDUE:
            self._lose("did not kill it at its deadline")

    def _send(self, *message: object) -> None:
        self._socket.settimeout(START_TIMEOUT if message[0] == "spawn" else SEND_TIMEOUT)
        try:
            self._socket.sendall(guard.frame(message))
        except (BrokenPipeError, ConnectionResetError, socket.timeout):
            self._lose()

    def _receive(self) -> None:
        if self.gone:
            return  # Another handler has found the guard dead since the loop saw data.
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        for verb, *values in guard.unframe(self._buffer):
            self._handle(verb, values)
        if not data:
            self._lose()

    def _handle(self, verb: str, values: Sequence[object]) -> None:
        """Handle one message of the guard."""
        if verb == "ready":
            self.ready = True
        elif verb == "broken":
            raise AgentError(f"the guard process can't work: {values[0]}")
        elif verb == "leftovers":
            log.warning(
                "%s has ended but left %s processes running: sending TERM now, KILL in %g s",
                self._name,
                values[0],
                self._stop_grace,
            )
        elif verb == "ended":
            self._running = False
            self.ended = _ended(*values)  # type: ignore[arg-type]

    def _lose(self, why: str = "died") -> None:
        """Kill the command of a dead or stopped guard, and only then log anything.

        The dead guard's children are children of this process; those of a stopped one descend from it.
        """
        if self.gone:
            return
        self.gone = True
        self._loop.ignore(self._socket.fileno())
        self._socket.close()
        deadline = float("inf") if self._deadline is None else self._deadline
        try:
            end_children(min(now() + guard.KILL_TIMEOUT, max(now(), deadline) + guard.LATE_TIMEOUT))
        finally:
            running = f"{self._name}: killed: its" if self._running else "no command was running: the"
            log.warning("%s guard process (pid %d) %s", running, self.pid, why)
        self._process.wait()
        if self._running:
            self._running = False
            self.ended = Ended(KILLED, signal.SIGKILL, "lost", 0, None, False)


def end_children(until: float) -> None:
    """Kill and reap all descendants of this process. Raises Unkillable if one is left at `until`."""
    if not kill_descendants(until):
        raise Unkillable("a process of a command can't be killed: the container must be stopped")


def command_line(fd: int, service: str) -> list[str]:
    """The argv of a guard process whose socket is `fd`."""
    package = os.path.dirname(os.path.dirname(guard.__file__))
    words = [str(fd), f"guard of {service}", os.path.dirname(package)]
    return [sys.executable, "-I", "-S", "-c", BOOT, *words]


def _start(fd: int, service: str) -> Child:
    """Start a guard that inherits `fd` and no other descriptor.

    Its environment contains only the linker's variables, which its interpreter may need: secrets must not be
    visible in another process.
    """
    environ = {name: value for name, value in os.environ.items() if name.startswith("LD_")}
    try:
        return Child(command_line(fd, service), environ, inherited=[fd], outlives_us=True).started()
    except OSError as error:
        raise AgentError(f"the guard process can't be started: {sys.executable}: {error.strerror}") from error


def _ended(
    wait_status: int | None,
    reason: str,
    leftovers: int,
    number: int | None,
    at: str | None,
    unkillable: bool,
) -> Ended:
    """The guard's report, with the wait status as the exit status of a shell."""
    if reason == "spawn-failed":
        status, signum = 127 if number in (errno.ENOENT, errno.ENOTDIR) else 126, None
    elif wait_status is None:
        status, signum = KILLED, None
    else:
        code = os.waitstatus_to_exitcode(wait_status)
        status, signum = (code, None) if code >= 0 else (128 - code, -code)
    return Ended(status, signum, reason, leftovers, number, unkillable, at)


def _at_end_of_file(connection: socket.socket, until: float) -> bool:
    """Read until the other end is closed; False if it is still open at `until`."""
    while now() < until:
        connection.settimeout(max(until - now(), 0.001))
        try:
            if not connection.recv(65536):
                return True
        except ConnectionResetError:
            return True
        except socket.timeout:
            continue
    return False
