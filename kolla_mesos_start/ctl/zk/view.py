"""What has been read of a deployment's tree: the answers to queries.

What belongs here: keeping answers, reading what is missing, and the walk down a tree. Which queries are
needed is decided by functions of a view that the callers pass.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, TypeVar

from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.definition.forms import GLOBAL
from kolla_mesos_start.tree.states import MAX_REGISTERED
from kolla_mesos_start.zookeeper.view import Query, Znode, children_of, data_of

T = TypeVar("T")
U = TypeVar("U")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class View(dict[Query, Any]):
    """The answers so far. A query for names has the same answer however many names it waits for.

    `denied`: paths that we have no right to read; they look as if nothing was there. `met_denied`: whether
    what is being made (`kept`) has looked at one of them. Change it with `update` and `pop` only.
    """

    def __init__(self, answers: Mapping[Query, Any] = MappingProxyType({})) -> None:
        super().__init__(answers)
        self.denied: set[str] = set()
        self.met_denied = False
        self._status = ""
        self._hosts: dict[str, list[str]] = {}
        self._is_hosts_known = False
        self._decoded: dict[str, tuple[Znode, Mapping[str, Any]]] = {}
        self._results: dict[Hashable, tuple[object, Any]] = {}
        self._readers: dict[str, set[Hashable]] = {}  # for each path that was read, what was made from it
        self._making: Hashable = None

    def __missing__(self, query: Query) -> Any:
        if query.required == 1:
            raise KeyError(query)
        return self[query._replace(required=1)]

    def __getitem__(self, query: Query) -> Any:
        self._note(query.path)
        return super().__getitem__(query)

    def __contains__(self, query: object) -> bool:
        if isinstance(query, Query):
            self._note(query.path)
        return super().__contains__(query)

    def get(self, query: Query, default: Any = None) -> Any:
        self._note(query.path)
        return super().get(query if query.required == 1 else query._replace(required=1), default)

    def update(self, answers: Mapping[Query, Any]) -> None:  # type: ignore[override]
        for query in answers:
            self._forget(query.path)
        super().update(answers)

    def pop(self, query: Query, default: Any = None) -> Any:
        self._forget(query.path)
        return super().pop(query, default)

    # -- what is made from it -----------------------------------------------------------------------------

    def kept(self, key: Hashable, inputs: object, make: Callable[[], T]) -> T:
        """`make()`, called again only once something that it has read here has changed.

        Or with other `inputs`, compared by identity. `make` must not call `kept`.
        """
        self._refresh_hosts()
        known = self._results.get(key)
        if known is None or known[0] is not inputs:
            self._making, self.met_denied = key, False
            try:
                known = inputs, make()
            finally:
                self._making = None
            self._results[key] = known
        result: T = known[1]
        return result

    def _note(self, path: str) -> None:
        if self._making is not None:
            self._readers.setdefault(path, set()).add(self._making)
            self.met_denied |= path in self.denied

    def _forget(self, path: str) -> None:
        """Forget what was made from the answers about `path`."""
        for key in self._readers.pop(path, ()):
            self._results.pop(key, None)
        self._decoded.pop(path, None)
        if self._status in (path, path.rpartition("/")[0]):
            self._is_hosts_known = False

    def znode(self, path: str) -> Znode | None:
        """The znode at `path`; None if there is none, or it has not been read."""
        found: Znode | None = self.get(data_of(path))
        return found

    def names(self, path: str) -> Sequence[str]:
        """The names below `path`, as far as they have been read."""
        found: Sequence[str] = self.get(children_of(path), ())
        return found

    def held(self, path: str) -> Sequence[str]:
        """The names below `path` of what a session owns, or what has not been read. Others are nobody's."""
        found = ((name, self.znode(f"{path}/{name}")) for name in self.names(path))
        return [name for name, znode in found if znode is None or znode.stat.ephemeralOwner]

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
        self._status = status
        self._refresh_hosts()
        self._note(f"{status} {role}")
        return self._hosts.get(role, ())

    def _refresh_hosts(self) -> None:
        """Find the hosts of all roles. Only what was made from those of a role that has changed is
        forgotten."""
        if self._is_hosts_known or not self._status:
            return
        before, self._hosts, self._is_hosts_known = self._hosts, {}, True
        for host in super().get(children_of(self._status), ()):
            for role in super().get(children_of(f"{self._status}/{host}"), ()) if host != GLOBAL else ():
                self._hosts.setdefault(role, []).append(host)
        for role in before.keys() | self._hosts.keys():
            if before.get(role) != self._hosts.get(role):
                self._forget(f"{self._status} {role}")

    def level(self, paths: Sequence[str]) -> Mapping[str, tuple[Znode | None, Sequence[str]]]:
        """For `walk`: what is known of some znodes."""
        return {path: (self.znode(path), self.names(path)) for path in paths}


def json_object(data: bytes) -> Mapping[str, Any]:
    """The JSON object that a container has written; empty if it is something else, or too long."""
    try:
        found = json.loads(data) if len(data) <= MAX_REGISTERED else None
    except (ValueError, RecursionError):
        return NOTHING
    return found if isinstance(found, dict) else NOTHING


def read_all(
    client: OperatorClient,
    queries: Callable[[View], Iterable[Query]],
    view: View | None = None,
    *,
    watch: bool = False,
    partly: bool = False,
) -> View:
    """Read what `queries` returns until it returns nothing new. Each round is sent as a whole.

    `view` is added to. With `watch`, the session reports the paths that change later. With `partly`, paths
    that we have no right to read are noted in the view; otherwise they are an error.
    """
    view = View() if view is None else view
    denied = view.denied if partly else None
    while missing := set(queries(view)) - view.keys():
        view.update(connection.answers(client, missing, watch=watch, denied=denied))
    return view


# -- the walk ---------------------------------------------------------------------------------------------


def walk(
    read: Callable[[Sequence[str]], Mapping[str, tuple[T, Sequence[str]]]],
    roots: Iterable[str],
    is_part: Callable[[str], bool] = lambda path: True,
) -> dict[str, T]:
    """What is at `roots` and at each path below them that `is_part`, parents first, level by level.

    `read` returns for each path of a level what is there, and the names below it.
    """
    found: dict[str, T] = {}
    level = list(roots)
    while level:
        nodes = read(level)
        found.update((path, node) for path, (node, _) in nodes.items())
        below = (f"{path}/{name}" for path, (_, names) in nodes.items() for name in names)
        level = [path for path in below if is_part(path)]
    return found


def read_tree(
    client: OperatorClient, roots: Iterable[str], is_part: Callable[[str], bool] = lambda path: True
) -> dict[str, Znode]:
    """The existing znodes at and below `roots`, parents first; all requests for a level are sent together."""

    def read(paths: Sequence[str]) -> Mapping[str, tuple[Znode | None, Sequence[str]]]:
        znodes = client.read(paths)
        parents = [path for path, znode in znodes.items() if znode and znode.stat.numChildren]
        names = connection.children(client, parents)
        return {path: (znode, names.get(path, ())) for path, znode in znodes.items()}

    return {path: znode for path, znode in walk(read, roots, is_part).items() if znode}
