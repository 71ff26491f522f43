"""The small process beside a daemon: holds the ZooKeeper session, and keeps the daemon registered.

It combines `tree.presence`, `readiness`, `refresher` and the session in one loop. It runs in every container
for months: nothing heavy may be imported, and no external failure may end it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import socket
import time

from kolla_mesos_start.daemon.handoff import Refreshing, Stopping
from kolla_mesos_start.daemon.notify_socket import Manager, NotifySocket, Senders
from kolla_mesos_start.daemon.readiness import CommandCheck, Readiness
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.errors import AgentError, CannotWrite, TooLarge
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.probes import http, tcp
from kolla_mesos_start.report import NEVER_READY, Report, StatusZnode, utc, with_texts
from kolla_mesos_start.tree.presence import Presence, Registration
from kolla_mesos_start.zookeeper.session import Servers, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.daemon.drain import Drain
    from kolla_mesos_start.daemon.handoff import Handoff
    from kolla_mesos_start.daemon.readiness import Probe
    from kolla_mesos_start.daemon.refresher import Refresher
    from kolla_mesos_start.election.participant import Participant
    from kolla_mesos_start.health import Stage

log = Logger(__name__)

# All in seconds.
LONGEST_SESSION = 6.0  # The instance of a killed container disappears after that.
SHORT_LIFE = 30.0  # A daemon that ends sooner may not have got its port.
ANSWER_TIMEOUT = 0.2  # to probe that port
WRITE_AGAIN = 2.0  # until the state is written again after a failure
UNREADY_LONG = 10.0  # until the first log line about a daemon that is not ready; then every half minute


class Registrar:
    """Keeps a daemon registered until it has `ended`, in one loop that never blocks."""

    def __init__(self, handoff: Handoff) -> None:
        self.loop = Loop()
        session_id, password, zxid, timeout = handoff.session
        self.session = Session(
            Servers(*handoff.servers),
            min(LONGEST_SESSION, timeout),
            session_id=session_id,
            password=password,
            zxid=zxid,
        )
        self.session.on_fault(_warn_of_fault)
        # Only those of this network: KOLLA_ADDRESS may be that of a proxy.
        self._addresses = [each for each in handoff.addresses if _is_own(each)]
        self.session.on_connected(self._check_addresses)
        self.presence = Presence(self.session, Registration(*handoff.registration))
        self._check, self._probe = Ready(*handoff.check), _probe(handoff)
        self._started, self._stopping, self._logs = now(), False, handoff.logs
        self.readiness = Readiness(self._check, self._probe, self._started, handoff.daemon)
        report = Report(StateFile.inherit(handoff.run_dir, handoff.lock_fd), handoff.command)
        report.show(self.presence.ephemerals, StatusZnode(*handoff.container)).unsure()
        self.reporter = StatusReporter(report, handoff.command, self._started)
        self.ended = False
        self._participant = self._take_part(handoff) if handoff.election else None
        own_uids = {os.geteuid(), *(handoff.check_ids or ())[:1]}
        self._senders, self._manager = Senders(handoff.daemon, own_uids), Manager(handoff.manager)
        self._notify_socket = NotifySocket(handoff.notify_fd, self._senders)
        for source in (self.session, self.readiness, self.presence.ephemerals, self.reporter):
            self.loop.add(source)
        self._pidfd, self._stop_signal = handoff.pidfd, handoff.stop_signal
        self.loop.listen(handoff.pidfd, self._note_end)
        self.loop.listen(self._notify_socket.fd, self._listen)
        self._refresher = self._follow(handoff) if handoff.refreshing else None
        self.drain = self._prepare_drain(handoff) if handoff.stopping else None

    def _check_addresses(self) -> None:
        """A new address often shows as a new connection."""
        for address in self._addresses:
            if not _is_own(address):
                log.warning(
                    "this host no longer has the address %s, with which this container is registered:"
                    " restart the container",
                    address,
                )

    def _take_part(self, handoff: Handoff) -> Participant:
        from kolla_mesos_start.election.participant import Participant
        from kolla_mesos_start.election.records import Membership

        def end(kill: bool) -> None:
            # Its parent, or the container, ends its other processes.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL if kill else self._stop_signal)

        order = Membership(*handoff.election or ())
        participant = Participant(self.session, self.presence, lambda: self.readiness, order, end)
        self.loop.add(participant)
        return participant

    def _follow(self, handoff: Handoff) -> Refresher:
        from kolla_mesos_start.daemon.refresher import Refresher

        order, rollout = Refreshing(*handoff.refreshing or ()), None
        if order.width is not None:
            from kolla_mesos_start.daemon.rollout import Rollout
            from kolla_mesos_start.tree.znodes import Znodes

            member = Registration(*handoff.registration).member
            rollout = Rollout(self.session, self.presence.acl, Znodes(*order.znodes), member, order.width)
        refresher = Refresher(self, order, handoff.run_dir, rollout)
        self.loop.add(refresher)
        return refresher

    def _prepare_drain(self, handoff: Handoff) -> Drain:
        from kolla_mesos_start.daemon.drain import Drain

        drain = Drain(self, handoff, Stopping(*handoff.stopping or ()))
        self.loop.add(drain)
        return drain

    def run(self) -> int:
        """Run until the daemon has ended."""
        self.loop.wait(self.step)  # Its condition is evaluated after every event, and drives everything.
        self.leave()
        return 0

    @property
    def children(self) -> set[int]:
        """The pids of children whose end is awaited: the command of a check or before a stop, a refresh."""
        check = self._probe if isinstance(self._probe, CommandCheck) else None
        found = [each.child for each in (check, self.drain, self._refresher) if each]
        return {child.pid for child in found if child and child.status is None}

    def step(self) -> bool:
        """Publish the daemon's readiness; called after every event. Returns whether the daemon has ended."""
        if not self.ended:
            ready, draining = self.readiness.ready, self.drain.reason if self.drain else ""
            admitted = self._participant is None or self._participant.admitted
            self._manager.show(ready and admitted, self._stopping or self.readiness.announced_stop)
            # The report comes first: `wait` must know what a ready instance runs.
            recorded = not ready or self.reporter.report.show_now()
            self.presence.show(ready and admitted and not draining, recorded=recorded)
            self._report(draining)
        return self.ended

    def _report(self, draining: str) -> None:
        readiness, show = self.readiness, self.reporter.show
        reason, code = readiness.reason, readiness.code
        if self._refresher and not reason:
            reason, code = self._refresher.reason, self._refresher.code
        if draining:
            show("draining", draining)
        elif readiness.ready and self.presence.denied:
            show("starting", f"not registered: {self.presence.denied}")
        else:
            stage: Stage = "ready" if readiness.ready else "unready"
            show(stage, reason, code, stopped=readiness.stopped)

    def stop(self) -> None:
        """Deregister the daemon, because it will be stopped."""
        self._stopping = True
        self.withdraw()

    def withdraw(self) -> None:
        """Deregister the daemon until it becomes ready again."""
        self.readiness.stop()
        self.presence.show(ready=False)

    def terminate(self) -> None:
        """Send the daemon its stop signal."""
        try:
            signal.pidfd_send_signal(self._pidfd, self._stop_signal)
        except ProcessLookupError:
            pass
        except OSError as error:
            log.warning("the daemon can't be sent its stop signal: %s", error.strerror)

    def notify(self, kind: str, signame: str) -> str:
        """Notify the daemon of new files by a signal; returns why that failed, or empty text."""
        if kind == "signal":
            try:
                signal.pidfd_send_signal(self._pidfd, signal.Signals[f"SIG{signame}"])
            except OSError as error:
                return f"SIG{signame} can't be sent to the daemon: {error.strerror}"
        return ""

    def renew(self, daemon: int, pidfd: int) -> None:
        """Continue with a restarted daemon, which is another process."""
        if not self.ended:  # Its parent may have reaped it before the pidfd was read.
            self._note_end()
        os.close(self._pidfd)
        self.ended = self._stopping = False
        self._started, self._pidfd = now(), pidfd
        self.loop.remove(self.readiness)
        self.readiness = Readiness(self._check, self._probe, self._started, daemon)
        self.readiness.confirm(self._started)
        self.reporter.restart(self._started)
        self.loop.add(self.readiness)
        if self.drain:
            self.drain.reset()
        self._senders.daemon = daemon
        self.loop.listen(pidfd, self._note_end)

    def _note_end(self) -> None:
        self.ended = True
        self.loop.ignore(self._pidfd)

    def _listen(self) -> None:
        for message in self._notify_socket.messages():
            self.readiness.notify(message)
            self._manager.pass_on(message)

    # -- the end --------------------------------------------------------------------------------

    def leave(
        self, timeout: float = math.inf, status: int | None = None, why: str = "", *, releases: bool = True
    ) -> None:
        """Clean up after the daemon has ended, within `timeout` seconds.

        If it was never ready, that is recorded. `status` is its exit status; None: only its parent knows it.
        `why`: the reason why it could not be restarted. `releases`: the container ends; otherwise its run
        directory stays locked, because a new agent follows.
        """
        ending = None
        # Only its parent knows whether it was asked to stop; the message is true in both cases.
        if why or not (self.presence.was_ready or self._stopping):
            lived = f"ended {now() - self._started:.1f} s after its start, before it was ready"
            if self._participant and self._participant.why:
                lived += f" ({self._participant.why})"
            if status is not None and not why:  # Otherwise its launcher says how it ended.
                log.warning("the daemon %s; exit status %d", lived, status)
            ending = _ending(self.reporter.command, why or lived, status, self._logs, retriable=not why)
        if ending and self.session.connected:  # First: the container's znode will soon be gone.
            self.presence.write_end(ending)
            ending = None
        for source in (self.readiness, self._refresher, self.drain):
            if source:
                source.close()
                self.loop.remove(source)
        self.reporter.end()
        self._warn_of_another()
        self.loop.ignore(self._notify_socket.fd)
        self._notify_socket.close()
        if releases:  # Now the next container may use the run directory; it can't take our session.
            os.close(self.reporter.report.state_file.fd)
        deadline = now() + min(self.session.timeout, timeout)
        if ending:
            self.loop.wait(lambda: self.session.connected, deadline)
            self.presence.write_end(ending)
        self.presence.end_states()
        self.loop.wait(lambda: self.presence.states_ended, deadline)
        self.session.close()
        self.loop.wait(lambda: self.session.closed, deadline)

    def _warn_of_another(self) -> None:
        """Warn if another process answers on the port of a daemon that ended early."""
        soon = now() < self._started + SHORT_LIFE and not self._stopping
        if not soon or self._check.kind not in ("tcp", "http"):
            return
        asked = Readiness(self._check, self._probe, now())
        self.loop.add(asked)
        self.loop.wait(lambda: asked.ready or asked.reason, now() + ANSWER_TIMEOUT)
        self.loop.remove(asked)
        asked.close()
        if asked.ready:
            log.warning(
                "the daemon has ended, and another process answers its %s check: does another replica on this"
                " host have the same port?",
                self._check.kind,
            )


