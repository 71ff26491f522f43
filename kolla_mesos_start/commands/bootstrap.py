"""Runs a command until it ends; a one-time command under its lock and lease.

`guard` starts and kills processes, `tree.attempts` writes the outcome, `lease` says how long the lock is
ours. Here are the attempts, and what ends one early: its timeout, a signal, or a lost lock.
"""

from __future__ import annotations

import contextlib
import os
import time

from kolla_mesos_start.commands.guard_client import Guard
from kolla_mesos_start.commands.lease import Lease
from kolla_mesos_start.errors import CommandFailed, Stopped, Unkillable
from kolla_mesos_start.health import O_CAREFUL, clear
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import signal_name
from kolla_mesos_start.tree.attempts import Attempts, Lost, Outcome
from kolla_mesos_start.tree.published import Changed
from kolla_mesos_start.tree.states import DONE, ERROR, NO_TIMEOUT, RETRY
from kolla_mesos_start.zookeeper.view import data_of
from kolla_mesos_start.zookeeper.wire import CheckVersion, Transaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable

    from kolla_mesos_start.commands.guard_client import Ended
    from kolla_mesos_start.definition.model import Command, ResolvedCommand
    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.render.prepare import Prepared
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.wait.judge import Runnable
    from kolla_mesos_start.zookeeper.client import Client


log = Logger(__name__)

NEVER = float("inf")
MAX_OUTPUT = 4096  # bytes of an output that are read, from its end
NOT_FOUND = 127  # a shell's status if it did not find a program

# Variables in the environment of a one-time command.
TOKEN = "KOLLA_FENCING_TOKEN"
PREVIOUS = "KOLLA_PREVIOUS_ATTEMPT"


class HeldLock:
    """A lock that we hold, as a source of the loop: renews its lease while an attempt runs.

    `lost`: the contender or its session is gone. `on_renewed` is called when the lease has changed.
    """

    interest = None

    def __init__(self, client: Client, contender: str, claimed: float) -> None:
        self.contender = contender
        self.lease = Lease(client.session.timeout, claimed)
        self.on_renewed: Callable[[], object] = lambda: None
        self._client = client
        self._session = client.session.id
        self._outstanding = self._gone = False

    @property
    def lost(self) -> bool:
        watched = self._client.watches.results.get(data_of(self.contender), self.contender)
        return self._gone or watched is None or self._client.session.id != self._session

    @property
    def deadline(self) -> float:
        """When the next renewal is due."""
        return self.lease.renew_at if self._client.connected and not self._outstanding else float("inf")

    def run(self, ready: bool) -> None:
        """Renew: a transaction with one check proves that session and lock are still ours."""
        if self._client.session.timeout < self.lease.timeout:
            # Another server has granted less, and may end the session sooner.
            self.lease.timeout = self._client.session.timeout
            self.on_renewed()
        if now() < self.deadline:
            return
        self._outstanding = True
        sent = now()
        check = Transaction([CheckVersion(self.contender, -1)])
        self._client.session.request(check, lambda results, error: self._answered(sent, results, error))

    def _answered(self, sent: float, results: Any, error: Exception | None) -> None:
        self._outstanding = False
        if error is not None:
            return  # After an outage, another renewal is sent.
        self._gone = self._gone or any(isinstance(result, Exception) for result in results)
        if not self.lost:
            self.lease.acknowledged(sent)
            self.on_renewed()


