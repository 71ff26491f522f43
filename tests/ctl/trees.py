"""Trees of deployments that need no server: a mapping of paths, answered as ZooKeeper would."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Exists, GetChildren2
from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.ctl.live.model import LiveDeployment
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Znode
from tests.support.instances import INSTANCE, MEMBER

NOW = 1_700_000_000.0
ZNODES = Znodes("/kolla", "site", "", "")
Tree = Mapping[str, Any]


def one_time(*dependencies: object, **more: object) -> dict[str, Any]:
    """A command that runs once."""
    return {"command": "true", "run_once": True, "dependencies": list(dependencies), **more}


def definition(
    *dependencies: object, commands: Mapping[str, Any] | None = None, daemon: bool = True, instances: int = 1
) -> dict[str, Any]:
    """The definition of a service; the dependencies are its daemon's."""
    found: dict[str, Any] = {"commands": dict(commands or {})}
    if daemon:
        ready = {"alive": 1}
        found["service"] = {
            "instances": instances,
            "daemon": {"command": "sleep 9", "dependencies": list(dependencies), "ready": ready},
        }
    return found


def container(state: str, reason: str = "", *, since: float = NOW, **more: object) -> dict[str, Any]:
    """What a container says of itself."""
    return {"host": "web1", "state": state, "command": "", "reason": reason, "since": since, **more}


def ready(role: str, *ids: str, service: str = "") -> dict[str, Any]:
    """The ready instances of a daemon, and what they say."""
    return {f"status/global/{role}/daemon/ready/{each}": "{}" for each in ids} | {
        f"{service or role}/.containers/{each}": container("ready") for each in ids
    }


def deployment(
    tree: Tree, changed: float = NOW, zxids: Mapping[str, int] = MappingProxyType({})
) -> LiveDeployment:
    """What the tool makes of znodes; every znode has the mzxid 1000, but those in `zxids`, and was written at
    `changed`.

    A text is written as it is, all else as JSON. Parents come by themselves, and what instances and members
    need.
    """
    live = DeploymentReader(ZNODES)
    return live.deployment(view(live, tree, changed=changed, zxids=zxids))


def view(
    live: DeploymentReader,
    tree: Tree,
    times: Mapping[str, float] = MappingProxyType({}),
    changed: float = NOW,
    zxids: Mapping[str, int] = MappingProxyType({}),
    found: View | None = None,
    stale: Collection[str] | None = None,
    counts: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    make: Callable[[View], object] | None = None,
) -> View:
    """All that `live` wants to know; `times` and `zxids` are those of single znodes. `counts`: how often the
    names below a znode have changed, and how many there are.

    `found` is what is known already, of which the znodes `stale` have changed.
    """
    found = View() if found is None else found
    client: Any = Client(tree, times, changed, zxids, counts)
    found.refresh(client, [live.znodes.deployment] if stale is None else stale)
    make = make or live.deployment
    make(found)
    while found.wanted:
        found.load(client)
        make(found)
    return found


class Client:
    """Answers the requests that only read."""

    def __init__(
        self,
        tree: Tree,
        times: Mapping[str, float],
        changed: float,
        zxids: Mapping[str, int],
        counts: Mapping[str, tuple[int, int]],
    ) -> None:
        self._nodes, self._below = znodes(tree)
        self._counts = counts
        self._times, self._changed, self._zxids = times, changed, zxids

    def each(self, operations: Mapping[Any, Any]) -> dict[Any, Any]:
        """The result of each request."""
        return {key: self._answer(operation) for key, operation in operations.items()}

    def _answer(self, operation: Any) -> Any:
        path = operation.path
        own = path[len(ZNODES.deployment) + 1 :]
        names = sorted(self._below.get(path, ()))
        changed, zxid = self._times.get(own, self._changed), self._zxids.get(own, 1000)
        znode = _znode(self._nodes, path, changed, zxid, names)
        if znode is None:
            return NoNodeError()
        if own in self._counts:
            changes, count = self._counts[own]
            znode = znode._replace(stat=znode.stat._replace(cversion=changes, numChildren=count))
        if isinstance(operation, GetChildren2):
            return names, znode.stat
        return znode.stat if isinstance(operation, Exists) else tuple(znode)


def znodes(tree: Tree) -> tuple[dict[str, Any], Mapping[str, set[str]]]:
    """The content of each znode by its path, with all parents; and the names below each."""
    nodes = {f"{ZNODES.deployment}/{path}": value for path, value in tree.items()}
    for path in list(nodes):
        while (path := path.rpartition("/")[0]) and path != "/kolla":
            nodes.setdefault(path, "")
    below: dict[str, set[str]] = defaultdict(set)
    for path in nodes:
        above, _, name = path.rpartition("/")
        below[above].add(name)
    return nodes, below


def fired(before: Tree, after: Tree) -> set[str]:
    """The paths that a watch on the whole tree reports between two trees."""
    (old, _), (new, _) = znodes(before), znodes(after)
    return {
        path
        for path in old.keys() | new.keys()
        if old.get(path) != new.get(path) or (path in old) != (path in new)
    }


def _znode(nodes: Tree, path: str, changed: float, zxid: int, names: Sequence[str]) -> Znode | None:
    if path not in nodes:
        return None
    value = nodes[path]
    kinds: Mapping[str, Mapping[str, object]] = {"ready": INSTANCE, ".party": MEMBER}
    needed = kinds.get(path.split("/")[-2])
    if needed and (value == "{}" or isinstance(value, dict)):
        value = {**needed, **(value if isinstance(value, dict) else {})}
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    instant = int(changed * 1000)
    of_names = zxid + zlib.crc32("/".join(names).encode())  # zxid if there are none
    # As if each was ephemeral: of the others nobody asks for that.
    return Znode(data, ZnodeStat(1, zxid, instant, instant, 0, 1, 0, 7, len(data), len(names), of_names))