class StatusReporter:
    """Reports the daemon's readiness in the log, to probes and in ZooKeeper; a source of the loop."""

    interest = None

    def __init__(self, report: Report, command: str, started: float) -> None:
        """`command` is the daemon's path in its definition, `started` the instant of its start."""
        self.report, self.command = report, command
        self._started: float | None = started  # None: it has been ready since then, or is being stopped
        self._unready_since = now()
        self._log_at, self._write_at = self._unready_since + UNREADY_LONG, math.inf
        self._shown: tuple[Stage, str, str] = ("waiting", "", "")
        self._was_ready = self._complained = False

    @property
    def deadline(self) -> float:
        """When the next log line or another attempt to write the state is due."""
        return min(self._log_at, self._write_at)

    def show(self, stage: Stage, text: str, code: str = "", *, stopped: bool = False) -> None:
        """Report a change. `text` is why the daemon is not ready, `stopped`: it was asked to stop.

        `unready` is shown as `starting` if it was never ready. `starting` here: it can't be registered.
        """
        before = self._shown[0]
        if stage != "unready" or stopped:
            self._started = None
        if stage in ("ready", "draining") and before != stage:
            about = "ready" if stage == "ready" else "no longer ready: it is about to be stopped"
            log.info("the daemon is %s", about)
        elif stage == "unready" and before == "ready":
            log.log("info" if stopped else "warning", "the daemon is no longer ready: %s", text)
            self._unready_since = now()
            self._log_at = self._unready_since + UNREADY_LONG
        self._was_ready = self._was_ready or stage == "ready"
        if stage != "unready":
            self._log_at = math.inf
        elif not self._was_ready:
            stage = "starting"
        if (stage, text, code) != self._shown:
            self._shown = stage, text, code
            self._write()

    def restart(self, started: float) -> None:
        """Report a new daemon, which was started at that instant."""
        self._started = started
        self._write()

    def end(self) -> None:
        """Report that the daemon has ended."""
        self._shown, self._log_at = ("ended", "the daemon has ended", ""), math.inf
        self._was_ready, self._started = False, None
        self._write()

    def run(self, ready: bool) -> None:
        """Log that the daemon is not ready yet; write the state again after a failure."""
        if now() >= self._write_at:
            self._write()
        if now() >= self._log_at:
            self._log_at = now() + PROGRESS_INTERVAL
            why = self._shown[1] or "its first check has not ended"
            log.info("the daemon is not ready for %.0f s: %s", now() - self._unready_since, why)

    def _write(self) -> None:
        self._write_at = math.inf
        stage, text, code = self._shown
        try:
            self.report.write(stage, text, self.command, code, started=self._started)
        except CannotWrite as error:
            # For example, a full disk. Try again.
            self._write_at = now() + WRITE_AGAIN
            if not self._complained:
                log.warning("%s", error.reason)
            self._complained = True


def _is_own(address: str) -> bool:
    """Whether this host has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)  # A name would be resolved, which takes time.
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _warn_of_fault(error: AgentError) -> None:
    if isinstance(error, TooLarge):
        log.warning("%s; retrying", error.reason)


def _ending(command: str, reason: str, status: int | None, logs: str | None, *, retriable: bool) -> bytes:
    """The record (`tree.status.FailureRecord`) of a daemon that was never ready."""
    texts = (b"true" if retriable else b"false", b"null" if status is None else b"%d" % status)
    return with_texts(
        b'{"retriable": %s, "status": %s}' % texts,
        stage="daemon",
        code=NEVER_READY if retriable else None,
        command=command,
        reason=reason,
        when=utc(time.time()),
        **({"logs": logs} if logs else {}),
    )


def _probe(handoff: Handoff) -> Probe | None:
    """What makes a check over the network, or with a command; None if readiness takes none."""
    kind, value = handoff.check[:2]
    if kind == "tcp":
        return lambda: tcp(handoff.addresses, value)
    if kind == "http":
        return lambda: http(value)
    if kind == "command":
        program = Ready(*handoff.check).program
        return CommandCheck(value, dict(handoff.check_env), handoff.check_ids, program)
    return None
