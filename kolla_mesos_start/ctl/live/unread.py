"""What running containers have not read yet: newer definitions, variables, files, and images.

Pure. Of a variable only the zxid of its last change is known, not its value. A deletion leaves no zxid; only
that of an optional file of the daemon is seen, because a container says which of them it has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from kolla_mesos_start.ctl.directory import templates
from kolla_mesos_start.ctl.directory.directory import VARIABLES
from kolla_mesos_start.ctl.zk.containers import (
    BEGUN,
    DEFINITION,
    FILE,
    IMAGE,
    VARIABLE,
    Container,
    Older,
)
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.model import Command, Graph
from kolla_mesos_start.definition.resolve import late_texts
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.render.context import BUILTIN, file_text
from kolla_mesos_start.tree.znodes import Znodes

# The zxids of changes, sorted, with the names of variables.
Changes = Sequence[tuple[int, str]]
KEPT = 1024  # parsed templates: parsing is slow


def last_changes(znodes: Znodes, view: View) -> Changes:
    """When the variables of a deployment were last changed."""
    above = f"{znodes.deployment}/{VARIABLES}"
    stats = ((view.stat(f"{above}/{name}"), name) for name in view.names(above))
    return sorted((stat.mzxid, name) for stat, name in stats if stat)


def compare(
    znodes: Znodes,
    graph: Graph | None,
    containers: Sequence[Container],
    changes: Changes,
    given: Set[str],
    view: View,
) -> Iterator[Container]:
    """The containers of a service, each with what it runs that is older than what is published.

    `changes` are those of the deployment's variables; `given` are variables that containers have from
    elsewhere than ZooKeeper.
    """
    published = view.znode(znodes.definition)
    current = published.stat.mzxid if published and published.data.strip() else 0
    changed = published.stat.mtime / 1000 if published else 0.0
    used: dict[frozenset[str], Mapping[str, bool]] = {}
    for each in containers:
        older = []
        if each.definition_zxid not in (None, current) and (graph is None or each.digest != graph.digest):
            older.append(Older(DEFINITION, "", True, changed))
        if graph is not None and each.read is not None and each.stage in BEGUN:
            names = _changed(znodes, each.read, changes, view).difference(given, BUILTIN)
            if names not in used:
                used[names] = _used(znodes, graph, names, view)
            for name, is_followed in sorted(used[names].items()):
                stats = (view.stat(path) for path in znodes._replace(host=each.host).variable(name))
                nearest = next((stat for stat in stats if stat), None)
                if nearest and nearest.mzxid > each.read:
                    older.append(Older(VARIABLE, name, is_followed, nearest.mtime / 1000))
            for name, is_followed in _file_names(graph).items():
                stat = view.stat(znodes.file(name))
                if stat and stat.mzxid > each.read:
                    older.append(Older(FILE, name, is_followed, stat.mtime / 1000))
                elif not stat and name in each.optional:
                    older.append(Older(FILE, name, is_followed, 0.0))
        image = other_generation(graph, each, containers) if graph else ""
        older += [Older(IMAGE, image, False, changed)] if image else []
        yield each._replace(older=tuple(older)) if older else each


def _changed(znodes: Znodes, read: int, changes: Changes, view: View) -> frozenset[str]:
    """The variables that have changed after a zxid, of the deployment or of the service."""
    names = {name for _, name in changes[bisect_left(changes, (read + 1, "")) :]}
    above = f"{znodes.definition}/{VARIABLES}"
    for name in view.names(above):
        stat = view.stat(f"{above}/{name}")
        if stat and stat.mzxid > read:
            names.add(name)
        if stat and stat.numChildren:
            names.update(view.names(f"{above}/{name}"))
    return frozenset(names)


def _used(znodes: Znodes, graph: Graph, names: Set[str], view: View) -> Mapping[str, bool]:
    """Those of the names that the templates of a service use, and whether its daemon's do."""
    files = {path: view.znode(path) for path in map(znodes.file, _file_names(graph)) if names}
    found: dict[str, bool] = {}
    for step in graph.all_commands if view.wanted.isdisjoint(files) else ():
        for text in _texts(znodes, step, files):
            # Only templates that contain one of the names are parsed.
            words = {name for name in names if name in text.text} if text.is_template else set()
            parsed = _parsed(text.text) if words else frozenset()
            for name in words if parsed is None else words & parsed:
                found[name] = found.get(name, False) or step is graph.daemon
    return found


def other_generation(graph: Graph, container: Container, others: Sequence[Container]) -> str:
    """Says that a container's image has another generation than the one that is published, or, if none is
    published, than another container; empty if it has not."""
    own = container.generation
    published = sorted({command.generation for command in graph.commands if command.generation})
    if own is None or own in published or not container.is_live:
        return ""
    if published:
        return f"of generation {own} (published: {', '.join(published)})"
    beside = sorted({each.generation for each in others if each.is_live and each.generation} - {own})
    return f"of generation {own}, another container one of generation {beside[0]}" if beside else ""


def _file_names(graph: Graph) -> dict[str, bool]:
    """The published files that the steps of a service have, by name; whether they are its daemon's."""
    own = {file.name for file in graph.daemon.files} if graph.daemon else set()
    names = {file.name for step in graph.all_commands for file in step.files if file.mounted is None}
    return {name: name in own for name in sorted(names)}


def _texts(znodes: Znodes, step: Command, files: Mapping[str, Any]) -> Iterator[Text]:
    """What a container renders for a step. A one-time command that is done does not run after a restart."""
    yield from late_texts(step._replace(command="true", env=(), user=None) if step.run_once else step)
    for file in step.files:
        znode = files.get(znodes.file(file.name))
        try:
            text = file_text(file.name, znode.data, file.template) if znode else None
        except CannotRender:
            continue
        if text:
            yield text


@lru_cache(KEPT)
def _parsed(source: str) -> frozenset[str] | None:
    """The names that a template uses; None if it is invalid."""
    try:
        return frozenset(templates.read(source).names)
    except templates.BadTemplate:
        return None
