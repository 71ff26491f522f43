"""What has been read of a deployment's tree: the answers to queries.

What belongs here: keeping answers, reading what is missing, and the walk down a tree. Which queries are
needed is decided by functions of a view that the callers pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, TypeVar

from kolla_mesos_start.definition.forms import GLOBAL
from kolla_mesos_start.operator.ensemble import connection
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.tree.states import MAX_REGISTERED
from kolla_mesos_start.zookeeper.query import Query, Znode, children_of, data_of

T = TypeVar("T")
U = TypeVar("U")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class View(dict[Query, Any]):
    """The answers so far. A query for names has the same answer however many names it waits for.

    Change it with `update` and `pop` only.
    """

    def __init__(self, answers: Mapping[Query, Any] = MappingProxyType({})) -> None:
        super().__init__(answers)
        self._hosts: dict[str, list[str]] = {}
        self._decoded: dict[str, tuple[Znode, Mapping[str, Any]]] = {}
        self._derived: dict[str, tuple[Znode, object, Any]] = {}

    def __missing__(self, query: Query) -> Any:
        if query.required == 1:
            raise KeyError(query)
        return self[query._replace(required=1)]

    def get(self, query: Query, default: Any = None) -> Any:
        return super().get(query if query.required == 1 else query._replace(required=1), default)

    def update(self, answers: Mapping[Query, Any]) -> None:  # type: ignore[override]
        self._hosts.clear()
        super().update(answers)

    def pop(self, query: Query, default: Any = None) -> Any:
        self._hosts.clear()
        for known in (self._decoded, self._derived):
            known.pop(query.path, None)
        return super().pop(query, default)

    def znode(self, path: str) -> Znode | None:
        """The znode at `path`; None if there is none, or it has not been read."""
        found: Znode | None = self.get(data_of(path))
        return found

    def names(self, path: str) -> Sequence[str]:
        """The names below `path`, as far as they have been read."""
        found: Sequence[str] = self.get(children_of(path), ())
        return found

    def json_object(self, path: str) -> Mapping[str, Any]:
        """The JSON object at `path`; empty if there is anything else. Decoded once for each change."""
        znode = self.znode(path)
        if znode is None:
            return NOTHING
        known = self._decoded.get(path)
        if known is None or known[0] is not znode:
            known = self._decoded[path] = znode, json_object(znode.data)
        return known[1]

    def derived(self, znode: Znode, path: str, key: T, make: Callable[[T], U]) -> U:
        """What `make` makes of the znode at `path` and of `key`; made once for each change."""
        known = self._derived.get(path)
        if known is None or known[0] is not znode or known[1] != key:
            known = self._derived[path] = znode, key, make(key)
        found: U = known[2]
        return found

    def hosts(self, status: str) -> Mapping[str, Sequence[str]]:
        """The hosts on which containers of each role have started; `status` is the path of that znode."""
        if not self._hosts:
            for host in self.names(status):
                for role in self.names(f"{status}/{host}") if host != GLOBAL else ():
                    self._hosts.setdefault(role, []).append(host)
        return self._hosts

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
) -> View:
    """Read what `queries` returns until it returns nothing new. Each round is sent as a whole.

    `view` is added to. With `watch`, the session reports the paths that change later.
    """
    view = View() if view is None else view
    while missing := set(queries(view)) - view.keys():
        view.update(connection.answers(client, missing, watch=watch))
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
