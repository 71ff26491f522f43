"""The agent, from the environment to the daemon: the stages in their order.

    read -> register -> wait -> render -> bootstrap -> exec

`Agent.run` has one line for each. This is also the only place that catches what ends the agent, says so,
and exits. Each stage imports what it needs: that happens while ZooKeeper answers, or not at all.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from functools import partial

from kolla_mesos_start import log as logs
from kolla_mesos_start import settings as environment
from kolla_mesos_start.errors import (
    AccessDenied,
    AgentError,
    BadDefinition,
    BadUsage,
    CannotRender,
    CannotWrite,
    Stopped,
    Unkillable,
    where,
)
from kolla_mesos_start.facts import HostFacts
from kolla_mesos_start.health import JOURNAL, StateFile
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import Loop, now, reap
from kolla_mesos_start.report import Report, facts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from kolla_mesos_start.commands.bootstrap import Bootstrap
    from kolla_mesos_start.definition.model import Command, Dependency, Graph
    from kolla_mesos_start.files import Content
    from kolla_mesos_start.render.prepare import Prepared, Preparer
    from kolla_mesos_start.render.published_generation import Generation
    from kolla_mesos_start.settings import Acl, Settings
    from kolla_mesos_start.tree.ended import Ended
    from kolla_mesos_start.tree.presence import Registration
    from kolla_mesos_start.tree.published import Published
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.wait import Runnable
    from kolla_mesos_start.zookeeper.client import Client
    from kolla_mesos_start.zookeeper.session import Servers
    from kolla_mesos_start.zookeeper.wire import ACL

log = Logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Most starts are over by then; one that waits longer has the time to collect garbage.
IN_A_HURRY = 1.0


def main(verb: str = "run", show: bool = False) -> NoReturn:
    """Start the container, or `check` what a start would do, and exit with what the operator expects."""
    _conduct(lambda agent: agent.check(show) if verb == "check" else agent.run())


def refresh(order: int, report: int) -> NoReturn:
    """Refresh the daemon's files; the registrar starts this. `order` and `report` are descriptors."""
    _conduct(lambda agent: agent.refresh(order, report))


def _conduct(work: Callable[[Agent], int]) -> NoReturn:
    agent = Agent()
    try:
        status = work(agent)
    except AgentError as error:
        status = agent.end(error)
    except Exception as defect:
        # The operator learns of it as of any other end.
        log.error("please report this")
        for line in where(defect):
            log.error("%s", line)
        status = agent.end(AgentError(f"a defect of the agent: {type(defect).__name__}"))
    _exit(status)


def refuse(usage: str) -> NoReturn:
    """End because of words that mean nothing to the agent; the last line is written as at every end."""
    agent = Agent()
    agent.stage = "usage"
    agent.configure_log()
    _exit(agent.end(BadUsage(usage)))


def _exit(status: int) -> NoReturn:
    # A reader that is gone must not change the status.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


