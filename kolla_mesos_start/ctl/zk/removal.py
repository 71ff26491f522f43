"""Removes a part of a deployment's tree: a service, what containers have recorded, or both.

What belongs here: removing a tree without harm to a container that starts meanwhile. The znodes below which
containers create ephemerals are removed first, in one transaction, and only while they are empty. With force,
everything is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import acl
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES
from kolla_mesos_start.ctl.zk import (
    acls,
    connection,
    containers,
    services,
    status_records,
)
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
    parents,
)
from kolla_mesos_start.ctl.zk.containers import exists_while_container_does, on_hosts
from kolla_mesos_start.ctl.zk.status_records import State, Status
from kolla_mesos_start.ctl.zk.token_floor import keep_tokens
from kolla_mesos_start.ctl.zk.view import stat_tree
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.tree.znodes import RECORDED_GENERATIONS, Znodes

TRIES = 50  # A try fails only if a container has written between two requests.
BATCH = 2000  # znodes in one transaction: less than a server's jute.maxbuffer
UNFINISHED = "run the command again to remove the rest"
PARTS = (VARIABLES, FILES, *containers.NAMES, acl.NODE, RECORDED_GENERATIONS)  # below a service


class InUse(AgentError):
    """Containers exist."""

    status = 1


class Tree(NamedTuple):
    """What is removed: `roots` with everything below them, and the content of `definitions`.

    Containers of `services` create ephemerals in `places`. The znodes in `kept` stay, without their children:
    agents have no right to create them. Those in `elections` stay, with everything below them.
    """

    znodes: Znodes
    roots: Sequence[str]
    places: Sequence[str]
    services: Sequence[str]
    definitions: Sequence[str] = ()
    kept: Set[str] = frozenset()
    elections: Set[str] = frozenset()


# -- trees --------------------------------------------------------------------------------------


def status_tree(client: OperatorClient, status: Status) -> Tree:
    """Everything that is recorded, except elections."""
    names = list(services.definitions(client, status.znodes))
    places = places_of(status.znodes, names, status.states())
    elected = frozenset(each.top for each in status.elections.values())
    made = acls.made(client, status.znodes)
    return Tree(status.znodes, [status.znodes.status], places, names, kept=made, elections=elected)


def parts_of(client: OperatorClient, znodes: Znodes) -> tuple[Znodes, list[str]]:
    """The service, by its name or else by its role, and what belongs to it below its definition."""
    names = connection.children(client, [znodes.definition])[znodes.definition]
    parts = [f"{znodes.definition}/{name}" for name in PARTS if name in names]
    if parts or connection.read(client, [znodes.definition])[znodes.definition]:
        return znodes, parts
    # After a service was pruned, or its removal was interrupted, only its status may be left.
    owners = set(status_records.roles(client, znodes).values())
    if znodes.service_name in owners:
        return znodes, parts
    known = owners.union(services.definitions(client, znodes))
    name = services.chosen(znodes.service_name, known, znodes.deployment)
    return parts_of(client, znodes._replace(service_name=name))


def remove_service(client: OperatorClient, znodes: Znodes) -> int:
    """Remove a service's own znode, and its parents that have no other children."""
    path, count = znodes.definition, 0
    while path != znodes.deployment:
        # Other services may be below it, or beside it.
        if connection.children(client, [path])[path] or connection.read(client, [path])[path]:
            break
        connection.remove(client, path)
        path, count = path.rpartition("/")[0], count + 1
    return count


# -- existing containers ---------------------------------------------------------------------------------


def places_of(znodes: Znodes, names: Iterable[str], found: Iterable[State]) -> list[str]:
    """The znodes below which containers of these services create ephemerals."""
    return [
        *(path for name in names for path in containers.places(znodes._replace(service_name=name))),
        *(path for state in found for path in state.held),
    ]


