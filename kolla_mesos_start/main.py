"""The stages of the agent, one after the other: read, wait, render, bootstrap, register, exec.

The only place that catches what ends the agent, says so, and exits.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Callable, NoReturn

from kolla_mesos_start import log as logs
from kolla_mesos_start import settings as environment
from kolla_mesos_start.bootstrap import Bootstrap, Renewals
from kolla_mesos_start.check import check
from kolla_mesos_start.config_files import CopyOnce, place
from kolla_mesos_start.ensemble import Ensemble
from kolla_mesos_start.ephemerals import Ephemerals
from kolla_mesos_start.errors import AgentError, BadUsage, Stopped, Unkillable
from kolla_mesos_start.graph import Command, Dependency, Graph
from kolla_mesos_start.health import Pulse
from kolla_mesos_start.launch import STOP_SIGNALS, Launch
from kolla_mesos_start.mailbox import Mailbox
from kolla_mesos_start.prepare import Prepared, Preparer
from kolla_mesos_start.process import reap
from kolla_mesos_start.published import Facts, Published
from kolla_mesos_start.record import Records
from kolla_mesos_start.register import StatusTree, identity
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.wait import Waiting
from kolla_mesos_start.watches import Watches
from kolla_mesos_start.znodes import DAEMON, GLOBAL, LOCAL, Znodes

log = logging.getLogger(__name__)

# A session that can't be closed in this time ends with its timeout instead.
CLOSE_PATIENCE = 1.0


def main(verb: str = "run", show: bool = False) -> NoReturn:
    """Run the agent, or `check` what it would do, and exit with what contract and operator expect."""
    container = Container()
    try:
        status = container.check(show) if verb == "check" else container.run()
    except AgentError as error:
        status = container.end(error)
    except Exception as defect:
        # Whatever this is, the operator has to learn of it like of any other end, and that it is ours.
        # Its own message is left out: that may hold a value.
        told = AgentError(f"a defect of the agent: {type(defect).__name__}")
        log.error("please report this", exc_info=(AgentError, told, defect.__traceback__))
        status = container.end(told)
    _exit(status)


def refuse(usage: str) -> NoReturn:
    """End for words that mean nothing to the agent; told as every end is, they may be an entrypoint's."""
    container = Container()
    container.stage = "usage"
    container.settle_log()
    _exit(container.end(BadUsage(usage)))


def _exit(status: int) -> NoReturn:
    # What nobody can read any more must not change the status.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # kazoo's threads may be in the middle of an outage: nothing of theirs is worth waiting for.
    os._exit(status)


class Container:
    """One container on its way; `stage` is how far it has come, `command` what it is about there."""

    def __init__(self) -> None:
        self.stage = "environment"
        self.command: str | None = None
        self.termination_log: str | None = None
        self._mailbox = Mailbox()
        self._ensemble: Ensemble | None = None
        self._bootstrap: Bootstrap | None = None

    def run(self) -> int:
        """All stages. Returns the exit status of a task; a daemon takes this process over instead."""
        settings = self._settle()
        pulse = Pulse.take(settings.run_dir)
        facts = _facts(settings)

        self.stage = "connect"
        pulse.tell("waiting", "for a connection to ZooKeeper")
        ensemble = self._connect(settings)
        watches, ephemerals = Watches(ensemble), Ephemerals(ensemble)

        self.stage = "read"
        znodes = _znodes(settings)
        published = Published(ensemble, watches, znodes)
        definition = published.await_definition(pulse, settings.wait_timeout)
        preparer = Preparer(settings, znodes, published, facts)
        graph = preparer.read_graph(definition)
        _warn_of_pods(settings, graph)

        self.stage = "register"
        tree = StatusTree(ensemble, znodes, graph)
        tree.start()
        member = _register(settings, ephemerals, znodes, facts) if graph.daemon else ""

        waiting = Waiting(
            graph, definition.zxid, ensemble, watches, ephemerals, znodes, tree, pulse, settings.wait_timeout
        )
        records = Records(ensemble, znodes, tree, definition.zxid)
        bootstrap = self._bootstrap = _bootstrap(settings, ensemble, watches, znodes, records, graph)
        copied = CopyOnce(settings.state_dir) if settings.copy_once else None
        self.stage = "wait"
        for turn in waiting:
            self.stage, self.command = "render", turn.command.path
            prepared = _configure(preparer, turn.command, copied)
            if turn.command.is_daemon:
                self.stage = "exec"
                bootstrap.close()
                launch = Launch(settings, ensemble, ephemerals, znodes, pulse, member, facts())
                launch.exec(prepared, _exported(settings))
            self.stage = "bootstrap"
            if not turn.is_passage:
                pulse.tell("bootstrapping", turn.command.path)
            if bootstrap.run(prepared, turn):
                waiting.passed(turn.command)
            self.stage, self.command = "wait", None
        return self._finish(settings, pulse)

    def check(self, show: bool) -> int:
        """Say what a start would do to this container's files; write nothing at all."""
        settings = self._settle()
        self.termination_log = None  # It is for the end of the container, not of a look into it.
        self.stage = "connect"
        ensemble = self._connect(settings)
        self.stage = "read"
        znodes = _znodes(settings)
        published = Published(ensemble, Watches(ensemble), znodes)
        preparer = Preparer(settings, znodes, published, _facts(settings))
        graph = preparer.read_graph(published.definition())
        self.stage = "render"
        check(graph, preparer, show)
        self.close()
        return 0

    def settle_log(self) -> None:
        """Where to tell what is wrong, even if that is the environment."""
        logs.configure("info", json_lines=os.environ.get("KOLLA_LOG_FORMAT") == "json")
        self.termination_log = environment.termination_log(os.environ)

    def end(self, error: AgentError) -> int:
        """End unhappily: close all, say why in the last line, and return the exit status."""
        try:
            self.close(session=not isinstance(error, Unkillable))
        except Unkillable as worse:
            error = worse
        error.command = error.command or self.command
        sys.stdout.flush()  # What a check has found so far comes before the last line.
        logs.last_line(logs.ending(self.stage, error), self.termination_log)
        return error.status

    def close(self, *, session: bool = True) -> None:
        """End what was begun: first the running command, then the `session` that held its lock."""
        if self._bootstrap is not None:
            self._bootstrap.close()
        if session and self._ensemble is not None and self._ensemble.connected:
            closing = threading.Thread(target=self._ensemble.close, daemon=True)
            closing.start()
            closing.join(CLOSE_PATIENCE)

    # -- the stages ---------------------------------------------------------------------------------

    def _settle(self) -> Settings:
        """The environment understood, and signals heard from here on."""
        for signum in STOP_SIGNALS:
            self._mailbox.on_signal(signum, self._on_stop)
        # As process 1, or as the parent that a dead guard leaves behind.
        self._mailbox.on_signal(signal.SIGCHLD, lambda number: reap())
        self.settle_log()
        settings = environment.parse(os.environ)
        logs.configure(settings.loglevel, settings.json_logs)
        self.termination_log = settings.termination_log
        return settings

    def _connect(self, settings: Settings) -> Ensemble:
        self._ensemble = Ensemble(settings, self._mailbox)
        self._ensemble.connect()
        return self._ensemble

    def _finish(self, settings: Settings, pulse: Pulse) -> int:
        """The end of a task: it exits, or idles without a session until it is told to stop."""
        self.close()
        pulse.tell("finished", "all commands are done")
        log.info("all commands are done")
        if settings.stay:
            try:
                self._mailbox.wait(lambda: False)
            except Stopped as stopped:
                log.info("%s; the task had finished", stopped.reason)
        return 0

    def _on_stop(self, signum: int) -> None:
        """A stop signal ends the agent at once, unless a command is running."""
        if self._bootstrap is not None:
            self._bootstrap.on_stop(signum)
        else:
            raise Stopped(signum, signal.Signals(signum).name)