class Agent:
    """One start of one container.

    `stage` is how far it has come, `command` what it deals with there. `client` is None until a
    connection is begun, `bootstrap` until commands may run. `exported` is what they and the daemon find
    in their environment.
    """

    def __init__(self) -> None:
        self.stage = "environment"
        self.command: str | None = None
        self.termination_log: str | None = None
        self.loop = Loop()
        self.report: Report | None = None
        self.client: Client | None = None
        self.bootstrap: Bootstrap | None = None
        self.facts: HostFacts | None = None
        self.registration: Registration | None = None
        self.ended: Ended | None = None
        self.exported: Mapping[str, str] = {}
        self.begins_again = False

    def run(self) -> int:
        """All stages. Returns the exit status of a task; a daemon takes this process over instead."""
        settings = self._settle()
        _warn_of_open_files(settings)
        report = self.report = Report(StateFile.take(settings.run_dir))
        _complete_refresh(settings.run_dir)
        preparer = self._connect(
            settings,
            lambda cause: report.write(
                "waiting", f"for a connection to ZooKeeper at {settings.hosts}: {cause}"
            ),
        )

        from kolla_mesos_start.tree.published import Changed

        while True:
            try:
                return self._run_graph(settings, preparer, report)
            except Changed as changed:
                log.warning("%s: beginning again from it", changed)
                self._end_guard()
                self.bootstrap, self.command, self.begins_again = None, None, True

    def _run_graph(self, settings: Settings, preparer: Preparer, report: Report) -> int:
        """The stages from `read` on, with what is published now."""
        tree = self._read(settings, preparer, report)
        registration = self._register(settings, tree, preparer, report)

        from kolla_mesos_start.wait import Waiting

        self._reach("wait")
        waiting = Waiting(
            tree, report, settings.wait_timeout, settings.generation, partial(_published_generation, preparer)
        )
        for runnable in waiting:
            try:
                prepared = self._render(settings, preparer, runnable.command, report)
            except (BadDefinition, CannotRender):
                _raise_if_changed(tree)
                raise
            report.renew(_facts(settings, tree, prepared))
            if runnable.command.is_daemon:
                self._refuse_retired(settings, tree, report)
                self._become_daemon(settings, prepared, registration, report)
            elif self._run_command(prepared, runnable, report):
                waiting.passed(runnable.command)
                self._reach("passed", runnable.command.path)
            self.stage, self.command = "wait", None
        return self._finish(settings, report)

    def check(self, show: bool) -> int:
        """Say what a start would do to this container's files; write nothing at all. 1: some would change."""
        settings = self._settle()
        _warn_of_open_files(settings)
        self.termination_log = None  # It is for the end of the container, not for a check of it.
        preparer = self._connect(settings, lambda cause: None)
        self.stage = "read"
        graph, _ = preparer.read_graph(preparer.published.definition())

        from kolla_mesos_start.check import check

        self.stage = "render"
        changes = check(graph, preparer, show)
        self.close()
        return 1 if changes else 0

    def refresh(self, order: int, report: int) -> int:
        """Render the files of the running daemon again, place and tell; write a Refreshed."""
        import marshal

        from kolla_mesos_start.daemon.handoff import Refreshed, plain
        from kolla_mesos_start.files.journal import recover
        from kolla_mesos_start.refresh import end_with, refresh

        with open(order, "rb") as file:
            listed, started, untold, registrar = marshal.load(file)

        def write(found: Refreshed) -> None:
            with open(report, "wb") as file:
                file.write(marshal.dumps(plain(found)))

        try:
            # Like the daemon, its files stand an outage of any length.
            settings = self._settle()._replace(connect_timeout=None)
            wanted = end_with(self.loop, registrar)
            recover(settings.run_dir)
            preparer = self._connect(settings, lambda cause: None)
            self.stage = "refresh"
            write(refresh(preparer, settings, self.exported, listed, started, untold, wanted))
        except AgentError as error:
            write(Refreshed(self.client.seen if self.client else {}, error.reason))
            raise
        finally:
            self.termination_log = None  # It is for the end of the container.
        self.close()
        return 0

    # -- the stages -----------------------------------------------------------------------------

    def configure_log(self) -> None:
        """Where to say what is wrong, even if that is the environment."""
        logs.configure("info", json_lines=os.environ.get("KOLLA_LOG_FORMAT") == "json")
        self.termination_log = environment.termination_log(os.environ)

    def _settle(self) -> Settings:
        """The environment as settings; signals are heard from here on."""
        for signum in STOP_SIGNALS:
            self.loop.on_signal(signum, self._on_stop)
        # Orphans come to process 1, and to the parent that a dead guard leaves behind.
        self.loop.on_signal(signal.SIGCHLD, lambda signum: reap())
        self.loop.call_at(now() + IN_A_HURRY, _collect_garbage_again)
        self.configure_log()
        settings = environment.parse(os.environ)
        logs.configure(settings.loglevel, settings.json_logs)
        for unknown in settings.unknown:
            log.warning("%s", unknown)
        self.termination_log = settings.termination_log
        return settings

    def _connect(self, settings: Settings, report: Callable[[str], object]) -> Preparer:
        """Connect to ZooKeeper; host facts are collected, and the stages imported, meanwhile.

        `report` gets what is in the way.
        """
        facts = self.facts = HostFacts(settings)
        from kolla_mesos_start.zookeeper.client import Client

        self.stage = "connect"
        acl = _acl(settings.acl)
        client = self.client = Client(_servers(settings), settings.session_timeout, acl, self.loop)
        client.dial()

        from kolla_mesos_start.hide import hide_memory

        self.exported = _environ(settings)  # This reads a file that is root's once we're hidden.
        if not hide_memory():
            log.warning(
                "this Python can't hide the memory of agent and registrar from processes of their user"
            )
        import kolla_mesos_start.tree.ended  # noqa: F401 (while ZooKeeper answers)
        from kolla_mesos_start.render.prepare import Preparer
        from kolla_mesos_start.tree.published import Published
        from kolla_mesos_start.tree.znodes import Znodes

        znodes = Znodes(settings.prefix, settings.deployment_id, settings.service_name, settings.host)
        preparer = Preparer(settings, Published(client, znodes), facts)
        client.connect(settings.connect_timeout, report)
        return preparer

    def _read(self, settings: Settings, preparer: Preparer, report: Report) -> StatusTree:
        """The definition, once it is published, as a graph of commands."""
        from kolla_mesos_start.tree.ended import Ended

        self.stage = "read"
        published = preparer.published
        definition = published.await_definition(report, settings.wait_timeout)
        self._create_as_published(settings, published)
        self.ended = Ended(published.client, published.znodes)
        graph, stamps = preparer.read_graph(definition)
        _warn_of_pods(settings, graph)
        _warn_of_generations(settings, graph)
        if graph.daemon and graph.daemon.on_change:
            from kolla_mesos_start.refresh import refuse_restart

            refuse_restart(settings, graph)

        from kolla_mesos_start.tree.status import StatusTree

        return StatusTree(published.client, published.znodes, graph, definition.zxid, stamps)

    def _create_as_published(self, settings: Settings, published: Published) -> None:
        """Unless KOLLA_ZK_ACL says it, what was published says who may do what with what we create."""
        # Who has no credential of its own would lock itself out.
        if settings.acl == (environment.WORLD,) and (settings.auth or settings.cert):
            recorded = published.recorded_acl()
            if recorded:
                acl = environment.recorded_acl(published.znodes.recorded_acl, recorded)
                published.client.create_with(_acl(acl))

    def _register(
        self, settings: Settings, tree: StatusTree, preparer: Preparer, report: Report
    ) -> Registration | None:
        """Claim the role, and make this container known."""
        self.stage = "register"
        tree.start(meanwhile=lambda: _import_what_follows(tree.graph))
        if tree.graph.commands:
            from kolla_mesos_start.commands.bootstrap import Bootstrap

            self.bootstrap = Bootstrap(tree, self.exported)
            self.bootstrap.guard  # noqa: B018 (it starts while we wait)
        from kolla_mesos_start.daemon.identity import register

        before, self.registration = self.registration, register(settings, tree, preparer.facts, report)
        if self.registration is None:
            for path, _ in before.presence if before else ():
                tree.client.ephemerals.discard(path)  # What was published before had a daemon.
        return self.registration

    def _render(self, settings: Settings, preparer: Preparer, command: Command, report: Report) -> Prepared:
        """Render the command and place its files, unless an earlier start of this container has."""
        self.stage, self.command = "render", command.path
        if not command.files:
            return preparer.prepare(command)
        from kolla_mesos_start.files.copy_once import CopyOnce

        copied = CopyOnce(settings.state_dir) if settings.copy_once else None
        # What is published has changed since this start has begun: so may the files have.
        if copied and copied.done(command.path) and not self.begins_again:
            prepared = preparer.prepare(command, with_files=False)
            return prepared._replace(read=copied.read(command.path))
        prepared = preparer.prepare(command)
        if copied:
            copied.require()
        self._place(settings, prepared, report)
        if copied:
            copied.record(command.path, prepared.read)
        return prepared

    def _place(self, settings: Settings, prepared: Prepared, report: Report) -> None:
        from kolla_mesos_start.files import place

        if not any(content.check for content in prepared.contents):
            place(prepared.contents)
            return
        from kolla_mesos_start.commands.verdict import Verdicts

        guard = self.bootstrap.guard if self.bootstrap else None
        with Verdicts(self.loop, settings.service_name, prepared, self.exported, guard) as verdicts:

            def check(content: Content, path: str) -> None:
                # It may take long; what is said until then has come to its end.
                what = f"{prepared.step.command.path} waits for the check of its file {content.name}"
                report.write("waiting", what, prepared.step.command.path)
                verdicts.check(content, path)

            place(prepared.contents, check)

    def _run_command(self, prepared: Prepared, runnable: Runnable, report: Report) -> bool:
        """Run a command to its end; false if it has to wait for its turn again."""
        assert self.bootstrap is not None
        self._reach("bootstrap", runnable.command.path)
        if not runnable.already_done:
            report.write("bootstrapping", "", runnable.command.path)
        return self.bootstrap.run(prepared, runnable)

    def _refuse_retired(self, settings: Settings, tree: StatusTree, report: Report) -> None:
        """Start no daemon of an image that an upgrade has left behind."""
        self.stage = "exec"
        if tree.graph.daemon is not None and tree.graph.daemon.retired_by is not None:
            from kolla_mesos_start.daemon import retirement  # Few daemons can be retired.

            retirement.check(tree, settings.generation, report)

    def _become_daemon(
        self, settings: Settings, prepared: Prepared, registration: Registration | None, report: Report
    ) -> NoReturn:
        """Exec the daemon, or stay as its parent."""
        self._end_guard()
        assert self.client is not None and registration is not None and self.ended is not None
        registration = registration._replace(
            past=self.ended.leftover,
            past_when_ready=(*registration.past_when_ready, *self.ended.leftover_until_ready),
            ended=self.ended.path,
        )
        from kolla_mesos_start.daemon.launch import Launch

        launch = Launch(settings, self.client, report, registration)
        (launch.supervise if settings.supervise else launch.exec)(prepared, self.exported)

    def _finish(self, settings: Settings, report: Report) -> int:
        """The end of a task: it exits, or idles without a session until it is stopped."""
        assert self.ended is not None
        self.ended.forget()
        self.close()
        report.write("finished", "all commands are done")
        log.info("all commands are done")
        if settings.stay:
            try:
                self.loop.wait(lambda: False)
            except Stopped as stopped:
                log.info("%s; the task had finished", stopped.reason)
        return 0

    # -- the end --------------------------------------------------------------------------------

    def end(self, error: AgentError) -> int:
        """End unhappily: close everything, say why in the last line, and return the exit status."""
        for signum in STOP_SIGNALS:
            self.loop.on_signal(signum, lambda signum: None)  # It is ending already.
        try:
            self._end_guard()
        except Unkillable as worse:
            error = worse
        error.command = error.command or self.command
        if isinstance(error, AccessDenied):
            error.reason += self._known_as()
        ending = logs.ending(self.stage, error)
        if self.ended and not isinstance(error, Stopped):
            self.ended.tell(str(ending.short()))
        if self.report:
            # Where we have become the daemon's user already, it may not be ours to say.
            with contextlib.suppress(CannotWrite):
                what = f"{error.command}: " if error.command else ""
                self.report.write("ended", f"{what}{error.reason}")
        self.close(session=not isinstance(error, Unkillable))
        with contextlib.suppress(OSError):
            sys.stdout.flush()  # What a check has found so far comes before the last line.
        if self.stage != "refresh":  # Its registrar reports that, and goes on.
            logs.last_line(ending, self.termination_log)
        return error.status

    def _known_as(self) -> str:
        """What an operator has to know who looks for a right that is missing."""
        if self.client is None or not self.client.connected:
            return ""
        from kolla_mesos_start.zookeeper.identity import connected_as

        self.client.ignore()
        return connected_as(self.client.known_as())

    def _reach(self, stage: str, command: str | None = None) -> None:
        """Come to a stage; what ended an earlier start before it is past."""
        self.stage, self.command = stage, command
        assert self.ended is not None
        self.ended.reached(stage, command)

    def close(self, *, session: bool = True) -> None:
        """End what was begun: first the running command, then the `session` that held its lock."""
        self._end_guard()
        if self.facts is not None:
            self.facts.close()
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
            raise Stopped(signum, signal.Signals(signum).name)