def who_is_there(client: OperatorClient, tree: Tree) -> str:
    """The existing containers, for a message; empty if there are none."""
    there = [
        f"{name} has {on_hosts(hosts)}"
        for name, hosts in containers.hosts(client, tree.znodes, tree.services).items()
    ]
    if not there:
        owners = connection.owners(client, tree.places)
        held = {path.rpartition("/")[0] for path, session in owners.items() if session}
        there = [f"a container holds {place}" for place in tree.places if place in held]
    return "; ".join(there)


# -- removing -------------------------------------------------------------------------------------


def remove(client: OperatorClient, tree: Tree, *, force: bool = False) -> int:
    """Remove the tree and return how many znodes it had. ChangedMeanwhile if a container has started, unless
    `force`."""
    before = len(listed(client, tree, force=True))
    if force:
        with connection.unfinished(UNFINISHED):
            _remove_by_force(client, tree)
        return before
    remove_dead(client, tree.places)
    while not _are_places_removed(client, tree):
        pass
    with connection.unfinished(UNFINISHED):
        while paths := listed(client, tree, force=False):
            connection.remove_all(client, paths, keep_tokens(client, tree.znodes, paths))
    return before


def remove_dead(client: OperatorClient, places: Iterable[str]) -> int:
    """Remove what no session owns below these places of ephemerals, and return how many znodes there were."""
    dead = [path for path, session in connection.owners(client, places).items() if not session]
    connection.remove_all(client, dead, {})
    return len(dead)


def _remove_by_force(client: OperatorClient, tree: Tree) -> None:
    """Remove the tree with the ephemerals of containers, in one transaction if that is large enough.

    Otherwise agents would create znodes again between two requests, and start their commands again.
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


def withdraw(client: OperatorClient, znodes: Znodes, roles: Mapping[str, str]) -> None:
    """Remove what is published for a service, in one transaction; what its containers have recorded stays.

    `roles` are the znodes of its role, with their owner. If a container exists, nothing is removed: InUse or
    ChangedMeanwhile. Services below this one stay.
    """
    name = znodes.service_name
    places = places_of(znodes, [name], status_records.read(client, znodes, roles).states())
    remove_dead(client, places)
    while connection.read(client, [znodes.definition])[znodes.definition] is not None:
        names = connection.children(client, [znodes.definition])[znodes.definition]
        parts = [f"{znodes.definition}/{each}" for each in names if each in PARTS]
        tree = Tree(znodes, parts, places, [name])
        if there := who_is_there(client, tree):
            raise InUse(there)
        # The places are removed by the first transaction.
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
    """Remove the tree in one transaction, and return how many znodes it had. Fails if a container has
    started, unless `force`."""
    if force:
        return remove(client, tree, force=True)
    count = len(paths := listed(client, tree, force=False))
    while paths:
        try:
            _delete(client, tree, paths, f"{tree.roots[0]} is left as it is")
            break
        except Unanswered:
            paths = listed(client, tree, force=False)  # Empty if it was applied.
    return count


def _delete(client: OperatorClient, tree: Tree, paths: Sequence[str], what: str) -> None:
    """Remove the znodes at `paths`, children first as given; all or none if one transaction can hold them."""
    versions = keep_tokens(client, tree.znodes, paths)
    for first in range(0, len(paths), BATCH):
        transaction = Changes(client)
        for path in paths[first : first + BATCH]:
            transaction.delete(path, versions.get(path, -1))
        connection.commit(transaction, what)


def _are_places_removed(client: OperatorClient, tree: Tree) -> bool:
    """Remove the znodes below which containers create ephemerals, in one transaction, only if they are empty.

    The transaction also empties the definitions, so that no agent starts. False if the connection was lost:
    try again.
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
    """The existing znodes of the tree, children first; without `force` none that a container holds."""
    kept = {*tree.kept, *parents(tree.elections)}
    found = stat_tree(client, tree.roots, lambda path: path not in tree.elections)
    paths = [path for path in reversed(found) if path not in kept]
    if force:
        return paths
    is_held = exists_while_container_does
    return [path for path in paths if not (is_held(tree.znodes, path) and found[path].ephemeralOwner)]
