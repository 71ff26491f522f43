"""The stages of the agent, one after the other: read, wait, render, bootstrap, register, exec."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Callable

from kolla_mesos_start.child_environ import child_environ, launcher_environ
from kolla_mesos_start.daemon.identity import identity
from kolla_mesos_start.definition.model import Command, Dependency, Graph
from kolla_mesos_start.errors import Stopped
from kolla_mesos_start.render.prepare import Prepared, Preparer
from kolla_mesos_start.tree.published import Definition, Facts, Published
from kolla_mesos_start.tree.status import StatusTree
from kolla_mesos_start.tree.znodes import DAEMON, GLOBAL, LOCAL, Znodes
from kolla_mesos_start.wait import Waiting
from kolla_mesos_start.zookeeper.ephemerals import Ephemerals
from kolla_mesos_start.zookeeper.watches import Watches

if TYPE_CHECKING:
    from kolla_mesos_start.commands.bootstrap import Bootstrap
    from kolla_mesos_start.container import Container
    from kolla_mesos_start.files.copy_once import CopyOnce
    from kolla_mesos_start.health import StateFile
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.zookeeper.client import Ensemble

log = logging.getLogger(__name__)


def run(
    container: Container,
    settings: Settings,
    facts: Callable[[], Facts],
    ensemble: Ensemble,
    state_file: StateFile,
) -> int:
    """All stages. Returns the exit status of a task; a daemon takes this process over instead."""
    ensemble.connect()
    watches, ephemerals = Watches(ensemble), Ephemerals(ensemble)

    container.stage = "read"
    znodes = _znodes(settings)
    published = Published(ensemble, watches, znodes)
    definition = published.await_definition(state_file, settings.wait_timeout)
    preparer = Preparer(settings, znodes, published, facts)
    graph = preparer.read_graph(definition)
    _warn_of_pods(settings, graph)

    container.stage = "register"
    tree = StatusTree(ensemble, znodes, graph)
    tree.start(meanwhile=lambda: _import_what_follows(graph))
    member = _register(settings, ephemerals, znodes, facts) if graph.daemon else ""

    waiting = Waiting(
        graph, definition.zxid, ensemble, watches, ephemerals, znodes, tree, state_file, settings.wait_timeout
    )
    bootstrap = None
    if graph.commands:
        bootstrap = _bootstrap(settings, ensemble, watches, znodes, tree, definition, graph)
        container.bootstrap = bootstrap
    copied = _copied(settings)
    container.stage = "wait"
    for turn in waiting:
        container.stage, container.command = "render", turn.command.path
        prepared = _configure(preparer, turn.command, copied)
        if turn.command.is_daemon:
            container.stage = "exec"
            container.close(session=False)
            from kolla_mesos_start.daemon.launch import Launch

            launch = Launch(settings, ensemble, ephemerals, znodes, state_file, member, facts())
            (launch.supervise if settings.supervise else launch.exec)(prepared, _exported(settings))
        elif bootstrap is not None:
            container.stage = "bootstrap"
            if not turn.already_done:
                state_file.write("bootstrapping", turn.command.path)
            if bootstrap.run(prepared, turn):
                waiting.passed(turn.command)
        container.stage, container.command = "wait", None
    return _finish(container, settings, state_file)


def check(
    container: Container, settings: Settings, facts: Callable[[], Facts], ensemble: Ensemble, show: bool
) -> int:
    """Say what a start would do to this container's files; write nothing at all."""
    from kolla_mesos_start.check import check as check_files

    ensemble.connect()
    container.stage = "read"
    znodes = _znodes(settings)
    published = Published(ensemble, Watches(ensemble), znodes)
    preparer = Preparer(settings, znodes, published, facts)
    graph = preparer.read_graph(published.definition())
    container.stage = "render"
    check_files(graph, preparer, show)
    container.close()
    return 0


def _finish(container: Container, settings: Settings, state_file: StateFile) -> int:
    """The end of a task: it exits, or idles without a session until it is told to stop."""
    container.close()
    state_file.write("finished", "all commands are done")
    log.info("all commands are done")
    if settings.stay:
        try:
            container.loop.wait(lambda: False)
        except Stopped as stopped:
            log.info("%s; the task had finished", stopped.reason)
    return 0


def _exported(settings: Settings) -> Mapping[str, str]:
    """What commands and daemon find in their environment."""
    return child_environ(settings, launcher_environ(os.environ))


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


def _import_what_follows(graph: Graph) -> None:
    if graph.commands:
        import kolla_mesos_start.commands.bootstrap
    else:
        import kolla_mesos_start.daemon.launch  # noqa: F401


def _bootstrap(
    settings: Settings,
    ensemble: Ensemble,
    watches: Watches,
    znodes: Znodes,
    tree: StatusTree,
    definition: Definition,
    graph: Graph,
) -> Bootstrap:
    """What runs the commands of a definition that has any."""
    from kolla_mesos_start.commands.bootstrap import Bootstrap, Renewals
    from kolla_mesos_start.tree.attempts import Records

    once = any(command.run_once for command in graph.commands)
    renewals = Renewals(ensemble, znodes.status, wanted=once)
    records = Records(ensemble, znodes, tree, definition.zxid)
    bootstrap = Bootstrap(ensemble, watches, records, renewals, _exported(settings))
    bootstrap.guard  # noqa: B018 (it starts while we wait)
    return bootstrap


def _copied(settings: Settings) -> CopyOnce | None:
    """What an earlier start of this container has written, where that is to stay."""
    if not settings.copy_once:
        return None
    from kolla_mesos_start.files.copy_once import CopyOnce

    return CopyOnce(settings.state_dir)


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
    if not command.files:
        return preparer.prepare(command)
    from kolla_mesos_start.files import place

    if copied is None:
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
