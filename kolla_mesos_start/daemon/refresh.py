"""The refresh stage: render the files of a running daemon again, and replace all of them or none.

The registrar starts an agent for each refresh, and that agent runs this stage. `refresher` decides when, and
signals or restarts the daemon afterwards. A command that notifies the daemon runs here.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing

from kolla_mesos_start.commands.file_checks import FileCommands
from kolla_mesos_start.commands.guard_client import Guard
from kolla_mesos_start.daemon.handoff import Refreshed
from kolla_mesos_start.errors import AgentError, BadDefinition, Stopped
from kolla_mesos_start.files.place import place, restore
from kolla_mesos_start.files.written import Written
from kolla_mesos_start.processes import PR_SET_PDEATHSIG, prctl
from kolla_mesos_start.render.prepare import RESTARTED
from kolla_mesos_start.report import constants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kolla_mesos_start.definition.model import Graph
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.render.prepare import Prepared, Preparer
    from kolla_mesos_start.settings import Settings

CHANGED = "its command, environment or check has changed: restart the container"
NO_LONGER = "its definition has no on_change any more: its files stay as they are until it is started again"


def end_with(loop: Loop, registrar: int) -> Callable[[], None]:
    """End this refresh if its parent, the registrar, dies: then nothing would notify the daemon.

    Returns a function that raises Stopped if that has happened.
    """

    def check() -> None:
        if os.getppid() != registrar:
            raise Stopped(signal.SIGHUP, "the death of its registrar: the daemon's files stay as they are")

    loop.on_signal(signal.SIGHUP, lambda signum: check())
    prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    check()
    return check


def refuse_restart(supervise: bool, graph: Graph) -> None:
    """Raise BadDefinition if `on_change` is a restart, but the agent will not be the daemon's parent."""
    on_change = graph.daemon.on_change if graph.daemon else None
    if on_change and on_change.kind == "restart" and not supervise:
        raise BadDefinition(
            [
                "service.daemon.on_change.restart: the agent is not its parent: set KOLLA_START_MODE to"
                " supervise, or choose signal or command"
            ]
        )


def refresh(
    preparer: Preparer,
    settings: Settings,
    listed: Mapping[str, Sequence[str]],
    started: int,
    notified: Mapping[str, int] | None,
    check_wanted: Callable[[], object],
) -> Refreshed:
    """Refresh the daemon's files, and run the command that notifies the daemon, if it has one.

    `listed` and `started` come from the registrar. `notified`: the digests of the files that the daemon was
    last notified of; None: it must be notified in any case. `check_wanted` raises if the registrar is gone.
    Raises the errors of a start; then nothing has changed.
    """
    definition = preparer.published.definition()
    graph, _ = preparer.read_graph(definition)
    if graph.daemon is None:
        raise BadDefinition([f"{graph.service_name} has no daemon any more: remove its containers"])
    refuse_restart(settings.supervise, graph)
    prepared = preparer.prepare(graph.daemon, before=listed)
    on_change = prepared.step.command.on_change
    if on_change is None:
        return Refreshed(prepared.seen, "", listed, note=NO_LONGER, needs_restart=True)
    if on_change.kind == "restart":
        from kolla_mesos_start.daemon.launch import refuse_retired  # Few daemons are restarted.

        refuse_retired(graph.daemon, settings.generation)
    command = on_change.value if on_change.kind == "command" else None
    # The files on disk don't decide alone: somebody may have edited one by hand.
    kept = {each.name for each in prepared.contents if each.kept}
    before = {name: old for name, old in (notified or {}).items() if name in kept or name == RESTARTED}
    digests = {**before, **prepared.digests}
    written = Written(settings.record_of_written, prepared.step.command.path, graph)
    is_new, is_mixed = digests != notified, notified is None
    placed = _place(preparer, prepared, written, command, is_new, is_mixed, check_wanted)
    is_same = prepared.step.start_digest == started
    notes = [f"{each.name} {each.kept}" for each in prepared.contents if each.kept]
    shown = (settings.host, definition.zxid, graph.digest, settings.generation, settings.logs)
    return Refreshed(
        seen=prepared.seen,
        failure="",
        listed=prepared.listed,
        written=[content.name for content in placed],
        note="; ".join([*notes, *([] if is_same else [CHANGED])]),
        constants=constants(*shown, prepared.read, bool(prepared.seen), prepared.optional)
        if is_same
        else b"",
        kind=on_change.kind,
        signal=str(on_change.value) if on_change.kind == "signal" else "",
        needs_restart=not is_same,
        digests=digests,
    )


def _place(
    preparer: Preparer,
    prepared: Prepared,
    written: Written,
    command: Sequence[str] | None,
    is_new: bool,
    is_mixed: bool,
    check_wanted: Callable[[], object],
) -> Sequence[Content]:
    """Place the files; returns those that changed. Restores them if the daemon can't be notified.

    `is_new`: the daemon must be notified even if no file changes. `is_mixed`: a killed refresh may have
    placed some files. Then the new ones stay: with old ones they would be mixed again.
    """
    loop, service = preparer.published.client.loop, prepared.step.command.path
    with closing(Guard(loop, service)) as guard:
        commands = FileCommands(loop, guard, prepared)
        placed = place(prepared.contents, commands.check, can_undo=True, written=written)
        try:
            check_wanted()
            if command and (placed or is_new):
                commands.notify(command)
        except AgentError:
            if not is_mixed:
                restore(placed)
            raise
    written.save()
    return placed
