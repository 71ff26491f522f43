"""The generation that is published for a one-time command of another service.

Only read if the command is done, but not for the generation of the container's own image.
"""

from __future__ import annotations

import json

from kolla_mesos_start.definition.document import generations, load
from kolla_mesos_start.errors import AccessDenied, BadDefinition, CannotRender
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.render.context import IMAGE_GENERATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kolla_mesos_start.definition.model import Dependency
    from kolla_mesos_start.render.prepare import Preparer
    from kolla_mesos_start.tree.published import Stamp


class Generation(NamedTuple):
    """`name` is None if the command has no generation, or if it is not known: then `unknown` says why.

    `stamps` are those of the znodes that it was read from.
    """

    name: str | None
    stamps: Mapping[str, Stamp | None]
    unknown: str = ""


def published_generation(preparer: Preparer, dependency: Dependency) -> Generation:
    """The generation that is published for the command of the dependency."""
    try:
        for service in preparer.published.services(dependency.role):
            try:
                return _read(preparer.of(service), dependency)
            except AccessDenied:  # With an acl.yml only a service's own agents may read its definition.
                return _read(preparer.of(service, recorded=True), dependency)
    except (AccessDenied, BadDefinition, CannotRender) as error:
        return Generation(None, {}, error.reason)
    return Generation(None, {}, f"no service has claimed the role {dependency.role}")


def _read(preparer: Preparer, dependency: Dependency) -> Generation:
    definition = preparer.published.definition()
    read = {preparer.published.source: (definition.version, definition.zxid)}
    command = generations(load(definition.data).root).get(dependency.name)
    if command is None:
        return Generation(None, read)
    if IMAGE_GENERATION in str(command["generation"]):
        return Generation(None, read, f"it is that of any image that runs {dependency.path}")
    # The agents of that service read the rest; here it need not even be valid.
    alone = {"commands": {dependency.name: {"command": "true", **command}}}
    graph, stamps = preparer.read_graph(definition._replace(data=json.dumps(alone).encode()))
    target = graph.commands[0]
    return Generation(target.generation if target.run_once == dependency.scope else None, stamps)
