"""report.txt and imported.json: what is left to the operator, and where everything comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kolla_mesos_start.operator.kolla_ansible import lift
from kolla_mesos_start.operator.kolla_ansible.containers import executed
from kolla_mesos_start.operator.kolla_ansible.emitted import Emitted, Imported
from kolla_mesos_start.operator.kolla_ansible.recording import Task


def add_tasks(made: Emitted, imported: Imported) -> None:
    """Add the tasks and the addresses for which the directory has nothing."""
    for task in imported.containers.left:
        shown = [f"{key} {task.args[key]}" for key in ("name", "value", "state") if key in task.args]
        # The text of a command may have secrets.
        what = task.dest or ", ".join(shown) or task.place
        made.left.append(f"{task.host}: {task.module}: {what} ({task.name})")
    made.left += (
        f"{task.host}: in the running container, before it is replaced: {task.name}"
        for task in imported.containers.earlier
    )
    made.refused += map(_by_hand, imported.containers.outside)
    made.refused += (each.shown(imported.real) for each in imported.graph.unresolved)


def text(made: Emitted, imported: Imported, services: int) -> str:
    """The content of report.txt."""
    edges = imported.graph.edges.values()
    soft = sum(not edge.is_hard for of_name in edges for edge in of_name)
    release = f"{imported.action} of kolla-ansible {imported.release}".strip()
    sized = [f"{path}: {', '.join(names)}" for path, names in made.sized.items()]
    changed = [each.replace("\n", "; ") for each in imported.clusters.changed]
    lines = [f"Imported from {release}: {services} services.", ""]
    lines += _section("Left to you:", made.left)
    if imported.warnings:
        lines += _section("Warnings:", imported.warnings)
    if sized:
        lines += _section("Variables that depend on the CPUs or the memory of a host:", sized)
    if changed:
        lines += _section("Other lines than kolla-ansible's, for a cluster:", changed)
    lines += _section("Not expressed:", dict.fromkeys(made.refused))
    lines += [f"Soft dependencies, for which nothing waits: {soft}"]
    return "".join(f"{lift.shown(line)}\n" for line in lines)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    return iter([title, *(f"  {each}" for each in lines), ""])


def record(made: Emitted, imported: Imported) -> str:
    """The content of imported.json, to which `directory` adds the files."""
    edges = [
        {"name": edge.name, "on": edge.on, "reason": edge.reason, "hard": edge.is_hard}
        for of_name in imported.graph.edges.values()
        for edge in of_name
    ]
    content = {
        "release": imported.release,
        "action": imported.action,
        "services": made.origins,
        "edges": edges,
    }
    return json.dumps(content, indent=1) + "\n"


def _by_hand(task: Task) -> str:
    """A command that no step runs. Its text may have secrets."""
    in_container = executed(task)
    assert in_container is not None
    why = f"{in_container.container} is not imported"
    if in_container.host_part:
        why = f"a part of its command is for the host, and only the rest for {in_container.container}"
    return f"{task.host}: {task.name} ({task.place}): {why}: run it by hand"
