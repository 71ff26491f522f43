"""The published definitions of a deployment, as their agents read them.

What belongs here: which variables a definition's graph depends on, and the graph. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import launch
from kolla_mesos_start.ctl.directory.directory import VARIABLES
from kolla_mesos_start.ctl.directory.source import HINT
from kolla_mesos_start.ctl.validate.rules import build_graph, known_graph, rendered
from kolla_mesos_start.ctl.zk.published import places
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.document import Document, load
from kolla_mesos_start.definition.keys import early_texts
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.errors import BadDefinition, CannotRender, MissingVariable
from kolla_mesos_start.render.context import variable_names
from kolla_mesos_start.tree.znodes import Znodes


class PublishedDefinition(NamedTuple):
    """What is published for a service; `issues` say why it has no graph."""

    graph: Graph | None
    issues: tuple[str, ...]
    wanted: int


NOT_PUBLISHED = PublishedDefinition(None, (), 1)


KEPT = 4096  # parsed definitions: they rarely change


class Definitions:
    """The definitions of one deployment. `given` are variables that containers have from elsewhere."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._names, self._definition = lru_cache(KEPT)(_names), lru_cache(KEPT)(_definition)

    def find(self, znodes: Znodes, view: View) -> PublishedDefinition:
        """What is published for a service; NOT_PUBLISHED also while a value that it needs is not read yet."""
        definition = view.znode(znodes.definition)
        if definition is None or not definition.data.strip():
            return NOT_PUBLISHED
        names, values = self._names(definition.data), dict[str, str]()
        found = _places(znodes, names, view) if names else {}
        read = {path: znode for path in found if (znode := view.znode(path))}
        if not view.wanted.isdisjoint(read):
            return NOT_PUBLISHED
        for path, znode in read.items():
            values.setdefault(found[path], znode.data.decode("utf-8", "replace"))
        values.update({name: self._given[name] for name in names if name in self._given})
        return self._definition(definition.data, znodes, tuple(sorted(values.items())))


def _places(znodes: Znodes, names: Sequence[str], view: View) -> Mapping[str, str]:
    """The possible paths of the variables that the graph depends on, nearest first, and their names.

    There is one graph for all hosts. A variable that only hosts have gets the value of the first host.
    """
    found = {path: name for name in names for path in places(znodes, name)}
    have = {name for path, name in found.items() if view.stat(path)}
    above = f"{znodes.definition}/{VARIABLES}"
    for name in names:
        if name not in have:
            found.update({f"{above}/{host}/{name}": name for host in view.names(above)})
    return found


def _names(data: bytes) -> Sequence[str]:
    """The variables that the graph of a definition depends on; none if it is invalid."""
    try:
        return sorted(_variables(load(data)))
    except (BadDefinition, CannotRender):
        return ()


def _variables(document: Document) -> Collection[str]:
    """Raises CannotRender for bad syntax in any template that the graph or the number of instances needs."""
    return variable_names([*early_texts(document), launch.instances_text(document.root)])


def _definition(data: bytes, znodes: Znodes, values: tuple[tuple[str, str], ...]) -> PublishedDefinition:
    wanted, variables = 1, dict(values)
    try:
        document = load(data)
        _variables(document)
        found = launch.wanted_instances(document.root, lambda text: rendered(text, znodes, variables))
        wanted = 1 if found is None else found
        graph = build_graph(document, znodes, variables)
    except BadDefinition as error:
        return PublishedDefinition(None, error.issues, wanted)
    except CannotRender as error:
        hint = f"; {HINT}" if isinstance(error, MissingVariable) else ""
        return PublishedDefinition(None, (error.reason + hint,), wanted)
    return PublishedDefinition(graph or known_graph(document, znodes, variables), (), wanted)
