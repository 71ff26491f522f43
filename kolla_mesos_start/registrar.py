"""The small process that stays beside a daemon: it holds the session, and what is registered under it.

What lives here: the handoff, and the loop. What is registered is `instance`'s, the session
`session`'s, and whether the daemon is ready is concluded in `ready`. The agent starts this process
(`spawn`) just before it execs the daemon; it takes the session over as soon as the agent's own
connection is gone, and ends with the daemon. It stays in every container for months: nothing
heavy may be imported, and nothing that goes wrong outside may end it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import marshal
import math
import os
import select
import signal
import socket
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.health import Pulse
from kolla_mesos_start.mailbox import now

if TYPE_CHECKING:
    from kolla_mesos_start.dial import Wait
    from kolla_mesos_start.health import Stage
    from kolla_mesos_start.ready import Attempt

log = logging.getLogger(__name__)

LONGEST_SESSION = 6.0  # seconds; so that the instance of a container that was killed goes quickly
PULSE_AGAIN = 2.0  # seconds until the state is told again, where that failed
DATAGRAM, DATAGRAMS = 4096, 64  # bytes; and how many are read before the others have their turn
LONGEST_POLL = 3600.0  # seconds; poll() has a limit, and a definition may name any number
NO_DAEMON = b"\0"  # the agent's word to a registrar that isn't needed after all
DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # they are for the daemon

# The paths come as arguments: -I and -S keep site-packages, and what it costs to find them, away.
BOOT = (
    "import sys; sys.path += sys.argv[2:]; "
    "from kolla_mesos_start.registrar import main; main(int(sys.argv[1]))"
)


class Handoff(NamedTuple):
    """All that the registrar needs, in plain types: it travels by marshal.

    `timeout` is the session's, in seconds. `tree` is instance.Tree, `check` ready.Check,
    `check_ids` ready.Ids or None; `addresses` are our own, where a port is looked for.
    Descriptors: `pulse_fd` holds the lock of `run_dir`, `pidfd` is the daemon's, `notify_fd` its
    notify socket (-1: it has none), `exec_fd` (see `spawn`) is at its end once the agent has
    become the daemon, or is gone.
    """

    hosts: Sequence[tuple[str, int]]
    chroot: str
    session_id: int
    session_password: bytes
    zxid: int
    timeout: float
    auth: Sequence[tuple[str, str]]
    ca: str | None
    cert: str | None
    key: str | None
    tree: tuple[Any, ...]
    check: tuple[Any, ...]
    check_env: Mapping[str, str]
    check_ids: tuple[int, int, Sequence[int]] | None
    addresses: Sequence[str]
    run_dir: str
    pulse_fd: int
    pidfd: int
    notify_fd: int
    loglevel: str
    json_logs: bool
    exec_fd: int = -1


# -- the agent's side -------------------------------------------------------------------------------


def spawn(handoff: Handoff) -> int:
    """Start the registrar; it is nobody's child when this returns.

    Returns a close-on-exec descriptor that the agent holds until it execs or ends: before that
    the registrar leaves the session alone. Where nothing comes of the exec it writes NO_DAEMON
    there. OSError where no process can be started.
    """
    exec_fd, held = os.pipe()
    record = os.memfd_create("handoff")
    os.write(record, marshal.dumps(_plain(handoff._replace(exec_fd=exec_fd))))
    os.lseek(record, 0, os.SEEK_SET)
    fds = [fd for fd in (record, exec_fd, handoff.pulse_fd, handoff.pidfd, handoff.notify_fd) if fd >= 0]
    argv = [sys.executable, "-I", "-S", "-c", BOOT, str(record), *_import_paths()]
    # No signal may find the child with the agent's handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads, kazoo's here: the child only makes system calls.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _become(argv, fds)
        with contextlib.suppress(ChildProcessError):  # whoever started the agent ignores SIGCHLD
            if os.waitpid(child, 0)[1] != 0:
                raise OSError(errno.EAGAIN, "no process can be started")
    except OSError:
        os.close(held)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(record)
        os.close(exec_fd)
    return held


def _become(argv: list[str], fds: Sequence[int]) -> NoReturn:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for signum in signal.valid_signals():
            if callable(signal.getsignal(signum)):
                signal.signal(signum, signal.SIG_DFL)
        for signum in DEAF_TO:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for fd in fds:
            os.set_inheritable(fd, True)
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(
            2, f"{argv[0]} can't be executed: {error.strerror}; the daemon stays unregistered\n".encode()
        )
    finally:
        os._exit(127)


def _plain(value: Any) -> Any:
    """The same with named tuples as bare ones, which is all that marshal takes."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    return dict(value) if isinstance(value, Mapping) else value


