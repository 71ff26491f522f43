"""The containers that run what is older than what is published, or will be: an agent reads at its start only,
and the code of an image never changes.

What lives here: finding them by what they say of themselves, and naming them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.operator.deployment import changes
from kolla_mesos_start.operator.deployment.directory import Deployment
from kolla_mesos_start.operator.ensemble import connection, services
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.operator.validation.rules import known_graph
from kolla_mesos_start.tree.znodes import Znodes

WITH_DAEMON = ("starting", "ready", "unready")  # states; nobody else is told of new files
WORDS = {
    False: "restart these containers, which run an older version:",
    True: "these containers refresh their files without a restart; other changes need one:",
}


class OutdatedContainer(NamedTuple):
    """A container, as it says itself what it does; `definition` is the mzxid of the one that it runs,
    `digest` says what an agent reads of that, `generation` is that of its image, empty where it does not
    say; `needed` is the one that is published, where that is another one. `follows`: the files of its
    daemon follow what is published.
    """

    service: str
    host: str
    state: str
    definition: int | None
    digest: str = ""
    generation: str = ""
    needed: str = ""
    follows: bool = False


def outdated(
    client: OperatorClient, znodes: Znodes, deployment: Deployment, changed: Iterable[str]
) -> list[OutdatedContainer]:
    """Those of the deployment's services that a change at one of the nodes `changed` concerns, or that run
    another definition than the one that is published. What else than an agent reads of it does not count."""
    texts = {
        service.name: b"\n".join([service.definition, *service.files.values()])
        for service in deployment.services
    }
    nodes = set(changed)
    affected = changes.affected(nodes - texts.keys(), texts)
    graphs = _graphs(znodes, deployment)
    following = {service.name for service in deployment.services if services.follows(service.definition)}
    old = []
    for each, is_current in _containers(client, znodes, texts):
        graph = graphs.get(each.service)
        needed = _generation(graph) if graph else ""
        reads_the_same = graph.digest == each.digest if graph and each.digest else is_current
        if each.generation and needed not in ("", each.generation):
            old.append(each._replace(needed=needed))
        elif each.service in affected or not reads_the_same or (not each.digest and each.service in nodes):
            old.append(each._replace(follows=each.state in WITH_DAEMON and each.service in following))
    return sorted(old)


def _graphs(znodes: Znodes, deployment: Deployment) -> dict[str, Graph]:
    """The graph of each service; none where its containers end with what is wrong."""
    found = {}
    for service in deployment.services:
        texts = {**deployment.variables, **service.variables.own}
        values = {name: data.decode(errors="replace") for name, data in texts.items()}
        own = znodes._replace(service_name=service.name)
        with suppress(BadDefinition):
            found[service.name] = known_graph(load(service.definition), own, values)
    return found


def _generation(graph: Graph) -> str:
    """The one generation of its one-time commands; empty where it has none, or several."""
    generations = {command.generation for command in graph.commands if command.generation}
    return generations.pop() if len(generations) == 1 else ""


def _containers(
    client: OperatorClient, znodes: Znodes, names: Iterable[str]
) -> list[tuple[OutdatedContainer, bool]]:
    """The containers that run a definition of these services, and whether it is the one that is published."""
    places = {f"{znodes.service(service)}/.containers": service for service in names}
    ids = connection.children(client, places)
    paths = {f"{place}/{each}": service for place, service in places.items() for each in ids[place]}
    current = connection.mzxids(client, map(znodes.service, set(paths.values())))
    found = []
    for path, data in connection.read(client, paths).items():
        container = _container(paths[path], data)
        if container is not None and container.definition is not None:
            found.append((container, container.definition == current[znodes.service(container.service)]))
    return found


def _container(service: str, data: bytes | None) -> OutdatedContainer | None:
    """A container from what it wrote; None if it is gone, or wrote something else."""
    try:
        fact = json.loads(data or b"null")
        definition = int(fact["definition"], 16) if fact["definition"] else None
        digest, generation = (_plain(fact.get(key) or "") for key in ("digest", "generation"))
        return OutdatedContainer(
            service, _plain(fact["host"]), _plain(fact["state"]), definition, digest, generation
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _plain(text: object) -> str:
    """A text from strangers for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def show(out: Console, containers: Sequence[OutdatedContainer]) -> None:
    """Name them, so that somebody restarts them."""
    for follows, words in WORDS.items():
        named = [each for each in containers if each.follows is follows]
        if named:
            out.print(words)
        for each in named:
            image = f", its image is {each.generation}: start one of {each.needed}" if each.needed else ""
            out.print(Text(f"  {each.service} on {each.host}: {each.state}{image}"))
