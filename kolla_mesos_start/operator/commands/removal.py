"""`kolla_mesos_ctl remove` and `reset`: a service and all that is known of it; what containers have recorded.

What lives here: both, and what is asked and refused before. How a tree is removed is in `ensemble.removal`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.operator.ensemble import acls, hosts, publication, published, services, status_records
from kolla_mesos_start.operator.ensemble.publication import Held
from kolla_mesos_start.operator.ensemble.removal import (
    InUse,
    Tree,
    forget,
    listed,
    parts_of,
    places_of,
    remove,
    remove_service,
    status_tree,
    who_is_there,
)
from kolla_mesos_start.operator.ensemble.status_records import State
from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.terminal.confirmation import DECLINED, add_yes
from kolla_mesos_start.operator.validation import dependents
from kolla_mesos_start.tree.publication import RESTORE
from kolla_mesos_start.tree.znodes import Znodes


class Needed(AgentError):
    """Other services depend on it."""

    status = 1


def run_remove(invocation: Invocation) -> int:
    """A service: its definition, variables and files, and what its containers have recorded."""
    services.check_name(invocation.options.service)
    with publication.locked(invocation.client, invocation.require_deployment()):
        return _remove(invocation)


def _remove(invocation: Invocation) -> int:
    client, given = invocation.client, invocation.options.service
    znodes, parts = parts_of(client, invocation.require_deployment()._replace(service_name=given))
    name = znodes.service_name
    owners = [path for path, owner in status_records.roles(client, znodes).items() if owner == name]
    found = status_records.states(client, znodes, owners)
    places = places_of(znodes, [name], found)
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
    with publication.locked(invocation.client, invocation.require_deployment()) as lock:
        return _reset(invocation, lock)


def _reset(invocation: Invocation, lock: Held) -> int:
    client = invocation.client
    znodes = invocation.require_deployment()
    found = status_records.states(client, znodes, status_records.roles(client, znodes))
    tree = status_tree(client, znodes, found)
    what = f"forget all that the containers of {znodes.deployment} have recorded"
    if not _may_go(invocation, tree, what, found):
        return DECLINED
    count = remove(client, tree, force=invocation.options.force)
    is_half = lock.interrupted is not None and lock.interrupted.what == RESTORE
    if is_half:
        lock.begin()  # Nothing is left to restore; but definitions may be missing.
    then = "publish again: a restore has not finished" if is_half else "its services are published as before"
    print(f"reset {znodes.deployment}: {count} znodes; {then}")
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
    names = [name for name, tree in trees.items() if listed(client, tree, force=True)]
    if not names:
        everywhere = f"a container is on every host of {znodes.deployment} of which something is recorded"
        print(f"nothing is recorded of {', '.join(trees)}" if trees else everywhere)
        return 0
    _require_nobody(invocation, hosts.in_use(there, names))
    _print_again(invocation, [state for state in found.states if state.scope in names])
    for line in hosts.counted_less(found, names, services.definitions(client, znodes).values()):
        invocation.err.print(line, markup=False)
    which = f"{len(names)} host{'s' * (len(names) != 1)} of {znodes.deployment}: {', '.join(names)}"
    if not invocation.confirmed(f"forget what is recorded of {which}"):
        return DECLINED
    if not options.force:  # One may have come while we asked.
        _require_nobody(invocation, hosts.in_use(hosts.there(client, znodes, found), names))
    for name in names:
        print(f"forgot {name}: {forget(client, trees[name], options.force)} znodes", flush=True)
    return 0


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


def _may_go(invocation: Invocation, tree: Tree, what: str, found: Sequence[State]) -> bool:
    """Whether nobody is there, or --force is given, and the operator wants it. InUse names who is there."""
    _require_nobody(invocation, who_is_there(invocation.client, tree))
    _print_again(invocation, found)
    return invocation.confirmed(what)


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
        names = ", ".join(sorted(again))
        invocation.err.print(f"these completed commands will run again: {names}", markup=False)


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
