"""Writes a deployment into its tree.

What belongs here: the changes from what is published to what is wanted. The lock, the mark and the
transactions are in `publication`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES, Contents, Deployment
from kolla_mesos_start.ctl.zk import acls, connection, published
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.publication import Held, ZnodeChange
from kolla_mesos_start.ctl.zk.published import NOTHING, Nodes, Removals
from kolla_mesos_start.errors import BadEnvironment
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.znodes import Znodes


def check_chroot(client: OperatorClient, config: Settings) -> None:
    """Refuse a chroot that does not exist. It may be a typo, and no agent would read what is written
    there."""
    if connection.read(client, ["/"])["/"] is None:
        raise BadEnvironment(
            [f"KOLLA_ZK_HOSTS: the chroot {config.chroot} does not exist; create it, or correct it"]
        )


class Counts:
    """How many znodes were created, updated, removed, and left unchanged."""

    def __init__(self) -> None:
        self.by_change = {"created": 0, "updated": 0, "removed": 0, "unchanged": 0}

    def __str__(self) -> str:
        return ", ".join(f"{count} {change}" for change, count in self.by_change.items())


class Publisher:
    """Writes a deployment into its tree, which contains `before`. `report` is called with a line for each
    change.

    `lock` is the lock of publications, which we hold.
    """

    def __init__(
        self,
        client: OperatorClient,
        znodes: Znodes,
        before: Nodes,
        lock: Held,
        report: Callable[[str], object] = print,
    ) -> None:
        self.client, self.znodes, self.lock = client, znodes, lock
        self.root = znodes.deployment
        self.published = before
        self.before = {self.root: b"", **self._paths(before)}
        self.report = report
        self.counts = Counts()
        self.changed: list[str] = []  # nodes below the deployment

    def publish(
        self,
        deployment: Deployment,
        plan: Plan | None = None,
        old: Removals = NOTHING,
        withdraw: Callable[[Removals], Removals] = lambda services: services,
    ) -> None:
        """Write everything and remove `old`, in one transaction if that is large enough.

        Otherwise definitions are written last: an agent that reads a new one finds everything that it needs.
        `withdraw` returns the services that can be removed now.
        """
        texts = directory.definitions(deployment)
        missing, there = acls.missing(self.client, self.znodes, plan, texts) if plan else ({}, {})
        self.before.update(there)
        contents, definitions = map(self._paths, (directory.nodes(deployment), texts))
        values, services = old.apart()
        changes = [
            *self._changes({**contents, **missing}),
            *(ZnodeChange(f"{self.root}/{node}", None) for node in values.removed),
            *self._changes(definitions),
        ]
        names = {service.name for service in deployment.services}
        names &= published.services_of(change.path[len(self.root) + 1 :] for change in changes)
        if services.removed or services.emptied:
            self.lock.begin(names)
            self.lock.write(changes, self.before)
            self.remove(withdraw(services))
            changes = []
        self.lock.publish(changes, self.before, names)
        self._note_written({**contents, **definitions})
        for node in values.removed:
            self.note("removed", f"{self.root}/{node}")

    def write(self, nodes: Contents, *, is_last: bool = False) -> None:
        """Create or update what differs; `is_last`: this ends the publication."""
        wanted = self._paths(nodes)
        write = self.lock.publish if is_last else self.lock.write
        write(self._changes(wanted), self.before)
        self._note_written(wanted)

    def _paths(self, nodes: Contents) -> dict[str, bytes]:
        return {f"{self.root}/{node}": data for node, data in nodes.items()}

    def _changes(self, wanted: Contents) -> Iterator[ZnodeChange]:
        """The changes to make, each after the creation of its missing parents."""
        created: set[str] = set()
        for path, data in wanted.items():
            if self.before.get(path) != data:
                above = [path]
                while (parent := above[-1].rpartition("/")[0]) not in self.before and parent not in created:
                    above.append(parent)
                created.update(above)
                yield from (ZnodeChange(each, is_parent=True) for each in above[:0:-1])
                yield ZnodeChange(path, data)

    def _note_written(self, wanted: Contents) -> None:
        for path, data in wanted.items():
            change = "updated" if self._is_there(path) else "created"
            self.note("unchanged" if self.before.get(path) == data else change, path)
        self.before.update(wanted)

    def _is_there(self, path: str) -> bool:
        """An empty definition counts as absent: its znode was created as the parent of its variables."""
        is_definition = f"/{VARIABLES}/" not in path and f"/{FILES}/" not in path
        return bool(self.before.get(path)) or (path in self.before and not is_definition)

    def remove(self, old: Removals) -> None:
        """Remove these znodes, deepest first."""
        for node in old.removed:
            path = f"{self.root}/{node}"
            for name in connection.children(self.client, [path])[path] if node in old.services else ():
                connection.remove(self.client, f"{path}/{name}")  # An agent created it; it is empty now.
            connection.remove(self.client, path)
            self.note("removed", path)
        for node in old.emptied:
            connection.write(self.client, f"{self.root}/{node}", b"")
            self.note("removed", f"{self.root}/{node}")

    def note(self, change: str, path: str) -> None:
        self.counts.by_change[change] += 1
        if change != "unchanged":
            self.changed.append(path[len(self.root) + 1 :])
            self.lock.changes.append(path[len(self.root) + 1 :])
            self.report(f"{change} {path}")
