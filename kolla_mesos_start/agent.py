"""The agent, from the environment to the daemon: runs the stages in order.

    read -> register -> wait -> render -> bootstrap -> exec

`Agent.run` has one line for each stage. Only this module catches the errors that end the agent, reports them,
and exits. Each stage is imported when it is needed, mostly while the agent waits for ZooKeeper.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from functools import cache, partial

from kolla_mesos_start import log as logs
from kolla_mesos_start import settings as environment
from kolla_mesos_start.errors import (
    AgentError,
    BadDefinition,
    BadUsage,
    CannotRender,
    CannotWrite,
    NoAddress,
    NoRight,
    Stopped,
    Unkillable,
    unexpected,
    where,
)
from kolla_mesos_start.health import PRIVATE, StateFile
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.processes import hide_memory, reap, signal_name
from kolla_mesos_start.report import Report, constants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn, TypeVar

    from kolla_mesos_start.commands.bootstrap import Bootstrap
    from kolla_mesos_start.daemon.control import StopRequests
    from kolla_mesos_start.definition.model import Graph
    from kolla_mesos_start.election.candidacy import Candidacy, Result
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.render.prepare import Prepared, Preparer
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.presence import Registration
    from kolla_mesos_start.tree.published import Published
    from kolla_mesos_start.tree.status import FailureRecord, StatusTree
    from kolla_mesos_start.wait.judge import Runnable
    from kolla_mesos_start.zookeeper.client import Client
    from kolla_mesos_start.zookeeper.followed_acl import FollowedAcl

    T = TypeVar("T")

log = Logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)  # and that of KOLLA_STOP_SIGNAL
# Seconds: most starts are over by then; a longer one can afford garbage collection.
COLLECT_GARBAGE_AFTER = 1.0


def main(verb: str = "run", show: bool = False, lock: int | None = None) -> NoReturn:
    """Start the container, or `check` what a start would do; exit with the documented status."""
    _run_to_exit(lambda agent: agent.check(show) if verb == "check" else agent.run(lock))


def refresh(order: int, report: int) -> NoReturn:
    """Refresh the daemon's files; the registrar starts this. `order` and `report` are descriptors."""
    _run_to_exit(lambda agent: agent.refresh(order, report))


def refuse(usage: str) -> NoReturn:
    """Exit because of unknown arguments; the last log line is written as for any other failure."""
    _run_to_exit(lambda agent: agent.refuse(usage))


def _run_to_exit(work: Callable[[Agent], int]) -> NoReturn:
    agent = Agent()
    try:
        status = work(agent)
    except AgentError as error:
        status = agent.end(error)
    except Exception as error:
        # Reported to the operator like any other failure.
        failure = unexpected(error)
        if type(failure) is AgentError:
            log.error("please report this")
        for line in where(error):
            log.error("%s", line)
        status = agent.end(failure)
    # A closed pipe must not change the status.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


