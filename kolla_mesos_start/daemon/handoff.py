"""Starts the registrar, and defines the records that pass between it and agents.

Only records and system calls: the registrar keeps this module in memory for months.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from kolla_mesos_start.processes import fork, memfd
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable, NoReturn

    from kolla_mesos_start.zookeeper.client import Seen


NO_DAEMON = b"\0"  # the agent's message to a registrar that is not needed
IGNORED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)  # They are for the daemon.

# Given to `python`. The argument before the import paths is for `ps`.
BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from kolla_mesos_start.daemon.boot import main; main(int(sys.argv[1]))"
)

# The environment variables that it keeps, for its interpreter, resolver and TLS, and for identification.
# Secrets in the environment must not be visible in another process.
KEPT = ("LD_", "LANG", "LC_", "OPENSSL_", "RES_OPTIONS", "LOCALDOMAIN", "KOLLA_RUN_DIR", "KOLLA_STATE_DIR")


class Refreshing(NamedTuple):
    """What the registrar needs to refresh a daemon that has `on_change`.

    `width`: how many instances may refresh or not be ready; None: all. `znodes` is a tree.znodes.Znodes.
    `seen`: the znodes that the files were rendered from; `listed`: see `render.prepare`. `environ`: the
    agent's whole environment. `started`: a digest of how the daemon was started. `election`: what templates
    see. `digests`: of the files that the daemon was started with, or last notified of.
    """

    width: int | None
    znodes: tuple[str, str, str, str]
    seen: Seen
    listed: Mapping[str, Sequence[str]]
    environ: Mapping[str, str]
    started: int
    election: Mapping[str, str] | None = None
    digests: Mapping[str, int] = MappingProxyType({})


class Stopping(NamedTuple):
    """What precedes the stop: up to `drain` seconds of waiting, and a command for up to `timeout` seconds.

    `argv` is empty if there is no command. `stop_grace`: see Handoff.
    """

    drain: float
    argv: Sequence[str]
    timeout: float
    stop_grace: float


class Refreshed(NamedTuple):
    """The result of a refresh. `seen` and `listed`: see Refreshing. `failure`: why it failed, or empty text.

    `written`: the files that have changed. `note`: why others have not, or why the daemon needs a restart
    (`needs_restart`). `facts`: see report.StatusZnode; empty if they are as before.
    `kind` and `signal`: how to notify the daemon (see OnChange); empty if there is nothing to notify it of.
    `digests`: of its files now.
    """

    seen: Seen
    failure: str
    listed: Mapping[str, Sequence[str]] = MappingProxyType({})
    written: Sequence[str] = ()
    note: str = ""
    facts: bytes = b""
    kind: str = ""
    signal: str = ""
    needs_restart: bool = False
    digests: Mapping[str, int] = MappingProxyType({})


class Handoff(NamedTuple):
    """Everything that the registrar needs, in plain types for marshal.

    `timeout` is the session's, in seconds. `registration` is a Registration,
    `container` a report.StatusZnode, `check` a readiness.Check, `check_ids` (uid, gid, groups) or None,
    `refreshing` a Refreshing or None, `stopping` a Stopping or None, `election` an
    election.records.Membership or None. `service` is its name in `ps`, `command` the daemon's path in its
    definition. `addresses` are this host's, for checks of a port. `environ`: the agent's whole environment,
    if a restart passes through an election. `logs`: how to read the container's log.
    `stop_signal`: see Settings. `manager`: the notify
    socket of an outer service manager, or empty; `of_manager`: what else it gives to the daemon.

    Descriptors: `lock_fd` holds the lock of `run_dir`, `pidfd` is the daemon's, `notify_fd` its notify
    socket; `exec_fd` (see `spawn`) reaches its end when the agent has become the daemon or has ended.
    `supervised`: the registrar is the parent of the process `daemon`; `stop_grace` are the seconds between
    TERM and KILL, and `argv` restarts it.
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
    registration: tuple[Any, ...]
    container: tuple[Any, ...]
    service: str
    command: str
    check: tuple[Any, ...]
    check_env: Mapping[str, str]
    check_ids: tuple[int, int, Sequence[int]] | None
    addresses: Sequence[str]
    run_dir: str
    lock_fd: int
    pidfd: int
    notify_fd: int
    loglevel: str
    json_logs: bool
    daemon: int
    exec_fd: int = -1
    supervised: bool = False
    stop_grace: float = 0.0
    argv: Sequence[str] = ()
    refreshing: tuple[Any, ...] | None = None
    election: tuple[Any, ...] | None = None
    environ: Mapping[str, str] | None = None
    stopping: tuple[Any, ...] | None = None
    logs: str | None = None
    stop_signal: int = 15
    of_manager: Mapping[str, str] = MappingProxyType({})
    manager: str = ""


