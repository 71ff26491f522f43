"""The agent's side of the guard: start a command, move its deadline, signal it, end it, hear how it ended.

What lives here: the guard process, what is said to it and heard from it, and what has to be done
when it dies: then the agent itself ends the command. What never does: any decision on what to run,
how often, or what an exit status means.

While a `Guard` lives, this process is a child subreaper, so that the command of a guard that was
killed comes here; `close` takes that back, since it would pass through exec to the daemon. And it
has no other children meanwhile: in an emergency all children are ended.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kolla_mesos_start.commands import guard
from kolla_mesos_start.errors import AgentError, Unkillable
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.orphans import reap

if TYPE_CHECKING:
    import subprocess

    from kolla_mesos_start.accounts import Ids

log = logging.getLogger(__name__)

START_TIMEOUT = 60.0  # What a guard may take to start, on a busy machine, and to read a long environment;
SEND_TIMEOUT = 0.1  # after that its end of the socket is full only if somebody has stopped it.
ANSWER_TIMEOUT = 2.0  # What the guard gets to say that it has heard, on a machine that is busy.
OVERDUE = 0.25  # What the guard gets to report an end at the deadline, before it is done without the guard.
KILLED = 128 + signal.SIGKILL


class Ended(NamedTuple):
    """How a command ended. All its descendants are gone too, unless `unkillable`."""

    status: int
    """The exit status; 128 + n for a signal; 126 or 127, as a shell says it, if it could not be started."""
    signum: int | None
    """The signal that ended the leader; None also if it never ran."""
    reason: str
    """Why the leader ended.

    `exited`: by itself. `ended`: after `Guard.end`. `deadline`: killed at its deadline, or refused past it
    (then `signum` is None). `spawn-failed`: see `errno` and `at`. `lost`: the guard died under it, and it was
    killed from here.
    """
    leftovers: int
    """How many processes had to be ended because they went on after the leader."""
    errno: int | None
    unkillable: bool
    """Something could not be killed: only the end of the whole container ends it."""
    at: str | None = None
    """What a failed start failed at: `fork`, `user` (it could not become that user) or `program`."""


class Guard:
    """A guard process, and the one command that it may run at a time.

    `ended` and `gone` change while `Loop.wait` runs, or in a method here that finds the guard dead.
    Where what a dead guard ran can't be killed, AgentError is raised there.
    """

    def __init__(self, loop: Loop) -> None:
        """Start the guard; does not wait until it is up. AgentError if there is no room for a process."""
        self.ready = False
        self.gone = False
        self.ended: Ended | None = None
        self._loop = loop
        self._heard = bytearray()
        self._running = False
        self._asked = self._answered = 0
        self._name = ""
        self._deadline: float | None = None
        self._stop_grace = 0.0
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start(theirs.fileno())
            except AgentError:
                self._socket.close()
                raise
        self.pid = self._process.pid
        loop.listen(self._socket.fileno(), self._hear)
        # After the start, for the import of ctypes takes as long as the guard's own.
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)

    @property
    def running(self) -> bool:
        """Whether a command has been spawned and has not ended."""
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
    ) -> None:
        """Start a command; `ended` is None from here on, and set when it and all its descendants are gone.

        `argv[0]` is looked up in the PATH of `env`, which is the whole environment. `deadline` (see
        `loop.now`) is when it gets killed; past it, it is not even started. `stop_grace` is what
        left-overs get, in seconds, between TERM and KILL. `name` is for log lines.
        """
        if self._running or self.gone or (self.ended and self.ended.unkillable):
            raise AgentError(f"{name} can't be started: the guard is gone, or still has a command")
        self.ended = None
        self._running = True
        self._name = name
        self._stop_grace = stop_grace
        self._set_deadline(deadline)
        self._say(
            "spawn",
            [os.fsencode(word) for word in argv],
            {os.fsencode(key): os.fsencode(value) for key, value in env.items()},
            ids and (ids.uid, ids.gid, list(ids.groups)),
            deadline,
            stop_grace,
        )

    def extend(self, deadline: float) -> None:
        """Move the deadline of the command. Past its deadline nothing saves it any more."""
        if self._running:
            self._set_deadline(deadline)
            self._say("extend", deadline)

    def signal(self, signum: int) -> None:
        """Pass a signal to the command's process group."""
        if self._running:
            self._ask("signal", int(signum))

    def end(self, grace: float) -> None:
        """TERM the command and its descendants, KILL what is left after `grace` seconds; 0: KILL at once."""
        if self._running:
            self._ask("end", float(grace))

    def close(self) -> None:
        """End the guard, and this process's being a subreaper. A command that still runs is killed.

        Where something is known to be unkillable it is left to the guard, which goes on trying.
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
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 0)

    def _ask(self, *message: object) -> None:
        """Say what the guard has to answer at once; one that is stopped does not, and is done without."""
        self._asked += 1
        number = self._asked
        self._say(*message)
        self._loop.call_at(now() + ANSWER_TIMEOUT, lambda: self._check_answer(number))

    def _check_answer(self, number: int) -> None:
        self._catch_up()
        if self._running and self._answered < number:
            log.warning("the guard does not answer about %s", self._name)
            self._lose()

    def _catch_up(self) -> None:
        """This process itself may have been stopped, and the guard's word be waiting here."""
        while self._running and select.select([self._socket], [], [], 0)[0]:
            self._hear()

    def _set_deadline(self, deadline: float | None) -> None:
        self._deadline = deadline
        if deadline is not None:
            self._loop.call_at(deadline + OVERDUE, self._enforce)

    def _enforce(self) -> None:
        """End the command from here if its guard has let the deadline pass, as one that is stopped does."""
        self._catch_up()
        if self._running and self._deadline is not None and now() >= self._deadline + OVERDUE:
            log.warning("the guard has let the deadline of %s pass", self._name)
            self._lose()

    def _say(self, *message: object) -> None:
        self._socket.settimeout(START_TIMEOUT if message[0] == "spawn" else SEND_TIMEOUT)
        try:
            self._socket.sendall(guard.frame(message))
        except (BrokenPipeError, ConnectionResetError, socket.timeout):
            self._lose()

    def _hear(self) -> None:
        if self.gone:
            return  # Found by another handler, since the loop saw that there is something to read.
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self._heard += data
        for verb, *words in guard.unframe(self._heard):
            self._take(verb, words)
        if not data:
            self._lose()

    def _take(self, verb: str, words: Sequence[object]) -> None:
        """One message of the guard."""
        if verb == "ready":
            self.ready = True
        elif verb == "heard":
            self._answered += 1
        elif verb == "broken":
            raise AgentError(f"the guard of the commands can't work: {words[0]}")
        elif verb == "leftovers":
            log.warning(
                "%s has ended but left %s processes running: TERM now, KILL in %g s",
                self._name,
                words[0],
                self._stop_grace,
            )
        elif verb == "ended":
            self._running = False
            self.ended = _ended(*words)  # type: ignore[arg-type]

    def _lose(self) -> None:
        """Without a guard: what it ran has come to this process, or is about to, and is ended here."""
        if self.gone:
            return
        self.gone = True
        self._loop.ignore(self._socket.fileno())
        self._socket.close()
        log.warning("the guard (pid %d) is gone: ending %s", self.pid, self._name or "what it ran")
        deadline = float("inf") if self._deadline is None else self._deadline
        end_children(min(now() + guard.KILL_TIMEOUT, max(now(), deadline) + guard.LATE_TIMEOUT))
        self._process.wait()
        if self._running:
            self._running = False
            self.ended = Ended(KILLED, signal.SIGKILL, "lost", 0, None, False)


