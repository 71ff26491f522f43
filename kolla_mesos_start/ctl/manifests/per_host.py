"""The containers of each host, for the formats that have files for each host: compose and quadlet."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.directory.container_settings import KEPT, NAMED, TEMPORARY
from kolla_mesos_start.ctl.directory.launch import hosts_from
from kolla_mesos_start.ctl.manifests.model import (
    CREDENTIAL,
    CREDENTIAL_DIR,
    FILES,
    READ,
    SECRETS,
    Model,
    Workload,
    distinct,
    label,
    shared_place,
)


class Mount(NamedTuple):
    """What is mounted at `path`: a directory or file of the host, or a volume named `source`."""

    source: str
    path: str
    read_only: bool = False
    propagation: str = ""

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith("/")


class PerHostContainer(NamedTuple):
    """One container of a workload."""

    name: str
    host: str
    workload: Workload

    @property
    def project(self) -> str:
        return self.workload.project

    @property
    def full_name(self) -> str:
        """Its unique name on the host. The parts contain no underscore."""
        return f"{self.project}_{self.name}"

    def environ(self, show_logs: str) -> Mapping[str, str]:
        """Its environment. The host is the name in launch.yml, at which others reach its ports.

        `show_logs` is the command that shows a log, without the container's name.
        """
        found = {"KOLLA_HOSTNAME": self.host, "KOLLA_LOGS": f"{show_logs} {self.full_name}"}
        if self.workload.on_own_network and self.workload.ports and self.workload.hosts:
            found["KOLLA_ADDRESS"] = self.host
        return {**found, **self.workload.environ}

    @property
    def mounts(self) -> Sequence[Mount]:
        """All mounts except temporary directories."""
        return [*self._volumes(), *self._files(), *self._secrets()]

    @property
    def temporary(self) -> Sequence[str]:
        """The temporary directories: they are empty at each start."""
        return [each.path for each in self.workload.directories if each.kind == TEMPORARY]

    def _volumes(self) -> Iterator[Mount]:
        kept = distinct({each.path: label(each.path) for each in self.workload.of_kind(KEPT)})
        for volume in self.workload.directories:
            if volume.kind == KEPT:
                yield Mount(f"{self.full_name}_{kept[volume.path]}", volume.path)
            elif volume.kind == NAMED:
                yield Mount(volume.source, volume.path, volume.read_only)
            elif volume.kind != TEMPORARY:
                yield Mount(self.workload.place(volume), volume.path, volume.read_only, volume.propagation)

    def _files(self) -> Iterator[Mount]:
        for file in self.workload.mounted:
            yield Mount(f"{FILES}/{self.project}/{self.name}/{file.name}", file.path, read_only=True)

    def _secrets(self) -> Iterator[Mount]:
        for path, secret in self.workload.secrets.items():
            yield Mount(f"{SECRETS}/{secret}", path, read_only=True)


def by_host(model: Model) -> Mapping[str, Sequence[PerHostContainer]]:
    """The containers of each host. Without a placement they are on node-1 and so on, as in `up`."""
    found: dict[str, list[PerHostContainer]] = {}
    for workload in model.workloads:
        hosts = workload.hosts if workload.is_each else hosts_from(workload.hosts, workload.replicas)
        for host in hosts:
            found.setdefault(host, []).append(PerHostContainer(workload.name, host, workload))
    return {host: sorted(containers) for host, containers in sorted(found.items())}


def notes(hosts: Mapping[str, Sequence[PerHostContainer]]) -> Sequence[str]:
    """What the operator has to create, and on which hosts."""
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
        if mount.source == shared_place(container.project, posixpath.basename(mount.source)):
            yield f"mount what is shared at {mount.source}, for its users to write"
        elif mount.source.startswith(f"{FILES}/"):
            yield f"put {posixpath.basename(mount.source)} of {workload.service} at {mount.source}"
        elif parent == SECRETS and mount.path == CREDENTIAL_DIR:
            yield f"make {mount.source}/{CREDENTIAL}, lines scheme:credential (KOLLA_ZK_AUTH_FILE), {READ}"
        elif parent == SECRETS:
            yield f"make {mount.source} with a file for each variable (KOLLA_VARIABLES_DIR), {READ}"
        elif mount.propagation and mount.source.startswith("/run/"):  # others may be sockets
            yield f"create {mount.source} at each boot, as with tmpfiles.d: no container starts without it"