def spawn(handoff: Handoff) -> tuple[int, Callable[[], None]]:
    """Start the registrar. Raises OSError if no process can be started.

    Returns a close-on-exec descriptor, and a function that waits until the registrar is detached from this
    process (or raises OSError). The registrar does not use the session until the descriptor is closed by the
    exec or the end of the agent. If the exec fails, the agent writes NO_DAEMON to it.
    """
    exec_fd, held = os.pipe()
    record = _recorded(handoff._replace(exec_fd=exec_fd))
    fds = [record, exec_fd, handoff.lock_fd, handoff.pidfd, handoff.notify_fd]
    try:
        child = fork(partial(_detach, _argv(record, handoff.service), fds, handoff.stop_signal))
    except OSError:
        os.close(held)
        raise
    finally:
        os.close(record)
        os.close(exec_fd)
    return held, partial(_await_parent, child)


def supervise(handoff: Handoff) -> NoReturn:
    """Replace this process by the registrar of its child, the daemon. Raises OSError."""
    record = _recorded(handoff)
    for fd in (record, handoff.lock_fd, handoff.pidfd, handoff.notify_fd):
        os.set_inheritable(fd, True)
    _exec(_argv(record, handoff.service))


def _recorded(handoff: Handoff) -> int:
    record = memfd("handoff")
    os.write(record, marshal.dumps(plain(handoff)))
    os.lseek(record, 0, os.SEEK_SET)
    return record


def _argv(record: int, service: str) -> list[str]:
    return python(BOOT, str(record), f"registrar of {service}")


def _exec(argv: list[str]) -> NoReturn:
    environ = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    os.execve(argv[0], argv, environ)


def _await_parent(parent: int) -> None:
    """Wait for the end of the process between agent and registrar."""
    with contextlib.suppress(ChildProcessError):  # the parent of the agent may ignore SIGCHLD
        if os.waitpid(parent, 0)[1] != 0:
            raise OSError(errno.EAGAIN, "no process can be started")


def _detach(argv: list[str], fds: Sequence[int], stop_signal: int) -> NoReturn:
    os.setsid()
    fork(partial(_become, argv, fds, stop_signal))
    os._exit(0)


def _become(argv: list[str], fds: Sequence[int], stop_signal: int) -> NoReturn:
    try:
        for signum in signal.valid_signals():
            if callable(signal.getsignal(signum)):
                signal.signal(signum, signal.SIG_DFL)
        for ignored in {*IGNORED_SIGNALS, stop_signal}:
            signal.signal(ignored, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for fd in fds:
            os.set_inheritable(fd, True)
        _exec(argv)
    except OSError as error:
        os.write(
            2, f"{argv[0]} can't be executed: {error.strerror}; the daemon stays unregistered\n".encode()
        )
        os._exit(127)


def plain(value: Any) -> Any:
    """The value with plain tuples in place of named ones, because marshal accepts no others."""
    if isinstance(value, (tuple, list)):
        return tuple(plain(item) for item in value)
    return dict(value) if isinstance(value, Mapping) else value


def python(code: str, *words: str) -> list[str]:
    """The argv of another interpreter, which takes its import paths from the end of its arguments.

    It is isolated from the working directory and from the environment (-I), where the daemon's user may have
    placed modules, and imports the same packages as this process (-S: without a search for them).
    """
    import kazoo

    import kolla_mesos_start

    own = [os.path.dirname(os.path.dirname(str(module.__file__))) for module in (kolla_mesos_start, kazoo)]
    cwd = os.readlink("/proc/self/cwd")  # os.getcwd fails if it is deleted.
    given = {os.path.join(cwd, path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    strange = {"", cwd, *map(os.path.normpath, given)}
    paths = dict.fromkeys([*(path for path in sys.path if path not in strange), *own])
    return [sys.executable, "-I", "-S", "-c", code, *words, *paths]
