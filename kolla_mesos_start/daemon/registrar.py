"""The small process that stays beside a daemon: it holds the session, and what is registered under it.

What lives here: the loop. What is registered is `instance`'s, the session `session`'s, and whether
the daemon is ready is concluded in `ready`. The agent starts this process (`handoff`) just before
it execs the daemon; it takes the session over as soon as the agent's own
connection is gone, and ends with the daemon. It stays in every container for months: nothing
heavy may be imported, and nothing that goes wrong outside may end it.
"""

from __future__ import annotations

import contextlib
import logging
import marshal
import math
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kolla_mesos_start.daemon.handoff import DEAF_TO, NO_DAEMON, Handoff, Tree
from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.loop import now

if TYPE_CHECKING:
    from kolla_mesos_start.daemon.readiness import Probe
    from kolla_mesos_start.health import Stage
    from kolla_mesos_start.zookeeper.connect import Wait

log = logging.getLogger(__name__)

LONGEST_SESSION = 6.0  # seconds; so that the instance of a container that was killed goes quickly
PULSE_AGAIN = 2.0  # seconds until the state is told again, where that failed
DATAGRAM, DATAGRAMS = 4096, 64  # bytes; and how many are read before the others have their turn
LONGEST_POLL = 3600.0  # seconds; poll() has a limit, and a definition may name any number


def main(record: int) -> None:
    """The registrar's whole life; `record` is the descriptor of its handoff."""
    for signum in DEAF_TO:
        # Not ignored: the command of a check would inherit that.
        signal.signal(signum, lambda number, frame: None)
    with open(record, "rb") as file:
        handoff = Handoff(*marshal.load(file))
    _settle_in(handoff)
    if handoff.daemon:
        from kolla_mesos_start.daemon import supervise

        os._exit(supervise.run(handoff))
    registrar = Registrar(handoff)
    # While the agent's connection lives, ours would be thrown out by it, and it by ours.
    if os.read(handoff.exec_fd, len(NO_DAEMON)):
        return  # The agent itself gives back what is registered.
    os.close(handoff.exec_fd)
    registrar.run()


def _settle_in(handoff: Handoff) -> None:
    from kolla_mesos_start.log import configure

    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # only for `ps`
        comm.write("kolla_registrar")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    # What the agent was started with, a pipe perhaps whose end somebody waits for.
    kept = {0, 1, 2, handoff.lock_fd, handoff.pidfd, handoff.notify_fd, handoff.exec_fd}
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with contextlib.suppress(OSError):  # the one that listed them is gone already
            os.close(fd)
    configure(handoff.loglevel, handoff.json_logs)
    _leave_openssl_out()


def _leave_openssl_out() -> None:
    # kazoo.security wants hashlib for making digest ACLs, which nobody does here; OpenSSL, which
    # comes with it, would be a quarter of this process.
    sys.modules["hashlib"] = types.ModuleType("hashlib")
    import kazoo.security  # noqa: F401

    del sys.modules["hashlib"]


