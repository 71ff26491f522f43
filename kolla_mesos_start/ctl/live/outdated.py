"""The containers that a publication makes outdated.

What belongs here: finding them before or after the publication, from the directory that is published, and
naming them. What running containers have not read, according to ZooKeeper alone, is found by `unread`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from kolla_mesos_start.ctl.directory import changes
from kolla_mesos_start.ctl.directory.directory import Deployment
from kolla_mesos_start.ctl.directory.secrecy import is_variable
from kolla_mesos_start.ctl.validate.rules import known_graph
from kolla_mesos_start.ctl.zk import connection, containers, services
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.containers import BEGUN, Container
from kolla_mesos_start.ctl.zk.published import Nodes
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.report import RESTART
from kolla_mesos_start.tree.znodes import Znodes

WORDS = {
    False: "these containers need a restart for the new version:",
    True: "these containers refresh their files without a restart:",
}
WITHOUT_RESTART = ("files", "dependencies", "generations", "on_change")  # keys of a daemon


class OutdatedContainer(NamedTuple):
    """A container that runs something older. `needed` is the published generation, if its image has another
    one; `follows`: the files of its daemon are refreshed."""

    service: str
    container: Container
    needed: str = ""
    follows: bool = False


def outdated(
    client: OperatorClient, znodes: Znodes, deployment: Deployment, before: Nodes, changed: Iterable[str]
) -> list[OutdatedContainer]:
    """The containers that run an older definition, or that a change at one of the nodes `changed` affects.

    Only what agents read of a definition counts. `before` is what was published before the change.
    """
    texts = {
        service.name: b"\n".join([service.definition, *service.files.values()])
        for service in deployment.services
    }
    nodes = set(changed)
    affected = changes.affected(nodes - texts.keys(), texts)
    graphs = _graphs(znodes, deployment)
    variables = {node.rpartition("/")[2] for node in nodes if is_variable(node)}
    following = {
        service.name
        for service in deployment.services
        if _is_followed(before.get(service.name, b""), service.definition, variables)
    }
    found = containers.read(client, znodes, texts)
    current = connection.mzxids(client, map(znodes.service, found))
    old = []
    for name, each in ((name, each) for name, some in found.items() for each in some):
        if each.definition is None:  # It does not say what it runs.
            continue
        graph = graphs.get(name)
        needed = _generation(graph) if graph else ""
        is_current = each.definition == current[znodes.service(name)]
        reads_the_same = graph.digest == each.digest if graph and each.digest else is_current
        if each.generation and needed not in ("", each.generation):
            old.append(OutdatedContainer(name, each, needed))
        elif name in affected or not reads_the_same or (not each.digest and name in nodes):
            old.append(OutdatedContainer(name, each, follows=_follows(each, name in following)))
    return sorted(old, key=lambda each: (each.service, each.container.host, each.container.stage))


def _follows(container: Container, is_followed: bool) -> bool:
    return is_followed and container.stage in BEGUN and container.code != RESTART


def _is_followed(old: bytes, new: bytes, variables: Set[str]) -> bool:
    """Whether a refresh of the daemon's files brings all changes; `variables` are those that have changed."""
    if not (services.follows(new) and services.follows(old or new)):
        return False
    before, after = (
        json.dumps({"service": {"daemon": _started_with(text)}}).encode() for text in (old or new, new)
    )
    return before == after and not services.used_variables(after, {}) & variables


def _started_with(definition: bytes) -> Mapping[str, object]:
    """The keys of a daemon that only its start applies."""
    daemon = json.loads(definition)["service"]["daemon"]
    return {key: value for key, value in daemon.items() if key not in WITHOUT_RESTART}


def _graphs(znodes: Znodes, deployment: Deployment) -> dict[str, Graph]:
    """The graph of each service whose definition is valid."""
    found = {}
    for service in deployment.services:
        texts = {**deployment.variables, **service.variables.own}
        values = {name: data.decode(errors="replace") for name, data in texts.items()}
        own = znodes._replace(service_name=service.name)
        with suppress(BadDefinition):
            found[service.name] = known_graph(load(service.definition), own, values)
    return found


def _generation(graph: Graph) -> str:
    """The generation of its one-time commands; empty if they have none, or several."""
    generations = {command.generation for command in graph.commands if command.generation}
    return generations.pop() if len(generations) == 1 else ""


def show(out: Console, found: Sequence[OutdatedContainer]) -> None:
    """Print their names, so that somebody restarts them."""
    for follows, words in WORDS.items():
        named = [each for each in found if each.follows is follows]
        if named:
            out.print(words)
        for service, each, needed, _ in named:
            image = f", its image is {each.generation}: start one of {needed}" if needed else ""
            out.print(Text(f"  {service} on {each.host}: {each.stage}{image}"))
