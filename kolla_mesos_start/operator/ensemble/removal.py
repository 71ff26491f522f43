"""`kolla_mesos_ctl remove` and `reset`: a service and all that is known of it; what containers have recorded.

What lives here: both, and how a tree goes without hurting a container that starts meanwhile. The places
where containers show themselves or contend go first, together, and only while they are empty; with
--force all goes with whatever is in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from kazoo.client import KazooClient

from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.operator.deployment import acl
from kolla_mesos_start.operator.deployment.acl import BY_AGENTS
from kolla_mesos_start.operator.deployment.directory import FILES, VARIABLES
from kolla_mesos_start.operator.ensemble import acls, connection, hosts, published, services, status_records
from kolla_mesos_start.operator.ensemble.connection import Client, Refused, Unanswered
from kolla_mesos_start.operator.ensemble.services import on_hosts
from kolla_mesos_start.operator.ensemble.status_records import State
from kolla_mesos_start.operator.ensemble.token_floor import keep_tokens
from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.terminal.confirmation import DECLINED, add_yes, confirmed
from kolla_mesos_start.operator.validation import dependents
from kolla_mesos_start.tree.znodes import RECORDED_GENERATIONS, Znodes

TRIES = 50  # Each is refused only where a container has written between two requests.
BATCH = 2000  # znodes in one transaction: less than a server's jute.maxbuffer
UNFINISHED = "what is left goes when the command is given once more"
PLACES = ("lock", "ready")  # below a command: where containers contend, and where they are ready


PARTS = (VARIABLES, FILES, *BY_AGENTS, acl.NODE, RECORDED_GENERATIONS)  # below a service


class InUse(AgentError):
    """Containers are there."""

    status = 1


class Needed(AgentError):
    """Other services depend on it."""

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


# -- the two --------------------------------------------------------------------------------------


def run_remove(invocation: Invocation) -> int:
    """A service: its definition, variables and files, and what its containers have recorded."""
    client, given = invocation.client, invocation.options.service
    services.check_name(given)
    znodes, parts = _parts(client, invocation.require_deployment()._replace(service_name=given))
    name = znodes.service_name
    owners = [path for path, owner in status_records.roles(client, znodes).items() if owner == name]
    found = status_records.states(client, znodes, owners)
    places = _places(znodes, [name], found)
    tree = Tree(znodes, [*parts, *owners], places, [name], [znodes.definition])
    _require_no_dependents(invocation, znodes)
    if not _may_go(invocation, tree, f"remove the service {name} from {znodes.deployment}", found):
        return DECLINED
    count = remove(client, tree, force=invocation.options.force) + remove_service(client, znodes)
    print(f"removed {name} from {znodes.deployment}: {count} znodes")
    return 0


def run_reset(invocation: Invocation) -> int:
    """What containers have recorded, all or that of some hosts; what is published stays."""
    if invocation.options.host or invocation.options.absent_hosts:
        return _run_reset_hosts(invocation)
    client = invocation.client
    znodes = invocation.require_deployment()
    found = status_records.states(client, znodes, status_records.roles(client, znodes))
    tree = status_tree(client, znodes, found)
    what = f"forget all that the containers of {znodes.deployment} have recorded"
    if not _may_go(invocation, tree, what, found):
        return DECLINED
    count = remove(client, tree, force=invocation.options.force)
    print(f"reset {znodes.deployment}: {count} znodes; its services are published as before")
    return 0


def _run_reset_hosts(invocation: Invocation) -> int:
    """What is recorded of some hosts, each at one moment."""
    client, options = invocation.client, invocation.options
    znodes = invocation.require_deployment()
    found = hosts.read(client, znodes)
    there = hosts.there(client, znodes, found)
    kept = acls.made(client, znodes)
    trees = {
        name: Tree(znodes, [f"{znodes.status}/{name}", *found.marks.get(name, ())], (), (), kept=kept)
        for name in (hosts.named(found, options.host) if options.host else hosts.absent(found, there))
    }
    names = [name for name, tree in trees.items() if _listed(client, tree, force=True)]
    if not names:
        everywhere = f"a container is on every host of {znodes.deployment} of which something is recorded"
        print(f"nothing is recorded of {', '.join(trees)}" if trees else everywhere)
        return 0
    _require_nobody(invocation, hosts.in_use(there, names))
    _print_again(invocation, [state for state in found.states if state.scope in names])
    for line in hosts.counted_less(found, names, services.definitions(client, znodes).values()):
        invocation.err.print(line, markup=False)
    which = f"{len(names)} host{'s' * (len(names) != 1)} of {znodes.deployment}: {', '.join(names)}"
    if not confirmed(invocation, f"forget what is recorded of {which}"):
        return DECLINED
    if not options.force:  # One may have come while we asked.
        _require_nobody(invocation, hosts.in_use(hosts.there(client, znodes, found), names))
    for name in names:
        print(f"forgot {name}: {_forget(client, trees[name], options.force)} znodes", flush=True)
    return 0


def status_tree(client: Client, znodes: Znodes, found: Iterable[State]) -> Tree:
    """All that is recorded; `found` are the states in it."""
    names = list(services.definitions(client, znodes))
    places = _places(znodes, names, found)
    return Tree(znodes, [znodes.status], places, names, kept=acls.made(client, znodes))


def _parts(client: KazooClient, znodes: Znodes) -> tuple[Znodes, list[str]]:
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
    return _parts(client, znodes._replace(service_name=name))


def remove_service(client: KazooClient, znodes: Znodes) -> int:
    """Remove a service's own znode, and those above it that were there for it alone."""
    path, count = znodes.definition, 0
    while path != znodes.deployment:
        # Services may lie below it, or beside it.
        if connection.children(client, [path])[path] or connection.read(client, [path])[path]:
            break
        connection.remove(client, path)
        path, count = path.rpartition("/")[0], count + 1
    return count


