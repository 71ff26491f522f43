"""When a daemon counts as ready.

What lives here: what is concluded from notifications, checks and the daemon's age (pure), and the
checks themselves, as steps for a loop of one thread. Who is told of it is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from kolla_mesos_start.zookeeper.connect import (
    Steps,
    Task,
    Wait,
    agree_on_tls,
    connect_any,
    resolve,
    would_block,
)

ALIVE = 20.0  # seconds after which a daemon that never notifies counts as ready
LEAST, EAGER = 0.05, 1.0  # seconds between checks: at least; and at most while it is not ready
# Then they grow from these seconds, as these parts of its age. A command costs a process each time.
SOON, SHARE = 0.02, 0.25
SOON_BY_COMMAND, SHARE_BY_COMMAND = 0.1, 0.5
STATUS_LINE, LARGEST_ANSWER = 1024, 1 << 16  # bytes

# -- conclusions ------------------------------------------------------------------------------------


class Check(NamedTuple):
    """How readiness is found: `kind` is default, notify, alive, tcp, http or command.

    `value`: the seconds of alive, the port of tcp, the URL of http, the argv of a command.
    `interval` and `timeout` are seconds; after `fall` failures in a row it is ready no more.
    """

    kind: str
    value: Any
    interval: float
    timeout: float
    fall: int


class Health(NamedTuple):
    """What the checks have shown so far: one success makes ready, `fall` failures in a row unmake it."""

    ready: bool = False
    failures: int = 0

    def after(self, passed: bool, fall: int) -> Health:
        """The same after one more check."""
        if passed:
            return Health(True, 0)
        failures = self.failures + 1
        return Health(self.ready and failures < fall, failures)


class Notified(NamedTuple):
    """What the daemon has said about itself (sd_notify); `speaks`: anything at all about its start."""

    speaks: bool = False
    ready: bool = False
    stopping: bool = False


# RELOADING=1 changes nothing: a service that reloads still serves, and READY=1 follows.
MEANINGS: dict[bytes, dict[str, bool]] = {
    b"READY=1": {"speaks": True, "ready": True, "stopping": False},
    b"STOPPING=1": {"speaks": True, "ready": False, "stopping": True},
    b"RELOADING=1": {"speaks": True},
}
# Signs that READY=1 will follow: MariaDB, for one, sends them through a long recovery.
SPEAKING = (b"STATUS=", b"EXTEND_TIMEOUT_USEC=")


def heard(before: Notified, datagram: bytes) -> Notified:
    """What is known after one more datagram. What isn't understood is passed over."""
    for line in datagram.split(b"\n"):
        meaning = {"speaks": True} if line.startswith(SPEAKING) else MEANINGS.get(line, {})
        before = before._replace(**meaning)
    return before


def is_ready(check: Check, notified: Notified, health: Health, age: float, before: bool) -> bool:
    """Whether the daemon is ready now; `age` in seconds, `before`: whether it was ready just before."""
    if notified.stopping:
        return False
    if check.kind == "notify":
        return notified.ready
    if check.kind == "alive":
        return age >= _age(check)
    if check.kind == "default":
        # One that only begins to speak after it was taken for ready stays so.
        return notified.ready or ((before or not notified.speaks) and age >= _age(check))
    return health.ready


def pause(check: Check, ready: bool, age: float) -> float:
    """Seconds until the next check of a daemon of this `age`.

    One that is not ready may have just begun to listen, and all that needs it waits for that: so
    it is found late by a part of the time that it has taken, and still costs next to nothing
    where it never comes up.
    """
    if ready:
        return max(check.interval, LEAST)
    soon, share = (SOON_BY_COMMAND, SHARE_BY_COMMAND) if check.kind == "command" else (SOON, SHARE)
    return min(max(soon, share * age), max(min(check.interval, EAGER), LEAST))


def _age(check: Check) -> float:
    return ALIVE if check.value is None else float(check.value)


# -- checks: each returns why it failed, or nothing -------------------------------------------------

Attempt = Callable[[], Steps[str]]


def tcp(addresses: Sequence[str], port: int) -> Steps[str]:
    """Whether one of our own addresses takes a connection."""
    reason = "no address"
    for address in addresses:
        try:
            connection = yield from connect_any((yield from resolve(address, port)))
        except OSError as error:
            reason = _told(error)
        else:
            connection.close()
            return ""
    return f"port {port}: {reason}"