def _published_generation(preparer: Preparer, dependency: Dependency) -> Generation:
    from kolla_mesos_start.render.published_generation import published_generation  # Few containers ask.

    return published_generation(preparer, dependency)


def _import_what_follows(graph: Graph) -> None:
    import kolla_mesos_start.wait

    if graph.commands:
        import kolla_mesos_start.commands.bootstrap
    else:
        import kolla_mesos_start.daemon.launch  # noqa: F401


def _facts(settings: Settings, tree: StatusTree, prepared: Prepared) -> bytes:
    """What the container shows of itself once a command is rendered."""
    # Its registrar watches what the files were rendered from.
    follows = bool(prepared.step.on_change and prepared.seen) and not settings.copy_once
    shown = (settings.host, tree.definition, tree.graph.digest, settings.generation)
    return facts_of(*shown, prepared.read, follows)


def _raise_if_changed(tree: StatusTree) -> None:
    """Changed if the definition was read before the last publication: it may need what has been removed."""
    from kolla_mesos_start.tree.published import Changed

    if changed := tree.changed():
        raise Changed(f"{changed} has changed since it was read") from None


def _complete_refresh(run_dir: str) -> None:
    """Complete what a refresh has begun that was killed together with this container."""
    journal = f"{run_dir}/{JOURNAL}"
    if not os.path.lexists(journal):
        return
    from kolla_mesos_start.files.journal import recover

    try:
        recover(run_dir)
        log.warning("a refresh was killed while it replaced files: that is completed now")
    except CannotWrite as error:
        # All files are placed again before the daemon starts.
        log.warning("a refresh was killed while it replaced files, some of which are old: %s", error.reason)
        with contextlib.suppress(OSError):
            os.unlink(journal)


