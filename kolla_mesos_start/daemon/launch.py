"""Becomes the daemon: hands the session over to the registrar, then execs.

Only `check_generation` waits for ZooKeeper, and `_prepare` a moment for its last replies. Once signals are
masked, nothing but the exec itself may fail: all other errors are found before the registrar is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal

from kolla_mesos_start.daemon import handoff, notify_socket
from kolla_mesos_start.daemon.handoff import Handoff, Refreshing, Stopping
from kolla_mesos_start.errors import (
    BadEnvironment,
    CannotExecute,
    CannotWrite,
    NotFound,
    Retired,
    Stopped,
)
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import (
    PR_SET_CHILD_SUBREAPER,
    Child,
    become_user,
    pidfd_open,
    prctl,
    signal_name,
)
from kolla_mesos_start.settings import OF_MANAGER
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.ephemerals import OURS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.election.records import Membership
    from kolla_mesos_start.render.prepare import Prepared
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.presence import Registration
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.zookeeper.client import Client


log = Logger(__name__)

LAST_REPLIES = 1.0  # seconds for a healthy server to answer the last requests; not waited for in an outage
KILL_TIMEOUT = 10.0
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}


class Launch:
    """The last stage of one container."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        report: Report,
        registration: Registration,
        prepared: Prepared,
        membership: Membership | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """`check` is called right before the start, and raises if the daemon must not be started."""
        self._membership, self._check = membership, check
        self._settings, self._client, self._loop = settings, client, client.loop
        self._report, self._registration = report, registration
        self._prepared, self._step = prepared, prepared.step
        self._path = prepared.step.command.path
        election = self._step.command.election
        if membership and election and membership.role == "first":
            assert isinstance(election.start, tuple)
            self._argv, self._program = election.start, None
        else:
            self._argv, self._program = self._step.argv, self._step.program

    def exec(self) -> NoReturn:
        """Replace this process by the daemon. Raises NotFound or CannotExecute."""
        if os.getpid() == 1:
            log.warning(
                "the agent is process 1, so the registrar will be a child of the daemon, which may not "
                "expect one: use `dumb-init --single-child --` as the ENTRYPOINT before the agent, "
                "or KOLLA_START_MODE=supervise"
            )
        notify, environ = self._prepare()
        # Closed by the exec, or by the end of this process: were it closed before, the registrar and
        # this process would fight for the session.
        with self._needing_registrar():
            pidfd = pidfd_open(os.getpid())
            held, await_detached = handoff.spawn(self._handoff(environ, notify.fileno(), os.getpid(), pidfd))
        log.info("%s: exec", self._path)
        try:
            self._report_started()
            with self._needing_registrar():
                await_detached()  # No child is left; the registrar waits for the end of `held`.
            self._check()
            self._handle_pending_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            given = self._of_manager()
            self._become_user()
            with self._executing(environ):
                pid = str(os.getpid())
                given = {name: pid if name.endswith("_PID") else value for name, value in given.items()}
                os.execvpe(self._argv[0], self._argv, {**environ, **given})
        finally:
            # The registrar and probes must not take this process for the daemon. SIGPIPE must be ignored
            # again: the registrar, or the reader of the log, may be gone.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            with contextlib.suppress(BrokenPipeError):
                os.write(held, handoff.NO_DAEMON)
            self._report_not_started()

    def supervise(self) -> NoReturn:
        """Start the daemon as a child, and become its permanent parent. Raises as `exec` does."""
        from kolla_mesos_start.commands.guard_client import end_children

        notify, environ = self._prepare()
        log.info("%s: starting, supervised", self._path)
        try:
            self._report_started()
            self._check()
            self._handle_pending_signals()
            with self._needing_registrar():
                # As a subreaper we can reap the daemon's orphans, and end them with it.
                prctl(PR_SET_CHILD_SUBREAPER, 1)
            with self._executing(environ):
                environ_of_daemon = {**environ, **self._of_manager()}
                daemon = Child(self._argv, environ_of_daemon, self._ids(), is_daemon=True).started().pid
            try:
                with self._needing_registrar():
                    pidfd = pidfd_open(daemon)
                    handoff.supervise(self._handoff(environ, notify.fileno(), daemon, pidfd))
            finally:
                os.kill(daemon, signal.SIGKILL)
                os.waitpid(daemon, 0)
        finally:
            end_children(now() + KILL_TIMEOUT)  # Those that the daemon has started by then.
            self._report_not_started()

    def _become_user(self) -> None:
        ids = self._prepared.ids
        if ids is None:
            return
        # What os.execvpe and the report of its failure import: the user may not be able to read Python.
        import warnings  # noqa: F401

        import kolla_mesos_start.files.permissions  # noqa: F401

        try:
            become_user(ids.uid, ids.gid, ids.groups)
        except OSError as error:
            reason = f"it can't become uid {ids.uid}, gid {ids.gid}: {error.strerror}"
            raise CannotExecute(reason, command=self._path).because(error.errno) from error

    def _prepare(self) -> tuple[socket.socket, Mapping[str, str]]:
        """Find all errors before anything is started. Returns the notify socket and the environment."""
        if self._step.lacks_exec:
            log.warning("%s is a shell that stays between it and its signals: write `exec`", self._path)
        path = os.path.join(self._report.state_file.run_dir, "notify")
        try:
            notify = notify_socket.bind(path)
        except OSError as error:
            reason = f"KOLLA_RUN_DIR: {path} can't be made: {error.strerror}"
            raise BadEnvironment([reason]).because(error.errno) from error
        # Requests must be sent, and discarded znodes deleted: the registrar does not know about them.
        client = self._client
        self._loop.wait(
            lambda: not client.connected or (client.session.flush() and not client.ephemerals.discarding),
            now() + LAST_REPLIES,
        )
        return notify, {**self._prepared.environ, "NOTIFY_SOCKET": path}

    def _of_manager(self) -> dict[str, str]:
        """What an outer manager passes to the daemon only: sockets, and the watchdog. See `Child`."""
        own = {None, str(os.getpid()), str(os.getppid())}  # dumb-init is the parent.
        names = [name for name in OF_MANAGER if name in os.environ and name != "NOTIFY_SOCKET"]
        foreign = [name[:6] for name in names if name.endswith("_PID") and os.environ[name] not in own]
        if not re.fullmatch("[0-9]{1,3}", os.environ.get("LISTEN_FDS", "")):
            foreign.append("LISTEN")
        return {name: os.environ[name] for name in names if name[:6] not in foreign}

    def _report_started(self) -> None:
        self._report.write("starting", f"{self._path} is started, not ready yet", self._path)

    def _report_not_started(self) -> None:
        # After becoming the daemon's user, we may have no right to write the state.
        with contextlib.suppress(CannotWrite):
            self._report.write("ended", f"{self._path} was not started", self._path)

    def _handle_pending_signals(self) -> None:
        """Handle the signals that have come so far; later ones stay pending for the daemon."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._loop.wait(lambda: True)
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        # The kernel drops signals for which process 1 has no handler.
        for signum in signal.sigpending() & {*STOP_SIGNALS, self._settings.stop_signal}:
            raise Stopped(signum, signal_name(signum))

    def _handoff(self, environ: Mapping[str, str], notify_fd: int, daemon: int, pidfd: int) -> Handoff:
        settings, session = self._settings, self._client.session
        servers = session.servers
        ready = self._step.command.ready
        assert ready is not None
        return Handoff(
            servers=servers.arguments,
            session=(session.id, session.password, session.zxid, session.timeout),
            registration=self._registration,
            container=self._report.shown,
            service=settings.service_name,
            command=self._path,
            check=tuple(ready),
            check_env=environ,
            check_ids=self._ids(),
            addresses=_addresses(json.loads(self._registration.presence[0][1])),
            run_dir=self._report.state_file.run_dir,
            lock_fd=self._report.state_file.fd,
            pidfd=pidfd,
            notify_fd=notify_fd,
            loglevel=settings.loglevel,
            json_logs=settings.json_logs,
            daemon=daemon,
            supervised=settings.supervise,
            stop_grace=self._step.command.stop_grace,
            argv=self._argv,
            refreshing=self._refreshing(),
            election=self._membership and tuple(self._membership),
            stopping=self._stopping(),
            environ=dict(os.environ) if self._membership and settings.supervise else None,
            logs=settings.logs,
            stop_signal=settings.stop_signal,
            of_manager=self._of_manager(),
            manager=os.environ.get("NOTIFY_SOCKET", ""),
        )

    def _stopping(self) -> Stopping | None:
        command = self._step.command
        before = command.before_stop
        argv, timeout = (before.command, before.timeout) if before else ((), 0.0)
        return Stopping(command.drain or 0.0, argv, timeout) if command.drains else None

    def _refreshing(self) -> Refreshing | None:
        if self._step.command.on_change is None:
            return None
        settings = self._settings
        if settings.copy_once:
            log.warning("%s: on_change has no effect with KOLLA_CONFIG_STRATEGY=COPY_ONCE", self._path)
            return None
        return Refreshing(
            width=self._step.command.width,
            znodes=Znodes(settings.prefix, settings.deployment_id, settings.service_name, settings.host),
            seen=self._prepared.seen,
            listed=self._prepared.listed,
            environ=dict(os.environ),
            started=self._step.start_digest,
            election=self._membership and {**self._membership.values, "role": "join"},
            digests=self._prepared.digests,
        )

    def _ids(self) -> tuple[int, int, Sequence[int]] | None:
        ids = self._prepared.ids
        return (ids.uid, ids.gid, list(ids.groups)) if ids else None

    @contextlib.contextmanager
    def _needing_registrar(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"its registrar can't be started: {error.strerror}"
            raise CannotExecute(reason, command=self._path).because(error.errno) from error

    @contextlib.contextmanager
    def _executing(self, environ: Mapping[str, str]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            from kolla_mesos_start.files.permissions import MISSING, execution

            kind = NotFound if error.errno in MISSING else CannotExecute
            why = f"it can't be started: {error.strerror}"
            if error.strerror == os.strerror(error.errno or 0):
                why = execution(error.errno or 0, self._program, self._argv[0], environ.get("PATH"))
            raise kind(why, command=self._path).because(error.errno) from error


def check_generation(tree: StatusTree, image: str | None, report: Report) -> None:
    """Raise Retired if the daemon must not be started, Changed if its definition is not the published one."""
    daemon = tree.graph.daemon
    assert daemon is not None
    refuse_retired(daemon, image)
    # Exclusive dependencies must see this container before its daemon starts.
    shown = report.ephemeral
    shown.write_after = 0.0
    tree.client.until(lambda: tree.client.connected and shown.owner == OURS)
    tree.client.read([tree.znodes.definition])  # Its reply comes after all earlier watch events.
    tree.raise_if_changed()


def refuse_retired(daemon: Command, image: str | None) -> None:
    """Raise Retired if the daemon is not for images of that generation."""
    if daemon.generations and image not in daemon.generations:
        raise Retired(image, daemon.generations, command=daemon.path)


def _addresses(facts: Mapping[str, Any]) -> list[str]:
    """Where the daemon may listen: it may be bound to any one of the addresses of its host."""
    public = facts[f"ansible_{facts['api_interface']}"]
    ipv6 = [each["address"] for each in public.get("ipv6", ())]
    found = [public["ipv4"]["address"]] if "ipv4" in public else ipv6
    return list(
        dict.fromkeys(["127.0.0.1", "::1", facts["private_address"], *found, *ipv6[:1], facts["address"]])
    )
