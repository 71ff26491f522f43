"""Decides when a daemon is ready, from notifications, checks and the daemon's age.

Also the check that runs a command; checks over the network are in `probes`.
"""

from __future__ import annotations

import contextlib
import math
import os

from kolla_mesos_start.errors import cause
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import STILL_RUNS, Child, is_stopped, spawn_error
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.report import CHECK
from kolla_mesos_start.zookeeper.connect import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kolla_mesos_start.definition.ready import Ready
    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.connect import Steps

    Probe = Callable[[], Steps[str]]

ALIVE = 20.0  # seconds after which a daemon that never notifies counts as ready
MIN_INTERVAL = 0.05  # seconds between checks, at least
MAX_INTERVAL_UNREADY = 1.0  # seconds between checks of a daemon that is not ready, at most
# While a daemon is not ready: the first interval, and its growth as a share of the daemon's age. Commands run
# less often: each check starts a process.
GROWTH, GROWTH_COMMAND = (0.02, 0.25), (0.1, 0.5)
INTERVAL_UNCONFIRMED = 0.25  # seconds between checks until a daemon has passed one after a refresh

# -- rules ------------------------------------------------------------------------------------------


class Notified(NamedTuple):
    """The daemon's sd_notify messages so far. `speaks`: it has sent one about its start."""

    speaks: bool = False
    ready: bool = False
    stopping: bool = False
    reloading: bool = False


# RELOADING=1 does not change readiness: a service still serves while it reloads, then sends READY=1.
MEANINGS: dict[bytes, dict[str, bool]] = {
    b"READY=1": {"speaks": True, "ready": True, "stopping": False, "reloading": False},
    b"STOPPING=1": {"speaks": True, "ready": False, "stopping": True},
    b"RELOADING=1": {"speaks": True, "reloading": True},
}
# A daemon that sends these will send READY=1 later. MariaDB does so during a long recovery.
SPEAKING = (b"STATUS=", b"EXTEND_TIMEOUT_USEC=")


def notified_by(before: Notified, datagram: bytes) -> Notified:
    """The notifications with one more datagram. Unknown lines are ignored."""
    for line in datagram.split(b"\n"):
        meaning = {"speaks": True} if line.startswith(SPEAKING) else MEANINGS.get(line, {})
        before = before._replace(**meaning)
    return before


def is_ready(check: Ready, notified: Notified, passes: bool, age: float, before: bool) -> bool:
    """Whether the daemon is ready now; `age` is in seconds, `before`: whether it was ready until now.

    `passes`: a check has passed, and not `fall` in a row have failed since.
    """
    if notified.stopping:
        return False
    if check.kind == "notify":
        return notified.ready
    if check.kind == "alive":
        return age >= _age(check)
    if check.kind == "default":
        # A daemon that became ready by its age stays ready after its first notification.
        return notified.ready or ((before or not notified.speaks) and age >= _age(check))
    return passes


def pause(check: Ready, ready: bool, age: float) -> float:
    """Seconds until the next check of a daemon of this `age`.

    Others wait for a daemon that is not ready, so it is checked often at first. The interval grows with its
    age: the delay stays small compared with the start, and a daemon that never becomes ready costs little.
    """
    if ready:
        return max(check.interval, MIN_INTERVAL)
    first, share = GROWTH_COMMAND if check.kind == "command" else GROWTH
    return min(max(first, share * age), max(min(check.interval, MAX_INTERVAL_UNREADY), MIN_INTERVAL))


def _age(check: Ready) -> float:
    assert not isinstance(check.value, tuple)
    return ALIVE if check.value is None else float(check.value)


# -- a check returns why it failed, or an empty text ------------------------------------------------


class CommandCheck:
    """Checks that a command ends with status 0. When the check ends, its whole process group is killed."""

    def __init__(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        ids: tuple[int, int, Sequence[int]] | None,
        program: str | None = None,
    ) -> None:
        """`ids`: the uid, the gid and the supplementary groups to run as; `program`: see Ready."""
        self._argv, self._env, self._ids, self._program = argv, env, ids, program
        self.child: Child | None = None

    def __call__(self) -> Steps[str]:
        if self.child and self.child.wait(os.WNOHANG) is None:
            return f"the command of the previous check still runs: {STILL_RUNS}"
        child = self.child = Child(self._argv, self._env, self._ids, output=os.devnull)
        failure = child.failure()
        if failure:
            child.wait()
            number, at = failure
            if at != "program":
                raise OSError(number, spawn_error(number, at))
            from kolla_mesos_start.files.permissions import execution

            return execution(number, self._program, self._argv[0], self._env.get("PATH"))
        return (yield from child.run())


def _name(check: Ready) -> str:
    """The name of the check in messages. Only the port of a URL: the rest may contain a secret."""
    if check.kind == "tcp":
        return f"check tcp port {check.value}: "
    if check.kind == "http":
        from urllib.parse import urlsplit

        with contextlib.suppress(ValueError):  # Not a URL; the check itself reports that.
            parts = urlsplit(str(check.value))
            return f"check http port {parts.port or (443 if parts.scheme == 'https' else 80)}: "
    return f"check {check.kind}: "


