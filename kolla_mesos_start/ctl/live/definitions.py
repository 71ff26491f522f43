"""The published definitions of a deployment, as their agents read them.

What belongs here: which variables a definition's graph depends on, and the graph. Pure. Parsed definitions
are kept, because they rarely change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import instances
from kolla_mesos_start.ctl.directory.container_variables import HINT
from kolla_mesos_start.ctl.directory.directory import VARIABLES
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


class _Source(NamedTuple):
    """The text of a definition, and the variables that its graph depends on; or its issues."""

    document: Document | None
    variables: Sequence[str] = ()
    issues: tuple[str, ...] = ()


class Definitions:
    """The definitions of one deployment. `given` are variables that containers have from elsewhere."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._sources: dict[bytes, _Source] = {}
        self._found: dict[tuple[object, ...], PublishedDefinition] = {}

    def find(self, znodes: Znodes, view: View) -> PublishedDefinition:
        """What is published for a service; NOT_PUBLISHED also while a value that it needs is not read yet."""
        source = self._source(znodes, view)
        if source is None:
            return NOT_PUBLISHED
        if source.document is None:
            return PublishedDefinition(None, source.issues, 1)
        values: dict[str, str] = {}
        if source.variables:
            found = self._places(znodes, source, view)
            read = {path: znode for path in found if (znode := view.znode(path))}
            if not view.wanted.isdisjoint(read):
                return NOT_PUBLISHED
            for path, znode in read.items():
                values.setdefault(found[path], znode.data.decode("utf-8", "replace"))
            values.update({name: self._given[name] for name in source.variables if name in self._given})
        key = (znodes.service_name, id(source), tuple(sorted(values.items())))
        if key not in self._found:
            self._found[key] = _definition(source.document, znodes, values)
        return self._found[key]

    def _source(self, znodes: Znodes, view: View) -> _Source | None:
        znode = view.znode(znodes.definition)
        if znode is None or not znode.data.strip():
            return None
        if znode.data not in self._sources:
            self._sources[znode.data] = _source(znode.data)
        return self._sources[znode.data]

    def _places(self, znodes: Znodes, source: _Source, view: View) -> Mapping[str, str]:
        """The possible paths of the variables that the graph depends on, nearest first, and their names.

        There is one graph for all hosts. A variable that only hosts have gets the value of the first host.
        """
        found = _common_places(znodes, source)
        above = f"{znodes.definition}/{VARIABLES}"
        for name in self._only_on_hosts(znodes, source, view):
            found.update({f"{above}/{host}/{name}": name for host in view.names(above)})
        return found

    def _only_on_hosts(self, znodes: Znodes, source: _Source, view: View) -> Sequence[str]:
        """The variables that the graph depends on, and that have no value for all hosts."""
        has_value: dict[str, bool] = {}
        for path, name in _common_places(znodes, source).items():
            has_value[name] = has_value.get(name, False) or view.stat(path) is not None
        return [name for name, has in has_value.items() if not has]


def _common_places(znodes: Znodes, source: _Source) -> dict[str, str]:
    """The paths that are not below a host."""
    return {path: name for name in source.variables for path in places(znodes, name)}


def _source(data: bytes) -> _Source:
    try:
        document = load(data)
        early = (*early_texts(document), instances.text_of(document.root))
        texts = [text for text in early if text.is_template]
        return _Source(document, sorted(variable_names(texts)) if texts else ())
    except BadDefinition as error:
        return _Source(None, issues=error.issues)
    except CannotRender as error:
        return _Source(None, issues=(error.reason,))


def _definition(document: Document, znodes: Znodes, variables: Mapping[str, str]) -> PublishedDefinition:
    found = instances.wanted(document.root, lambda text: rendered(text, znodes, variables))
    wanted = 1 if found is None else found
    try:
        graph = build_graph(document, znodes, variables)
    except BadDefinition as error:
        return PublishedDefinition(None, error.issues, wanted)
    except CannotRender as error:
        hint = HINT if isinstance(error, MissingVariable) else ""
        return PublishedDefinition(None, (error.reason + hint,), wanted)
    return PublishedDefinition(graph or known_graph(document, znodes, variables), (), wanted)
