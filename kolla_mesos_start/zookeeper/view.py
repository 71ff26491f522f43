"""What is known about some znodes, and what a decision has asked about them. Pure.

A decision is a function of a View. The queries that it makes are noted, and these are exactly what to watch:
an answer that was never asked for can't change the decision.
"""

from __future__ import annotations

from functools import partial

from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from kazoo.protocol.states import ZnodeStat


class Znode(NamedTuple):
    """The content of a znode."""

    data: bytes
    stat: ZnodeStat


class Query(NamedTuple):
    """A query about a path: for its Znode (None if missing), or the sorted tuple of names below it.

    `required`: how many names are waited for. The fewer are missing, the sooner the names are read again.
    """

    path: str
    children: bool
    required: int = 1


def data_of(path: str) -> Query:
    return Query(path, children=False)


def children_of(path: str, required: int = 1) -> Query:
    return Query(path, children=True, required=required)


class Unknown(Exception):
    """A decision needs an answer that has not been read yet."""


class View:
    """Answers to queries. `noted`: all queries so far; `remarks`: what the decision has to say besides."""

    def __init__(self, answers: Mapping[Query, Any]) -> None:
        self.answers = answers
        self.noted: set[Query] = set()
        self.remarks: list[str] = []

    def get(self, query: Query) -> Any:
        """The answer. Raises Unknown if it has not been read."""
        self.noted.add(query)
        try:
            return self.answers[query]
        except KeyError:
            raise Unknown(query.path) from None

    def znode(self, path: str) -> Znode | None:
        """The znode at `path`, None if it is missing. Raises Unknown."""
        found: Znode | None = self.get(data_of(path))
        return found

    def names(self, path: str, required: int = 1) -> Sequence[str]:
        """The names below `path`; see Query. Raises Unknown."""
        found: Sequence[str] = self.get(children_of(path, required))
        return found

    def znodes(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        """The znode at each of `paths`. Raises Unknown."""
        paths = list(paths)
        return dict(zip(paths, self.all(*(partial(self.znode, path) for path in paths))))

    def all(self, *decisions: Callable[[], Any]) -> list[Any]:
        """The result of each decision. Raises Unknown, but only once all have noted what they need: it is
        read together.
        """
        found, unknown = [], None
        for decide in decisions:
            try:
                found.append(decide())
            except Unknown as error:
                unknown = error
        if unknown:
            raise unknown
        return found
