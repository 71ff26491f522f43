"""The daemon's parent: forwards signals, reaps, deregisters the daemon before it stops, exits with its
status.

The registrar runs in the same process. The agent has started the daemon and then replaced itself by this
process, to free its memory; all signals are blocked until `run`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal

from kolla_mesos_start.daemon.handoff import python
from kolla_mesos_start.daemon.registrar import Registrar
from kolla_mesos_start.errors import CannotExecute, NotFound
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import Child, descendants, is_stopped, pidfd_open, signal_name, try_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import NoReturn

    from kolla_mesos_start.daemon.handoff import Handoff
    from kolla_mesos_start.errors import AgentError

log = Logger(__name__)

WITHDRAW_TIMEOUT = 1.0  # seconds; then SIGTERM is forwarded anyway
LEAVE_TIMEOUT = 1.0  # seconds; then the session ends with its timeout
# A new agent in this process, with the lock of the old one; the import paths are arguments.
AGENT = (
    "import sys; lock = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; sys.argv[1:] = []; "
    "from kolla_mesos_start.__main__ import main; main(lock)"
)
LEFTOVER_GRACE = 0.25  # seconds, as in the guard
KILLED_AGAIN_AFTER = 0.05  # seconds, because processes may fork while they are being killed
# Not forwarded: signals about our own children and pipes, and faults of this process.
OURS = {signal.SIGCHLD, signal.SIGPIPE}
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
PASSED_ON = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - OURS - FAULTS


class Supervisor(Registrar):
    """The registrar of a daemon that is also its parent."""

    def __init__(self, handoff: Handoff) -> None:
        super().__init__(handoff)
        self._handoff = handoff
        self._daemon = self._parent_of(handoff.daemon)
        self._restarting = False
        self._failure: AgentError | None = None  # Why it could not be restarted.
        self._stop_due, self._stop_by = False, math.inf  # whether to send the signal, and the latest time
        self._stopped_by: int | None = None  # The signal that stops the container.
        for signum in (*PASSED_ON, signal.SIGCHLD):
            self.loop.on_signal(signum, self._pass_on)
        # Deliver the signals that were blocked so far.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self) -> int:
        """Run until the daemon ends; returns the exit status for the container."""
        self.loop.wait(self.step)
        assert self._daemon.status is not None
        signum = os.WTERMSIG(self._daemon.status)
        if signum not in (0, signal.SIGTERM, signal.SIGINT, self._stopped_by):
            log.warning("the daemon was killed by signal %d", signum)
        failure = self._failure
        status = failure.status if failure else _exit_status(self._daemon.status)
        self.leave(LEAVE_TIMEOUT, status, failure.reason if failure else "")
        self.loop.wait(lambda: not self._daemon.reap())
        return status

    def _parent_of(self, pid: int) -> Daemon:
        daemon = Daemon(pid, self._handoff.stop_grace, lambda: self.children)
        self.loop.add(daemon)
        return daemon

    def step(self) -> bool:
        """Whether the daemon has ended for good; called after everything that happens."""
        super().step()
        if self._stop_due and self._is_withdrawn():
            self._stop_due, self._stop_by = False, math.inf
            # If its launcher has signalled all processes, it must not get the signal twice.
            knows = self.readiness.announced_stop
            self._daemon.terminate(self._stopped_by or self._handoff.stop_signal, send=not knows)
        some_are_left = self._daemon.reap()
        if self._daemon.status is None or self._stopping or not self._restarting:
            return self._daemon.status is not None
        # Not in a loop of its own: until it is started again, a stop or another change may come.
        if not (some_are_left and descendants(self.children)):
            self._start_again()
        return self._failure is not None

    def terminate(self) -> None:
        """Stop the daemon, as the container's stop signal does."""
        self._pass_on(self._handoff.stop_signal)

    def _pass_on(self, signum: int) -> None:
        stops = signum in (signal.SIGTERM, self._handoff.stop_signal)
        if stops or (signum == signal.SIGINT and self.drain):
            if self._stopped_by and self.drain:
                self.drain.cut_short()
            self._stopped_by = signum
            self.stop()
            if self._stop_due or not self._restarting:
                self._stop_daemon()  # Otherwise the restart has sent the signal.
            self._restarting = False
        elif signum in PASSED_ON:
            self._daemon.signal(signum)

    def _stop_daemon(self) -> None:
        """Send the signal once the daemon is deregistered or drained: it would refuse later requests."""
        self._stop_due = True
        if self.drain:
            self.drain.begin()
        else:
            self._stop_by = min(self._stop_by, now() + WITHDRAW_TIMEOUT)
            self.loop.call_at(self._stop_by, lambda: None)

    def _is_withdrawn(self) -> bool:
        if self.drain:
            return self.drain.is_over
        # Without a connection it can't be deregistered in time.
        return now() >= self._stop_by or not self.session.connected or self.presence.withdrawn

    def notify(self, kind: str, signame: str) -> str:
        """Notify the daemon of new files by a signal, or by a restart, which needs its parent."""
        if kind != "restart":
            return super().notify(kind, signame)
        # A refresh may be running when it is stopped, and another one follows while it ends.
        if not (self._stopped_by or self._stopping or self._restarting):
            self._restarting = True
            self.withdraw()
            self._stop_daemon()
        return ""

    def _start_again(self) -> None:
        self._restarting, self._stop_due, self._stop_by = False, False, math.inf
        self.readiness.close()
        handoff = self._handoff
        try:
            if handoff.environ is not None:
                self._become_agent(handoff.environ)
            environ = {**handoff.check_env, **handoff.of_manager}
            pid = Child(handoff.argv, environ, handoff.check_ids, is_daemon=True).started().pid
            pidfd = pidfd_open(pid)
        except OSError as error:
            self._failure = _not_started_again(error)
            return
        log.info("the daemon is started again, with its new files")
        self.loop.remove(self._daemon)
        self._daemon = self._parent_of(pid)
        self.renew(pid, pidfd)

    def _become_agent(self, environ: Mapping[str, str]) -> NoReturn:
        """Replace this process by a new agent: a restart passes through the election, like any start."""
        lock = self.reporter.report.state_file.fd
        argv = python(AGENT, str(lock))
        try:  # An interpreter that can't be executed must be found while that can still be recorded.
            Child([argv[0], "-I", "-S", "-c", ""], environ).started().wait()
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {argv[0]}, the agent's interpreter") from error
        log.info("the daemon has ended: its restart passes through the election")
        self.leave(LEAVE_TIMEOUT, releases=False)
        # A later signal stays pending for the agent.
        stops = {signal.SIGTERM, signal.SIGINT, self._handoff.stop_signal}
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        self.loop.wait(lambda: True)
        if self._stopped_by:
            os._exit(_exit_status(self._daemon.status or 0))
        last = 2 + int(self._handoff.of_manager.get("LISTEN_FDS", 0))
        for fd in [int(name) for name in os.listdir("/proc/self/fd") if int(name) > last]:
            with contextlib.suppress(OSError):  # The descriptor of this listing is closed already.
                os.set_inheritable(fd, fd == lock)
        try:
            os.execve(argv[0], argv, dict(environ))
        except OSError as error:  # It was there a moment ago.
            os._exit(_not_started_again(error).status)


