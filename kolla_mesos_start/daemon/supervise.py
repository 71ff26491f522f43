"""Stay as the daemon's parent: pass signals on, reap, withdraw readiness first, end as the daemon does.

What lives here: the daemon as a child, and the loop. Registering is the registrar's business, which
runs in this process then. The agent has started the daemon and has exec'd itself into this process,
so that nothing of what the agent needed stays in memory; all signals are blocked until `run`.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
from typing import TYPE_CHECKING

from kolla_mesos_start.commands.guard import LINGER, descendants, try_call
from kolla_mesos_start.daemon.registrar import Registrar
from kolla_mesos_start.loop import now

if TYPE_CHECKING:
    from kolla_mesos_start.daemon.handoff import Handoff

log = logging.getLogger(__name__)

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
        self._daemon = Daemon(handoff.daemon, handoff.stop_grace)
        self._pass_term_at = math.inf  # When SIGTERM is passed on at the latest.
        self._signalled = _hear_signals()

    def run(self) -> int:
        """Both loops in one."""
        registrar, daemon = self._registrar, self._daemon
        while daemon.status is None:
            registrar.turn((self._signalled, select.POLLIN), min(self._pass_term_at, daemon.deadline))
            for signum in self._signals():
                self._pass_on(signum)
            if now() >= self._pass_term_at or (self._pass_term_at < math.inf and self._is_withdrawn()):
                self._pass_term_at = math.inf
                daemon.terminate()
            daemon.turn(registrar.check_pid)
        registrar.leave(LEAVE_TIMEOUT)
        self._end_leftovers()
        return _exit_status(daemon.status)

    def _signals(self) -> set[int]:
        try:
            return set(os.read(self._signalled, 4096))
        except BlockingIOError:
            return set()

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGTERM:
            # Whoever looks for us is told first: what arrives after the signal finds a closed door.
            self._registrar.stop()
            self._pass_term_at = min(self._pass_term_at, now() + WITHDRAW_TIMEOUT)
        elif signum in PASSED_ON:
            self._daemon.signal(signum)

    def _is_withdrawn(self) -> bool:
        # Without a connection nothing can be withdrawn in time.
        return not self._registrar.session.open or self._registrar.instance.withdrawn

    def _end_leftovers(self) -> None:
        """What the daemon has started and left behind ends with it, as it would with process 1."""
        daemon = self._daemon
        lingers_until = now() + LINGER
        while daemon.turn(None):
            if daemon.deadline == math.inf and now() >= lingers_until:
                log.warning("the daemon has ended, processes of it have not: ending them")
                daemon.terminate()
            until = lingers_until if daemon.deadline == math.inf else daemon.deadline
            select.select([self._signalled], [], [], max(0.0, until - now()))
            self._signals()


class Daemon:
    """The daemon and all that it has started. `status`: its wait status once it has ended.

    `deadline`: when `turn` must run at the latest.
    """

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

    def turn(self, spared: int | None) -> bool:
        """Reap whoever has ended, but the `spared` one, who has somebody that waits for him; kill in time.

        Returns whether anybody is left.
        """
        left = self._reap(spared)
        if left and now() >= self.deadline:
            if self.status is None:
                log.warning("the daemon has not ended %g s after SIGTERM: killing it", self._stop_grace)
            _signal_all(signal.SIGKILL)
            self.deadline = now() + KILLED_AGAIN_AFTER
        return left

    def _reap(self, spared: int | None) -> bool:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None or ended.si_pid == spared:
                return True
            pid, status = os.waitpid(ended.si_pid, 0)
            if pid == self._pid:
                self.status, self.deadline = status, math.inf


def _signal_all(signum: int) -> None:
    for pid in descendants():
        try_call(os.kill, pid, signum)


def _hear_signals() -> int:
    """Hear signals from here on, those too that were blocked so far; returns where their numbers are read."""
    heard, tell = os.pipe()
    for fd in (heard, tell):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for signum in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(signum, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return heard


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