def _import_paths() -> list[str]:
    import kazoo

    import kolla_mesos_start

    modules = (kolla_mesos_start, kazoo)
    return list(dict.fromkeys(os.path.dirname(os.path.dirname(str(module.__file__))) for module in modules))


# -- the registrar's side ---------------------------------------------------------------------------


def main(record: int) -> None:
    """The registrar's whole life; `record` is the descriptor of its handoff."""
    for signum in DEAF_TO:
        # Not ignored: the command of a check would inherit that.
        signal.signal(signum, lambda number, frame: None)
    with open(record, "rb") as file:
        handoff = Handoff(*marshal.load(file))
    _settle_in(handoff)
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
    kept = {0, 1, 2, handoff.pulse_fd, handoff.pidfd, handoff.notify_fd, handoff.exec_fd}
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
        from kolla_mesos_start.instance import Instance, Tree
        from kolla_mesos_start.ready import Check, Readiness
        from kolla_mesos_start.session import Ensemble, Session

        self.session = Session(
            Ensemble(handoff.hosts, handoff.chroot, handoff.auth, handoff.ca, handoff.cert, handoff.key),
            min(LONGEST_SESSION, handoff.timeout),
            session_id=handoff.session_id,
            password=handoff.session_password,
            zxid=handoff.zxid,
        )
        self.instance = Instance(self.session, Tree(*handoff.tree))
        self.readiness = Readiness(Check(*handoff.check), _attempt(handoff), now())
        self.ended = False
        self._pidfd, self._notify_fd = handoff.pidfd, handoff.notify_fd
        if self._notify_fd >= 0:
            os.set_blocking(self._notify_fd, False)
        self._teller = Teller(Pulse.inherit(handoff.run_dir, handoff.pulse_fd))

    def run(self) -> None:
        """Live as long as the daemon does."""
        while not self.ended:
            self.turn()
        self.leave()

    def turn(self) -> None:
        """Wait until something happens, and do what it asks for."""
        session, readiness, instance = self.session, self.readiness, self.instance
        deadlines = (session.deadline, readiness.deadline, instance.deadline, self._teller.deadline)
        waits = (session.wait, readiness.wait, (self._notify_fd, select.POLLIN), (self._pidfd, select.POLLIN))
        to_session, to_readiness, notified, self.ended = _poll(waits, min(deadlines))
        if self.ended:
            return
        if notified:
            self._listen()
        readiness.turn(now(), to_readiness)
        session.turn(to_session)
        instance.turn(readiness.ready)
        self._teller.turn(readiness.ready, readiness.reason)

    def leave(self) -> None:
        """The daemon has ended: nothing of it stays behind."""
        self.readiness.close()
        self._teller.end()
        self._unlink_notify_socket()
        # From here on the next one may take the run directory; it can't take our session.
        os.close(self._teller.pulse.fd)
        session, deadline = self.session, now() + self.session.timeout
        session.close()
        while not session.closed and now() < deadline:
            session.turn(*_poll((session.wait,), min(session.deadline, deadline)))

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(DATAGRAMS):
                self.readiness.hear(os.read(self._notify_fd, DATAGRAM))

    def _unlink_notify_socket(self) -> None:
        if self._notify_fd < 0:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=self._notify_fd) as ours:
            os.unlink(ours.getsockname())


class Teller:
    """Says how ready the daemon is, in the log and in the state that `health` reads."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
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
            self.pulse.tell(self._stage, self._text)
        except CannotWrite as error:
            # A full disk is no reason to end; it will be told when there is room.
            self.deadline = now() + PULSE_AGAIN
            if not self._complained:
                log.warning("%s", error.reason)
            self._complained = True


def _attempt(handoff: Handoff) -> Attempt | None:
    from kolla_mesos_start import ready

    kind, value = handoff.check[:2]
    if kind == "tcp":
        return lambda: ready.tcp(handoff.addresses, value)
    if kind == "http":
        return lambda: ready.http(value)
    if kind == "command":
        ids = ready.Ids(*handoff.check_ids) if handoff.check_ids else None
        return ready.CommandCheck(value, dict(handoff.check_env), ids)
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
