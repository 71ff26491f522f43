"""The generation that is published for a one-time command of another service.

Containers that depend on the command ask for it only if the command is done, but not for the generation of
their own image: it costs a few reads.
"""

from __future__ import annotations

import json

from kolla_mesos_start.definition.document import generations, load
from kolla_mesos_start.errors import AccessDenied, BadDefinition, CannotRender
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.published import Definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kolla_mesos_start.definition.model import Dependency
    from kolla_mesos_start.render.prepare import Preparer
    from kolla_mesos_start.tree.published import Published, Stamp


class Generation(NamedTuple):
    """`name` is None if the command has no generation, or if it is not known: then `unknown` says why.

    `stamps` are those of the znodes that it comes from.
    """

    name: str | None
    stamps: Mapping[str, Stamp | None]
    unknown: str = ""


def published_generation(preparer: Preparer, dependency: Dependency) -> Generation:
    """The generation that is published for the command of the dependency."""
    try:
        for service in preparer.published.services(dependency.role):
            return _read(preparer.of(service), dependency)
    except (AccessDenied, BadDefinition, CannotRender) as error:
        return Generation(None, {}, error.reason)
    return Generation(None, {}, f"no service has claimed the role {dependency.role}")


def _read(preparer: Preparer, dependency: Dependency) -> Generation:
    path, definition = _source(preparer.published)
    command = generations(load(definition.data).root).get(dependency.name)
    if command is None:
        return Generation(None, {})
    # The agents of that service read the rest; here it must not even be valid.
    alone = {"commands": {dependency.name: {"command": "true", **command}}}
    graph, read = preparer.read_graph(definition._replace(data=json.dumps(alone).encode()))
    stamps = {path if each == preparer.published.znodes.definition else each: read[each] for each in read}
    target = graph.commands[0]
    return Generation(target.generation if target.run_once == dependency.scope else None, stamps)


def _source(published: Published) -> tuple[str, Definition]:
    """What says it, and where: with an acl.yml only a service's own agents may read its definition."""
    path = published.znodes.recorded_generations
    try:
        return published.znodes.definition, published.definition()
    except AccessDenied:
        znode = published.client.read([path])[path]
        if znode is None:
            raise
        return path, Definition(znode.data, znode.stat.mzxid, znode.stat.version)