class Registrar:
    """Keeps a daemon registered until it ends, from one loop that never blocks."""

    def __init__(self, handoff: Handoff) -> None:
        from kolla_mesos_start.daemon.readiness import Check, Readiness
        from kolla_mesos_start.tree.presence import Instance
        from kolla_mesos_start.zookeeper.session import Ensemble, Session

        self.session = Session(
            Ensemble(handoff.hosts, handoff.chroot, handoff.auth, handoff.ca, handoff.cert, handoff.key),
            min(LONGEST_SESSION, handoff.timeout),
            session_id=handoff.session_id,
            password=handoff.session_password,
            zxid=handoff.zxid,
        )
        self.instance = Instance(self.session, Tree(*handoff.tree))
        self._attempt = _attempt(handoff)
        self.readiness = Readiness(Check(*handoff.check), self._attempt, now())
        self.ended = False
        self._pidfd, self._notify_fd = handoff.pidfd, handoff.notify_fd
        if self._notify_fd >= 0:
            os.set_blocking(self._notify_fd, False)
        self._reporter = StatusReporter(StateFile.inherit(handoff.run_dir, handoff.lock_fd))

    def run(self) -> None:
        """Live as long as the daemon does."""
        while not self.ended:
            self.turn()
        self.leave()

    @property
    def check_pid(self) -> int | None:
        """The command of a check that is under way, for which that waits."""
        from kolla_mesos_start.daemon.readiness import CommandCheck

        return self._attempt.pid if isinstance(self._attempt, CommandCheck) else None

    def turn(self, also: Wait | None = None, deadline: float = math.inf) -> None:
        """Wait until something happens, and do what it asks for; return for `also` or `deadline`, too."""
        session, readiness, instance = self.session, self.readiness, self.instance
        deadlines = (
            session.deadline,
            readiness.deadline,
            instance.deadline,
            self._reporter.deadline,
            deadline,
        )
        waits = (session.wait, readiness.wait, (self._notify_fd, select.POLLIN), (self._pidfd, select.POLLIN))
        to_session, to_readiness, notified, self.ended, _ = _poll((*waits, also), min(deadlines))
        if self.ended:
            return
        if notified:
            self._listen()
        readiness.turn(now(), to_readiness)
        session.turn(to_session)
        instance.turn(readiness.ready)
        self._reporter.turn(readiness.ready, readiness.reason)

    def stop(self) -> None:
        """The daemon is about to be stopped: withdraw what says that it is ready."""
        self.readiness.stop()
        self.instance.turn(ready=False)

    def leave(self, timeout: float = math.inf) -> None:
        """The daemon has ended: nothing of it stays behind. Takes `timeout` seconds at most."""
        self.readiness.close()
        self._reporter.end()
        self._unlink_notify_socket()
        # From here on the next one may take the run directory; it can't take our session.
        os.close(self._reporter.state_file.fd)
        session, deadline = self.session, now() + min(self.session.timeout, timeout)
        session.close()
        while not session.closed and now() < deadline:
            session.turn(*_poll((session.wait,), min(session.deadline, deadline)))

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(DATAGRAMS):
                self.readiness.notify(os.read(self._notify_fd, DATAGRAM))

    def _unlink_notify_socket(self) -> None:
        if self._notify_fd < 0:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=self._notify_fd) as ours:
            os.unlink(ours.getsockname())


class StatusReporter:
    """Says how ready the daemon is, in the log and in the state that `health` reads."""

    def __init__(self, state_file: StateFile) -> None:
        self.state_file = state_file
        self.deadline = math.inf
        self._stage: Stage = "waiting"
        self._text = ""
        self._complained = False

    def turn(self, ready: bool, reason: str) -> None:
        """Tell what has changed, and what could not be told before."""
        stage: Stage = "ready" if ready else "unready" if self._stage in ("ready", "unready") else "starting"
        if ready and self._stage != "ready":
            log.info("the daemon is ready")
        elif self._stage == "ready" and not ready:
            log.warning("the daemon is ready no more: %s", reason)
        if (stage, reason) != (self._stage, self._text):
            self._stage, self._text, self.deadline = stage, reason, 0.0
        if now() >= self.deadline:
            self._tell()

    def end(self) -> None:
        """The daemon has ended."""
        self._stage, self._text = "ended", "the daemon has ended"
        self._tell()

    def _tell(self) -> None:
        self.deadline = math.inf
        try:
            self.state_file.write(self._stage, self._text)
        except CannotWrite as error:
            # A full disk is no reason to end; it will be told when there is room.
            self.deadline = now() + PULSE_AGAIN
            if not self._complained:
                log.warning("%s", error.reason)
            self._complained = True


def _attempt(handoff: Handoff) -> Probe | None:
    from kolla_mesos_start.daemon import readiness

    kind, value = handoff.check[:2]
    if kind == "tcp":
        return lambda: readiness.tcp(handoff.addresses, value)
    if kind == "http":
        return lambda: readiness.http(value)
    if kind == "command":
        return readiness.CommandCheck(value, dict(handoff.check_env), handoff.check_ids)
    return None


def _poll(waits: Sequence[Wait | None], deadline: float) -> list[bool]:
    """Which of the waits have come, at the deadline at the latest."""
    poller = select.poll()
    for wait in waits:
        if wait is not None and wait[0] >= 0:
            poller.register(*wait)
    # Upwards, since a bit too early would mean spinning for the rest of the millisecond.
    timeout = math.ceil(min(max(0.0, deadline - now()), LONGEST_POLL) * 1000)
    come = {fd for fd, _ in poller.poll(timeout)}
    return [wait is not None and wait[0] in come for wait in waits]