def _require_no_dependents(invocation: Invocation, znodes: Znodes) -> None:
    """Needed, unless --force is given, names the services that depend on this one."""
    nodes = published.nodes(invocation.client, znodes)
    names = dependents.dependents(nodes, znodes, invocation.given)
    if names and not invocation.options.force:
        what = f"these services depend on {znodes.service_name}: {', '.join(names)}"
        raise Needed(f"{what}; remove them or their dependencies first; nothing was changed")
    if names:
        invocation.err.print(
            f"their next containers will wait for {znodes.service_name}: {', '.join(names)}", markup=False
        )


# -- who is there ---------------------------------------------------------------------------------


def _places(znodes: Znodes, names: Iterable[str], found: Iterable[State]) -> list[str]:
    """Where containers of these services may be."""
    return [
        *(f"{znodes.service(name)}/{place}" for name in names for place in BY_AGENTS),
        *(f"{state.at.state}/{place}" for state in found for place in PLACES if place in state.below),
    ]


def _may_go(invocation: Invocation, tree: Tree, what: str, found: Sequence[State]) -> bool:
    """Whether nobody is there, or --force is given, and the operator wants it. InUse names who is there."""
    _require_nobody(invocation, who_is_there(invocation.client, tree))
    _print_again(invocation, found)
    return confirmed(invocation, what)


def _require_nobody(invocation: Invocation, there: str) -> None:
    if there and not invocation.options.force:
        raise InUse(f"{there}: stop them first; nothing was changed")
    if there:
        invocation.err.print(
            f"{there}: the commands they run are killed, and begin again; a daemon runs on", markup=False
        )


def _print_again(invocation: Invocation, found: Sequence[State]) -> None:
    again = [state.name for state in status_records.done(invocation.client, found)]
    if again:
        invocation.err.print(f"done, and forgotten then: {', '.join(sorted(again))}", markup=False)


def who_is_there(client: KazooClient, tree: Tree) -> str:
    """The containers that are there, for a message; empty if there is none."""
    there = [
        f"{name} has {on_hosts(hosts)}"
        for name, hosts in services.containers(client, tree.znodes, tree.services).items()
    ]
    if not there:
        names = connection.children(client, tree.places)
        there = [f"a container holds {place}" for place in tree.places if names[place]]
    return "; ".join(there)


# -- removing -------------------------------------------------------------------------------------


def remove(client: KazooClient, tree: Tree, *, force: bool = False) -> int:
    """Remove the tree; how many znodes it had. Refused where a container has come, unless `force`."""
    before = len(_listed(client, tree, force=True))
    if force:
        with connection.unfinished(UNFINISHED):
            _remove_by_force(client, tree)
        return before
    while not _are_places_removed(client, tree):
        pass
    with connection.unfinished(UNFINISHED):
        while paths := _listed(client, tree, force=False):
            connection.remove_all(client, paths, keep_tokens(client, tree.znodes, paths))
    return before


def _remove_by_force(client: KazooClient, tree: Tree) -> None:
    """Remove the tree and whoever is there, at one moment, if one request can hold it.

    Agents make anew what goes bit by bit, and begin their commands again each time.
    """
    for definition in tree.definitions:
        connection.write(client, definition, b"")
    for last in [False] * TRIES + [True]:
        paths = _listed(client, tree, force=True)
        try:
            _delete(client, tree, paths, "containers went on writing: not all is removed")
            return
        except (Refused, Unanswered):
            if last:
                raise


