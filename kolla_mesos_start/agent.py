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
    where,
)
from kolla_mesos_start.health import PRIVATE, StateFile
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.processes import hide_memory, reap, signal_name
from kolla_mesos_start.report import Report, facts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NoReturn, TypeVar

    from kolla_mesos_start.commands.bootstrap import Bootstrap
    from kolla_mesos_start.definition.model import Dependency, Graph
    from kolla_mesos_start.election.candidacy import Candidacy, Result
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.render.prepare import Prepared, Preparer
    from kolla_mesos_start.render.published_generation import Generation
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.presence import Registration
    from kolla_mesos_start.tree.published import Published
    from kolla_mesos_start.tree.status import FailureRecord, StatusTree
    from kolla_mesos_start.wait.judge import Runnable
    from kolla_mesos_start.zookeeper.client import Client

    T = TypeVar("T")

log = Logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)  # and that of KOLLA_STOP_SIGNAL
# Seconds: most starts are over by then; a longer one can afford garbage collection.
COLLECT_GARBAGE_AFTER = 1.0


def main(verb: str = "run", show: bool = False) -> NoReturn:
    """Start the container, or `check` what a start would do; exit with the documented status."""
    _run_to_exit(lambda agent: agent.check(show) if verb == "check" else agent.run())


def refresh(order: int, report: int) -> NoReturn:
    """Refresh the daemon's files; the registrar starts this. `order` and `report` are descriptors."""
    _run_to_exit(lambda agent: agent.refresh(order, report))


def _run_to_exit(work: Callable[[Agent], int]) -> NoReturn:
    agent = Agent()
    try:
        status = work(agent)
    except AgentError as error:
        status = agent.end(error)
    except Exception as defect:
        # Reported to the operator like any other failure.
        log.error("please report this")
        for line in where(defect):
            log.error("%s", line)
        status = agent.end(AgentError(f"a defect of the agent: {type(defect).__name__}"))
    _exit(status)


def refuse(usage: str) -> NoReturn:
    """Exit because of unknown arguments; the last log line is written as for any other failure."""
    agent = Agent()
    agent.stage = "usage"
    agent.configure_log()
    _exit(agent.end(BadUsage(usage)))


def _exit(status: int) -> NoReturn:
    # A closed pipe must not change the status.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


