"""`kolla_mesos_ctl remove` and `reset`: remove a service, or the records of containers.

Asks for confirmation and refuses unsafe removals. `zk.removal` removes the znodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from kolla_mesos_start.ctl.invocation import DECLINED, Invocation
from kolla_mesos_start.ctl.subcommand import YES, argument, subcommand
from kolla_mesos_start.ctl.validate.uses import dependents
from kolla_mesos_start.ctl.zk import (
    acls,
    elections,
    event_record,
    publication,
    published,
    removal,
    services,
    status_records,
)
from kolla_mesos_start.ctl.zk.publication import OpenPublication
from kolla_mesos_start.ctl.zk.removal import InUse, Tree
from kolla_mesos_start.ctl.zk.status_records import State
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.tree.codec import RESTORE
from kolla_mesos_start.tree.znodes import Znodes


class Needed(AgentError):
    """Other services depend on it."""

    status = 1


@subcommand(
    "kolla_mesos_ctl remove openstack/keystone/keystone-api",
    argument(
        "service", metavar="SERVICE", help="its name, such as openstack/keystone/keystone-api, or its role"
    ),
    YES,
    argument(
        "--force",
        action="store_true",
        help="even if it has containers or other services depend on it; asks anyway",
    ),
)
def remove(invocation: Invocation) -> int:
    """Remove a service: its definition, variables and files, and the records of its containers and of its
    election. Asks for confirmation first. The status is 1, and nothing is changed, while the service has
    containers or other services depend on it.
    """
    services.check_name(invocation.options.service)
    with publication.locked(invocation.client, invocation.require_deployment()):
        return _remove(invocation)


def _remove(invocation: Invocation) -> int:
    client, given = invocation.client, invocation.options.service
    znodes, parts = removal.parts_of(client, invocation.require_deployment()._replace(service_name=given))
    name = znodes.service_name
    owners = status_records.roles(client, znodes, name)
    status = status_records.read(client, znodes, owners)
    found = status.states()
    places = removal.places_of(znodes, [name], found)
    if znodes.owner(GLOBAL, znodes.role) in owners:
        places += elections.places(znodes, znodes.role)
        if members := status.members.get(znodes.role):
            what = f"the record of its election is removed too (members: {', '.join(members)})"
            invocation.err.print(f"{what}: the next election trusts the data of every host")
    tree = Tree(znodes, [*parts, *owners], places, [name], [znodes.definition])
    _require_no_dependents(invocation, znodes)
    what = f"remove the service {name} from {znodes.deployment}"
    if not _may_go(invocation, tree, what, status.done(found)):
        return DECLINED
    count = removal.remove(client, tree, force=invocation.options.force) + removal.remove_service(
        client, znodes
    )
    event_record.append(client, znodes, "remove", [name], services=[name])
    print(f"removed {name} from {znodes.deployment}: {count} znodes")
    return 0


@subcommand(
    "kolla_mesos_ctl reset --host node-7 --deployment site",
    argument("--host", metavar="H", action="append", help="only the records of this host; may be repeated"),
    YES,
    argument("--force", action="store_true", help="even if there are containers; asks anyway"),
)
def reset(invocation: Invocation) -> int:
    """Remove all records of the deployment's containers: every one-time command runs again. Published znodes
    stay, and so do the records of elections (members and last decision): they belong to the data on the
    hosts' disks. Asks for confirmation first. The status is 1, and nothing is changed, while there are
    containers.

    With --host, remove only the records of a host that is gone, for example of a pod, which is a host without
    NODE_NAME. If the host comes back, commands that run once on each host run there again. A dependency that
    counts the hosts on which a command has succeeded (`count`) may become unsatisfied. The host remains a
    member of elections: see `elect --forget`.
    """
    if invocation.options.host:
        return _run_reset_hosts(invocation)
    with publication.locked(invocation.client, invocation.require_deployment()) as lock:
        return _reset(invocation, lock)


def _reset(invocation: Invocation, lock: OpenPublication) -> int:
    client = invocation.client
    znodes = invocation.require_deployment()
    status = status_records.read(client, znodes)
    tree = removal.status_tree(client, status)
    what = f"remove all records of the containers of {znodes.deployment}"
    if not _may_go(invocation, tree, what, status.done(status.states())):
        return DECLINED
    count = removal.remove(client, tree, force=invocation.options.force)
    for role in status.elections:
        count += removal.remove_dead(client, elections.places(znodes, role))
    event_record.append(client, znodes, "reset")
    is_half = lock.interrupted is not None and lock.interrupted.what == RESTORE
    if is_half:
        lock.begin()  # The restore can't be continued, and definitions may be missing.
    then = "publish again: a restore has not finished" if is_half else "its services are published as before"
    print(f"reset {znodes.deployment}: {count} znodes; {then}")
    if elected := sorted(status.members):
        print(f"kept the records of elections, which belong to the data of the hosts: {', '.join(elected)}")
    return 0


def _run_reset_hosts(invocation: Invocation) -> int:
    """Remove the records of some hosts, those of each host in one step."""
    client, options = invocation.client, invocation.options
    znodes = invocation.require_deployment()
    status = status_records.read(client, znodes)
    kept, marks = acls.made(client, znodes), status.marks
    trees = {
        name: Tree(znodes, [f"{znodes.status}/{name}", *marks.get(name, ())], (), (), kept=kept)
        for name in status.named(options.host)
    }
    names = [name for name, tree in trees.items() if removal.listed(client, tree, force=True)]
    if not names:
        print(f"there are no records of {', '.join(trees)}")
        return 0
    _require_nobody(invocation, status.in_use(names))
    _print_again(invocation, (state for state in status.done(status.states()) if state.scope in names))
    for line in status.counted_less(names, services.definitions(client, znodes).values()):
        invocation.err.print(line)
    which = f"{len(names)} host{'s' * (len(names) != 1)} of {znodes.deployment}: {', '.join(names)}"
    if not invocation.confirmed(f"remove the records of {which}"):
        return DECLINED
    if not options.force:  # A container may have started during the question.
        _require_nobody(invocation, status_records.read(client, znodes).in_use(names))
    for name in names:
        print(
            f"removed the records of {name}: {removal.forget(client, trees[name], options.force)} znodes",
            flush=True,
        )
    event_record.append(client, znodes, "reset", names)
    return 0


def _require_no_dependents(invocation: Invocation, znodes: Znodes) -> None:
    """Needed, unless --force is given, names the services that depend on this one."""
    nodes = published.nodes(invocation.client, znodes)
    names = dependents(nodes, znodes, invocation.given)
    if names and not invocation.options.force:
        what = f"these services depend on {znodes.service_name}: {', '.join(names)}"
        raise Needed(f"{what}; remove them or their dependencies first; nothing was changed")
    if names:
        invocation.err.print(f"their next containers will wait for {znodes.service_name}: {', '.join(names)}")


def _may_go(invocation: Invocation, tree: Tree, what: str, done: Iterable[State]) -> bool:
    """Whether the operator confirms. InUse names containers that exist, unless --force is given."""
    _require_nobody(invocation, removal.who_is_there(invocation.client, tree))
    _print_again(invocation, done)
    return invocation.confirmed(what)


def _require_nobody(invocation: Invocation, there: str) -> None:
    if there and not invocation.options.force:
        raise InUse(f"{there}: stop them first; nothing was changed")
    if there:
        invocation.err.print(f"{there}: running commands are killed and restarted; daemons keep running")


def _print_again(invocation: Invocation, done: Iterable[State]) -> None:
    again = [state.name for state in done]
    if again:
        names = ", ".join(sorted(again))
        invocation.err.print(f"these completed commands will run again: {names}")