class Bootstrap:
    """Runs the commands of one container, one at a time, under its guard."""

    def __init__(self, tree: StatusTree) -> None:
        self._client, self._loop = tree.client, tree.client.loop
        self.guard = Guard(self._loop, tree.znodes.service_name)
        self._attempts = Attempts(tree)
        self._claimed = False
        self._running = False
        self._stopped_by: Stopped | None = None

    def on_stop(self, signum: int) -> None:
        """Handle a stop signal: end the agent at once, or pass the signal to the running command.

        Then the end of the command is awaited, and the outcome of a one-time command written: otherwise a
        successful command would run again.
        """
        stopped = Stopped(signum, signal_name(signum))
        if not self._claimed and not self._running:
            raise stopped
        self._stopped_by = stopped
        if self._running:
            log.info("%s: passed to the running command", signal_name(signum))
            self.guard.signal(signum)

    def run(self, prepared: Prepared, turn: Runnable) -> bool:
        """Run the command until it succeeds, unless it is done; false if it must wait for its lock again.

        Raises CommandFailed after the last attempt, Stopped after a signal, Changed if the definition has
        changed.
        """
        command = prepared.step.command
        if turn.already_done:
            log.info("%s: already done", command.path)
            self._attempts.pass_through(command)
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
            outcome = attempt()
            if outcome.state != DONE and command.retries:
                outcome = self._retry(attempt, command)
        except (Lost, Changed) as lost:
            if self._stopped_by is not None:
                raise self._stopped_by from lost
            if isinstance(lost, Changed):
                raise
            log.warning("%s; waiting for its turn again", lost)
            return False
        if outcome.state != DONE:
            times = f" ({number} attempts)" if number > 1 else ""
            failed = CommandFailed(outcome.message + times, command=command.path)
            raise failed.for_now() if outcome.passes else failed
        return True

    def run_for_output(self, prepared: Prepared, path: str) -> tuple[str, bytes]:
        """Run a plain command once: why it failed, or empty text; and the end of its standard output.

        `path`: a new file for the output, which is deleted.
        """
        clear(path)
        try:
            outcome = self._attempt_plain(prepared, 1, False, path)
            if outcome.state != DONE:
                return outcome.message, b""
            with open(os.open(path, os.O_RDONLY | O_CAREFUL), "rb") as file:
                file.seek(-min(MAX_OUTPUT, os.fstat(file.fileno()).st_size), os.SEEK_END)
                return "", file.read()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _retry(self, attempt: Callable[[], Outcome], command: Command) -> Outcome:
        """The outcome of the last of the further attempts."""
        from retrying import Retrying  # Most commands succeed at once.

        def pause(number: int, elapsed: int) -> int:
            log.warning("%s: next attempt in %g s", command.path, command.delay)
            self._loop.sleep(command.delay)
            return 0  # The loop has waited, and handled signals and pings.

        pause(0, 0)
        outcome: Outcome = Retrying(
            stop_max_attempt_number=command.retries,
            wait_func=pause,
            retry_on_result=lambda outcome: outcome.state == RETRY,
            retry_on_exception=lambda error: False,
        ).call(attempt)
        return outcome

    def _attempt_plain(
        self, prepared: Prepared, number: int, last: bool, output: str | None = None
    ) -> Outcome:
        command = prepared.step.command
        begun = time.time()
        self._attempts.begin(command)
        outcome = self._execute(prepared, {}, None, last, output)
        if self._stopped_by is None or self._client.connected:
            self._attempts.end(command, begun, number, outcome)
        return self._unless_stopped(outcome)

    def _attempt_once(self, prepared: Prepared, contender: str, last: bool) -> Outcome:
        command = prepared.step.command
        claim = self._attempts.claim(command, contender)
        hold = HeldLock(self._client, contender, claim.sent)
        self._claimed = True
        environ = {TOKEN: str(claim.token)}
        if claim.previous_unfinished:
            log.warning("%s: the previous attempt recorded no outcome", command.path)
            environ[PREVIOUS] = "unfinished"
        try:
            self._loop.add(hold)
            outcome = self._execute(prepared, environ, hold, last)
            self._attempts.conclude(command, claim, contender, outcome)
            if outcome.state == DONE:
                self._attempts.forget_oldest(command)
        finally:
            self._loop.remove(hold)
            self._claimed = False
        return self._unless_stopped(outcome)

    def _unless_stopped(self, outcome: Outcome) -> Outcome:
        if self._stopped_by is not None:
            raise self._stopped_by
        return outcome

    def _execute(
        self,
        prepared: Prepared,
        extra: Mapping[str, str],
        hold: HeldLock | None,
        last: bool,
        output: str | None = None,
    ) -> Outcome:
        """Start the command, wait until all its processes have ended, and return how it ended."""
        command = prepared.step.command
        if self._stopped_by is not None:
            return Outcome(ERROR, None, f"{self._stopped_by.reason} before it started")
        # A launcher may itself be a one-time command, and pass its own variables on.
        inherited = {name: value for name, value in prepared.environ.items() if name not in (TOKEN, PREVIOUS)}
        environ = {**inherited, **dict(command.env), **extra}
        if hold is not None and hold.lost:
            raise Lost(f"{command.path}: the lock was lost before it started")
        deadline = None if hold is None else hold.lease.kill_at
        begun = now()
        self._running = True
        try:
            self.guard.spawn(
                prepared.step.argv,
                environ,
                prepared.ids,
                deadline,
                command.stop_grace,
                name=command.path,
                output=output,
            )
            log.info("%s: starting", command.path)
            ended, timed_out = self._await_end(command, hold)
        finally:
            self._running = False
        if hold is not None and ended.reason == "lost":
            # The command may have succeeded before its guard died: its outcome is unknown.
            raise Lost(f"{command.path}: {ended.failure}")
        outcome = _judge(prepared.step, ended, timed_out, environ.get("PATH"))
        if outcome.state == ERROR and not last and self._stopped_by is None:
            outcome = outcome._replace(state=RETRY)
        level = "info" if outcome.state == DONE and not outcome.status else "warning"
        log.log(level, "%s: %s after %.1f s", command.path, outcome.message, now() - begun)
        return outcome

    def _await_end(self, command: Command, hold: HeldLock | None) -> tuple[Ended, bool]:
        """Wait until all processes of the command have ended; also returns if it exceeded its timeout."""
        guard = self.guard

        def is_over() -> bool:
            return guard.ended is not None or (hold is not None and hold.lost)

        if hold is not None:
            lease = hold.lease
            self._client.watches.watch([data_of(hold.contender)])
            hold.on_renewed = lambda: guard.extend(lease.kill_at)

        limit = NEVER if command.timeout is None else now() + command.timeout
        wait_long(self._loop, command, is_over, limit)
        timed_out = not is_over()
        if timed_out:
            guard.end(command.stop_grace)
            log.warning("%s: still running at its limit of %g s: ending it", command.path, command.timeout)
            self._loop.wait(is_over)
        lost = not guard.ended
        if lost:
            guard.end(0)
            log.warning("%s: the lock is lost: killing the command", command.path)
        ended = self._loop.wait(lambda: guard.ended)
        assert ended is not None
        if ended.unkillable:
            raise Unkillable(
                "one of its processes can't be killed: the container has to end", command=command.path
            )
        if lost:
            raise Lost(f"{command.path}: killed: the lock was lost")
        return ended, timed_out


