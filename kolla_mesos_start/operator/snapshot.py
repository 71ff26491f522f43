"""`kolla_mesos_ctl snapshot`: what a deployment holds, and which one-time commands are done, in one file.

Only reads. Two readings in a row have to agree, so that what is in the file stood in ZooKeeper at one
moment. What containers show while they are there, and what plain commands did, which run again at each
start, is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kazoo.client import KazooClient

from kolla_mesos_start.definition.forms import GLOBAL
from kolla_mesos_start.operator import acl, archive, connection, private_file, published, recorded
from kolla_mesos_start.operator.archive import Snapshot, is_definition
from kolla_mesos_start.operator.directory import FILES, VARIABLES
from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.recorded import State
from kolla_mesos_start.tree.states import (
    DONE,
    MAX_FLOOR,
    WAITING,
    decode_detail,
    decode_floor,
    token_of,
)
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.query import Znode

LOCK_DEPTH = 4  # slashes in status/<scope>/<role>/<command>/lock


def run(invocation: Invocation) -> int:
    """Read the deployment and write the file, which only its owner can read: it holds every secret."""
    client, file = invocation.client, invocation.options.file
    znodes = invocation.require_deployment()
    snapshot = take(client, znodes)
    for name in _unfinished(snapshot):
        invocation.err.print(
            f"{name} runs, or was interrupted: in the snapshot it has no outcome", markup=False
        )
    private_file.write(file, archive.pack(snapshot))
    print(f"wrote {file}: {counted(snapshot)}")
    return 0


def take(client: KazooClient, znodes: Znodes) -> Snapshot:
    """The deployment as it stands."""
    taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    before, found = None, _read(client, znodes)
    while before != found:
        before, found = found, _read(client, znodes)
    return found._replace(deployment=znodes.deployment, taken=taken)


def counted(snapshot: Snapshot) -> str:
    """How much it holds, for a message, and by name what is done."""
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
    """A command's name for a message, of the path of its state below the deployment."""
    _, scope, command = path.split("/", 2)
    return command if scope == GLOBAL else f"{command} on {scope}"


def _unfinished(snapshot: Snapshot) -> Iterator[str]:
    for path, data in snapshot.recorded.items():
        detail = decode_detail(Znode(data, None)) if path.endswith("/detail") else None
        if detail is not None and detail.started is not None and detail.finished is None:
            yield name_of(path.rpartition("/")[0])


# -- reading --------------------------------------------------------------------------------------


def _read(client: KazooClient, znodes: Znodes) -> Snapshot:
    record = f"{znodes.deployment}/{acl.NODE}"
    plan = connection.read(client, [record])[record] or b""
    published, recorded = _published(client, znodes), _recorded(client, znodes)
    # Read last: whoever has removed an attempt before it could be read had raised the floor by then.
    return Snapshot(published, recorded, acl=plan, floor=_floor(client, znodes, recorded))


def _published(client: KazooClient, znodes: Znodes) -> dict[str, bytes]:
    """Definitions, variables and files, by their paths below the deployment.

    Also those of a service that has no definition, or none yet.
    """
    nodes = published.nodes(client, znodes)
    # The values of a host lie below a znode that is none itself; an empty definition is none.
    parents = {path.rpartition("/")[0] for path in nodes}
    return {
        path: data
        for path, data in sorted(nodes.items())
        if path.rpartition("/")[2] not in (VARIABLES, FILES)
        and (data if is_definition(path) else path not in parents)
    }


def _recorded(client: KazooClient, znodes: Znodes) -> dict[str, bytes]:
    """What is recorded of one-time commands, and the znodes above that; parents come first."""
    owners = recorded.roles(client, znodes)
    found = recorded.states(client, znodes, owners)
    once = {state.path for state in found if state.is_one_time}
    # Of one that is once for each host, the deployment's own state says on how many it is done.
    kept = [state for state in found if state.path in once and (state.is_one_time or state.scope == GLOBAL)]
    nodes = {znodes.status: b""} if kept else {}
    for state in kept:
        owner = state.at.state.rpartition("/")[0]
        nodes.update({owner.rpartition("/")[0]: b"", owner: owners[owner].encode()})
    nodes.update(_states(client, kept))
    return {path[len(znodes.deployment) + 1 :]: data for path, data in sorted(nodes.items())}


def _states(client: KazooClient, kept: Sequence[State]) -> Iterator[tuple[str, bytes]]:
    places = [place for state in kept for place in (state.at.generations, state.at.hosts)]
    names = connection.children(client, places)
    below = [f"{place}/{name}" for place in places for name in names[place]]
    data = connection.znodes(
        client, [*below, *(path for state in kept for path in (state.at.state, state.at.detail))]
    )
    for state in kept:
        text = data[state.at.state]
        yield state.at.state, DONE.encode() if text and text.data == DONE.encode() else WAITING.encode()
        yield state.at.detail, _detail(data[state.at.detail])
        for name in ("hosts",) if not state.is_one_time else ("hosts", "lock", "generations"):
            if name in state.below:
                yield f"{state.at.state}/{name}", b""
    for path in below:
        znode = data[path]
        if znode is not None:
            yield path, znode.data


def _detail(znode: Znode | None) -> bytes:
    """The last attempt, with its token written out: in another ensemble zxids are others."""
    detail = decode_detail(znode)
    if znode is None or detail.started is None:
        return b""
    return detail._replace(token=token_of(detail, znode.stat.mzxid)).encoded()


def _floor(client: KazooClient, znodes: Znodes, recorded: Mapping[str, bytes]) -> int:
    """The largest token that any attempt has had."""
    floor = connection.znodes(client, [znodes.token_floor])[znodes.token_floor]
    details = [data for path, data in recorded.items() if path.endswith("/detail")]
    tokens = [decode_detail(Znode(data, None)).token or 0 for data in details]
    return min(max([decode_floor(floor), *tokens]), MAX_FLOOR)


# -- the command line -----------------------------------------------------------------------------


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the tar file to write, or to replace")


SUBCOMMAND = Subcommand(
    name="snapshot",
    summary="save definitions, variables, files and what is done to one file",
    description="""\
Save the definitions, variables and files of the deployment, and which one-time commands are done, to
one tar file that only its owner can read: it holds every secret. `restore` brings it back, here or in
another ensemble. Unpacked, it is a directory that can be published.
""",
    example="kolla_mesos_ctl snapshot site.tar --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
