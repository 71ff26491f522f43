"""Trees of deployments that need no server: a mapping of paths, answered as ZooKeeper would."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.ctl.live.model import LiveDeployment
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Query, Znode
from tests.instances import INSTANCE, MEMBER

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
) -> View:
    """All that `live` wants to know; `times` and `zxids` are those of single znodes.

    `found` is what is known already, and is added to.
    """
    nodes, below = znodes(tree)
    instants = {f"{ZNODES.deployment}/{path}": instant for path, instant in times.items()}

    def answer(query: Query) -> Any:
        if query.children:
            return tuple(sorted(below.get(query.path, ())))
        zxid = zxids.get(query.path[len(ZNODES.deployment) + 1 :], 1000)
        znode = _znode(nodes, query.path, instants.get(query.path, changed), zxid, len(below[query.path]))
        return znode.stat if znode and query.stat else znode

    found = View() if found is None else found
    while missing := live.queries(found) - found.keys():
        found.update({query: answer(query) for query in missing})
    return found


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


def fired(view: View, before: Tree, after: Tree) -> set[str]:
    """The paths on which a watch fires between two trees."""
    (old, names), (new, others) = znodes(before), znodes(after)
    read = {query.path for query in view}
    listed = {query.path for query in view if query.children}
    found = {path for path in read if old.get(path) != new.get(path) or (path in old) != (path in new)}
    return found | {path for path in listed if names[path] != others[path]}


def _znode(nodes: Tree, path: str, changed: float, zxid: int, children: int) -> Znode | None:
    if path not in nodes:
        return None
    value = nodes[path]
    kinds: Mapping[str, Mapping[str, object]] = {"ready": INSTANCE, ".party": MEMBER}
    needed = kinds.get(path.split("/")[-2])
    if needed and (value == "{}" or isinstance(value, dict)):
        value = {**needed, **(value if isinstance(value, dict) else {})}
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    instant = int(changed * 1000)
    # As if each was ephemeral: of the others nobody asks for that.
    return Znode(data, ZnodeStat(1, zxid, instant, instant, 0, 1, 0, 7, len(data), children, zxid))
