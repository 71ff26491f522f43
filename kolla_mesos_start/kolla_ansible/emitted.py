"""What an import has found, and the directory that is made of it, in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.clusters import Clusters
from kolla_mesos_start.kolla_ansible.containers import Containers
from kolla_mesos_start.kolla_ansible.graph import Graph
from kolla_mesos_start.kolla_ansible.hosts import OwnNames
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.rules import Rules

# A private key, or one of Ceph.
KEY = re.compile(rb"PRIVATE KEY-----|^\s*key\s*=\s*[A-Za-z0-9+/]{38}==\s*$", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')


def has_key(data: bytes) -> bool:
    """Whether a file holds a key that is no variable."""
    return bool(KEY.search(data))


@dataclass(frozen=True)
class Names:
    """Names and values that belong to the deployment: variables of addresses, kinds of secrets, own names."""

    addresses: Mapping[str, str]
    secrets: Mapping[str, str]
    own: Mapping[str, OwnNames]
    own_values: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Imported:
    """What a directory is made of: lifted containers, and their graph. `real` are addresses by stand-ins."""

    containers: Containers
    graph: Graph
    names: Names
    rules: Rules
    release: str
    zookeeper: str | None
    action: str
    refused: Sequence[str]
    real: Mapping[str, str]
    warnings: Sequence[str]
    clusters: Clusters


@dataclass
class Emitted:
    """The files by path, the links with their targets in the directory, and what the report lists.

    `left` is for the operator to do, and `refused` could not be expressed. `origins` are the recorded files
    and tasks of each service. `sized` has the variables of each service that depend on the size of a host.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    origins: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    sized: dict[str, dict[str, None]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    contents: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def add_shared(self, path: str, data: bytes) -> None:
        """Add a file; one with the same name and content as an earlier one is a link to it."""
        before = self.contents.setdefault((path.rpartition("/")[2], data), path)
        if before != path:
            self.links[path] = before
            return
        self.files[path] = data
        if has_key(data):  # kolla-ansible copies it as it is; those of secrets.yml are variables.
            self.left.append(
                f"{path}: holds a key as it is in your configuration: let nobody else read this file"
            )

    def add_task(self, path: str, task: Task) -> None:
        """Add a task to the origins of a service."""
        origin = {"host": task.host, "task": task.name, "place": task.place}
        self.origins.setdefault(path, []).append(origin)

    def note(self, lifted: object) -> None:
        """Remember the variables in a lifted value."""
        for expression in lift.expressions(lifted):
            self.used.update(WORD.findall(QUOTED.sub("", expression)))