def wait_long(loop: Loop, command: Command, condition: Callable[[], object], limit: float) -> None:
    """Wait for a command as `Loop.wait` does, and log every half minute how long it has been running."""
    begun = now()
    due = begun + PROGRESS_INTERVAL
    more = f"; {NO_TIMEOUT}" if command.timeout is None else f" (timeout {command.timeout:g} s)"
    while not loop.wait(condition, min(limit, due)) and due < limit:
        log.info("%s: has been running for %.0f s%s", command.path, now() - begun, more)
        due = now() + PROGRESS_INTERVAL


def _judge(step: ResolvedCommand, ended: Ended, timed_out: bool, path: str | None) -> Outcome:
    """The outcome of an attempt; `path` is the PATH that was searched for its program."""
    command, status = step.command, ended.status
    if ended.reason == "deadline":
        raise Lost(f"{command.path}: killed: its lease could not be renewed in time")
    if timed_out and ended.reason != "lost":
        return Outcome(ERROR, status, f"timed out (limit {command.timeout:g} s)")
    if ended.errno is not None and ended.at == "program":
        from kolla_mesos_start.files.permissions import execution

        why = execution(ended.errno, step.program, step.argv[0], path)
        return Outcome(ERROR, None, why, ended.passes)
    if ended.errno is not None:
        return Outcome(ERROR, None, ended.failure, ended.passes)
    if ended.code in command.succeeds:
        return Outcome(DONE, status, f"done (exit status {status})" if status else "done")
    if step.shell and status == NOT_FOUND:
        return Outcome(ERROR, status, f"{ended.failure}: its shell did not find a program")
    return Outcome(ERROR, status, ended.failure or "exit status 0, which is not in its succeeds")