class Agent:
    """One start of one container.

    `stage` and `command`: what it is doing. `bootstrap` is None until commands may run. The attributes
    without a value belong to the stages: each is set by the first one that knows it.
    """

    settings: Settings
    report: Report
    client: Client
    preparer: Preparer
    ended: FailureRecord
    tree: StatusTree

    def __init__(self) -> None:
        self.stage = "environment"
        self.command: str | None = None
        self.termination_log: str | None = None
        self.loop = Loop()
        self.bootstrap: Bootstrap | None = None
        self.registration: Registration | None = None
        self._acl: FollowedAcl | None = None
        self._stop_requests: StopRequests | None = None
        self.begins_again = False
        self._stop_signals: set[int] = set()

    def run(self, lock: int | None = None) -> int:
        """Run all stages. Returns the exit status of a task; a daemon replaces this process instead.

        `lock` is that of the run directory, if this process has it already.
        """
        self._read_environment()
        self._warn_of_world_readable()
        run_dir = self.settings.run_dir
        self.report = Report(StateFile.take(run_dir) if lock is None else StateFile.again(run_dir, lock))
        self._connect(lambda why: self.report.write("waiting", why))
        self.client.on_silence = self.report.write_silence

        from kolla_mesos_start.tree.published import Changed

        while True:
            self._serve_stop()
            try:
                return self._run_graph()
            except Changed as changed:
                log.warning("%s: beginning again from it", changed)
                self._end_guard()
                self.bootstrap, self.command, self.begins_again = None, None, True

    def _run_graph(self) -> int:
        """Run the stages from `read` on, for the definition that is published now."""
        self._read()
        self._register()

        from kolla_mesos_start.wait.waiting import Waiting

        self._reach("wait")
        settings, preparer = self.settings, self.preparer
        published = preparer.published_generation
        waiting = Waiting(self.tree, self.report, settings.wait_timeout, settings.generation, published)
        candidacy, result = self._candidacy(), None
        preparer.election = None
        for runnable in waiting:
            command = runnable.command
            if candidacy and command.is_daemon:
                self._check_generation()
                self.stage, self.command = "election", command.path
                result = candidacy.elect()
                preparer.election = result.values
            try:
                prepared = self._when_addressed(partial(self._render, runnable), runnable)
            except (BadDefinition, CannotRender):
                self.tree.raise_if_changed()  # The old definition may need what was removed.
                raise
            self.report.renew(self._constants(prepared))
            if command.is_daemon:
                self._check_generation()
                self._become_daemon(prepared, candidacy, result)
            self._reach("bootstrap", command.path)
            if self._run_command(prepared, runnable, candidacy):
                waiting.passed(command)
                self._reach("passed", command.path)
            self.stage, self.command = "wait", None
        return self._finish()

    def check(self, show: bool) -> int:
        """Print what a start would do to this container's files. Writes nothing. 1: a file would change."""
        self._read_environment()
        self._warn_of_world_readable()
        self.termination_log = None  # It is only for the end of the container.
        self._connect()
        self.stage, preparer = "read", self.preparer
        graph, _ = preparer.read_graph(preparer.published.definition())
        if graph.daemon and graph.daemon.election:
            from kolla_mesos_start.election.words import example

            preparer.election = example()

        from kolla_mesos_start.render.check import check

        self.stage = "render"
        settings = self.settings
        changes = check(graph, preparer, "" if settings.copy_once else settings.record_of_written, show)
        self.close()
        return 1 if changes else 0

    def refresh(self, order: int, report: int) -> int:
        """Render the files of the running daemon again, replace them, and write a Refreshed to `report`."""
        import marshal

        from kolla_mesos_start.daemon.handoff import Refreshed, plain
        from kolla_mesos_start.daemon.refresh import end_with, refresh

        with open(order, "rb") as file:
            listed, started, notified, registrar, election = marshal.load(file)

        def write(found: Refreshed) -> None:
            with open(report, "wb") as file:
                file.write(marshal.dumps(plain(found)))

        try:
            # A refresh waits for ZooKeeper as long as the daemon runs.
            self._read_environment()
            self.settings = self.settings._replace(connect_timeout=None)
            wanted = end_with(self.loop, registrar)
            self._connect()
            self.preparer.election = election
            self.stage = "refresh"
            write(refresh(self.preparer, self.settings, listed, started, notified, wanted))
        except AgentError as error:
            if isinstance(error, Stopped):
                raise  # Without a report, it runs again.
            write(Refreshed(self.client.seen if hasattr(self, "client") else {}, error.reason))
            raise
        finally:
            self.termination_log = None  # It is only for the end of the container.
        self.close()
        return 0

    def refuse(self, usage: str) -> NoReturn:
        """End because of unknown arguments."""
        self.stage = "usage"
        self._configure_log()
        raise BadUsage(usage)

    # -- the stages -----------------------------------------------------------------------------

    def _configure_log(self) -> None:
        """Set up the log so that errors in the environment can be reported."""
        logs.configure("info", json_lines=os.environ.get("KOLLA_LOG_FORMAT") == "json")
        self.termination_log = environment.termination_log(os.environ)

    def _read_environment(self) -> None:
        """Parse the environment. Signals are handled from here on."""
        self._on_stop_signals(STOP_SIGNALS, self._on_stop)
        # Process 1 and the parent of a dead guard get orphans.
        self.loop.on_signal(signal.SIGCHLD, lambda signum: reap())
        self.loop.call_at(now() + COLLECT_GARBAGE_AFTER, _collect_garbage_again)
        self._configure_log()
        settings = self.settings = environment.parse(os.environ)
        self._on_stop_signals([settings.stop_signal], self._on_stop)
        logs.configure(settings.loglevel, settings.json_logs)
        for unknown in settings.unknown:
            log.warning("%s", unknown)
        self.termination_log = settings.termination_log

    def _warn_of_world_readable(self) -> None:
        if self.settings.has_identity:
            from kolla_mesos_start.files.permissions import world_readable

            for variable, path, mode in world_readable(os.environ):
                log.warning(
                    "%s: every user in this container can read %s (mode %04o), and then do in ZooKeeper what"
                    " this service may: make it 0440 or 0400 (in Kubernetes by the Secret's defaultMode, and"
                    " fsGroup for the agent's user; in podman by the secret's mode and uid)",
                    variable,
                    path,
                    mode,
                )

    def _connect(self, tell: Callable[[str], object] = lambda why: None) -> None:
        """Connect to ZooKeeper, and `tell` why that fails. Meanwhile the next stages are imported."""
        from kolla_mesos_start.zookeeper.client import Client

        self.stage, settings = "connect", self.settings
        client = self.client = Client(
            settings.servers, settings.session_timeout, settings.znode_acl, self.loop
        )
        client.dial()
        if not hide_memory():
            log.warning(
                "this Python can't hide the memory of agent and registrar from processes of their user"
            )
        import kolla_mesos_start.tree.status  # noqa: F401 (while ZooKeeper answers)
        from kolla_mesos_start.render.prepare import Preparer
        from kolla_mesos_start.tree.published import Published
        from kolla_mesos_start.tree.znodes import Znodes

        znodes = Znodes(settings.prefix, settings.deployment_id, settings.service_name, settings.host)
        self.preparer = Preparer(settings, Published(client, znodes), cache(partial(_host_facts, settings)))
        what = f"for a connection to ZooKeeper at {settings.hosts}"
        client.connect(settings.connect_timeout, lambda cause: tell(f"{what}: {cause}"))

    def _read(self) -> None:
        """Wait until the definition is published, and read it as a graph of commands."""
        from kolla_mesos_start.tree.status import FailureRecord, StatusTree

        self.stage, settings = "read", self.settings
        published = self.preparer.published
        definition = published.await_definition(self.report, settings.wait_timeout)
        self._follow_acl(published)
        self.ended = FailureRecord(published.client, published.znodes, settings.logs)
        graph, stamps = self.preparer.read_graph(definition)
        _warn_of_what_is_not_set(settings, graph)
        if graph.daemon and graph.daemon.on_change:
            from kolla_mesos_start.daemon.refresh import refuse_restart

            refuse_restart(settings.supervise, graph)
        self.tree = StatusTree(published.client, published.znodes, graph, definition.zxid, stamps)

    def _follow_acl(self, published: Published) -> None:
        """Unless KOLLA_ZK_ACL is set, create znodes with the ACL that is published for this service."""
        if not self.settings.follows_acl:
            return
        if self._acl is None:
            from kolla_mesos_start.zookeeper.followed_acl import FollowedAcl

            client = published.client
            self._acl = FollowedAcl(client.session, published.znodes.recorded_acl, client.acl)
        followed = self._acl
        self.client.until(lambda: followed.known)
        if followed.error:
            raise followed.error

    def _register(self) -> None:
        """Claim the role, and register this container."""
        self.stage, tree = "register", self.tree
        tree.start(meanwhile=lambda: _import_what_follows(tree.graph))
        if tree.graph.commands:
            from kolla_mesos_start.commands.bootstrap import Bootstrap

            self.bootstrap = Bootstrap(tree)
            self.bootstrap.guard.start()  # It starts while we wait.
        from kolla_mesos_start.daemon.identity import register

        before = self.registration
        work = partial(register, self.settings, tree, self.preparer.facts, self.report)
        self.registration = self._when_addressed(work)
        if self.registration is None:
            for path, _ in before.presence if before else ():
                tree.client.ephemerals.discard(path)  # The previous definition had a daemon.

    def _when_addressed(self, work: Callable[[], T], runnable: Runnable | None = None) -> T:
        """The result of `work`, once the addresses that it needs exist."""

        def tell(why: str) -> None:
            self.report.write("waiting", f"for an address: {why}", runnable.command.path if runnable else "")
            if runnable and runnable.contender:
                self.client.ephemerals.discard(runnable.contender)  # Another container may run it.

        def check() -> None:
            if runnable is None:  # Nothing has run.
                self.tree.raise_if_seen_changed()

        try:
            return work()
        except NoAddress:
            from kolla_mesos_start.host.network import when_addressed  # Most hosts are ready before.
        return when_addressed(work, self.loop, self.settings.wait_timeout, tell, check)

    def _render(self, runnable: Runnable) -> Prepared:
        """Render the command, and write its files unless COPY_ONCE is set and an earlier start wrote them."""
        command, settings, preparer = runnable.command, self.settings, self.preparer
        self.stage, self.command = "render", command.path
        if not settings.copy_once or not command.files:
            prepared = preparer.prepare(command)
            self._place(prepared)
            return prepared
        from kolla_mesos_start.files.copy_once import CopyOnce

        copied = CopyOnce(settings.state_dir, command.path)
        read = copied.written()
        # If the definition has changed during this start, the files may have changed too.
        if read is not None and not self.begins_again:
            return preparer.prepare(command, with_files=False)._replace(read=read)
        prepared = preparer.prepare(command)
        with copied.recorded(prepared.read):
            self._place(prepared)
        return prepared

    def _place(self, prepared: Prepared) -> None:
        record = self.settings.record_of_written
        if not prepared.contents and (self.settings.copy_once or not os.path.exists(record)):
            return
        from kolla_mesos_start.files.place import place
        from kolla_mesos_start.files.written import Written

        command, written = prepared.step.command.path, None
        if not self.settings.copy_once:
            written = Written(record, command, self.tree.graph)
        if not any(content.check for content in prepared.contents):
            place(prepared.contents, written=written)
            return
        from kolla_mesos_start.commands.file_checks import FileCommands
        from kolla_mesos_start.commands.guard_client import Guard

        guard = self.bootstrap.guard if self.bootstrap else Guard(self.loop, self.settings.service_name)
        checks = FileCommands(self.loop, guard, prepared)

        def check(content: Content, path: str) -> None:
            # A check may take long.
            what = f"{command} waits for the check of its file {content.name}"
            self.report.write("waiting", what, command)
            checks.check(content, path)

        try:
            place(prepared.contents, check, written=written)
        finally:
            if not self.bootstrap:
                guard.close()

    def _run_command(self, prepared: Prepared, runnable: Runnable, candidacy: Candidacy | None) -> bool:
        """Run a command until it ends; false if it must wait for its lock again."""
        assert self.bootstrap is not None
        if candidacy and runnable.command.path == candidacy.position_command:
            candidacy.read_position(prepared)
            return True
        if not runnable.already_done:
            self.report.write("bootstrapping", "", runnable.command.path)
        has_run = self.bootstrap.run(prepared, runnable)
        if has_run and candidacy:
            candidacy.forget_position()
        return has_run

    def _candidacy(self) -> Candidacy | None:
        """This container's part in the election of its daemon's cluster; None without an election."""
        daemon, registration = self.tree.graph.daemon, self.registration
        if daemon is None or daemon.election is None:
            return None
        from kolla_mesos_start.election.candidacy import Candidacy

        assert self.bootstrap is not None and registration is not None  # It has a command for the position.
        run = partial(self.bootstrap.run_for_output, path=f"{self.settings.run_dir}/{PRIVATE}/position")
        return Candidacy(self.tree, daemon.election, registration.member, self.report, run)

    def _check_generation(self) -> None:
        """Refuse to start the daemon if a definition does not list the generation of this image."""
        from kolla_mesos_start.zookeeper.view import data_of

        self.stage, tree = "exec", self.tree
        latest = tree.client.watches.results.get(data_of(tree.znodes.definition))
        # The one that was read may have had no list yet. Without any, the exec never waits for ZooKeeper.
        newer = latest.data if latest and latest.stat.mzxid != tree.definition_zxid else b""
        if tree.graph.daemon and (tree.graph.daemon.generations or b'"generations"' in newer):
            from kolla_mesos_start.daemon.launch import check_generation

            with tree.client.within(self.settings.wait_timeout):
                check_generation(tree, self.settings.generation, self.report)

    def _become_daemon(
        self, prepared: Prepared, candidacy: Candidacy | None, result: Result | None
    ) -> NoReturn:
        """Exec the daemon, or become its parent. Raises Changed if the election is over without it."""
        self._end_guard()
        assert self.registration is not None
        registration = self.registration._replace(
            past=self.ended.leftover,
            past_when_ready=self.ended.leftover_until_ready,
            ended=self.ended.path,
        )
        from kolla_mesos_start.daemon.launch import Launch

        common = (self.settings, self.client, self.report, registration)
        if candidacy and result:
            prepared = prepared._replace(environ={**prepared.environ, **result.environ})
            membership = candidacy.membership(result, prepared.step.command.stop_grace)
            launch = Launch(*common, prepared, membership, partial(candidacy.check, result))
        else:
            launch = Launch(*common, prepared)
        if self._stop_requests and not prepared.step.command.drains:
            self._stop_requests.close()
            self._stop_requests = None
        (launch.supervise if self.settings.supervise else launch.exec)()

    def _finish(self) -> int:
        """End a task: exit, or close the session and idle until a signal stops it."""
        self.ended.forget()
        self.close()
        self.report.write("finished", "all commands are done")
        log.info("all commands are done")
        if self.settings.stay:
            try:
                self.loop.wait(lambda: False)
            except Stopped as stopped:
                log.info("%s; the task had finished", stopped.reason)
        return 0

    def _constants(self, prepared: Prepared) -> bytes:
        """What the container's znode shows once a command is rendered."""
        # Its registrar watches what the files were rendered from.
        settings, tree = self.settings, self.tree
        follows = bool(prepared.step.command.on_change and prepared.seen) and not settings.copy_once
        shown = (settings.host, tree.definition_zxid, tree.graph.digest, settings.generation, settings.logs)
        return constants(*shown, prepared.read, follows, prepared.optional)

    # -- the end --------------------------------------------------------------------------------

    def end(self, error: AgentError) -> int:
        """End after a failure: close everything, log the reason in the last line, return the exit status."""
        self._on_stop_signals(self._stop_signals, lambda signum: None)  # It is already ending.
        with contextlib.suppress(OSError):
            os.close(0)  # What follows needs a free descriptor.
        try:
            self._end_guard()
        except Unkillable as worse:
            error = worse
        error.command = error.command or self.command
        if isinstance(error, NoRight) and hasattr(self, "client"):
            error.reason += self.client.session.servers.hint
        ending = logs.ending(self.stage, error)
        if hasattr(self, "ended") and not isinstance(error, Stopped):
            self.ended.write(str(ending.short()))
        if hasattr(self, "report"):
            # After becoming the daemon's user, we may have no right to write the state.
            with contextlib.suppress(CannotWrite):
                what = f"{error.command}: " if error.command else ""
                self.report.write("ended", f"{what}{error.reason}")
        self.close(session=not isinstance(error, Unkillable))
        with contextlib.suppress(OSError):
            sys.stdout.flush()  # The output of a check comes before the last line.
        if self.stage != "refresh":  # Its registrar reports that, and continues.
            logs.last_line(ending, self.termination_log)
        return error.status

    def _reach(self, stage: str, command: str | None = None) -> None:
        """Enter a stage. The record of an earlier start that failed before it is removed."""
        self.stage, self.command = stage, command
        self.ended.reached(stage, command)

    def close(self, *, session: bool = True) -> None:
        """Close everything: first the running command, then the `session` that holds its lock."""
        self._end_guard()
        if session and hasattr(self, "client"):
            self.client.close()

    def _end_guard(self) -> None:
        if self.bootstrap is not None:
            self.bootstrap.guard.close()

    def _on_stop(self, signum: int) -> None:
        """A stop signal ends the agent at once, unless a command is running."""
        if self.bootstrap is not None:
            self.bootstrap.on_stop(signum)
        else:
            raise Stopped(signum, signal_name(signum))

    def _serve_stop(self) -> None:
        if not self._stop_requests:
            from kolla_mesos_start.daemon.control import StopRequests

            try:
                self._stop_requests = StopRequests(self.settings.run_dir, self.loop, self._on_stop)
            except OSError as error:  # A task needs no socket. That of a daemon follows, and is needed.
                log.warning("`kolla_mesos_start stop` can't reach this start: %s", error.strerror)

    def _on_stop_signals(self, signums: Iterable[int], handler: Callable[[int], object]) -> None:
        for signum in signums:
            self.loop.on_signal(signum, handler)
        self._stop_signals = {*self._stop_signals, *signums}


