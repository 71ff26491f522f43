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
from kolla_mesos_start.errors import PASSING, AgentError, Unkillable
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
    from typing import Any

    from kolla_mesos_start.host.accounts import Ids
    from kolla_mesos_start.loop import Loop

log = Logger(__name__)

# All in seconds.
START_TIMEOUT = 60.0  # for a guard to start on a busy machine, and to read a long environment
SEND_TIMEOUT = 0.1  # for any later message: the socket is only full if the guard is stopped
OVERDUE = 0.25  # for the guard to report the kill at the deadline; then the agent kills the command

# Imported, not run as a script: Python would compile a script at every start. The path is an argument,
# because -I and -S skip site-packages and the search for it. The second argument is for `ps`.
BOOT = (
    "import sys; sys.path.append(sys.argv[3]); "
    "from kolla_mesos_start.commands.guard import main; main(int(sys.argv[1]))"
)


class Ended(NamedTuple):
    """How a command ended. All its descendants have ended too, unless `unkillable`.

    `reason`: why its leader ended. `exited`: on its own. `ended`: by `Guard.end`. `deadline`: killed at its
    deadline, or not started because the deadline had passed. `spawn-failed`: see `errno` and `at`. `lost`:
    the guard died while the command ran, and the agent killed the command.

    `code`: its exit status, or -n after signal n. `at`: the step at which the start failed: `fork`, `user`
    (changing to that user) or `program`, or the name of an exception. `unkillable`: a process could not be
    killed; it ends only with the whole container.
    """

    reason: str
    code: int = -signal.SIGKILL
    errno: int | None = None
    at: str | None = None
    unkillable: bool = False

    @property
    def status(self) -> int:
        """As in a shell: 128 + n after signal n; 126 or 127 if it could not be started."""
        if self.errno is not None:
            return 127 if self.errno in (errno.ENOENT, errno.ENOTDIR) else 126
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def passes(self) -> bool:
        """Whether it failed for a reason that can pass by itself: it is not the command's own."""
        return self.reason == "lost" or self.errno in PASSING

    @property
    def failure(self) -> str:
        """Why it did not end with status 0; empty if it did."""
        if self.reason == "lost":
            return "killed: its guard process died"
        if self.errno is not None:
            return f"could not be started: {spawn_error(self.errno, self.at)}"
        if self.code < 0:
            return f"killed by {signal_name(-self.code)}"
        return f"exit status {self.code}" if self.code else ""


