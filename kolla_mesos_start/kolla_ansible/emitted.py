"""What an import has found, and the directory that is made of it, in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.clusters import Clusters
from kolla_mesos_start.kolla_ansible.containers import Containers, executed
from kolla_mesos_start.kolla_ansible.graph import Edge, Graph
from kolla_mesos_start.kolla_ansible.lift import Unlifted
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.rules import Rules
from kolla_mesos_start.kolla_ansible.site import Site

# A private key, or one of Ceph.
KEY = re.compile(rb"PRIVATE KEY-----|^\s*key\s*=\s*[A-Za-z0-9+/]{38}==\s*$", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')


def has_key(data: bytes) -> bool:
    """Whether a file holds a key that is no variable."""
    return bool(KEY.search(data))


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


@dataclass(frozen=True)
class Imported:
    """Lifted containers with their graph, the problems, and what is made of them.

    `real` are addresses by stand-ins, and `against_order` are edges to what kolla-ansible starts later.
    """

    site: Site
    rules: Rules
    release: str
    given: Mapping[str, object]
    action: str
    containers: Containers
    clusters: Clusters
    graph: Graph
    unlifted: Sequence[Unlifted]
    against_order: Sequence[Edge]
    real: Mapping[str, str]
    warnings: Sequence[str]
    emitted: Emitted = field(default_factory=Emitted)

    @property
    def unresolved(self) -> Sequence[str]:
        """The addresses that not exactly one daemon answers."""
        return list(dict.fromkeys(each.shown(self.real) for each in self.graph.unresolved))

    def add_reports(self, services: int) -> None:
        """Add report.txt, and imported.json, to which `directory` adds the files."""
        made = self.emitted
        made.refused[:0] = map(_not_lifted, self.unlifted)
        earlier = "in the running container, before it is replaced"
        made.left += _by_host((task.host, _by_operator(task)) for task in self.containers.left)
        made.left += _by_host((task.host, f"{earlier}: {task.name}") for task in self.containers.earlier)
        made.refused += _by_host((task.host, _by_hand(task)) for task in self.containers.outside)
        lines = map(lift.shown, self._report(services))
        made.files["report.txt"] = "".join(f"{line}\n" for line in lines).encode()
        edges = [
            {"name": edge.name, "on": edge.on, "reason": edge.reason, "hard": edge.is_hard}
            for of_name in self.graph.edges.values()
            for edge in of_name
        ]
        record = {"release": self.release, "action": self.action, "services": made.origins, "edges": edges}
        made.files["imported.json"] = f"{json.dumps(record, indent=1)}\n".encode()

    def _report(self, services: int) -> Iterator[str]:
        made = self.emitted
        release = f"{self.action} of kolla-ansible {self.release}".strip()
        yield from (f"Imported from {release}: {services} services.", "")
        always = ("Left to you:", "Not expressed:")
        sections = {
            always[0]: made.left,
            "Warnings:": self.warnings,
            "Variables that depend on the CPUs or the memory of a host:": [
                f"{path}: {', '.join(names)}" for path, names in made.sized.items()
            ],
            "Other lines than kolla-ansible's, for a cluster:": [
                each.replace("\n", "; ") for each in self.clusters.changed
            ],
            always[1]: list(dict.fromkeys(made.refused)),
            "Addresses for which nothing waits, because not exactly one daemon here listens:": [
                *self._addresses()
            ],
        }
        for title, lines in sections.items():
            if lines or title in always:
                yield from (title, *(f"  {each}" for each in lines), "")
        soft = sum(not edge.is_hard for of_name in self.graph.edges.values() for edge in of_name)
        yield f"Soft dependencies, for which nothing waits: {soft}"

    def _addresses(self) -> Iterator[str]:
        """The unresolved addresses of all daemons and steps with the same file."""
        names: dict[str, dict[str, None]] = {}
        addresses: dict[str, dict[str, None]] = {}
        for each in self.graph.unresolved:
            names.setdefault(each.what, {})[each.name] = None
            addresses.setdefault(each.what, {})[each.address(self.real)] = None
        return (f"{', '.join(names[what])}: {what} at {', '.join(addresses[what])}" for what in names)


def _not_lifted(each: Unlifted) -> str:
    where = f"{each.what}:{each.line}" if each.line else each.what
    return f"{each.host}: {where} holds a value made from a secret, an address, or the size of the host"


def _by_host(found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Each text once, after all hosts that have it."""
    hosts: dict[str, dict[str, None]] = {}
    for host, what in found:
        hosts.setdefault(what, {})[host] = None
    return (f"{', '.join(each)}: {what}" for what, each in hosts.items())


def _by_operator(task: Task) -> str:
    """A task that is left to the operator. The text of a command may have secrets."""
    shown = [f"{key} {task.args[key]}" for key in ("name", "value", "state") if key in task.args]
    return f"{task.module}: {task.dest or ', '.join(shown) or task.place} ({task.name})"


def _by_hand(task: Task) -> str:
    """A command that no step runs. Its text may have secrets."""
    in_container = executed(task)
    assert in_container is not None
    why = f"{in_container.container} is not imported"
    if in_container.host_part:
        why = f"a part of its command is for the host, and only the rest for {in_container.container}"
    return f"{task.name} ({task.place}): {why}: run it by hand"