class Daemon:
    """The daemon and all its descendants; a source of the loop. `status`: its wait status once it has ended.

    It is killed at its `deadline`. Processes that it leaves behind are ended, as the end of process 1 would.
    """

    interest = None

    def __init__(self, pid: int, stop_grace: float, spared: Callable[[], Collection[int]]) -> None:
        """`spared` returns our other children, which are neither reaped nor signalled here."""
        self.status: int | None = None
        self.deadline = math.inf
        self._pid = pid
        self._stop_grace, self._spared = stop_grace, spared
        self._ended_by: int = signal.SIGTERM
        self._has_leftovers = False

    def signal(self, signum: int) -> None:
        """Signal only the daemon, as if it were process 1 itself."""
        if self.status is None:
            try_call(os.kill, self._pid, signum)

    def terminate(self, signum: int, *, send: bool = True) -> None:
        """Send the daemon a signal, and KILL to it and its descendants after `stop_grace`."""
        if self.status is None:
            self._ended_by = signum
            if send:
                self.signal(signum)
            if is_stopped(self._pid):
                self.signal(signal.SIGCONT)  # A stopped process does not act on the other.
            self.deadline = min(self.deadline, now() + self._stop_grace)

    def run(self, ready: bool) -> None:
        """Kill at the deadline; the processes that the daemon has left behind get TERM before."""
        if now() < self.deadline:
            return
        if self.status is None:
            said = "the daemon has not ended %g s after %s: killing it"
            log.warning(said, self._stop_grace, signal_name(self._ended_by))
        elif not self._has_leftovers:
            self._has_leftovers = bool(descendants(self._spared()))
            self.deadline = now() + (self._stop_grace if self._has_leftovers else LEFTOVER_GRACE)
            if self._has_leftovers:
                log.warning("the daemon has ended, but some of its processes are still running: ending them")
                self._signal_all(signal.SIGTERM)
            return
        self._signal_all(signal.SIGKILL)
        self.deadline = now() + KILLED_AGAIN_AFTER

    def reap(self) -> bool:
        """Reap all children that have ended, except those spared; whether any is left."""
        spared = self._spared()
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None or ended.si_pid in spared:
                return True
            pid, status = os.waitpid(ended.si_pid, 0)
            if pid == self._pid:
                self.status, self.deadline = status, now() + LEFTOVER_GRACE

    def _signal_all(self, signum: int) -> None:
        for pid in descendants(self._spared()):
            try_call(os.kill, pid, signum)


def _not_started_again(error: OSError) -> AgentError:
    kind = NotFound if error.errno in (errno.ENOENT, errno.ENOTDIR) else CannotExecute
    failure = kind(f"it can't be started again, with its new files: {error.strerror}").because(error.errno)
    log.error("the daemon has ended, and %s", failure.reason)
    return failure


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
