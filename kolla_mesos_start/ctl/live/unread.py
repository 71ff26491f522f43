"""What running containers have not read yet: newer definitions, variables, files, and images.

Pure. Of a variable only the zxid of its last change is known, not its value. A deletion leaves no zxid, so it
is not seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

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


class _Used(NamedTuple):
    """Names of variables that the templates of a service use: those of its daemon, and of all its steps."""

    followed: Set[str]
    all: Set[str]


class Unread:
    """Compares what the containers of one deployment have read with what is published."""

    def __init__(self, znodes: Znodes, given: Set[str]) -> None:
        """`given` are variables that containers have from elsewhere than ZooKeeper."""
        self._above, self._given = f"{znodes.deployment}/{VARIABLES}", given
        self._shared: list[tuple[int, str]] = []  # zxids of last changes, with the names of variables
        self._used: dict[str, tuple[object, _Used]] = {}

    def look(self, view: View) -> None:
        """Note when the variables of the deployment have changed; call it before `compare`."""
        stats = ((view.stat(f"{self._above}/{name}"), name) for name in view.names(self._above))
        self._shared = sorted((stat.mzxid, name) for stat, name in stats if stat)

    def compare(
        self, znodes: Znodes, graph: Graph | None, containers: Sequence[Container], view: View
    ) -> Iterator[Container]:
        """The containers of a service, each with what it runs that is older than what is published."""
        published = view.znode(znodes.definition)
        current = published.stat.mzxid if published and published.data.strip() else 0
        changed = published.stat.mtime / 1000 if published else 0.0
        # Up to where all that have started a daemon have read.
        begun = [each.read for each in containers if each.read is not None and each.stage in BEGUN]
        for each in containers:
            older = []
            if each.definition not in (None, current) and (graph is None or each.digest != graph.digest):
                older.append(Older(DEFINITION, "", True, changed))
            if graph is not None:
                if each.read is not None and each.stage in BEGUN:
                    older += self._older_variables(znodes, graph, each, min(begun), view)
                    for name, is_followed in _file_names(graph).items():
                        stat = view.stat(znodes.file(name))
                        if stat and stat.mzxid > each.read:
                            older.append(Older(FILE, name, is_followed, stat.mtime / 1000))
                image = other_generation(graph, each, containers)
                older += [Older(IMAGE, image, False, changed)] if image else []
            yield each._replace(older=tuple(older)) if older else each

    def _older_variables(
        self, znodes: Znodes, graph: Graph, container: Container, oldest: int, view: View
    ) -> Iterator[Older]:
        read = container.read or 0
        changed = self._changed(znodes, read, view)
        if not changed:
            return
        # The same names for each container of the service: templates are parsed once for all.
        used = self._used_names(znodes, graph, self._changed(znodes, oldest, view), view)
        for name in sorted(changed & used.all):
            stats = (view.stat(path) for path in znodes._replace(host=container.host).variable(name))
            nearest = next((stat for stat in stats if stat), None)
            if nearest and nearest.mzxid > read:
                yield Older(VARIABLE, name, name in used.followed, nearest.mtime / 1000)

    def _changed(self, znodes: Znodes, read: int, view: View) -> frozenset[str]:
        """The variables that have changed after a zxid, of the deployment or of the service."""
        names = {name for _, name in self._shared[bisect_left(self._shared, (read + 1, "")) :]}
        above = f"{znodes.definition}/{VARIABLES}"
        for name in view.names(above):
            stat = view.stat(f"{above}/{name}")
            if stat and stat.mzxid > read:
                names.add(name)
            if stat and stat.numChildren:
                names.update(view.names(f"{above}/{name}"))
        return frozenset(names) - self._given - BUILTIN

    def _used_names(self, znodes: Znodes, graph: Graph, names: frozenset[str], view: View) -> _Used:
        """Those of the names that the service's templates use. Kept, because parsing is slow."""
        files = {path: view.znode(path) for path in map(znodes.file, _file_names(graph))}
        if not view.wanted.isdisjoint(files):
            return _Used(frozenset(), frozenset())
        key = (graph, names, tuple(znode and znode.stat.mzxid for znode in files.values()))
        known = self._used.get(znodes.service_name)
        if known is None or known[0] != key:
            by_step = {step.path: _names(_texts(znodes, step, files), names) for step in graph.steps}
            own = by_step.get(graph.daemon.path, frozenset()) if graph.daemon else frozenset()
            known = self._used[znodes.service_name] = key, _Used(own, frozenset().union(*by_step.values()))
        return known[1]


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
    names = {file.name for step in graph.steps for file in step.files if file.mounted is None}
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


def _names(texts: Iterator[Text], names: Set[str]) -> frozenset[str]:
    """Those of the names that the templates use. Only templates that contain one of them are parsed."""
    found: set[str] = set()
    for text in texts:
        words = {name for name in names if name in text.text} if text.is_template else set()
        if words - found:
            found |= words & _parsed(text.text, words)
    return frozenset(found)


def _parsed(source: str, words: Set[str]) -> Set[str]:
    try:
        return templates.read(source).names.keys()
    except templates.BadTemplate:
        return words
