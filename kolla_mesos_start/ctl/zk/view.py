"""The tree of a deployment in memory: read as a whole, and read again where it has changed.

What belongs here: what is known of the znodes, and reading it. Of variables and files only the stat is read,
which needs no right, until a value is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable

from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.errors import NoRight
from kolla_mesos_start.tree.states import MAX_REGISTERED
from kolla_mesos_start.tree.znodes import EVENTS, RECORDED_ACL, RECORDED_GENERATIONS, TOKEN_FLOOR
from kolla_mesos_start.zookeeper import view as agents
from kolla_mesos_start.zookeeper.view import Query, Znode
from kolla_mesos_start.zookeeper.wire import ZnodeStat

NOTHING: Mapping[str, Any] = MappingProxyType({})
PUBLISHED = {VARIABLES, FILES}
OTHERS = {EVENTS, TOKEN_FLOOR, RECORDED_ACL, RECORDED_GENERATIONS}


def is_value(path: str) -> bool:
    """Whether only the stat of a znode is read at first."""
    names = path.split("/")
    return not PUBLISHED.isdisjoint(names) or names[-1] in OTHERS


class View(agents.View):
    """What is known of a tree, for the decisions of agents too.

    `denied`: paths that we have no right to read. With `partly` they look as if nothing was there; otherwise
    NoRight is raised for the first that something looks at. `met_denied`: whether something has looked at one
    of them since the caller has set it to False. `wanted`: values that were asked for, and are not read yet.
    They look empty: what is made of them may be wrong, so `Mirror.read` loads them, and makes it again.
    """

    def __init__(self, *, partly: bool = False) -> None:
        super().__init__({})
        self._partly = partly
        self.denied: set[str] = set()
        self.wanted: set[str] = set()
        self.met_denied = False
        self._znodes: dict[str, Znode] = {}
        self._names: dict[str, Sequence[str]] = {}
        self._unread: set[str] = set()
        self._hosts: dict[str, list[str]] | None = None  # None: not known yet
        self._decoded: dict[str, tuple[Znode, Mapping[str, Any]]] = {}

    # -- what is known ------------------------------------------------------------------------------------

    def get(self, query: Query) -> Any:
        """The answer to a query of an agent's decision."""
        return self.names(query.path) if query.children else self.znode(query.path)

    def znode(self, path: str) -> Znode | None:
        """The znode at `path`, None if it is missing."""
        self._note(path)
        if path in self._unread:
            self.wanted.add(path)
        return self._znodes.get(path)

    def stat(self, path: str) -> ZnodeStat | None:
        """The stat of the znode at `path`, None if it is missing."""
        self._note(path)
        found = self._znodes.get(path)
        return found and found.stat

    def names(self, path: str, required: int = 1) -> Sequence[str]:
        """The sorted names below `path`."""
        self._note(path)
        return self._names.get(path, ())

    def held(self, path: str) -> Sequence[str]:
        """The names below `path` of what a session owns. All others are nobody's."""
        return [
            name
            for name in self.names(path)
            if (stat := self.stat(f"{path}/{name}")) is None or stat.ephemeralOwner
        ]

    def json_object(self, path: str) -> Mapping[str, Any]:
        """The JSON object at `path`; empty if there is anything else. Decoded once for each change."""
        znode = self.znode(path)
        if znode is None:
            return NOTHING
        known = self._decoded.get(path)
        if known is None or known[0] is not znode:
            known = self._decoded[path] = znode, json_object(znode.data)
        return known[1]

    def hosts(self, status: str, role: str) -> Sequence[str]:
        """The hosts on which containers of a role have started; `status` is the path of that znode."""
        if self._hosts is None:
            self._hosts = {}
            self._require(status)
            for host in self._names.get(status, ()):
                self._require(f"{status}/{host}")
                for each in self._names.get(f"{status}/{host}", ()) if host != GLOBAL else ():
                    self._hosts.setdefault(each, []).append(host)
        return self._hosts.get(role, ())

    def last_write(self) -> float:
        """When a variable or file was last written (seconds since the epoch); 0 if there is none."""
        values = (path for path in self._znodes if not PUBLISHED.isdisjoint(path.split("/")))
        return max((self._znodes[path].stat.mtime / 1000 for path in values), default=0.0)

    def _note(self, path: str) -> None:
        self.met_denied |= path in self.denied
        self._require(path)

    def _require(self, path: str) -> None:
        """Raise NoRight if the znode could not be read. Who may not list values sees none."""
        if path in self.denied and not self._partly and not is_value(path):
            raise NoRight(path, "read")

    # -- reading ------------------------------------------------------------------------------------------

    def refresh(
        self,
        client: OperatorClient,
        paths: Iterable[str],
        *,
        each: bool = False,
        open: Sequence[str] = (),
    ) -> None:
        """Read these znodes again, and all that has appeared below or above them. Each round is sent as a
        whole.

        `each`: a watch is set on each znode. `open`: names that may be readable below a path that is not.
        """
        level, self._hosts = dict.fromkeys(paths), None
        while level:
            self.denied.difference_update(level)
            self._unread.difference_update(level)
            found = self._read(client, level, each)
            parents, above = [], []
            listed = {each: set(self._names.get(each, ())) for each in {*map(_parent, found)}}
            for path, znode in found.items():
                parent, _, name = path.rpartition("/")
                if parent in self._znodes and (znode is None) == (name in listed[parent]):
                    above.append(parent)  # It was created or deleted.
                known = self._znodes.get(path)
                if znode is None:
                    self._drop(path)
                    continue
                self._znodes[path] = znode
                has_changed = known is None or known.stat.pzxid != znode.stat.pzxid
                if (has_changed and (znode.stat.numChildren or self._names.get(path))) or (
                    each and (not is_value(path) or path.rpartition("/")[2] in PUBLISHED)
                ):
                    parents.append(path)
            new = [f"{path}/{name}" for path in self.denied.intersection(level) for name in open]
            for path, names in connection.names(client, parents, self.denied, watch=each).items():
                for name in set(self._names.get(path, ())) - set(names):
                    self._drop(f"{path}/{name}")
                self._names[path] = names
                new += [f"{path}/{name}" for name in names]
            level = dict.fromkeys([*(path for path in new if path not in self._znodes), *above])

    def _read(self, client: OperatorClient, paths: Iterable[str], watch: bool) -> Mapping[str, Znode | None]:
        values = [path for path in paths if is_value(path)]
        others = [path for path in paths if not is_value(path)]
        found = connection.znodes(client, others, self.denied, watch=watch)
        for path, stat in connection.stats(client, values, watch=watch).items():
            found[path] = stat and Znode(b"", stat)
            if stat:
                self._unread.add(path)
        return found

    def _drop(self, path: str) -> None:
        """Forget a znode, and all below it."""
        for name in self._names.pop(path, ()):
            self._drop(f"{path}/{name}")
        self._decoded.pop(path, None)
        self._znodes.pop(path, None)
        self._unread.discard(path)

    def load(self, client: OperatorClient, *, each: bool = False) -> None:
        """Read the values that are `wanted`."""
        paths, self.wanted = self.wanted, set()
        found = connection.znodes(client, paths, self.denied if self._partly else None, watch=each)
        for path, znode in found.items():
            self._unread.discard(path)
            if znode is not None:
                self._znodes[path] = znode
            else:
                self._znodes.pop(path, None)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def json_object(data: bytes) -> Mapping[str, Any]:
    """The JSON object that a container has written; empty if it is something else, or too long."""
    try:
        found = json.loads(data) if len(data) <= MAX_REGISTERED else None
    except (ValueError, RecursionError):
        return NOTHING
    return found if isinstance(found, dict) else NOTHING


def read_tree(
    client: OperatorClient, roots: Iterable[str], is_part: Callable[[str], bool] = lambda path: True
) -> dict[str, Znode]:
    """The existing znodes at and below `roots`, parents first; all requests for a level are sent together."""
    found: dict[str, Znode] = {}
    level = list(roots)
    while level:
        existing = {path: znode for path, znode in client.read(level).items() if znode}
        found.update(existing)
        level = _below(client, {path: znode.stat for path, znode in existing.items()}, is_part)
    return found


def stat_tree(
    client: OperatorClient, roots: Iterable[str], is_part: Callable[[str], bool]
) -> dict[str, ZnodeStat]:
    """The same without the data, which we may not have the right to read."""
    found: dict[str, ZnodeStat] = {}
    level = list(roots)
    while level:
        existing = {path: stat for path, stat in connection.stats(client, level).items() if stat}
        found.update(existing)
        level = _below(client, existing, is_part)
    return found


def _below(
    client: OperatorClient, stats: Mapping[str, ZnodeStat], is_part: Callable[[str], bool]
) -> list[str]:
    parents = [path for path, stat in stats.items() if stat.numChildren]
    names = connection.children(client, parents)
    return [path for above in parents for name in names[above] if is_part(path := f"{above}/{name}")]
