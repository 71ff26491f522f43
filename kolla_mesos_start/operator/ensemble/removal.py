"""The removal of a part of a deployment's tree: of a service, of what containers have recorded, or of both.

What lives here: how a tree goes without hurting a container that starts meanwhile. The places where
containers show themselves or contend go first, together, and only while they are empty; by force all goes
with whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.operator.deployment import acl
from kolla_mesos_start.operator.deployment.acl import BY_AGENTS
from kolla_mesos_start.operator.deployment.directory import FILES, VARIABLES
from kolla_mesos_start.operator.ensemble import acls, connection, presence, services, status_records
from kolla_mesos_start.operator.ensemble.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
)
from kolla_mesos_start.operator.ensemble.presence import on_hosts
from kolla_mesos_start.operator.ensemble.status_records import State
from kolla_mesos_start.operator.ensemble.token_floor import keep_tokens
from kolla_mesos_start.tree.znodes import RECORDED_GENERATIONS, Znodes

TRIES = 50  # Each is refused only where a container has written between two requests.
BATCH = 2000  # znodes in one transaction: less than a server's jute.maxbuffer
UNFINISHED = "what is left goes when the command is given once more"
PLACES = ("lock", "ready")  # below a command: where containers contend, and where they are ready
PARTS = (VARIABLES, FILES, *BY_AGENTS, acl.NODE, RECORDED_GENERATIONS)  # below a service


class InUse(AgentError):
    """Containers are there."""

    status = 1


class Tree(NamedTuple):
    """What is to go: `roots` and everything below them, and what `definitions` hold.

    In `places` are containers of `services`, where there are any. What is `kept` stays, without what is below
    it: agents have no right to make it.
    """

    znodes: Znodes
    roots: Sequence[str]
    places: Sequence[str]
    services: Sequence[str]
    definitions: Sequence[str] = ()
    kept: Set[str] = frozenset()

    def is_containers_own(self, path: str) -> bool:
        """Whether a container has made the znode for as long as it is there."""
        parent = path.rsplit("/", 2)[1]
        if path.startswith(f"{self.znodes.status}/"):
            # scope, role, command, place, name: a role may be called as a place is.
            return path[len(self.znodes.status) :].count("/") == 5 and parent in PLACES
        return parent in BY_AGENTS


# -- trees --------------------------------------------------------------------------------------


def status_tree(client: OperatorClient, znodes: Znodes, found: Iterable[State]) -> Tree:
    """All that is recorded; `found` are the states in it."""
    names = list(services.definitions(client, znodes))
    places = places_of(znodes, names, found)
    return Tree(znodes, [znodes.status], places, names, kept=acls.made(client, znodes))


def parts_of(client: OperatorClient, znodes: Znodes) -> tuple[Znodes, list[str]]:
    """The service, by its name or else by its role, and what belongs to it below its definition."""
    names = connection.children(client, [znodes.definition])[znodes.definition]
    parts = [f"{znodes.definition}/{name}" for name in PARTS if name in names]
    if parts or connection.read(client, [znodes.definition])[znodes.definition]:
        return znodes, parts
    # Of a service that was pruned, or whose removal was interrupted, only the status may be left.
    owners = set(status_records.roles(client, znodes).values())
    if znodes.service_name in owners:
        return znodes, parts
    known = owners.union(services.definitions(client, znodes))
    name = services.chosen(znodes.service_name, known, znodes.deployment)
    return parts_of(client, znodes._replace(service_name=name))


def remove_service(client: OperatorClient, znodes: Znodes) -> int:
    """Remove a service's own znode, and those above it that were there for it alone."""
    path, count = znodes.definition, 0
    while path != znodes.deployment:
        # Services may lie below it, or beside it.
        if connection.children(client, [path])[path] or connection.read(client, [path])[path]:
            break
        connection.remove(client, path)
        path, count = path.rpartition("/")[0], count + 1
    return count


# -- who is there ---------------------------------------------------------------------------------


def places_of(znodes: Znodes, names: Iterable[str], found: Iterable[State]) -> list[str]:
    """Where containers of these services may be."""
    return [
        *(f"{znodes.service(name)}/{place}" for name in names for place in BY_AGENTS),
        *(f"{state.at.state}/{place}" for state in found for place in PLACES if place in state.below),
    ]


def who_is_there(client: OperatorClient, tree: Tree) -> str:
    """The containers that are there, for a message; empty if there is none."""
    there = [
        f"{name} has {on_hosts(hosts)}"
        for name, hosts in presence.containers(client, tree.znodes, tree.services).items()
    ]
    if not there:
        names = connection.children(client, tree.places)
        there = [f"a container holds {place}" for place in tree.places if names[place]]
    return "; ".join(there)