def end_children(until: float) -> None:
    """Kill and reap all that descends from this process; AgentError if something is left at `until`."""
    import psutil

    while _has_children():
        for process in psutil.Process().children(recursive=True):
            # What has ended meanwhile needs no signal; what is another user's shows as not gone.
            try:
                process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        if now() >= until:
            raise Unkillable("processes of a command can't be killed: the container has to end")
        time.sleep(0.01)


def _has_children() -> bool:
    reap()
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _start(fd: int) -> subprocess.Popen[bytes]:
    """Start a guard that inherits `fd` and nothing else.

    Its environment is empty but for the linker's variables, which its interpreter may need: what is secret
    in ours shall not stand in one more place. (Not os.posix_spawn: the C library's lets signals 32 and 33
    be ignored in whatever comes of it.)
    """
    import subprocess

    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(fd)],
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name.startswith("LD_")},
            pass_fds=[fd],
        )
    except OSError as error:
        raise AgentError(f"the guard of the commands can't be started: {error.strerror}") from error


def _ended(
    wait_status: int | None,
    reason: str,
    leftovers: int,
    number: int | None,
    at: str | None,
    unkillable: bool,
) -> Ended:
    """The guard's word as the agent reads it."""
    if reason == "spawn-failed":
        status, signum = 127 if number in (errno.ENOENT, errno.ENOTDIR) else 126, None
    elif wait_status is None:
        status, signum = KILLED, None
    else:
        code = os.waitstatus_to_exitcode(wait_status)
        status, signum = (code, None) if code >= 0 else (128 - code, -code)
    return Ended(status, signum, reason, leftovers, number, unkillable, at)


def _at_end_of_file(connection: socket.socket, until: float) -> bool:
    """Read until the other end is gone; False if it is still there at `until`."""
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