class Agent:
    """One start of one container.

    `stage` and `command`: what it is doing. `client` is None until it begins to connect, `bootstrap` until
    commands may run. The attributes without a value belong to the stages: each is set by the first one that
    knows it.
    """

    settings: Settings
    preparer: Preparer
    tree: StatusTree

    def __init__(self) -> None:
        self.stage = "environment"
        self.command: str | None = None
        self.termination_log: str | None = None
        self.loop = Loop()
        self.report: Report | None = None
        self.client: Client | None = None
        self.bootstrap: Bootstrap | None = None
        self.registration: Registration | None = None
        self.ended: FailureRecord | None = None
        self.begins_again = False
        self._stop_signals: set[int] = set()

    def run(self) -> int:
        """Run all stages. Returns the exit status of a task; a daemon replaces this process instead."""
        self._read_environment()
        self._warn_of_world_readable()
        self.report = Report(StateFile.take(self.settings.run_dir))
        self._connect()

        from kolla_mesos_start.tree.published import Changed

        while True:
            try:
                return self._run_graph(self.report)
            except Changed as changed:
                log.warning("%s: beginning again from it", changed)
                self._end_guard()
                self.bootstrap, self.command, self.begins_again = None, None, True

    def _run_graph(self, report: Report) -> int:
        """Run the stages from `read` on, for the definition that is published now."""
        self._read(report)
        self._register(report)

        from kolla_mesos_start.wait.waiting import Waiting

        self._reach("wait")
        settings, preparer = self.settings, self.preparer
        published = partial(_published_generation, preparer)
        waiting = Waiting(self.tree, report, settings.wait_timeout, settings.generation, published)
        candidacy = self._candidacy(report)
        preparer.election = None
        result: Result | None = None
        for runnable in waiting:
            if candidacy and runnable.command.is_daemon:
                self._check_generation(report)
                self.stage, self.command = "election", runnable.command.path
                result = candidacy.elect()
                preparer.election = result.values
            try:
                prepared = self._when_addressed(partial(self._render, runnable, report), report, runnable)
            except (BadDefinition, CannotRender):
                _raise_if_changed(self.tree)
                raise
            report.renew(self._facts(prepared))
            if runnable.command.is_daemon:
                self._check_generation(report)
                self._become_daemon(prepared, report, candidacy, result)
            elif candidacy and runnable.command.path == candidacy.position_command:
                self._reach("bootstrap", runnable.command.path)
                candidacy.read_position(prepared)
                waiting.passed(runnable.command)
                self._reach("passed", runnable.command.path)
            elif self._run_command(prepared, runnable, report):
                waiting.passed(runnable.command)
                self._reach("passed", runnable.command.path)
                if candidacy:
                    candidacy.forget_position()
            self.stage, self.command = "wait", None
        return self._finish(report)

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
        changes = check(graph, preparer, show)
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
            write(Refreshed(self.client.seen if self.client else {}, error.reason))
            raise
        finally:
            self.termination_log = None  # It is only for the end of the container.
        self.close()
        return 0

    # -- the stages -----------------------------------------------------------------------------

    def configure_log(self) -> None:
        """Set up the log so that errors in the environment can be reported."""
        logs.configure("info", json_lines=os.environ.get("KOLLA_LOG_FORMAT") == "json")
        self.termination_log = environment.termination_log(os.environ)

    def _read_environment(self) -> None:
        """Parse the environment. Signals are handled from here on."""
        self._on_stop_signals(STOP_SIGNALS, self._on_stop)
        # Process 1 and the parent of a dead guard get orphans.
        self.loop.on_signal(signal.SIGCHLD, lambda signum: reap())
        self.loop.call_at(now() + COLLECT_GARBAGE_AFTER, _collect_garbage_again)
        self.configure_log()
        settings = self.settings = environment.parse(os.environ)
        self._on_stop_signals([settings.stop_signal], self._on_stop)
        logs.configure(settings.loglevel, settings.json_logs)
        for unknown in settings.unknown:
            log.warning("%s", unknown)
        self.termination_log = settings.termination_log

    def _connect(self) -> None:
        """Connect to ZooKeeper, and report why that fails. Meanwhile the next stages are imported."""
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

        def tell(cause: str) -> None:
            if self.report:
                what = f"for a connection to ZooKeeper at {settings.hosts}: {cause}"
                self.report.write("waiting", what)

        client.connect(settings.connect_timeout, tell)

    def _read(self, report: Report) -> None:
        """Wait until the definition is published, and read it as a graph of commands."""
        from kolla_mesos_start.tree.status import FailureRecord, StatusTree

        self.stage, settings = "read", self.settings
        published = self.preparer.published
        definition = published.await_definition(report, settings.wait_timeout)
        self._use_recorded_acl(published)
        self.ended = FailureRecord(published.client, published.znodes, settings.logs)
        graph, stamps = self.preparer.read_graph(definition)
        if settings.host_is_pod:
            _warn_of_pod(graph.local_dependencies)
        if settings.generation is None:
            _warn_of_generations(graph)
        if graph.daemon and graph.daemon.on_change:
            from kolla_mesos_start.daemon.refresh import refuse_restart

            refuse_restart(settings.supervise, graph)
        self.tree = StatusTree(published.client, published.znodes, graph, definition.zxid, stamps)

    def _use_recorded_acl(self, published: Published) -> None:
        """Unless KOLLA_ZK_ACL is set, create znodes with the ACL that was published for this service."""
        # An agent without an identity would lock itself out.
        if self.settings.acl == (environment.WORLD,) and self.settings.has_identity:
            recorded = published.recorded_acl()
            if recorded:
                acl = environment.recorded_acl(published.znodes.recorded_acl, recorded)
                published.client.create_with(acl)

    def _register(self, report: Report) -> None:
        """Claim the role, and register this container."""
        self.stage, tree = "register", self.tree
        tree.start(meanwhile=lambda: _import_what_follows(tree.graph))
        if tree.graph.commands:
            from kolla_mesos_start.commands.bootstrap import Bootstrap

            self.bootstrap = Bootstrap(tree)
            self.bootstrap.start_guard()  # It starts while we wait.
        from kolla_mesos_start.daemon.identity import register

        before = self.registration
        work = partial(register, self.settings, tree, self.preparer.facts, report)
        self.registration = self._when_addressed(work, report)
        if self.registration is None:
            for path, _ in before.presence if before else ():
                tree.client.ephemerals.discard(path)  # The previous definition had a daemon.

    def _when_addressed(self, work: Callable[[], T], report: Report, runnable: Runnable | None = None) -> T:
        """The result of `work`, once the addresses that it needs exist."""

        def tell(why: str) -> None:
            report.write("waiting", f"for an address: {why}", runnable.command.path if runnable else "")
            if runnable and runnable.contender:
                assert self.client is not None
                self.client.ephemerals.discard(runnable.contender)  # Another container may run it.

        def check() -> None:
            if runnable is None:  # Nothing has run.
                self.tree.raise_if_changed()

        try:
            return work()
        except NoAddress:
            from kolla_mesos_start.host.network import when_addressed  # Most hosts are ready before.
        return when_addressed(work, self.loop, self.settings.wait_timeout, tell, check)

    def _render(self, runnable: Runnable, report: Report) -> Prepared:
        """Render the command, and write its files unless COPY_ONCE is set and an earlier start wrote them."""
        command, settings, preparer = runnable.command, self.settings, self.preparer
        self.stage, self.command = "render", command.path
        if not command.files:
            return preparer.prepare(command)
        from kolla_mesos_start.files.copy_once import CopyOnce

        copied = CopyOnce(settings.state_dir) if settings.copy_once else None
        # If the definition has changed during this start, the files may have changed too.
        if copied and copied.done(command.path) and not self.begins_again:
            prepared = preparer.prepare(command, with_files=False)
            return prepared._replace(read=copied.read(command.path))
        prepared = preparer.prepare(command)
        if copied:
            copied.require()
        self._place(prepared, report)
        if copied:
            copied.record(command.path, prepared.read)
        return prepared

    def _place(self, prepared: Prepared, report: Report) -> None:
        from kolla_mesos_start.files.place import place

        if not any(content.check for content in prepared.contents):
            place(prepared.contents)
            return
        from kolla_mesos_start.commands.file_checks import FileChecks

        guard = self.bootstrap.start_guard() if self.bootstrap else None
        with FileChecks(self.loop, self.settings.service_name, prepared, guard) as checks:

            def check(content: Content, path: str) -> None:
                # A check may take long.
                what = f"{prepared.step.command.path} waits for the check of its file {content.name}"
                report.write("waiting", what, prepared.step.command.path)
                checks.check(content, path)

            place(prepared.contents, check)

    def _run_command(self, prepared: Prepared, runnable: Runnable, report: Report) -> bool:
        """Run a command until it ends; false if it must wait for its lock again."""
        assert self.bootstrap is not None
        self._reach("bootstrap", runnable.command.path)
        if not runnable.already_done:
            report.write("bootstrapping", "", runnable.command.path)
        return self.bootstrap.run(prepared, runnable)

    def _candidacy(self, report: Report) -> Candidacy | None:
        """This container's part in the election of its daemon's cluster; None without an election."""
        daemon, registration = self.tree.graph.daemon, self.registration
        if daemon is None or daemon.election is None:
            return None
        from kolla_mesos_start.election.candidacy import Candidacy

        assert self.bootstrap is not None and registration is not None  # It has a command for the position.
        run = partial(self.bootstrap.run_for_output, path=f"{self.settings.run_dir}/{PRIVATE}/position")
        return Candidacy(self.tree, daemon.election, registration.member, report, run)

    def _check_generation(self, report: Report) -> None:
        """Refuse to start the daemon if its definition does not list the generation of this image."""
        self.stage, daemon = "exec", self.tree.graph.daemon
        if daemon is not None and daemon.generations:
            from kolla_mesos_start.daemon.launch import check_generation

            check_generation(self.tree, self.settings.generation, report)

    def _become_daemon(
        self, prepared: Prepared, report: Report, candidacy: Candidacy | None, result: Result | None
    ) -> NoReturn:
        """Exec the daemon, or become its parent. Raises Changed if the election is over without it."""
        self._end_guard()
        assert self.client is not None and self.registration is not None and self.ended is not None
        registration = self.registration._replace(
            past=self.ended.leftover,
            past_when_ready=self.ended.leftover_until_ready,
            ended=self.ended.path,
        )
        from kolla_mesos_start.daemon.launch import Launch

        settings, client = self.settings, self.client
        if candidacy and result:
            prepared = prepared._replace(environ={**prepared.environ, **result.environ})
            membership = candidacy.membership(result, prepared.step.command.stop_grace)
            check = partial(candidacy.check, result)
            launch = Launch(settings, client, report, registration, prepared, membership, check)
        else:
            launch = Launch(settings, client, report, registration, prepared)
        (launch.supervise if settings.supervise else launch.exec)()

    def _finish(self, report: Report) -> int:
        """End a task: exit, or close the session and idle until a signal stops it."""
        assert self.ended is not None
        self.ended.forget()
        self.close()
        report.write("finished", "all commands are done")
        log.info("all commands are done")
        if self.settings.stay:
            try:
                self.loop.wait(lambda: False)
            except Stopped as stopped:
                log.info("%s; the task had finished", stopped.reason)
        return 0

    def _facts(self, prepared: Prepared) -> bytes:
        """What the container's znode shows once a command is rendered."""
        # Its registrar watches what the files were rendered from.
        settings, tree = self.settings, self.tree
        follows = bool(prepared.step.command.on_change and prepared.seen) and not settings.copy_once
        shown = (settings.host, tree.definition, tree.graph.digest, settings.generation, settings.logs)
        return facts_of(*shown, prepared.read, follows)

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

    # -- the end --------------------------------------------------------------------------------

    def end(self, error: AgentError) -> int:
        """End after a failure: close everything, log the reason in the last line, return the exit status."""
        self._on_stop_signals(self._stop_signals, lambda signum: None)  # It is already ending.
        try:
            self._end_guard()
        except Unkillable as worse:
            error = worse
        error.command = error.command or self.command
        if isinstance(error, NoRight) and self.client:
            error.reason += self.client.session.servers.hint
        ending = logs.ending(self.stage, error)
        if self.ended and not isinstance(error, Stopped):
            self.ended.write(str(ending.short()))
        if self.report:
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
        assert self.ended is not None
        self.ended.reached(stage, command)

    def close(self, *, session: bool = True) -> None:
        """Close everything: first the running command, then the `session` that holds its lock."""
        self._end_guard()
        if session and self.client is not None:
            self.client.close()

    def _end_guard(self) -> None:
        if self.bootstrap is not None:
            self.bootstrap.close()

    def _on_stop(self, signum: int) -> None:
        """A stop signal ends the agent at once, unless a command is running."""
        if self.bootstrap is not None:
            self.bootstrap.on_stop(signum)
        else:
            raise Stopped(signum, signal_name(signum))

    def _on_stop_signals(self, signums: Iterable[int], handler: Callable[[int], object]) -> None:
        for signum in signums:
            self.loop.on_signal(signum, handler)
        self._stop_signals = {*self._stop_signals, *signums}


