"""What the formats for a runtime alone have in common: the file itself says on which host a container is.

What lives here: which containers each host has, and where a host keeps what is mounted into them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.operator.deployment.container_settings import KEPT, SHARED, TEMPORARY
from kolla_mesos_start.operator.deployment.launch import hosts_from
from kolla_mesos_start.operator.manifests.model import (
    CREDENTIAL,
    CREDENTIAL_DIR,
    DATA,
    FILES,
    READ,
    SECRETS,
    Model,
    Workload,
)
from kolla_mesos_start.operator.manifests.names import distinct, label, name_of


class Mount(NamedTuple):
    """What is at `path` in a container: a directory or file of the host, or else the volume `source`."""

    source: str
    path: str
    read_only: bool = False

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith("/")


class PerHostContainer(NamedTuple):
    """One container of a workload, and the name of the whole deployment on its host."""

    name: str
    project: str
    host: str
    workload: Workload

    @property
    def full_name(self) -> str:
        """Nothing else on the host is called so. Other names have no underscore: it separates them."""
        return f"{self.project}_{self.name}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The host is that of launch.yml, whatever the machine calls itself; others reach its ports there."""
        found = {"KOLLA_HOSTNAME": self.host}
        if self.workload.on_own_network and self.workload.ports and self.workload.hosts:
            found["KOLLA_ADDRESS"] = self.host
        return {**found, **self.workload.environ}

    @property
    def mounts(self) -> Sequence[Mount]:
        """Temporary ones are not among them."""
        return [*self._volumes(), *self._files(), *self._secrets()]

    @property
    def temporary(self) -> Sequence[str]:
        """The directories that are empty at each start."""
        return [each.path for each in self.workload.directories if each.kind == TEMPORARY]

    def _volumes(self) -> Iterator[Mount]:
        kept = distinct({each.path: label(each.path) for each in self.workload.volumes if each.kind == KEPT})
        for volume in self.workload.directories:
            if volume.kind == KEPT:
                yield Mount(f"{self.full_name}_{kept[volume.path]}", volume.path)
            elif volume.kind == SHARED:
                yield Mount(f"{DATA}/{self.project}/shared/{volume.source}", volume.path)
            elif volume.kind != TEMPORARY:
                yield Mount(volume.source, volume.path)

    def _files(self) -> Iterator[Mount]:
        for file in self.workload.mounted:
            yield Mount(f"{FILES}/{self.project}/{self.name}/{file.name}", file.path, read_only=True)

    def _secrets(self) -> Iterator[Mount]:
        for path, secret in self.workload.secrets.items():
            yield Mount(f"{SECRETS}/{secret}", path, read_only=True)


def by_host(model: Model) -> Mapping[str, Sequence[PerHostContainer]]:
    """The containers of each host; those that have no placement are on node-1 and so on, as `up` has them."""
    project = name_of(model.deployment)
    found: dict[str, list[PerHostContainer]] = {}
    for workload in model.workloads:
        hosts = workload.hosts if workload.is_each else hosts_from(workload.hosts, workload.replicas)
        for host in hosts:
            found.setdefault(host, []).append(PerHostContainer(workload.name, project, host, workload))
    return {host: sorted(containers) for host, containers in sorted(found.items())}


def notes(hosts: Mapping[str, Sequence[PerHostContainer]]) -> Sequence[str]:
    """What only the operator can make, on which hosts."""
    where: dict[str, dict[str, None]] = {}
    for host, containers in hosts.items():
        for container in containers:
            for what in _needs(container):
                where.setdefault(what, {})[host] = None
    return [f"on {', '.join(on)}: {what}" for what, on in where.items()]


def _needs(container: PerHostContainer) -> Iterator[str]:
    workload = container.workload
    for mount in container.mounts:
        parent = posixpath.dirname(mount.source)
        if parent == f"{DATA}/{container.project}/shared":
            yield f"mount what is shared at {mount.source}, for its users to write"
        elif mount.source.startswith(f"{FILES}/"):
            yield f"put {posixpath.basename(mount.source)} of {workload.service} at {mount.source}"
        elif parent == SECRETS and mount.path == CREDENTIAL_DIR:
            yield f"make {mount.source}/{CREDENTIAL}, lines scheme:credential (KOLLA_ZK_AUTH_FILE), {READ}"
        elif parent == SECRETS:
            yield f"make {mount.source} with a file for each variable (KOLLA_VARIABLES_DIR), {READ}"