def withdraw(client: KazooClient, znodes: Znodes, roles: Iterable[str]) -> None:
    """Remove what is published of a service, at one moment; what its containers have recorded stays.

    `roles` are the znodes of its role. InUse or Refused, and nothing is removed, if a container is there.
    Services below this one stay.
    """
    name = znodes.service_name
    places = _places(znodes, [name], status_records.states(client, znodes, roles))
    while connection.read(client, [znodes.definition])[znodes.definition] is not None:
        names = connection.children(client, [znodes.definition])[znodes.definition]
        parts = [f"{znodes.definition}/{each}" for each in names if each in PARTS]
        tree = Tree(znodes, parts, places, [name])
        if there := who_is_there(client, tree):
            raise InUse(there)
        # The places go with the first request, whatever its size.
        paths = sorted(_listed(client, tree, force=False), key=lambda path: path not in places)
        transaction = client.transaction()
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


def _forget(client: KazooClient, tree: Tree, force: bool) -> int:
    """Remove the tree at one moment, unless a container has come, or by force; how many znodes it had."""
    if force:
        return remove(client, tree, force=True)
    count = len(paths := _listed(client, tree, force=False))
    while paths:
        try:
            _delete(client, tree, paths, f"{tree.roots[0]} is left as it is")
            break
        except Unanswered:
            paths = _listed(client, tree, force=False)  # None are left if it was applied.
    return count


def _delete(client: KazooClient, tree: Tree, paths: Sequence[str], what: str) -> None:
    """Remove the znodes at `paths`, children first as given, all or none if one request can hold them."""
    versions = keep_tokens(client, tree.znodes, paths)
    for first in range(0, len(paths), BATCH):
        transaction = client.transaction()
        for path in paths[first : first + BATCH]:
            transaction.delete(path, versions.get(path, -1))
        connection.commit(transaction, what)


def _are_places_removed(client: KazooClient, tree: Tree) -> bool:
    """Remove the places where containers may be, all together and only if nobody is there.

    False where the connection was lost meanwhile: then it is to be done once more.

    With them go the definitions, so that no agent begins: an empty one counts as not published.
    """
    found = connection.read(client, tree.places)
    there = [path for path in tree.places if found[path] is not None]
    for first in range(0, max(len(there), 1), BATCH):
        transaction = client.transaction()
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


def _listed(client: KazooClient, tree: Tree, force: bool) -> list[str]:
    """All znodes of the tree that are there, children first; without `force` none that a container holds."""
    roots = connection.read(client, tree.roots)
    there = [path for path in tree.roots if roots[path] is not None]
    paths = [path for path in (*connection.below(client, there), *there) if path not in tree.kept]
    return paths if force else [path for path in paths if not tree.is_containers_own(path)]


# -- the command line -----------------------------------------------------------------------------


def _add_answers(parser: argparse.ArgumentParser, force: str) -> None:
    add_yes(parser)
    parser.add_argument("--force", action="store_true", help=force)


def _add_remove(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "service", metavar="SERVICE", help="its name, such as openstack/keystone/keystone-api, or its role"
    )
    _add_answers(parser, "though containers are there or others depend on it; asks all the same")


REMOVE = Subcommand(
    description="""\
Remove a service: its definition, variables and files, and what its containers have recorded. It asks
first, and refuses with status 1 while containers of the service are there, or while other services depend
on it.
""",
    example="kolla_mesos_ctl remove openstack/keystone/keystone-api",
    add_arguments=_add_remove,
    run=run_remove,
)


def _add_reset(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--host", metavar="H", action="append", help="only what is recorded of this host; may be repeated"
    )
    which.add_argument("--absent-hosts", action="store_true", help="of all hosts that have no container now")
    _add_answers(parser, "though containers are there; asks all the same")


RESET = Subcommand(
    description="""\
Forget all that the containers of the deployment have recorded: every one-time command runs again. What
is published stays. It asks first, and refuses with status 1 while containers are there.

With --host or --absent-hosts, forget only what is recorded of hosts that are gone: pods, for instance,
which are hosts of their own without NODE_NAME. Where such a host comes back, what runs once on each host
runs there again. A dependency that counts the hosts on which a command has succeeded (`count`) may be unmet
again. A host that has lost its connection to ZooKeeper looks absent.
""",
    example="kolla_mesos_ctl reset --absent-hosts --deployment site",
    add_arguments=_add_reset,
    run=run_reset,
)