def _servers(settings: Settings) -> Servers:
    from kolla_mesos_start.zookeeper.session import Servers

    hosts = [host.rpartition(":") for host in settings.hosts.split(",")]
    return Servers(
        [(host.strip("[]"), int(port)) for host, _, port in hosts],
        settings.chroot,
        settings.auth,
        settings.ca,
        settings.cert,
        settings.key,
    )


def _acl(entries: Sequence[Acl]) -> list[ACL]:
    """What KOLLA_ZK_ACL says as ZooKeeper has it."""
    from kolla_mesos_start.zookeeper.wire import ACL, Id

    bits = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
    return [
        ACL(sum(bits[letter] for letter in set(perms)), Id(scheme, identity))
        for scheme, identity, perms in entries
    ]


def _environ(settings: Settings) -> Mapping[str, str]:
    """What commands and daemon find in their environment."""
    from kolla_mesos_start.child_environ import child_environ, launcher_environ

    return child_environ(launcher_environ(os.environ), copy_once=settings.copy_once)


def _warn_of_pods(settings: Settings, graph: Graph) -> None:
    """Without the node's name a pod is a host of its own, and nothing outside is ever local to it."""
    if settings.host_is_pod:
        local = graph.local_dependencies
        log.warning(
            "NODE_NAME is not set: this pod counts as a host of its own, whose states stay in ZooKeeper%s; "
            "set it through the downward API",
            f", and local dependencies ({', '.join(local)}) mean this pod alone" if local else "",
        )


def _warn_of_open_files(settings: Settings) -> None:
    if settings.auth or settings.cert:
        from kolla_mesos_start.open_files import open_files

        for variable, path, mode in open_files(os.environ):
            log.warning(
                "%s: every user in this container can read %s (mode %04o), and then do in ZooKeeper what this"
                " service may: make it 0440 or 0400 (in Kubernetes by the Secret's defaultMode, and fsGroup"
                " for the agent's user; in podman by the secret's mode and uid)",
                variable,
                path,
                mode,
            )


def _warn_of_generations(settings: Settings, graph: Graph) -> None:
    """Whether this image is the one that a generation asks for is known only if it says which it is."""
    commands = [command for command in graph.commands if command.generation is not None]
    if commands and settings.generation is None:
        log.warning(
            "KOLLA_GENERATION is not set: %s may be run by an older image than it is for, and be recorded as "
            "done; set it to the generation of this image (ENV in its Dockerfile, or in what launches it)",
            ", ".join(f"{command.path} for {command.generation}" for command in commands),
        )


def _collect_garbage_again() -> None:
    gc.freeze()
    gc.enable()
