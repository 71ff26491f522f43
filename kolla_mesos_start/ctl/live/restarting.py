"""Restarts daemons by their own agents: asks each container, and waits until all have begun.

    <role>/daemon/restart-<id>      the request, which the container removes: ephemeral

A container watches its own znode below `.containers`, and nothing else for this: writing it, unchanged, is
the signal to look for a request. The container then takes its turn as for new files (`daemon.rollout`), so
`width` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.zk import connection, containers
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
)
from kolla_mesos_start.ctl.zk.containers import BEGUN, Container
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.wire import NodeExistsError

EPHEMERAL = 1  # the flag of a create request
LIMIT = 10.0  # seconds in which a container begins, or takes its place in the queue
RING = 0.5  # seconds between two signals: one that meets a write of the container is lost
LOOK = 0.05  # seconds


def obstacle(service: LiveService, container: Container) -> str:
    """Why the container's own agent can't restart its daemon; empty if it can."""
    on_change = service.graph and service.graph.daemon and service.graph.daemon.on_change
    if container.stage not in BEGUN:
        return "its daemon is not started"
    if not (on_change and on_change.kind == "restart"):
        return "its definition has no on_change: {restart: true}"
    return "it runs something older that only a new start replaces" if container.needs_restart else ""


def restart(client: OperatorClient, znodes: Znodes, wanted: Sequence[Container]) -> list[Container]:
    """Ask these containers of a service to restart their daemons; returns those that have not begun."""
    left = {containers.own_path(znodes, each): each for each in wanted}
    requests = {own: containers.daemon(znodes).restart(own.rpartition("/")[2]) for own in left}
    for path in requests.values():
        with suppress(NodeExistsError):  # Another operator asks just now.
            client.attempt(client.creation(path, b"", EPHEMERAL), f"{path} can't be created")
    versions: dict[str, int] = {}
    deadline, ring_at = now() + LIMIT, 0.0
    while left and now() < deadline:
        stats = connection.stats(client, [*left, *map(requests.__getitem__, left)])
        is_taken = {own: stats[requests[own]] is None for own in left}
        if now() >= ring_at:
            ring_at = now() + RING
            versions.update(_ring(client, [own for own in left if not is_taken[own]]))
        for own in list(left):
            stat = stats[own]
            # Taken requests show in what the container writes next.
            if stat is None or (is_taken[own] and stat.version > versions.get(own, 0)):
                del left[own]
        client.loop.sleep(LOOK)
    for path in requests.values():
        connection.remove(client, path)
    return list(left.values())


def _ring(client: OperatorClient, paths: Sequence[str]) -> dict[str, int]:
    """Write what containers have written, unchanged; returns the new versions."""
    versions = {}
    for path, znode in client.read(paths).items():
        if znode is None:
            continue
        changes = Changes(client)
        changes.set_data(path, znode.data, znode.stat.version)
        with suppress(ChangedMeanwhile, Unanswered):  # The container has written just now.
            connection.commit(changes, f"{path} can't be written")
            versions[path] = znode.stat.version + 1
    return versions