def _import_what_follows(graph: Graph) -> None:
    import kolla_mesos_start.wait.waiting

    if graph.commands:
        import kolla_mesos_start.commands.bootstrap
    else:
        import kolla_mesos_start.daemon.launch  # noqa: F401


def _host_facts(settings: Settings) -> Mapping[str, Any]:
    from kolla_mesos_start.host.network import facts  # A task may need none.

    return facts(settings)


def _warn_of_what_is_not_set(settings: Settings, graph: Graph) -> None:
    """Warn of settings whose absence changes what the definition means."""
    if settings.host_is_pod:
        # Without the node's name each pod is a host of its own, and no other pod is local to it.
        local = ", ".join(graph.local_dependencies)
        log.warning(
            "NODE_NAME is not set: this pod counts as a host of its own, whose states stay in ZooKeeper%s; "
            "set it through the downward API",
            f", and local dependencies ({local}) mean this pod alone" if local else "",
        )
    commands = [command for command in graph.commands if command.generation is not None]
    if settings.generation is None and commands:
        log.warning(
            "KOLLA_GENERATION is not set: %s may be run by an older image than it is for, and be recorded as "
            "done; set it to the generation of this image (ENV in its Dockerfile, or in what launches it)",
            ", ".join(f"{command.path} for {command.generation}" for command in commands),
        )


def _collect_garbage_again() -> None:
    gc.freeze()
    gc.enable()
