"""Takes a snapshot of a deployment, and restores one: what is published, and what is done.

Definitions, variables and files are those of one moment, and so are the records of each one-time command and
of each election. Ephemerals are left out, and so are plain commands, which run again at each start.

A record of an election that exists is kept by a restore: it belongs to the data on the hosts' disks, and an
older one may lack the member with the newest data.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Callable

from kolla_mesos_start.ctl.directory import acl
from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES
from kolla_mesos_start.ctl.zk import (
    acls,
    archive,
    connection,
    elections,
    event_record,
    published,
    status_records,
)
from kolla_mesos_start.ctl.zk.archive import Snapshot, is_definition
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, OperatorClient
from kolla_mesos_start.ctl.zk.publication import OpenPublication, Publisher
from kolla_mesos_start.ctl.zk.published import is_published
from kolla_mesos_start.ctl.zk.status_records import State
from kolla_mesos_start.ctl.zk.token_floor import raise_floor
from kolla_mesos_start.ctl.zk.view import read_tree
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.tree.states import DONE, MAX_FLOOR, WAITING, decode_detail, decode_floor, token_of
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Znode
from kolla_mesos_start.zookeeper.wire import ZnodeStat

PATIENCE = 30.0  # seconds; a publication may take as long
LOCK_DEPTH = 4  # slashes in status/<scope>/<role>/<command>/lock


def take(client: OperatorClient, znodes: Znodes) -> Snapshot:
    """The deployment now. ChangedMeanwhile if something keeps changing while it is read."""
    taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    published, plan = _published(client, znodes)
    recorded = _recorded(client, znodes)
    # Read last: if an attempt was removed before it could be read, the floor was raised before that.
    floor = _floor(client, znodes, recorded)
    events = connection.read(client, [znodes.events])[znodes.events] or b""
    return Snapshot(published, recorded, znodes.deployment, taken, plan, floor, events)


def counted(snapshot: Snapshot) -> str:
    """How much is in it, and the names of the commands that are done, for a message."""
    done = ", ".join(done_commands(snapshot)) or "nothing"
    count = len(snapshot.definitions)
    return f"{count} service{'s' * (count != 1)}, {len(snapshot.contents)} variables and files; done: {done}"


def done_commands(snapshot: Snapshot) -> list[str]:
    """The one-time commands that are done, for one generation at least."""
    marked = {path.rpartition("/generations/")[0] for path in snapshot.recorded if "/generations/" in path}
    found = {
        path.rpartition("/lock")[0]
        for path in snapshot.recorded
        if path.endswith("/lock") and path.count("/") == LOCK_DEPTH
    }
    done = sorted(path for path in found if path in marked or snapshot.recorded.get(path) == DONE.encode())
    return [name_of(path) for path in done]


def name_of(path: str) -> str:
    """The name of a command, for a message; `path` is that of its state, below the deployment."""
    _, scope, command = path.split("/", 2)
    return command if scope == GLOBAL else f"{command} on {scope}"


# -- reading --------------------------------------------------------------------------------------


def _at_one_moment(
    client: OperatorClient,
    roots: Iterable[str],
    is_part: Callable[[str], bool],
    group: Callable[[str], object] = lambda path: None,
) -> dict[str, Znode]:
    """The existing znodes at and below `roots`; those of one group as they were at one moment."""
    found: dict[str, Znode] = {}
    known: dict[str, Znode | None] = {}
    changed, begun = set(roots), time.monotonic()
    while changed:
        if time.monotonic() > begun + PATIENCE:
            raise ChangedMeanwhile(f"{min(changed)} keeps changing while it is read; try again later")
        known.update(dict.fromkeys(changed))
        known.update(read_tree(client, changed, lambda path: path not in known and is_part(path)))
        stats = connection.stats(client, known)
        changed = {
            path for path, znode in known.items() if _change(znode and znode.stat) != _change(stats[path])
        }
        pending = set(map(group, changed))
        for path in [path for path in known if group(path) not in pending]:
            if znode := known.pop(path):
                found[path] = znode
    return found


def _change(stat: ZnodeStat | None) -> tuple[int, int] | None:
    """The last changes of a znode and of its list of children."""
    return stat and (stat.mzxid, stat.pzxid)


def _published(client: OperatorClient, znodes: Znodes) -> tuple[dict[str, bytes], bytes]:
    """Definitions, variables and files by their paths below the deployment, and `acl.yml`.

    They include those of a service without a definition.
    """
    record = f"{znodes.deployment}/{acl.NODE}"
    found = _at_one_moment(client, [znodes.deployment, record], lambda path: is_published(znodes, path))
    plan = found.pop(record, None)
    nodes = _below(znodes, {path: znode.data for path, znode in found.items()})
    # The parent of a host's values is not a value itself; an empty definition is not a definition.
    parents = {path.rpartition("/")[0] for path in nodes}
    published = {
        path: data
        for path, data in nodes.items()
        if path
        and path.rpartition("/")[2] not in (VARIABLES, FILES)
        and (data if is_definition(path) else path not in parents)
    }
    return published, plan.data if plan else b""


def _below(znodes: Znodes, nodes: Mapping[str, bytes]) -> dict[str, bytes]:
    """The nodes, sorted, by their paths below the deployment."""
    return {path[len(znodes.deployment) + 1 :]: data for path, data in sorted(nodes.items())}


def _recorded(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """What is recorded of one-time commands and elections, with the parents; parents come first."""
    status = status_records.read(client, znodes)
    owners, states = status.roles, status.states()
    once = {state.path for state in states if state.is_one_time}
    # A command that runs once on each host has a global state too, with the hosts on which it is done.
    kept = [each for each in states if each.path in once and (each.is_one_time or each.scope == GLOBAL)]
    elected = status.elections.values()
    passing = {each.override for each in elected}
    held = tuple(f"{place}/" for each in elected for place in (each.candidates, each.running))
    tops = {each.top for each in elected}
    lists = {place for each in kept for place in _lists(each)}
    parts = lists.union(each.at.detail for each in kept)
    role = znodes.status.count("/") + 2  # the place of a role in a path

    def is_part(path: str) -> bool:
        if "/".join(path.split("/")[: role + 2]) in tops:
            return path not in passing and not path.startswith(held)
        return path in parts or path.rpartition("/")[0] in lists

    found = _at_one_moment(
        client,
        [*(state.at.state for state in kept), *tops],
        is_part,
        group=lambda path: tuple(path.split("/")[role : role + 2]),
    )
    nodes = dict(_commands(kept, found))
    for each in elected:
        if (decision := found.get(each.decision)) and decision.data:
            nodes.update((path, found[path].data) for path in found if f"{path}/".startswith(f"{each.top}/"))
    for owner in {"/".join(path.split("/")[: role + 1]) for path in nodes}:
        own = owners.get(owner, "").encode()
        nodes.update({znodes.status: b"", owner.rpartition("/")[0]: b"", owner: own})
    return _below(znodes, nodes)


def _commands(kept: Sequence[State], found: Mapping[str, Znode]) -> Iterator[tuple[str, bytes]]:
    listed = {(state.scope, state.path) for state in kept}
    below: dict[str, list[str]] = {}
    for path in found:
        above, _, name = path.rpartition("/")
        below.setdefault(above, []).append(name)
    for state in kept:
        at = state.at
        if at.state not in found:
            continue  # removed after the states were listed
        yield at.state, DONE.encode() if found[at.state].data == DONE.encode() else WAITING.encode()
        yield at.detail, _detail(found.get(at.detail))
        if state.is_one_time:
            yield at.lock, b""
        for place in _lists(state):
            if place in found:
                yield place, b""
            for name in below.get(place, ()):
                # A host where it ran for the first time after the states were listed is left out.
                if state.is_one_time or (name, state.path) in listed:
                    yield f"{place}/{name}", found[f"{place}/{name}"].data


def _lists(state: State) -> list[str]:
    """The znodes below a state that list where and for what the command is done."""
    return [state.at.hosts, state.at.generations] if state.is_one_time else [state.at.hosts]


def _detail(znode: Znode | None) -> bytes:
    """The last attempt, with its token as a number: another ensemble has other zxids."""
    detail = decode_detail(znode)
    if znode is None or detail.started is None:
        return b""
    return detail._replace(token=token_of(detail, znode.stat.mzxid)).encoded()


def _floor(client: OperatorClient, znodes: Znodes, recorded: Mapping[str, bytes]) -> int:
    """The largest token that any attempt has had."""
    floor = client.read([znodes.token_floor])[znodes.token_floor]
    details = [data for path, data in recorded.items() if path.endswith("/detail")]
    tokens = [decode_detail(Znode(data, None)).token or 0 for data in details]
    return min(max([decode_floor(floor), *tokens]), MAX_FLOOR)


# -- restoring ------------------------------------------------------------------------------------


def with_elections(wanted: Snapshot, found: Snapshot) -> Snapshot:
    """The snapshot `wanted`, with the records of elections that exist now, as in `found`."""
    kept = elections.roles(found.recorded)
    current = {path: data for path, data in found.recorded.items() if elections.role_of(path) in kept}
    above = {path: found.recorded[path] for path in connection.parents(current) if path not in current}
    others = {path: data for path, data in wanted.recorded.items() if elections.role_of(path) not in kept}
    return wanted._replace(recorded=dict(sorted({**above, **others, **current}.items())))


def plan_of(client: OperatorClient, file: Path, wanted: Snapshot) -> Plan | None:
    """The ACLs of the snapshot; if it has none, those of this deployment."""
    found = connection.recorded(f"{archive.ACL} in {file}", wanted.acl) if wanted.acl else client.read_plan()
    return found and found.only(wanted.definitions.keys())


def restore(
    client: OperatorClient, znodes: Znodes, lock: OpenPublication, wanted: Snapshot, plan: Plan | None
) -> None:
    """Write the snapshot, definitions last: containers wait for these."""
    before = published.nodes(client, znodes)
    publisher = Publisher(client, znodes, before, lock, report=lambda change: None)
    publisher.write(wanted.contents)
    publisher.remove(published.others(before, wanted.published))
    if plan:
        acls.make(client, znodes, plan, wanted.definitions)
    raise_floor(client, znodes, wanted.floor)
    _record(client, znodes, wanted.recorded)
    if take(client, znodes).recorded != wanted.recorded:
        # A container that had read its definition before has created some of these znodes.
        raise ChangedMeanwhile(
            f"{znodes.deployment} has other records than the snapshot (a container has started?): stop its"
            " containers, reset it, and restore again"
        )
    publisher.write(wanted.definitions, is_last=True)
    event_record.merge(client, znodes, event_record.decode(wanted.events))


def _record(client: OperatorClient, znodes: Znodes, nodes: Mapping[str, bytes]) -> None:
    """Create the znodes of each role in one request, as its agents do: no agent finds only some of them."""
    for _, paths in groupby(sorted(nodes, key=_segments), key=lambda path: _segments(path)[:3]):
        connection.create_together(client, {f"{znodes.deployment}/{path}": nodes[path] for path in paths})


def _segments(path: str) -> list[str]:
    return path.split("/")