# -- rules and checks together ----------------------------------------------------------------------


class Readiness:
    """Whether the daemon is ready; a source of the loop.

    `start` is when the process `daemon` was started (`loop.now`). `announced_stop`: it has sent STOPPING=1.
    """

    def __init__(self, check: Ready, probe: Probe | None, start: float, daemon: int = 0) -> None:
        self.ready = self._would_be = self._is_stopped = False
        self._daemon = daemon
        self._failure = ""
        self._check, self._probe, self._start = check, probe, start
        self._name = _name(check)  # Now: later no descriptor may be free for its import.
        self._notified = Notified()
        self._passes, self._failures = False, 0  # in a row
        self._stopped = False  # by `stop`, not on its own
        self.announced_stop = False  # on its own
        self._task: Task | None = None
        self._next = start
        self._age_reached = False
        self._begun = self._passed = self._after = -math.inf  # the last check, one that passed, `confirm`

    @property
    def confirmed(self) -> bool:
        """Whether the daemon is ready, and has passed a check since the instant of `confirm`."""
        if self._probe:
            return self.ready and self._passed >= self._after
        return self.ready and now() >= self._after and not self._notified.reloading

    def confirm(self, after: float) -> None:
        """Begin a check after that instant, and soon."""
        self._after = max(self._after, after)
        self._next = max(now(), after)

    @property
    def interest(self) -> Interest:
        """The descriptor and the poll() events on which `run` must run."""
        return self._task.interest if self._task else None

    @property
    def deadline(self) -> float:
        """When `run` must run at the latest."""
        if self._probe:
            return self._task.deadline if self._task else self._next
        # After that age only a notification matters; a deadline in the past would make the loop spin.
        if self.ready or self._check.kind == "notify" or self._age_reached:
            return math.inf
        return self._start + _age(self._check)

    @property
    def stopped(self) -> bool:
        """Whether it is not ready because of `stop`."""
        return self._stopped and self._notified.stopping

    @property
    def reason(self) -> str:
        """Why the daemon is not ready; empty while it is ready."""
        if self.ready:
            return ""
        if self._is_stopped:
            return "the daemon is stopped (SIGSTOP, or a terminal that it does not have): send it SIGCONT"
        if self._notified.stopping:
            return "it is being stopped" if self.stopped else "the daemon has announced that it is stopping"
        age = "" if self._probe else f"the daemon has run for less than {_age(self._check):g} s"
        return self._failing or age

    @property
    def code(self) -> str:
        """`report.CHECK` if `reason` is that its check fails."""
        return CHECK if self._failing and not (self._would_be or self._notified.stopping) else ""

    @property
    def _failing(self) -> str:
        if not self._probe and (
            self._check.kind == "notify" or (self._check.kind == "default" and self._notified.speaks)
        ):
            return "check notify: the daemon has not sent READY=1"
        return self._failure

    def notify(self, datagram: bytes) -> None:
        """Process what the daemon has sent to its notify socket."""
        self._notified = notified_by(self._notified, datagram)
        lines = datagram.split(b"\n")
        if {b"READY=1", b"STOPPING=1"}.intersection(lines):
            self.announced_stop = b"STOPPING=1" in lines

    def stop(self) -> None:
        """Mark the daemon as not ready, because it will be stopped, until it sends READY=1 again."""
        self._notified = notified_by(self._notified, b"STOPPING=1")
        self.ready, self._would_be, self._stopped = False, False, True

    def close(self) -> None:
        """End a running check: its command must not outlive the daemon."""
        if self._task:
            self._task.close()

    def run(self, ready: bool) -> None:
        """Continue the check, or start the next; `ready`: the descriptor of `interest` is ready."""
        age = now() - self._start
        if self._probe:
            self._check_on(self._probe, ready)
        else:
            self._age_reached = age >= _age(self._check)
        self._would_be = is_ready(self._check, self._notified, self._passes, age, self._would_be)
        self._is_stopped = self._would_be and self._daemon > 0 and is_stopped(self._daemon)
        self.ready = self._would_be and not self._is_stopped

    def _check_on(self, probe: Probe, ready: bool) -> None:
        if self._task is None:
            if now() < self._next:
                return
            self._begun = now()
            self._task, ready = Task(probe(), self._begun + self._check.timeout), True
        self._task.run(ready)
        if self._task.ended:
            error = self._task.error
            if isinstance(error, TimeoutError):
                why = f"no answer within {self._check.timeout:g} s"
            else:
                why = cause(error) if error else self._task.result
            self._task = None
            self._conclude(why and f"{self._name}{why}")

    def _conclude(self, failure: str) -> None:
        """Count a check that has ended, and schedule the next one."""
        self._failure = failure
        if failure:
            self._failures += 1
            self._passes = self._passes and self._failures < self._check.fall
        else:
            self._passes, self._failures, self._passed = True, 0, self._begun
        rest = pause(self._check, self._passes, now() - self._start)
        if self._passed < self._after:
            rest = max(min(rest, INTERVAL_UNCONFIRMED), self._after - now())
        self._next = now() + rest
