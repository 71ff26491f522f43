"""Stay as the daemon's parent: pass signals on, reap, withdraw readiness first, end as the daemon does.

What lives here: the daemon as a child, and the loop. Registering is the registrar's business, which
runs in this process then. The agent has started the daemon and has exec'd itself into this process,
so that nothing of what the agent needed stays in memory; all signals are blocked until `run`.
"""

from __future__ import annotations

import errno
import math
import os
import signal

from kolla_mesos_start.commands import guard
from kolla_mesos_start.commands.guard import LEFTOVER_GRACE, descendants, try_call
from kolla_mesos_start.daemon.registrar import Registrar
from kolla_mesos_start.errors import CannotExecute, NotFound
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from kolla_mesos_start.daemon.handoff import Handoff
    from kolla_mesos_start.errors import AgentError

log = Logger(__name__)

WITHDRAW_TIMEOUT = 1.0  # seconds; then SIGTERM is passed on all the same
LEAVE_TIMEOUT = 1.0  # seconds; then the session is left to its timeout
KILLED_AGAIN_AFTER = 0.05  # seconds: who forks while it is being killed
# Those that a process sends to itself by what it does are nobody else's; the kernel's word that a
# child has ended is ours.
OURS = {signal.SIGCHLD, signal.SIGPIPE}
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
PASSED_ON = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - OURS - FAULTS


def run(handoff: Handoff) -> int:
    """Live as long as the daemon does; returns the exit status that says how it ended."""
    return Supervisor(handoff).run()


class Supervisor:
    """The daemon's parent, and the registrar beside it in one process."""

    def __init__(self, handoff: Handoff) -> None:
        self._registrar = Registrar(handoff)
        self._loop = self._registrar.loop
        self._daemon = Daemon(handoff.daemon, handoff.stop_grace)
        self._handoff = handoff
        self._registrar.on_restart = self._restart
        self._restarting = False
        self._failure: AgentError | None = None  # Why it could not be started again.
        self._pass_term_at = math.inf  # When SIGTERM is passed on at the latest.
        self._loop.add(self._daemon)
        for signum in (*PASSED_ON, signal.SIGCHLD):
            self._loop.on_signal(signum, self._pass_on)
        # Those that were blocked so far are heard now too.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self) -> int:
        """Both loops in one."""
        self._loop.wait(self._step)
        assert self._daemon.status is not None
        signum = os.WTERMSIG(self._daemon.status)
        if signum not in (0, signal.SIGTERM, signal.SIGINT):
            log.warning("the daemon was killed by signal %d", signum)
        failure = self._failure
        status = failure.status if failure else _exit_status(self._daemon.status)
        self._registrar.leave(LEAVE_TIMEOUT, status, failure.reason if failure else "")
        self._end_leftovers()
        return status

    def _step(self) -> bool:
        """Whether the daemon has ended; called after everything that happens."""
        self._registrar.step()
        if self._pass_term_at < math.inf and (now() >= self._pass_term_at or self._is_withdrawn()):
            self._pass_term_at = math.inf
            self._daemon.terminate()
        self._daemon.reap(self._registrar.children)
        if self._daemon.status is not None and self._restarting:
            self._start_again()
        return self._daemon.status is not None

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGTERM:
            self._restarting = False
            self._registrar.on_restart = lambda: None  # A refresh may be under way.
            self._registrar.stop()
            self._stop_daemon()
        elif signum in PASSED_ON:
            self._daemon.signal(signum)

    def _stop_daemon(self) -> None:
        """Pass SIGTERM on once readiness is withdrawn: requests that arrive after it would be refused."""
        self._pass_term_at = min(self._pass_term_at, now() + WITHDRAW_TIMEOUT)
        self._loop.call_at(self._pass_term_at, lambda: None)

    def _restart(self) -> None:
        """Its files have changed: stop it, and start it again once it has ended."""
        self._restarting = True
        self._registrar.withdraw()
        self._stop_daemon()

    def _start_again(self) -> None:
        self._restarting, self._pass_term_at = False, math.inf
        self._registrar.readiness.close()
        self._end_leftovers()
        handoff = self._handoff
        try:
            pid = guard.start(handoff.argv, handoff.check_env, handoff.check_ids)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            kind = NotFound if error.errno in (errno.ENOENT, errno.ENOTDIR) else CannotExecute
            self._failure = kind(f"it can't be started again, with its new files: {error.strerror}")
            log.error("the daemon has ended, and %s", self._failure.reason)
            return
        log.info("the daemon is started again, with its new files")
        self._loop.remove(self._daemon)
        self._daemon = Daemon(pid, handoff.stop_grace)
        self._loop.add(self._daemon)
        self._registrar.renew(pid, pidfd)

    def _is_withdrawn(self) -> bool:
        # Without a connection nothing can be withdrawn in time.
        return not self._registrar.session.connected or self._registrar.presence.withdrawn

    def _end_leftovers(self) -> None:
        """What the daemon has started and left behind ends with it, as it would with process 1."""
        daemon = self._daemon
        if not self._loop.wait(lambda: not daemon.reap(()), now() + LEFTOVER_GRACE):
            log.warning("the daemon has ended, processes of it have not: ending them")
            daemon.terminate()
            self._loop.wait(lambda: not daemon.reap(()))


class Daemon:
    """The daemon and all that it has started. `status`: its wait status once it has ended.

    A source of the loop: at its `deadline` it is killed.
    """

    interest = None

    def __init__(self, pid: int, stop_grace: float) -> None:
        self.status: int | None = None
        self.deadline = math.inf
        self._pid = pid
        self._stop_grace = stop_grace

    def signal(self, signum: int) -> None:
        """To the daemon alone, as if it were process 1 itself."""
        if self.status is None:
            try_call(os.kill, self._pid, signum)

    def terminate(self) -> None:
        """TERM, and KILL once `stop_grace` is over: to the daemon, or to what it has left."""
        if self.status is None:
            self.signal(signal.SIGTERM)
        else:
            _signal_all(signal.SIGTERM)
        self.deadline = min(self.deadline, now() + self._stop_grace)

    def run(self, ready: bool) -> None:
        """Kill in time."""
        if now() >= self.deadline:
            if self.status is None:
                log.warning("the daemon has not ended %g s after SIGTERM: killing it", self._stop_grace)
            _signal_all(signal.SIGKILL)
            self.deadline = now() + KILLED_AGAIN_AFTER

    def reap(self, spared: Collection[int | None]) -> bool:
        """Reap every child that has ended but those `spared`, which others wait for.

        Returns whether any is left.
        """
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None or ended.si_pid in spared:
                return True
            pid, status = os.waitpid(ended.si_pid, 0)
            if pid == self._pid:
                self.status, self.deadline = status, math.inf


def _signal_all(signum: int) -> None:
    for pid in descendants():
        try_call(os.kill, pid, signum)


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