def _exported(settings: Settings) -> Mapping[str, str]:
    """What commands and daemon find in their environment."""
    return environment.exported(settings, environment.given(os.environ))


def _znodes(settings: Settings) -> Znodes:
    return Znodes(settings.prefix, settings.deployment_id, settings.service_name, settings.host)


def _register(settings: Settings, ephemerals: Ephemerals, znodes: Znodes, facts: Callable[[], Facts]) -> str:
    """Make this container known, as one that is to become a daemon; returns the id of its member."""
    member, used_before = identity(settings.state_dir)
    if used_before:
        for scope in (GLOBAL, LOCAL):
            ephemerals.discard(f"{znodes.command(scope, f'{znodes.role}/{DAEMON}').ready}/{member}")
    ephemerals.keep(f"{znodes.party(settings.service_name)}/{member}", json.dumps(facts()).encode())
    return member


def _bootstrap(
    settings: Settings,
    ensemble: Ensemble,
    watches: Watches,
    znodes: Znodes,
    records: Records,
    graph: Graph,
) -> Bootstrap:
    """What runs the commands; where a definition has none, nothing is started for it."""
    once = any(command.run_once for command in graph.commands)
    renewals = Renewals(ensemble, znodes.status, wanted=once)
    environ = _exported(settings)
    bootstrap = Bootstrap(ensemble, watches, records, renewals, environ)
    if graph.commands:
        bootstrap.guard  # noqa: B018 (it starts while we wait)
    return bootstrap


def _warn_of_pods(settings: Settings, graph: Graph) -> None:
    """Without the node's name a pod is a host of its own, and nothing else is ever local to it."""
    local = [
        f"{command.path} on {dependency.path}"
        for command in graph.steps
        for dependency in command.dependencies
        if isinstance(dependency, Dependency) and dependency.scope == LOCAL
    ]
    if settings.host_is_pod and local:
        log.warning(
            "local dependencies (%s) mean this pod alone: set NODE_NAME through the downward API",
            ", ".join(local),
        )


def _configure(preparer: Preparer, command: Command, copied: CopyOnce | None) -> Prepared:
    """Render the command and place its files, unless an earlier start of this container has."""
    if copied is None or not command.files:
        prepared = preparer.prepare(command)
        place(prepared.contents)
    elif copied.done(command.path):
        prepared = preparer.prepare(command, with_files=False)
    else:
        prepared = preparer.prepare(command)
        copied.require()
        place(prepared.contents)
        copied.record(command.path)
    return prepared


def _facts(settings: Settings) -> Callable[[], Facts]:
    """This host's facts, found when they are first needed: psutil is slow to import."""

    @functools.cache
    def facts() -> Facts:
        from kolla_mesos_start import host

        found: Facts = host.facts(settings)
        return found

    return facts
