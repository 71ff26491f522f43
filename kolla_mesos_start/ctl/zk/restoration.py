"""Restores a snapshot into a deployment's tree.

What belongs here: the order in which it is written. A record of an election that exists is kept: it belongs
to the data on the hosts' disks, which `restore` does not change, and an older one may lack the member with
the newest data.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.zk import (
    acls,
    archive,
    connection,
    elections,
    event_record,
    published,
)
from kolla_mesos_start.ctl.zk.archive import Snapshot
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, OperatorClient
from kolla_mesos_start.ctl.zk.publication import Held
from kolla_mesos_start.ctl.zk.publisher import Publisher
from kolla_mesos_start.ctl.zk.snapshots import take
from kolla_mesos_start.ctl.zk.token_floor import raise_floor
from kolla_mesos_start.tree.znodes import Znodes


def with_elections(wanted: Snapshot, found: Snapshot) -> Snapshot:
    """The snapshot `wanted`, with the records of elections that exist now, as in `found`."""
    kept = elections.roles(found.recorded)
    current = {path: data for path, data in found.recorded.items() if elections.role_of(path) in kept}
    above = {path: found.recorded[path] for path in connection.parents(current) if path not in current}
    others = {path: data for path, data in wanted.recorded.items() if elections.role_of(path) not in kept}
    return wanted._replace(recorded=dict(sorted({**above, **others, **current}.items())))


def write(client: OperatorClient, znodes: Znodes, lock: Held, wanted: Snapshot, plan: Plan | None) -> None:
    before = published.nodes(client, znodes)
    publisher = Publisher(client, znodes, before, lock, report=lambda change: None)
    publisher.write(wanted.contents)
    publisher.remove(published.others(before, wanted.published))
    if plan:
        acls.make(client, znodes, plan, wanted.definitions)
    raise_floor(client, znodes, wanted.floor)
    _record(client, znodes, wanted.recorded)
    if take(client, znodes).recorded != wanted.recorded:
        # A container that had read its definition before has created some of these znodes.
        raise ChangedMeanwhile(
            f"{znodes.deployment} has other records than the snapshot (a container has started?): stop its"
            " containers, reset it, and restore again"
        )
    publisher.write(wanted.definitions, is_last=True)
    event_record.merge(client, znodes, event_record.decode(wanted.events))


def plan_of(client: OperatorClient, file: Path, wanted: Snapshot) -> Plan | None:
    """The ACLs of the snapshot; if it has none, those of this deployment."""
    found = connection.recorded(f"{archive.ACL} in {file}", wanted.acl) if wanted.acl else client.plan
    return found and found.only(wanted.definitions.keys())


def _record(client: OperatorClient, znodes: Znodes, nodes: Mapping[str, bytes]) -> None:
    """Create the znodes of each role in one request, as its agents do: no agent finds only some of them."""
    for _, paths in groupby(sorted(nodes, key=segments), key=lambda path: segments(path)[:3]):
        connection.create_together(client, _below(znodes, {path: nodes[path] for path in paths}))


def segments(path: str) -> list[str]:
    return path.split("/")


def _below(znodes: Znodes, nodes: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{znodes.deployment}/{path}": data for path, data in nodes.items()}