class Guard:
    """A guard process, which runs one command at a time; started when it is needed, and again if it has died.

    `ended` changes during `Loop.wait`, or in a method of this class that finds the guard dead. Both raise
    Unkillable if the guard has died and a process of its command can't be killed.
    """

    def __init__(self, loop: Loop, service: str) -> None:
        """`service` is its name in `ps`."""
        self.ended: Ended | None = None
        self.ready = False
        self.running = False  # A command was started and has not ended.
        self.process: Child | None = None  # None: not started, closed, or dead.
        self.pid = 0
        self._loop, self._service = loop, service
        self._buffer = bytearray()
        self._name = ""
        self._deadline: float | None = None
        self._stop_grace = 0.0
        self._is_subreaper = False

    def start(self) -> None:
        """Start the guard process, unless it runs, without waiting until it is ready.

        Raises AgentError if it can't be started.
        """
        if self.process:
            return
        self.ready, self._buffer = False, bytearray()
        self._socket, theirs = socket.socketpair()
        # Only the linker's variables, which its interpreter may need: secrets must not be visible in
        # another process.
        environ = {name: value for name, value in os.environ.items() if name.startswith("LD_")}
        with theirs:
            argv, inherited = command_line(theirs.fileno(), self._service), [theirs.fileno()]
            try:
                self.process = Child(argv, environ, inherited=inherited, outlives_us=True).started()
            except OSError as error:
                self._socket.close()
                what = f"the guard process can't be started: {sys.executable}: {error.strerror}"
                raise AgentError(what).because(error.errno) from error
        self._loop.listen(self._socket.fileno(), self._receive)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._is_subreaper, self.pid = True, self.process.pid

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
        if self.running or (self.ended and self.ended.unkillable):
            raise AgentError(f"{name} can't be started: another command still runs")
        self.start()
        self.ended, self.running = None, True
        self._name, self._stop_grace, self._deadline = name, stop_grace, None
        if deadline is not None:
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
        if self.running:
            self._set_deadline(deadline)
            self._send("extend", deadline)

    def signal(self, signum: int) -> None:
        """Pass a signal to the command's process group."""
        if self.running:
            self._send("signal", int(signum))

    def end(self, grace: float) -> None:
        """Send TERM to the command and its descendants, and KILL after `grace` seconds; 0: KILL at once."""
        if self.running:
            self._send("end", float(grace))

    def close(self) -> None:
        """End the guard, which kills a running command; this process stops being a subreaper.

        If a process is known to be unkillable, the guard is left running, and continues to send KILL.
        """
        if self.process:
            process = self._forget()
            self.running = False
            self._socket.shutdown(socket.SHUT_WR)
            if not (self.ended and self.ended.unkillable):
                if not _at_end_of_file(self._socket, now() + guard.KILL_TIMEOUT):
                    end_children(now() + guard.KILL_TIMEOUT)
                process.wait()
            self._socket.close()
        if self._is_subreaper:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
            self._is_subreaper = False

    def _forget(self) -> Child:
        """The process, which this object does not use any more."""
        assert self.process
        process, self.process = self.process, None
        self._loop.ignore(self._socket.fileno())
        return process

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        self._loop.call_at(deadline + OVERDUE, self._enforce)

    def _enforce(self) -> None:
        """Kill the command if the guard has not done so at the deadline: it may be stopped."""
        # If this process was stopped, the guard's messages may be waiting in the socket.
        while self.running and select.select([self._socket], [], [], 0)[0]:
            self._receive()
        if self.running and self._deadline is not None and now() >= self._deadline + OVERDUE:
            self._lose("did not kill it at its deadline")

    def _send(self, *message: object) -> None:
        self._socket.settimeout(START_TIMEOUT if message[0] == "spawn" else SEND_TIMEOUT)
        try:
            self._socket.sendall(guard.frame(message))
        except (BrokenPipeError, ConnectionResetError, socket.timeout):
            self._lose()

    def _receive(self) -> None:
        if not self.process:
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

    def _handle(self, verb: str, values: Sequence[Any]) -> None:
        """Handle one message of the guard."""
        if verb == "ready":
            self.ready = True
        elif verb == "broken":
            raise AgentError(f"the guard process can't work: {values[0]}").because(values[1])
        elif verb == "leftovers":
            log.warning(
                "%s has ended but left %s processes running: sending TERM now, KILL in %g s",
                self._name,
                values[0],
                self._stop_grace,
            )
        elif verb == "ended":
            self.running = False
            wait_status, reason, number, at, unkillable = values
            code = -signal.SIGKILL if wait_status is None else os.waitstatus_to_exitcode(wait_status)
            self.ended = Ended(reason, code, number, at, unkillable)

    def _lose(self, why: str = "died") -> None:
        """Kill the command of a dead or stopped guard, and only then log anything.

        The dead guard's children are children of this process; those of a stopped one descend from it.
        """
        if not self.process:
            return
        process = self._forget()
        self._socket.close()
        deadline = float("inf") if self._deadline is None else self._deadline
        try:
            end_children(min(now() + guard.KILL_TIMEOUT, max(now(), deadline) + guard.LATE_TIMEOUT))
        finally:
            running = f"{self._name}: killed: its" if self.running else "no command was running: the"
            log.warning("%s guard process (pid %d) %s", running, self.pid, why)
        process.wait()
        if self.running:
            self.running, self.ended = False, Ended("lost")


def end_children(until: float) -> None:
    """Kill and reap all descendants of this process. Raises Unkillable if one is left at `until`."""
    if not kill_descendants(until):
        raise Unkillable("a process of a command can't be killed: the container must be stopped")


def command_line(fd: int, service: str) -> list[str]:
    """The argv of a guard process whose socket is `fd`."""
    package = os.path.dirname(os.path.dirname(guard.__file__))
    words = [str(fd), f"guard of {service}", os.path.dirname(package)]
    return [sys.executable, "-I", "-S", "-c", BOOT, *words]


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
