"""Restores a snapshot into a deployment's tree.

What belongs here: what is removed first, and the order in which the rest is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from kolla_mesos_start.operator.deployment.acl import Plan
from kolla_mesos_start.operator.ensemble import acls, archive, connection, published, removal, status_records
from kolla_mesos_start.operator.ensemble.archive import Snapshot
from kolla_mesos_start.operator.ensemble.connection import ChangedMeanwhile, OperatorClient
from kolla_mesos_start.operator.ensemble.publication import Held
from kolla_mesos_start.operator.ensemble.publisher import Publisher
from kolla_mesos_start.operator.ensemble.snapshots import take
from kolla_mesos_start.operator.ensemble.token_floor import raise_floor
from kolla_mesos_start.tree.znodes import Znodes


def is_status_there(client: OperatorClient, znodes: Znodes) -> bool:
    """Whether anything is recorded; a killed restore may have left something that no snapshot contains."""
    return connection.read(client, [znodes.status])[znodes.status] is not None


def old_tree(client: OperatorClient, znodes: Znodes, found: Snapshot) -> removal.Tree:
    """What is removed first, while no container exists: what is recorded, and all definitions."""
    states = status_records.states(client, znodes, status_records.roles(client, znodes))
    definitions = [znodes.service(name) for name in found.definitions]
    return removal.status_tree(client, znodes, states)._replace(definitions=definitions)


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
            f"a container has started meanwhile in {znodes.deployment}: stop it, and restore again"
        )
    publisher.write(wanted.definitions, is_last=True)


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
