"""Decides right before the start of a daemon whether the image may run it: `generations` of the daemon."""

from __future__ import annotations

from kolla_mesos_start.errors import Retired
from kolla_mesos_start.tree.published import Changed
from kolla_mesos_start.zookeeper.ephemerals import OURS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.status import StatusTree


def check(tree: StatusTree, image: str | None, report: Report) -> None:
    """Raise Retired if the daemon must not be started, Changed if its definition is not the published one."""
    daemon = tree.graph.daemon
    assert daemon is not None
    refuse(daemon, image)
    # Exclusive dependencies must see this container before its daemon starts.
    shown = report.ephemeral
    shown.write_after = 0.0
    tree.client.loop.wait(lambda: tree.client.connected and shown.owner == OURS)
    tree.client.read([tree.znodes.definition])  # Its reply comes after all earlier watch events.
    if changed := tree.changed():
        raise Changed(f"{changed} has changed since it was read")


def refuse(daemon: Command, image: str | None) -> None:
    """Raise Retired if the daemon is not for images of that generation."""
    if daemon.generations and image not in daemon.generations:
        raise Retired(image, daemon.generations, command=daemon.path)
