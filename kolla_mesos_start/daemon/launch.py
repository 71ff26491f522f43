"""Become the daemon: hand the session over to the registrar, then exec.

Nothing here waits for ZooKeeper. From the signal mask on, nothing may fail but the exec itself:
what could be found wrong before has been found before the registrar is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal

from kolla_mesos_start.daemon import handoff, notify_socket
from kolla_mesos_start.daemon.handoff import Handoff, Refreshing
from kolla_mesos_start.errors import BadEnvironment, CannotExecute, CannotWrite, NotFound, Stopped
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from kolla_mesos_start.definition.model import Step
    from kolla_mesos_start.render.prepare import Prepared
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.presence import Registration
    from kolla_mesos_start.zookeeper.client import Client


log = Logger(__name__)

# How long a healthy server may take to answer what is still on its way; not waited for in an outage.
LAST_REPLIES = 1.0
KILL_TIMEOUT = 10.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Launch:
    """The last stage of one container."""

    def __init__(self, settings: Settings, client: Client, report: Report, shown: Registration) -> None:
        """`shown` is what the daemon is registered with."""
        self._settings, self._client, self._loop = settings, client, client.loop
        self._report, self._shown = report, shown

    def exec(self, prepared: Prepared, exported: Mapping[str, str]) -> NoReturn:
        """Replace this process by the daemon; `exported` is what it finds in its environment, and more.

        NotFound and CannotExecute where it can't be done.
        """
        step = prepared.step
        if os.getpid() == 1:
            log.warning(
                "the agent is process 1, so the registrar will be a child of the daemon, which may not "
                "expect one: use `dumb-init --single-child --` as the ENTRYPOINT before the agent, "
                "or KOLLA_START_MODE=supervise"
            )
        notify, environ = self._prepare(prepared, exported)
        # Closed by the exec, or by the end of this process: were it closed before, the registrar and
        # this process would fight for the session.
        with _needing_registrar(step):
            pidfd = os.pidfd_open(os.getpid())
            held, await_registrar = handoff.spawn(
                self._handoff(prepared, environ, notify.fileno(), os.getpid(), pidfd)
            )
        log.info("%s: exec", step.command.path)
        try:
            self._tell_started(step.command.path)
            with _needing_registrar(step):
                await_registrar()
            self._handle_pending_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            with _executing(step, environ):
                _become(prepared)
                os.execvpe(step.argv[0], step.argv, environ)
        finally:
            self._take_back(held, step.command.path)

    def supervise(self, prepared: Prepared, exported: Mapping[str, str]) -> NoReturn:
        """Start the daemon as a child, and become its parent for life. Raises as `exec` does."""
        from kolla_mesos_start.commands.guard_client import end_children

        step = prepared.step
        notify, environ = self._prepare(prepared, exported)
        log.info("%s: starting, supervised", step.command.path)
        try:
            self._tell_started(step.command.path)
            self._handle_pending_signals()
            with _executing(step, environ):
                daemon = _spawn(prepared, environ)
            try:
                with _needing_registrar(step):
                    pidfd = os.pidfd_open(daemon)
                    record = self._handoff(prepared, environ, notify.fileno(), daemon, pidfd)
                    handoff.supervise(record._replace(supervised=True, stop_grace=step.command.stop_grace))
            finally:
                os.kill(daemon, signal.SIGKILL)
                os.waitpid(daemon, 0)
        finally:
            # What else the daemon may have started by then ends as every descendant of a subreaper's does.
            end_children(now() + KILL_TIMEOUT)
            self._tell_not_started(step.command.path)

    def _prepare(
        self, prepared: Prepared, exported: Mapping[str, str]
    ) -> tuple[socket.socket, Mapping[str, str]]:
        """All that can be found wrong before anything is started; the notify socket, and the environment."""
        if prepared.step.lacks_exec:
            log.warning(
                "%s is a shell that stays between it and its signals: write `exec`",
                prepared.step.command.path,
            )
        notify, path = self._notify_socket()
        # What has been requested must be sent, and what is given up be gone: the registrar knows of neither.
        client = self._client
        self._loop.wait(
            lambda: not client.connected or (client.session.flush() and not client.ephemerals.discarding),
            now() + LAST_REPLIES,
        )
        return notify, {**prepared.environ(exported), "NOTIFY_SOCKET": path}

    def _take_back(self, held: int, path: str) -> None:
        """There is no daemon after all: neither the registrar nor a probe may take it for one."""
        # Ignored again, as it was until just now: the registrar may be gone, or the reader of the log.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        with contextlib.suppress(BrokenPipeError):
            os.write(held, handoff.NO_DAEMON)
        self._tell_not_started(path)

    def _tell_started(self, path: str) -> None:
        self._report.write("starting", f"{path} is started, not ready yet", path)

    def _tell_not_started(self, path: str) -> None:
        # Where we have become the daemon's user already, it may not be ours to tell.
        with contextlib.suppress(CannotWrite):
            self._report.write("ended", f"{path} was not started", path)

    def _notify_socket(self) -> tuple[socket.socket, str]:
        path = os.path.join(self._report.state_file.run_dir, "notify")
        try:
            return notify_socket.bind(path), path
        except OSError as error:
            raise BadEnvironment([f"KOLLA_RUN_DIR: {path} can't be made: {error.strerror}"]) from error

    def _handle_pending_signals(self) -> None:
        """Act on the signals that have come so far; later ones stay pending for the daemon."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._loop.wait(lambda: True)
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        # To process 1 the kernel does not deliver what it has no handler for: it would be lost.
        for signum in signal.sigpending() & set(STOP_SIGNALS):
            raise Stopped(signum, signal.Signals(signum).name)

    def _handoff(
        self, prepared: Prepared, environ: Mapping[str, str], notify_fd: int, daemon: int, pidfd: int
    ) -> Handoff:
        settings, session = self._settings, self._client.session
        servers = session.servers
        ready = prepared.step.ready
        assert ready is not None
        own_address = json.loads(self._shown.presence[0][1])["private_address"]
        return Handoff(
            hosts=list(servers.hosts),
            chroot=servers.chroot,
            session_id=session.id,
            session_password=session.password,
            zxid=session.zxid,
            timeout=session.timeout,
            auth=servers.auth,
            ca=servers.ca,
            cert=servers.cert,
            key=servers.key,
            labels=servers.labels,
            registration=self._shown,
            container=self._report.shown,
            service=settings.service_name,
            command=prepared.step.command.path,
            check=tuple(ready),
            check_env=environ,
            check_ids=_ids(prepared),
            addresses=list(dict.fromkeys([own_address, "127.0.0.1", "::1"])),
            run_dir=self._report.state_file.run_dir,
            lock_fd=self._report.state_file.fd,
            pidfd=pidfd,
            notify_fd=notify_fd,
            loglevel=settings.loglevel,
            json_logs=settings.json_logs,
            daemon=daemon,
            argv=prepared.step.argv,
            refreshing=self._refreshing(prepared),
        )

    def _refreshing(self, prepared: Prepared) -> Refreshing | None:
        on_change = prepared.step.on_change
        if on_change is None:
            return None
        if self._settings.copy_once:
            log.warning(
                "%s: on_change has no effect with KOLLA_CONFIG_STRATEGY=COPY_ONCE", prepared.step.command.path
            )
            return None
        return Refreshing(
            turns=self._shown.turns,
            width=prepared.step.command.width,
            host=self._settings.host,
            seen=prepared.seen,
            listed=prepared.listed,
            environ=dict(os.environ),
            started=prepared.step.start_digest,
        )