# -- removing -------------------------------------------------------------------------------------


def remove(client: OperatorClient, tree: Tree, *, force: bool = False) -> int:
    """Remove the tree; how many znodes it had. ChangedMeanwhile if a container has come, unless `force`."""
    before = len(listed(client, tree, force=True))
    if force:
        with connection.unfinished(UNFINISHED):
            _remove_by_force(client, tree)
        return before
    while not _are_places_removed(client, tree):
        pass
    with connection.unfinished(UNFINISHED):
        while paths := listed(client, tree, force=False):
            connection.remove_all(client, paths, keep_tokens(client, tree.znodes, paths))
    return before


def _remove_by_force(client: OperatorClient, tree: Tree) -> None:
    """Remove the tree and whoever is there, at one moment, if one request can hold it.

    Agents make anew what goes bit by bit, and begin their commands again each time.
    """
    for definition in tree.definitions:
        connection.write(client, definition, b"")
    for last in [False] * TRIES + [True]:
        paths = listed(client, tree, force=True)
        try:
            _delete(client, tree, paths, "containers went on writing: not all is removed")
            return
        except (ChangedMeanwhile, Unanswered):
            if last:
                raise


def withdraw(client: OperatorClient, znodes: Znodes, roles: Iterable[str]) -> None:
    """Remove what is published of a service, at one moment; what its containers have recorded stays.

    `roles` are the znodes of its role. Nothing goes if a container is there: InUse or ChangedMeanwhile.
    Services below this one stay.
    """
    name = znodes.service_name
    places = places_of(znodes, [name], status_records.states(client, znodes, roles))
    while connection.read(client, [znodes.definition])[znodes.definition] is not None:
        names = connection.children(client, [znodes.definition])[znodes.definition]
        parts = [f"{znodes.definition}/{each}" for each in names if each in PARTS]
        tree = Tree(znodes, parts, places, [name])
        if there := who_is_there(client, tree):
            raise InUse(there)
        # The places go with the first request, whatever its size.
        paths = sorted(listed(client, tree, force=False), key=lambda path: path not in places)
        transaction = Changes(client)
        for path in paths[:BATCH]:
            transaction.delete(path)
        if len(parts) == len(names) and len(paths) <= BATCH:
            transaction.delete(znodes.definition)
        else:
            transaction.set_data(znodes.definition, b"")
        with suppress(Unanswered):
            connection.commit(transaction, f"{name} is not removed")
            connection.remove_all(client, paths[BATCH:], {})
            return


def forget(client: OperatorClient, tree: Tree, force: bool) -> int:
    """Remove the tree at one moment, unless a container has come, or by force; how many znodes it had."""
    if force:
        return remove(client, tree, force=True)
    count = len(paths := listed(client, tree, force=False))
    while paths:
        try:
            _delete(client, tree, paths, f"{tree.roots[0]} is left as it is")
            break
        except Unanswered:
            paths = listed(client, tree, force=False)  # None are left if it was applied.
    return count


def _delete(client: OperatorClient, tree: Tree, paths: Sequence[str], what: str) -> None:
    """Remove the znodes at `paths`, children first as given, all or none if one request can hold them."""
    versions = keep_tokens(client, tree.znodes, paths)
    for first in range(0, len(paths), BATCH):
        transaction = Changes(client)
        for path in paths[first : first + BATCH]:
            transaction.delete(path, versions.get(path, -1))
        connection.commit(transaction, what)


def _are_places_removed(client: OperatorClient, tree: Tree) -> bool:
    """Remove the places where containers may be, all together and only if nobody is there.

    False where the connection was lost meanwhile: then it is to be done once more.

    With them go the definitions, so that no agent begins: an empty one counts as not published.
    """
    found = connection.read(client, tree.places)
    there = [path for path in tree.places if found[path] is not None]
    for first in range(0, max(len(there), 1), BATCH):
        transaction = Changes(client)
        for definition in tree.definitions:
            transaction.set_data(definition, b"")
        for path in there[first : first + BATCH]:
            transaction.delete(path)
            if path in tree.kept:
                transaction.create(path)
        try:
            connection.commit(transaction, "not removed")
        except Unanswered:
            return False
    return True


def listed(client: OperatorClient, tree: Tree, force: bool) -> list[str]:
    """All znodes of the tree that are there, children first; without `force` none that a container holds."""
    roots = connection.read(client, tree.roots)
    there = [path for path in tree.roots if roots[path] is not None]
    paths = [path for path in (*connection.below(client, there), *there) if path not in tree.kept]
    return paths if force else [path for path in paths if not tree.is_containers_own(path)]
