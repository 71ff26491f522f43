"""Records of queries about a path, and of their results."""

from __future__ import annotations

from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kazoo.protocol.states import ZnodeStat


class Znode(NamedTuple):
    """The content of a znode."""

    data: bytes
    stat: ZnodeStat


class Query(NamedTuple):
    """A query about a path: for its Znode (None if missing), or the sorted tuple of names below it.

    `required`: how many names are waited for. The fewer are missing, the sooner the names are read again.
    `stat`: only the ZnodeStat, which needs no read permission; the agent never uses it.
    """

    path: str
    children: bool
    required: int = 1
    stat: bool = False


def data_of(path: str) -> Query:
    return Query(path, children=False)


def children_of(path: str, required: int = 1) -> Query:
    return Query(path, children=True, required=required)


def stat_of(path: str) -> Query:
    return Query(path, children=False, stat=True)


if TYPE_CHECKING:
    View = Mapping[Query, Any]