def _published_generation(preparer: Preparer, dependency: Dependency) -> Generation:
    from kolla_mesos_start.render.published_generation import published_generation  # Few containers need it.

    return published_generation(preparer, dependency)


def _import_what_follows(graph: Graph) -> None:
    import kolla_mesos_start.wait.waiting

    if graph.commands:
        import kolla_mesos_start.commands.bootstrap
    else:
        import kolla_mesos_start.daemon.launch  # noqa: F401


def _host_facts(settings: Settings) -> Mapping[str, Any]:
    from kolla_mesos_start.host.network import facts  # A task may need none.

    return facts(settings)


def _raise_if_changed(tree: StatusTree) -> None:
    """Raise Changed if the definition is older than the last publication: it may need what was removed."""
    from kolla_mesos_start.tree.published import Changed

    if changed := tree.changed():
        raise Changed(f"{changed} has changed since it was read") from None


def _warn_of_pod(local: Sequence[str]) -> None:
    """Without the node's name each pod is a host of its own, and no other pod is local to it."""
    log.warning(
        "NODE_NAME is not set: this pod counts as a host of its own, whose states stay in ZooKeeper%s; "
        "set it through the downward API",
        f", and local dependencies ({', '.join(local)}) mean this pod alone" if local else "",
    )


def _warn_of_generations(graph: Graph) -> None:
    """Warn if commands are for a generation, but this image does not say which one it has."""
    commands = [command for command in graph.commands if command.generation is not None]
    if commands:
        log.warning(
            "KOLLA_GENERATION is not set: %s may be run by an older image than it is for, and be recorded as "
            "done; set it to the generation of this image (ENV in its Dockerfile, or in what launches it)",
            ", ".join(f"{command.path} for {command.generation}" for command in commands),
        )


def _collect_garbage_again() -> None:
    gc.freeze()
    gc.enable()
