"""Gives the znodes of a deployment the ACLs that `acl.yml` plans.

What belongs here: comparing existing ACLs with the plan, correcting them, and creating znodes that agents
have no right to create. `directory.acl` decides which ACL a znode has. An ACL is changed by compare-and-set
with its version.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping

from kolla_mesos_start.ctl.directory import acl
from kolla_mesos_start.ctl.directory.acl import ALL, Acl, Plan
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import Changes, CurrentAcl, OperatorClient
from kolla_mesos_start.ctl.zk.view import read_tree
from kolla_mesos_start.definition.document import generations, load
from kolla_mesos_start.errors import BadDefinition, NoRight, WrongCredential
from kolla_mesos_start.tree.znodes import RECORDED_GENERATIONS, Znodes
from kolla_mesos_start.zookeeper.client import Outage, Refused
from kolla_mesos_start.zookeeper.wire import PERMISSIONS, GetACL


def wider(client: OperatorClient, znodes: Znodes, plan: Plan) -> dict[str, Acl]:
    """Rights that are not planned, by the path of the znode."""
    found = _differing(client, znodes, plan)
    more = {path: acl.wider(found[path].acl, plan.acl(_node(znodes, path))) for path in sorted(found)}
    return {path: each for path, each in more.items() if each}


def secure(client: OperatorClient, znodes: Znodes, plan: Plan) -> dict[str, Acl]:
    """Record the plan, correct existing ACLs, and return the former ACL of each changed znode.

    Znodes that agents create meanwhile are corrected too. AccessDenied, and nothing is changed, if we are not
    the operator of the plan: we would lock ourselves out.
    """
    found = _differing(client, znodes, plan)
    record = f"{znodes.deployment}/{acl.NODE}"
    data = plan.recorded()[acl.NODE]
    if not found and connection.read(client, [record])[record] == data:
        return {}
    require_operator(client, znodes, plan)
    client.use_plan(plan)
    connection.create_parents(client, [record])
    connection.write(client, record, data)  # Other tools follow it at once.
    changed: dict[str, Acl] = {}
    while found:
        wanted = {
            path: CurrentAcl(plan.acl(_node(znodes, path)), each.version) for path, each in found.items()
        }
        refused = connection.set_acls(client, wanted)
        changed.update((path, found[path].acl) for path in found.keys() - refused)
        found = _different(znodes, plan, connection.acls(client, refused))
    return changed


def made(client: OperatorClient, znodes: Znodes) -> frozenset[str]:
    """The paths of the znodes that `publish` creates because agents have no right to."""
    planned = client.read_plan()
    nodes = planned.made() if planned else ()
    return frozenset(f"{znodes.deployment}/{node}" for node in nodes)


def make(client: OperatorClient, znodes: Znodes, plan: Plan, definitions: Mapping[str, bytes]) -> None:
    """Create the znodes that agents need and have no right to create."""
    wanted, there = missing(client, znodes, plan, definitions)
    connection.create_parents(client, wanted)
    connection.write_together(client, wanted, there.keys())


def missing(
    client: OperatorClient, znodes: Znodes, plan: Plan, definitions: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The missing znodes that agents need and have no right to create; and the existing ones.

    Agents may not read the `definitions` of other services; the generations in these are recorded for them.
    """
    nodes = {**plan.recorded(), **_generations(definitions)}
    recorded = {f"{znodes.deployment}/{node}": data for node, data in nodes.items()}
    made = {f"{znodes.deployment}/{node}": data for node, data in plan.made().items()}
    read = connection.read(client, [*recorded, *made])
    there = {path: data for path, data in read.items() if data is not None}
    absent = {path: data for path, data in made.items() if path not in there}
    return {**absent, **{path: data for path, data in recorded.items() if there.get(path) != data}}, there


def _generations(definitions: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The generations of each service's commands; an invalid definition has none."""
    found = {}
    for service, definition in definitions.items():
        with contextlib.suppress(BadDefinition):
            commands = generations(load(definition).root)
            found[f"{service}/{RECORDED_GENERATIONS}"] = json.dumps({"commands": commands}).encode()
    return found


def _node(znodes: Znodes, path: str) -> str:
    return path[len(znodes.deployment) + 1 :]


def _differing(client: OperatorClient, znodes: Znodes, plan: Plan) -> dict[str, CurrentAcl]:
    """The existing znodes whose ACL is not the planned one."""
    # The contenders for the lock of publications are ephemeral.
    lock = f"{znodes.publication}/"
    paths = read_tree(client, [znodes.deployment], lambda path: not path.startswith(lock))
    return _different(znodes, plan, connection.acls(client, paths))


def _different(znodes: Znodes, plan: Plan, current: Mapping[str, CurrentAcl]) -> dict[str, CurrentAcl]:
    return {path: each for path, each in current.items() if each.acl != plan.acl(_node(znodes, path))}


def require_operator(client: OperatorClient, znodes: Znodes, plan: Plan) -> None:
    """Check it by a transaction that would create and write a znode for the operator only."""
    above = znodes.deployment
    while connection.read(client, [above])[above] is None:
        above = above.rpartition("/")[0] or "/"
    probe = f"{above.rstrip('/')}/.probe-{os.urandom(8).hex()}"
    transaction = Changes(client)
    transaction.create(probe, acl=connection.entries(dict.fromkeys(acl.listed(plan.operator), ALL)))
    transaction.set_data(probe, b"")
    transaction.check(f"{probe}-none", 0)  # It fails, and so nothing is created.
    while True:
        try:
            client.transaction(transaction.operations, "not secured")
        except Refused:
            return
        except Outage:
            continue
        except NoRight as error:
            if error.done == "created":
                raise WrongCredential(f"{_who_may_create(client, above)}; nothing was changed") from error
            names = " or ".join(map(acl.name, acl.listed(plan.operator)))
            raise WrongCredential(
                f"this connection is that of {client.session.servers.identity}, not that of {names}, the"
                " operator of acl.yml: give its credential with --auth-file, or with --cert and --key;"
                " nothing was changed"
            ) from error


def _who_may_create(client: OperatorClient, path: str) -> str:
    """That we can't create znodes below `path`, who can, and what to do."""
    entries = client.each({path: GetACL(path)})[path]
    found = [] if isinstance(entries, Exception) else entries[0]
    names = {
        acl.name(f"{entry.id.scheme}:{entry.id.id}") for entry in found if entry.perms & PERMISSIONS["c"]
    }
    who = f"only {' and '.join(sorted(names))} may" if names else "nobody that can be named here may"
    return (
        f"nothing can be created in {path} as {client.session.servers.identity}: {who}: add the line of such"
        " a credential to the file of --auth-file for this publication, or have the right c given (setAcl"
        f" {path})"
    )
