"""The containers of each host, for the formats that have files for each host: compose and quadlet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.directory.container_settings import IMAGE, KEPT, NAMED, TEMPORARY
from kolla_mesos_start.ctl.directory.launch import hosts_from
from kolla_mesos_start.ctl.manifests.model import (
    FILES,
    SECRETS,
    Model,
    Workload,
    distinct,
    label,
    needs,
    on_hosts,
)


class Mount(NamedTuple):
    """What is mounted at `path`: a directory or file of the host, an image, or a volume named `source`."""

    source: str
    path: str
    read_only: bool = False
    propagation: str = ""
    is_image: bool = False

    @property
    def is_volume(self) -> bool:
        return not (self.is_image or self.source.startswith("/"))


class PerHostContainer(NamedTuple):
    """One container of a workload."""

    host: str
    workload: Workload

    @property
    def full_name(self) -> str:
        """Its unique name on the host. The parts contain no underscore."""
        return f"{self.workload.project}_{self.workload.name}"

    def environ(self, show_logs: str) -> Mapping[str, str]:
        """Its environment. The host is the name in launch.yml, at which others reach its ports.

        `show_logs` is the command that shows a log, without the container's name.
        """
        found = {"KOLLA_HOSTNAME": self.host, "KOLLA_LOGS": f"{show_logs} {self.full_name}"}
        if self.workload.on_own_network and self.workload.ports and self.workload.hosts:
            found["KOLLA_ADDRESS"] = self.host
        return {**found, **self.workload.environ}

    @property
    def files(self) -> Mapping[str, str]:
        """Where the host has the mounted files, by their paths."""
        own = f"{FILES}/{self.workload.project}/{self.workload.name}"
        return {file.path: f"{own}/{file.name}" for file in self.workload.mounted}

    @property
    def mounts(self) -> Iterator[Mount]:
        """All mounts except temporary directories."""
        kept = distinct({each.path: label(each.path) for each in self.workload.of_kind(KEPT)})
        for volume in self.workload.directories:
            if volume.kind == KEPT:
                yield Mount(f"{self.full_name}_{kept[volume.path]}", volume.path)
            elif volume.kind == NAMED:
                yield Mount(volume.source, volume.path, volume.read_only)
            elif volume.kind == IMAGE:
                yield Mount(volume.source, volume.path, is_image=True)
            elif volume.kind != TEMPORARY:
                yield Mount(self.workload.place(volume), volume.path, volume.read_only, volume.propagation)
        for path, place in self.files.items():
            yield Mount(place, path, read_only=True)
        for path, name in self.workload.secrets.items():
            yield Mount(f"{SECRETS}/{name}", path, read_only=True)

    @property
    def temporary(self) -> Sequence[str]:
        """The temporary directories: they are empty at each start."""
        return [each.path for each in self.workload.directories if each.kind == TEMPORARY]


def by_host(model: Model) -> Mapping[str, Sequence[PerHostContainer]]:
    """The containers of each host. Without a placement they are on node-1 and so on, as in `up`."""
    found: dict[str, list[PerHostContainer]] = {}
    for workload in sorted(model.workloads, key=lambda each: each.name):
        hosts = workload.hosts if workload.is_each else hosts_from(workload.hosts, workload.replicas)
        for host in hosts:
            found.setdefault(host, []).append(PerHostContainer(host, workload))
    return dict(sorted(found.items()))


def notes(hosts: Mapping[str, Sequence[PerHostContainer]]) -> Sequence[str]:
    """What the operator has to create, and on which hosts."""
    every = [each for containers in hosts.values() for each in containers]
    return on_hosts((each.host, what) for each in every for what in _needs(each))


def _needs(container: PerHostContainer) -> Iterator[str]:
    yield from needs(container.workload, container.files)
    for mount in container.mounts:
        if mount.propagation and mount.source.startswith("/run/"):  # Others may be sockets.
            yield f"create {mount.source} at each boot, as with tmpfiles.d: no container starts without it"