def http(url: str) -> Steps[str]:
    """Whether a GET is answered with 2xx or 3xx. Certificates are not verified: it is our own daemon."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    connection = yield from connect_any((yield from resolve(host, parts.port or (443 if secure else 80))))
    if secure:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = yield from agree_on_tls(connection, context, host)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        netloc = parts.netloc.rpartition("@")[2]
        connection.send(
            f"GET {target} HTTP/1.0\r\nHost: {netloc}\r\nUser-Agent: kolla_mesos_start\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        # To its end: a server complains in its log about a client that hangs up too early.
        while len(answer) < LARGEST_ANSWER:
            try:
                data = connection.recv(LARGEST_ANSWER)
            except OSError as error:
                if answer and not would_block(error):
                    break
                if not would_block(error):
                    raise
                yield connection.fileno(), select.POLLIN
                continue
            if not data:
                break
            answer += data
    finally:
        connection.close()
    return _judged(answer)


def _judged(answer: bytes) -> str:
    words = answer[:STATUS_LINE].split(b"\r\n")[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or len(words[1]) != 3 or not words[1].isdigit():
        return "no HTTP answer"
    return "" if words[1][:1] in b"23" else f"HTTP status {words[1].decode()}"


class Ids(NamedTuple):
    """Whose rights a command has."""

    uid: int
    gid: int
    groups: Sequence[int]


class CommandCheck:
    """Whether a command ends with 0. It has a process group of its own, which ends with the check."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], ids: Ids | None) -> None:
        self._argv, self._env, self._ids = argv, env, ids
        self._last: Any = None

    @property
    def pid(self) -> int | None:
        """The command's, until it has been waited for."""
        return self._last.pid if self._last and self._last.returncode is None else None

    def __call__(self) -> Steps[str]:
        import subprocess

        if self._last and self._last.poll() is None:
            return "the last check can't be killed"
        identity: dict[str, Any] = {}
        if self._ids:
            identity = {"user": self._ids.uid, "group": self._ids.gid, "extra_groups": self._ids.groups}
        nothing = subprocess.DEVNULL
        child = self._last = subprocess.Popen(
            self._argv,
            env=self._env,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
            **identity,
        )
        try:
            pidfd = os.pidfd_open(child.pid)
            try:
                yield pidfd, select.POLLIN
            finally:
                os.close(pidfd)
        finally:
            # Before the leader is reaped: its number can't belong to anybody else until then.
            with contextlib.suppress(PermissionError):  # where it has changed its user
                os.killpg(child.pid, signal.SIGKILL)
            child.poll()
        return f"exit status {child.returncode}" if child.wait() else ""


# -- both together ----------------------------------------------------------------------------------


class Readiness:
    """Whether the daemon is ready, found in the turns of a loop.

    `start` is when the daemon was started (`loop.now`).
    """

    def __init__(self, check: Check, attempt: Attempt | None, start: float) -> None:
        self.ready = False
        self._failure = ""
        self._check, self._attempt, self._start = check, attempt, start
        self._notified, self._health = Notified(), Health()
        self._task: Task | None = None
        self._next = start
        self._is_of_age = False

    @property
    def wait(self) -> Wait | None:
        """The descriptor and the events of poll() for which `turn` should run."""
        return self._task.wait if self._task else None

    @property
    def deadline(self) -> float:
        """When `turn` must run at the latest."""
        if self._attempt:
            return self._task.deadline if self._task else self._next
        # Past that age only a notification changes anything: a deadline in the past would spin the loop.
        if self.ready or self._check.kind == "notify" or self._is_of_age:
            return math.inf
        return self._start + _age(self._check)

    @property
    def reason(self) -> str:
        """Why it isn't ready; empty while it is."""
        if self.ready:
            return ""
        if self._notified.stopping:
            return "it is stopping"
        if self._attempt:
            return self._failure
        if self._check.kind == "notify" or (self._check.kind == "default" and self._notified.speaks):
            return "its READY=1 has not come"
        return f"it is not {_age(self._check):g} s old"

    def hear(self, datagram: bytes) -> None:
        """Take in what the daemon has sent to its notify socket."""
        self._notified = heard(self._notified, datagram)

    def stop(self) -> None:
        """The daemon is about to be stopped: not ready from now on, unless it says READY=1 again."""
        self._notified = heard(self._notified, b"STOPPING=1")
        self.ready = False

    def close(self) -> None:
        """End the check that is under way; a command of it must not outlive the daemon."""
        if self._task:
            self._task.close()

    def turn(self, now: float, ready: bool) -> None:
        """Go on with the check; `ready` says whether `wait` has come."""
        age = now - self._start
        if self._attempt:
            self._try(self._attempt, now, ready)
        else:
            self._is_of_age = age >= _age(self._check)
        self.ready = is_ready(self._check, self._notified, self._health, age, self.ready)

    def _try(self, attempt: Attempt, now: float, ready: bool) -> None:
        if self._task is None:
            if now < self._next:
                return
            self._task, ready = Task(attempt(), now + self._check.timeout), True
        self._task.turn(now, ready)
        if self._task.ended:
            error = self._task.error
            self._failure = _told(error) if error else self._task.result
            self._health = self._health.after(not self._failure, self._check.fall)
            self._task = None
            self._next = now + pause(self._check, self._health.ready, now - self._start)


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error)
