"""What can be asked about a path, and what the server answers. Only records; nothing is asked here."""

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
    """What can be asked about a path: the Znode there (None where there is none), or the sorted
    tuple of the names below it (empty where there is none).

    `required`: how many names are waited for. The fewer are missing, the sooner the names are read again.
    `stat`: only the ZnodeStat, for which no right to read is needed; the agent never asks for it.
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