def _become(prepared: Prepared) -> None:
    """Take the daemon's user, its supplementary groups included."""
    if prepared.ids is not None:
        os.setgroups(prepared.ids.groups)
        os.setgid(prepared.ids.gid)
        os.setuid(prepared.ids.uid)


def _spawn(prepared: Prepared, environ: Mapping[str, str]) -> int:
    """Start the daemon in a process group of its own; returns its process id once it is executed."""
    from kolla_mesos_start.commands import guard

    # Processes that lose their parent become our children: they can be reaped, and ended with the daemon.
    guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
    return guard.start(prepared.step.argv, environ, _ids(prepared))


def _ids(prepared: Prepared) -> tuple[int, int, Sequence[int]] | None:
    ids = prepared.ids
    return (ids.uid, ids.gid, list(ids.groups)) if ids else None


@contextlib.contextmanager
def _needing_registrar(step: Step) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"its registrar can't be started: {error.strerror}"
        raise CannotExecute(reason, command=step.command.path) from error


@contextlib.contextmanager
def _executing(step: Step, environ: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        from kolla_mesos_start.refusals import MISSING, execution

        kind = NotFound if error.errno in MISSING else CannotExecute
        why = execution(error.errno or 0, step.program, step.argv[0], environ.get("PATH"))
        raise kind(why, command=step.command.path) from error
