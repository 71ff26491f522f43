"""Run a command to its end: once, under its lease, where it says so; else as it is.

The guard spawns and kills; `record` writes; `lease` says until when. What comes together here is
one attempt after another, and what cuts an attempt short: its timeout, a signal, a lost lock.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import Callable, NamedTuple

from retrying import RetryError, Retrying

from kolla_mesos_start.commands.guard_client import Ended, Guard
from kolla_mesos_start.commands.lease import Lease
from kolla_mesos_start.definition.model import Command
from kolla_mesos_start.errors import CommandFailed, Stopped, Unkillable
from kolla_mesos_start.loop import now
from kolla_mesos_start.render.prepare import Prepared
from kolla_mesos_start.tree.attempts import Lost, Outcome, Records
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY
from kolla_mesos_start.wait import Runnable
from kolla_mesos_start.zookeeper.client import Ensemble
from kolla_mesos_start.zookeeper.query import data_of
from kolla_mesos_start.zookeeper.watches import Watches

log = logging.getLogger(__name__)

# What a one-time command is told by its environment.
TOKEN = "KOLLA_FENCING_TOKEN"
PREVIOUS = "KOLLA_PREVIOUS_ATTEMPT"


class Renewals:
    """Proves the session to the leader every T/6, one `sync` at a time, for as long as the agent lives.

    They go on while the agent only waits: a holder must be able to look back on them the moment
    it gets its lock. They cost no disk write, and spare the pings.
    """

    def __init__(self, ensemble: Ensemble, path: str, *, wanted: bool) -> None:
        """`wanted` is false where there is no one-time command: then nothing is ever sent."""
        self.lease = Lease(ensemble.timeout)
        self.renewed: Callable[[], None] = lambda: None
        self._ensemble = ensemble
        self._loop = ensemble.loop
        self._path = path
        self._outstanding_since: float | None = None
        ensemble.on_connected(self._connected)
        self._connected()
        if wanted:
            self._tick()

    def await_deadline(self) -> float:
        """A deadline that leaves an attempt a fair start; waits for a renewal where there is none."""
        self._loop.wait(lambda: self.lease.deadline > now() + self.lease.renewal_interval)
        return self.lease.deadline

    def _tick(self) -> None:
        self._loop.call_at(now() + self.lease.renewal_interval, self._tick)
        if not self._ensemble.connected:
            return
        if self._outstanding_since is not None:
            # A server may forget a sync in an election, and go on answering pings.
            if now() - self._outstanding_since > self.lease.timeout / 2:
                self._ensemble.drop_connection()
            return
        sent, session = now(), self._ensemble.session
        self._outstanding_since = sent
        reply = self._ensemble.client.sync_async(self._path)
        reply.rawlink(lambda result: self._loop.post(lambda: self._answered(result, sent, session)))

    def _answered(self, reply: object, sent: float, session: int) -> None:
        self._outstanding_since = None
        if reply.successful() and session == self._ensemble.session:  # type: ignore[attr-defined]
            self.lease.acknowledged(sent)
            self.renewed()

    def _connected(self) -> None:
        # At each connection the leader opens or finds the session: younger than all that was
        # proved before it, and all that counts where the session is a new one.
        self.lease = Lease(self._ensemble.timeout)
        self.lease.proven(self._ensemble.proven_at)
        self.renewed()


class Hold(NamedTuple):
    """A lock that is ours: for as long as `contender` is there, which is as long as its session."""

    contender: str
    session: int


class Bootstrap:
    """Runs the commands of one container, one at a time."""

    def __init__(
        self,
        ensemble: Ensemble,
        watches: Watches,
        records: Records,
        renewals: Renewals,
        environ: Mapping[str, str],
    ) -> None:
        """`environ` is what every command finds in its environment."""
        self._ensemble = ensemble
        self._watches = watches
        self._loop = ensemble.loop
        self._guard: Guard | None = None
        self._records = records
        self._renewals = renewals
        # A launcher may itself be a one-time command, and hand its own on.
        self._environ = {name: value for name, value in environ.items() if name not in (TOKEN, PREVIOUS)}
        self._claimed = False
        self._running = False
        self._stopped_by: Stopped | None = None

    @property
    def guard(self) -> Guard:
        """What spawns and kills. Asked for early it is up by the time the first command is."""
        if self._guard is None:
            self._guard = Guard(self._loop)
        return self._guard

    def close(self) -> None:
        """End the guard, and with it whatever command still runs."""
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def on_stop(self, signum: int) -> None:
        """A stop signal: it ends the agent at once, or goes to the command that runs.

        The end of that command is awaited, and the outcome of a one-time command written: a
        success that is not written would be run again.
        """
        stopped = Stopped(signum, signal.Signals(signum).name)
        if not self._claimed and not self._running:
            raise stopped
        self._stopped_by = stopped
        if self._running:
            log.info("%s: passed to the running command", signal.Signals(signum).name)
            self.guard.signal(signum)

    def run(self, prepared: Prepared, turn: Runnable) -> bool:
        """Run the command until it succeeds, unless it is done; False where it has to be judged anew.

        Raises CommandFailed after the last attempt, Stopped where a signal came meanwhile.
        """
        command = prepared.step.command
        if turn.already_done:
            log.info("%s: already done", command.path)
            self._records.pass_through(command)
            return True
        number = 0

        def attempt() -> Outcome:
            nonlocal number
            number += 1
            last = number > command.retries
            if turn.contender is None:
                return self._attempt_plain(prepared, number, last)
            return self._attempt_once(prepared, turn.contender, last)

        try:
            self._repeatedly(attempt, command)
        except Lost as lost:
            if self._stopped_by is not None:
                raise self._stopped_by from lost
            log.warning("%s; judging it anew", lost)
            return False
        except RetryError as exhausted:
            outcome = exhausted.last_attempt.value
            times = f" ({number} attempts)" if number > 1 else ""
            raise CommandFailed(outcome.message + times, command=command.path) from exhausted
        return True

    def _repeatedly(self, attempt: Callable[[], Outcome], command: Command) -> None:
        def pause(number: int, elapsed: int) -> int:
            log.warning("%s: next attempt in %g s", command.path, command.delay)
            self._loop.sleep(command.delay)
            return 0  # The loop has done the waiting: signals and renewals went on meanwhile.

        Retrying(
            stop_max_attempt_number=command.retries + 1,
            wait_func=pause,
            retry_on_result=lambda outcome: outcome.state != DONE,
            retry_on_exception=lambda error: False,
        ).call(attempt)

    def _attempt_plain(self, prepared: Prepared, number: int, last: bool) -> Outcome:
        command = prepared.step.command
        begun = time.time()
        self._records.begin(command)
        outcome = self._execute(prepared, {}, None, last)
        if self._stopped_by is None or self._ensemble.connected:
            self._records.end(command, begun, number, outcome)
        return self._honour_stop(outcome)

    def _attempt_once(self, prepared: Prepared, contender: str, last: bool) -> Outcome:
        command = prepared.step.command
        hold = Hold(contender, self._ensemble.session)
        self._renewals.await_deadline()
        claim = self._records.claim(command, contender)
        self._claimed = True
        environ = {TOKEN: str(claim.token)}
        if claim.previous_unfinished:
            log.warning("%s: the attempt before left no outcome", command.path)
            environ[PREVIOUS] = "unfinished"
        try:
            outcome = self._execute(prepared, environ, hold, last)
            self._records.conclude(command, claim, contender, outcome)
        finally:
            self._claimed = False
        return self._honour_stop(outcome)

    def _honour_stop(self, outcome: Outcome) -> Outcome:
        if self._stopped_by is not None:
            raise self._stopped_by
        return outcome

    # -- one process group ------------------------------------------------------------------------

    def _execute(
        self, prepared: Prepared, extra: Mapping[str, str], hold: Hold | None, last: bool
    ) -> Outcome:
        """Start the command, await its end and that of all its descendants, and say how it ended."""
        command = prepared.step.command
        if self._stopped_by is not None:
            return Outcome(ERROR, None, f"{self._stopped_by.reason} before it started")
        environ = {**prepared.environ(self._environ), **extra}
        deadline = None if hold is None else self._renewals.lease.deadline
        if hold is not None and self._is_lost(hold):
            raise Lost(f"{command.path}: the lock was lost before it started")
        if self.guard.gone:
            self.close()  # It was killed under an attempt before; this one gets another.
        log.info("%s: starting", command.path)
        begun = now()
        self._running = True
        try:
            self.guard.spawn(
                prepared.step.argv, environ, prepared.ids, deadline, command.stop_grace, name=command.path
            )
            timed_out = self._await_end(command, hold)
        finally:
            self._running = False
            self._renewals.renewed = lambda: None
        ended = self.guard.ended
        assert ended is not None
        if hold is not None and ended.reason == "lost":
            # It may have come to its end before its guard did: nobody knows, and the next attempt is told so.
            raise Lost(f"{command.path}: killed, for its guard was")
        outcome = _judge(command, ended, timed_out, self._stopped_by, last)
        log.log(
            logging.INFO if outcome.state == DONE else logging.WARNING,
            "%s: %s after %.1f s",
            command.path,
            outcome.message,
            now() - begun,
        )
        return outcome

    def _is_lost(self, hold: Hold) -> bool:
        gone = self._watches.results.get(data_of(hold.contender), hold.contender) is None
        return gone or self._ensemble.session != hold.session

    def _await_end(self, command: Command, hold: Hold | None) -> bool:
        """Wait until nothing of the command is left; True where it had to be ended for its timeout."""

        def lock_is_lost() -> bool:
            return hold is not None and self._is_lost(hold)

        def renewed() -> None:
            if not lock_is_lost():  # What a new session proves is of no use to this command.
                self.guard.extend(self._renewals.lease.deadline)

        if hold is not None:
            self._watches.watch([data_of(hold.contender)])
            self._renewals.renewed = renewed

        limit = None if command.timeout is None else now() + command.timeout
        self._loop.wait(lambda: self.guard.ended or lock_is_lost(), limit)
        timed_out = not self.guard.ended and not lock_is_lost()
        if timed_out:
            log.warning("%s: has run for its timeout of %g s: ending it", command.path, command.timeout)
            self.guard.end(command.stop_grace)
            self._loop.wait(lambda: self.guard.ended or lock_is_lost())
        lost = not self.guard.ended
        if lost:
            log.warning("%s: the lock is lost: killing the command", command.path)
            self.guard.end(0)
        ended = self._loop.wait(lambda: self.guard.ended)
        if ended and ended.unkillable:
            raise Unkillable(
                "a process of it can't be killed: the container has to end", command=command.path
            )
        if lost:
            raise Lost(f"{command.path}: killed, for its lock was lost")
        return timed_out


def _judge(
    command: Command, ended: Ended, timed_out: bool, stopped_by: Stopped | None, last: bool
) -> Outcome:
    """What the end of an attempt makes of the command."""
    if ended.reason == "deadline":
        raise Lost(f"{command.path}: killed, for its lease could not be renewed in time")
    failed = ERROR if last or stopped_by is not None else RETRY
    if ended.reason == "lost":
        return Outcome(failed, ended.status, "killed, for its guard was")
    if timed_out:
        return Outcome(failed, ended.status, f"timed out after {command.timeout:g} s")
    if ended.errno is not None:
        return Outcome(failed, None, f"could not be started: {os.strerror(ended.errno)}")
    if ended.signum is not None:
        return Outcome(failed, ended.status, f"killed by {signal.Signals(ended.signum).name}")
    if ended.status != 0:
        return Outcome(failed, ended.status, f"exit status {ended.status}")
    return Outcome(DONE, 0, "done")
