"""Starts the registrar, and defines the records that pass between it and agents.

First its records, then how the agent starts its process, then what that process does first. It takes over
the session once the agent's connection is closed, and keeps this module in memory for months.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import signal
import sys
from collections.abc import Mapping
from types import MappingProxyType

from kolla_mesos_start.errors import unexpected, where
from kolla_mesos_start.log import Logger, configure
from kolla_mesos_start.processes import Child, fork, hide_memory, memfd
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
    "from kolla_mesos_start.daemon.handoff import main; main(int(sys.argv[1]))"
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

    `argv` is empty if there is no command.
    """

    drain: float
    argv: Sequence[str]
    timeout: float


class Refreshed(NamedTuple):
    """The result of a refresh. `seen` and `listed`: see Refreshing. `failure`: why it failed, or empty text.

    `written`: the files that have changed. `note`: why others have not, or why the daemon needs a restart
    (`needs_restart`). `constants`: see report.StatusZnode; empty if they are as before.
    `kind` and `signal`: how to notify the daemon (see OnChange); empty if there is nothing to notify it of.
    `digests`: of its files now.
    """

    seen: Seen
    failure: str
    listed: Mapping[str, Sequence[str]] = MappingProxyType({})
    written: Sequence[str] = ()
    note: str = ""
    constants: bytes = b""
    kind: str = ""
    signal: str = ""
    needs_restart: bool = False
    digests: Mapping[str, int] = MappingProxyType({})


class Handoff(NamedTuple):
    """Everything that the registrar needs, in plain types for marshal.

    `servers` are the arguments of session.Servers, `session` its id, password, zxid and timeout in seconds.
    `registration` is a Registration, `container` a report.StatusZnode, `check` a definition.ready.Ready,
    `check_ids` (uid, gid, groups) or None, `refreshing` a Refreshing or None, `stopping` a Stopping or None,
    `election` an election.records.Membership or None. `service` is its name in `ps`, `command` the daemon's
    path in its definition. `addresses` are this host's, for checks of a port. `environ`: the agent's whole
    environment, if a restart passes through an election. `logs`: how to read the container's log.
    `stop_signal`: see Settings. `manager`: the notify socket of an outer service manager, or empty;
    `of_manager`: what else it gives to the daemon.

    Descriptors: `lock_fd` holds the lock of `run_dir`, `pidfd` is the daemon's, `notify_fd` its notify
    socket; `exec_fd` (see `spawn`) reaches its end when the agent has become the daemon or has ended.
    `supervised`: the registrar is the parent of the process `daemon`, and `argv` restarts it. `stop_grace`:
    the seconds between TERM and KILL.
    """

    servers: tuple[Any, ...]
    session: tuple[int, bytes, int, float]
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
    ignored = {*IGNORED_SIGNALS, handoff.stop_signal}
    argv, environ = _argv(record, handoff.service), _environ()

    def detach() -> None:
        os.setsid()
        try:
            failure = Child(argv, environ, inherited=fds, ignored=ignored, outlives_us=True).failure()
        except OSError as error:
            failure = error.errno or errno.EAGAIN, "fork"
        os._exit(failure[0] if failure else 0)

    def await_detached() -> None:
        with contextlib.suppress(ChildProcessError):  # The parent of the agent may ignore SIGCHLD.
            status = os.waitpid(between, 0)[1]
            if status != 0:
                number = os.waitstatus_to_exitcode(status)
                raise OSError(number, os.strerror(number))

    try:
        between = fork(detach)
    except OSError:
        os.close(held)
        raise
    finally:
        os.close(record)
        os.close(exec_fd)
    return held, await_detached


def supervise(handoff: Handoff) -> NoReturn:
    """Replace this process by the registrar of its child, the daemon. Raises OSError."""
    record = _recorded(handoff)
    for fd in (record, handoff.lock_fd, handoff.pidfd, handoff.notify_fd):
        os.set_inheritable(fd, True)
    argv = _argv(record, handoff.service)
    os.execve(argv[0], argv, _environ())


def _recorded(handoff: Handoff) -> int:
    record = memfd("handoff")
    os.write(record, marshal.dumps(plain(handoff)))
    os.lseek(record, 0, os.SEEK_SET)
    return record


def _argv(record: int, service: str) -> list[str]:
    return python(BOOT, str(record), f"registrar of {service}")


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(KEPT)}


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


# -- the registrar's process -------------------------------------------------------------------------------


def main(record: int) -> None:
    """Run the registrar; `record` is the descriptor of its handoff."""
    try:
        _live(record)
    except Exception as defect:
        error = unexpected(defect, "the registrar")
        said = (
            error.reason if error.retriable else f"this is {error.reason}: please report it with these lines"
        )
        for line in (*where(defect), said):
            Logger(__name__).error("%s", line)
        os._exit(error.status)


def _live(record: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # only for `ps`
        comm.write("kolla_registrar")
    hide_memory()  # After this, the name can't be written.
    with open(record, "rb") as file:
        handoff = Handoff(*marshal.load(file))
    for signum in (*IGNORED_SIGNALS, handoff.stop_signal):
        # Not SIG_IGN: the command of a check would inherit that.
        signal.signal(signum, lambda number, frame: None)
    _close_others(handoff)
    if handoff.supervised:
        from kolla_mesos_start.daemon.supervise import Supervisor

        os._exit(Supervisor(handoff).run())
    from kolla_mesos_start.daemon.registrar import Registrar

    registrar = Registrar(handoff)
    # While the agent is connected, the two connections would close each other.
    if os.read(handoff.exec_fd, len(NO_DAEMON)):
        return  # The agent itself removes the registration.
    os.close(handoff.exec_fd)
    registrar.run()


def _close_others(handoff: Handoff) -> None:
    """Close the descriptors that the agent was started with, and configure the log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    if not handoff.supervised:  # A daemon that is started again needs those of the first one.
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
    # One of the others may be a pipe, and another process wait for its end.
    own = {handoff.lock_fd, handoff.pidfd, handoff.notify_fd, handoff.exec_fd}
    # Another daemon gets the sockets of the first one.
    sockets = int(handoff.of_manager.get("LISTEN_FDS", 0)) if handoff.supervised else 0
    kept = {0, 1, 2, *own, *range(3, 3 + sockets)}
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with contextlib.suppress(OSError):  # The descriptor of this listing is already closed.
            os.close(fd)
    for fd in own - {-1}:
        os.set_inheritable(fd, False)  # Programs that are started from here must not get it.
    configure(handoff.loglevel, handoff.json_logs)
