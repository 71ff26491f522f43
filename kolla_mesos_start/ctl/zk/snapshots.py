"""Reads a snapshot of a deployment: what is published, and which one-time commands are done.

Definitions, variables and files are those of one moment, and so is the record of each one-time command:
what changes while it is read is read again. Ephemerals are left out, and so are plain commands, which run
again at each start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kolla_mesos_start.ctl.directory import acl
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES
from kolla_mesos_start.ctl.zk import connection, elections, status_records
from kolla_mesos_start.ctl.zk.archive import Snapshot, is_definition
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, OperatorClient
from kolla_mesos_start.ctl.zk.published import is_published
from kolla_mesos_start.ctl.zk.status_records import State
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


def _published(client: OperatorClient, znodes: Znodes) -> tuple[dict[str, bytes], bytes]:
    """Definitions, variables and files by their paths below the deployment, and `acl.yml`.

    They include those of a service without a definition.
    """
    record = f"{znodes.deployment}/{acl.NODE}"
    found = _at_one_moment(client, znodes, [znodes.deployment, record])
    plan = found.pop(record, b"")
    nodes = {path[len(znodes.deployment) + 1 :]: data for path, data in found.items()}
    # The parent of a host's values is not a value itself; an empty definition is not a definition.
    parents = {path.rpartition("/")[0] for path in nodes}
    return {
        path: data
        for path, data in sorted(nodes.items())
        if path
        and path.rpartition("/")[2] not in (VARIABLES, FILES)
        and (data if is_definition(path) else path not in parents)
    }, plan


def _at_one_moment(client: OperatorClient, znodes: Znodes, roots: Sequence[str]) -> dict[str, bytes]:
    """The data of `roots` and of all znodes below them, except those whose names begin with a dot."""
    known: dict[str, Znode | None] = {}
    changed, begun = set(roots), time.monotonic()
    while changed:
        _check_patience(begun, changed)
        known.update(dict.fromkeys(changed))
        known.update(
            read_tree(client, changed, lambda path: path not in known and is_published(znodes, path))
        )
        stats = connection.stats(client, known)
        changed = {path for path, znode in known.items() if _change(_stat(znode)) != _change(stats[path])}
    return {path: znode.data for path, znode in known.items() if znode}


def _change(stat: ZnodeStat | None) -> tuple[int, int] | None:
    """The last changes of a znode and of its list of children."""
    return stat and (stat.mzxid, stat.pzxid)


def _check_patience(begun: float, changed: Iterable[str]) -> None:
    if time.monotonic() > begun + PATIENCE:
        raise ChangedMeanwhile(f"{min(changed)} keeps changing while it is read; try again later")


def _recorded(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """What is recorded of one-time commands, with the parents; parents come first."""
    owners = status_records.roles(client, znodes)
    found = status_records.states(client, znodes, owners)
    once = {state.path for state in found if state.is_one_time}
    # A command that runs once on each host has a global state too, with the hosts on which it is done.
    kept = [state for state in found if state.path in once and (state.is_one_time or state.scope == GLOBAL)]
    nodes = dict(_states(client, kept))
    nodes.update(elections.records(client, elections.roots(client, znodes).values()))
    depth = znodes.status.count("/") + 3  # of a role
    for owner in {"/".join(path.split("/")[:depth]) for path in nodes}:
        own = owners.get(owner, "").encode()
        nodes.update({znodes.status: b"", owner.rpartition("/")[0]: b"", owner: own})
    return {path[len(znodes.deployment) + 1 :]: data for path, data in sorted(nodes.items())}


def _states(client: OperatorClient, kept: Sequence[State]) -> Iterator[tuple[str, bytes]]:
    found, names = _at_their_moments(client, kept)
    listed = {(state.scope, state.path) for state in kept}
    for state in kept:
        at, text = state.at, found[state.at.state]
        yield at.state, DONE.encode() if text and text.data == DONE.encode() else WAITING.encode()
        yield at.detail, _detail(found[at.detail])
        for place in (at.hosts,) if not state.is_one_time else (at.hosts, at.lock, at.generations):
            if place.rpartition("/")[2] in state.below:
                yield place, b""
                for name in names.get(place, ()):  # The lock's contenders are not read.
                    znode = found[f"{place}/{name}"]
                    # A host where it ran for the first time after the states were listed is left out.
                    if znode and (state.is_one_time or (name, state.path) in listed):
                        yield f"{place}/{name}", znode.data


def _at_their_moments(
    client: OperatorClient, kept: Iterable[State]
) -> tuple[Mapping[str, Znode | None], Mapping[str, Sequence[str]]]:
    """State, last attempt, marks and hosts of each command, as they were at one moment.

    Every change of these changes also the `detail` of a scope in which the command runs once. It is read
    before the others, and its version is checked after them.
    """
    found: dict[str, Znode | None] = {}
    names: dict[str, Sequence[str]] = {}
    pending, begun = list(kept), time.monotonic()
    while pending:
        _check_patience(begun, (state.at.detail for state in pending))
        details = [state.at.detail for state in pending if state.is_one_time]
        found.update(client.read(details))
        others = [path for state in pending for path in (state.at.state, state.at.detail)]
        found.update(client.read(path for path in others if path not in details))
        places = [place for state in pending for place in (state.at.generations, state.at.hosts)]
        names.update(connection.children(client, places))
        found.update(client.read(f"{place}/{name}" for place in places for name in names[place]))
        after = connection.stats(client, details)
        changed = {path for path in details if _change(_stat(found[path])) != _change(after[path])}
        again = {state.path for state in pending if state.at.detail in changed}
        pending = [state for state in pending if state.path in again]
    return found, names


def _stat(znode: Znode | None) -> ZnodeStat | None:
    return znode and znode.stat


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
