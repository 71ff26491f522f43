"""Decides right before the start of a daemon whether an upgrade has retired this image.

The last step of an upgrade (`retired_by`) runs once no container of another generation exists. So this
container first writes its znode, and then reads the state of that step: either the container that claims the
step finds the znode and gives the claim back, or the claim is found here, and its end is awaited.
"""

from __future__ import annotations

from functools import partial

from kolla_mesos_start.definition.forms import GLOBAL
from kolla_mesos_start.errors import Retired
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.published import Changed
from kolla_mesos_start.zookeeper.ephemerals import OURS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.definition.model import Command, Graph
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
    from kolla_mesos_start.zookeeper.client import Client

log = Logger(__name__)


def check(tree: StatusTree, image: str | None, report: Report) -> None:
    """Return when the daemon may be started.

    Raises Retired if it may not, Changed if the definition has changed.
    """
    daemon = tree.graph.daemon
    assert daemon is not None
    if daemon.retired_by is None:
        return
    _appear(tree, report)
    if _is_wanted(tree.graph, image):
        tree.client.read([tree.znodes.definition])  # Its reply comes after all earlier watch events.
        changed = tree.changed()
        if changed:
            raise Changed(f"{changed} has changed since it was read")
        return
    at = tree.znodes.command(GLOBAL, daemon.retired_by)
    _await_end(tree, at, report)
    _refuse(tree.client, at, daemon, image)


def check_restart(client: Client, znodes: Znodes, graph: Graph, image: str | None) -> None:
    """Raise Retired if the image of the running daemon would not be started any longer."""
    daemon = graph.daemon
    if daemon is None or daemon.retired_by is None or _is_wanted(graph, image):
        return
    _refuse(client, znodes.command(GLOBAL, daemon.retired_by), daemon, image)


def _is_wanted(graph: Graph, image: str | None) -> bool:
    """Whether this definition is for that image."""
    return image is not None and image in {command.generation for command in graph.commands}


def _refuse(client: Client, at: CommandZnodes, daemon: Command, image: str | None) -> None:
    generation = client.watches.decide(partial(states.retired_for, image, at))
    if generation is not None and daemon.retired_by is not None:
        raise Retired(image, daemon.retired_by, generation, command=daemon.path)


def _appear(tree: StatusTree, report: Report) -> None:
    """Wait until the znode of this container, which others look for, is written."""
    shown = report.ephemeral
    shown.write_after = 0.0
    tree.client.loop.wait(lambda: tree.client.connected and shown.owner == OURS)


def _await_end(tree: StatusTree, at: CommandZnodes, report: Report) -> None:
    """Wait while a container runs the command at `at`; afterwards its state is in the watches."""
    daemon, client, watches = tree.graph.daemon, tree.client, tree.client.watches
    assert daemon is not None
    due = 0.0
    while True:
        host = watches.decide(partial(states.under_way, at))
        if host is None:
            return
        words = f"{daemon.path} waits: {host} is running {daemon.retired_by}"
        report.write("waiting", words, daemon.path)
        if now() >= due:
            log.info("%s", words)
            due = now() + PROGRESS_INTERVAL
        seen = watches.changes
        client.loop.wait(lambda seen=seen: watches.changes != seen, due)  # type: ignore[misc]
