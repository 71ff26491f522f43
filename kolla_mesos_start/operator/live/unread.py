"""What running containers have not read yet of what is published: variables, files, definition, generation.

Pure, as `reader`, which asks it: `queries` says what must be read, `behind` what it means. Of variables only
the zxids of their last changes are read, never a value.

A deletion is not seen: it leaves no zxid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from kolla_mesos_start.definition.model import Command, Graph
from kolla_mesos_start.definition.resolve import late_texts
from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.operator.deployment import templates
from kolla_mesos_start.operator.deployment.directory import VARIABLES
from kolla_mesos_start.render.context import BUILTIN, file_text
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.query import Query, children_of, data_of, stat_of

BEGUN = ("starting", "unready", "ready")  # stages of a container that has rendered its daemon


class Behind(NamedTuple):
    """Something that a container runs, and that is published otherwise since (seconds since the epoch).

    `is_followed`: a refresh of the daemon's files brings it.
    """

    what: str
    is_followed: bool
    since: float


class Reader(Protocol):
    """A container, as far as it matters here."""

    @property
    def host(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def read(self) -> int | None: ...


class KnownAnswers(Protocol):
    """What has been read so far."""

    def get(self, query: Query, default: Any = None) -> Any: ...
    def __contains__(self, query: object) -> bool: ...


class Used(NamedTuple):
    """Names that the templates of a service use: those of its daemon, and those of all its steps."""

    followed: Set[str]
    all: Set[str]


class Unread:
    """Compares what the containers of one deployment have read with what is published."""

    def __init__(self, znodes: Znodes, given: Set[str]) -> None:
        """`given` are variables that containers do not have from ZooKeeper."""
        self._znodes, self._given = znodes, given
        self._shared: list[tuple[int, str]] = []
        self._used: dict[str, tuple[object, Used]] = {}

    # -- what must be read --------------------------------------------------------------------------

    def shared_queries(self, view: KnownAnswers) -> Iterator[Query]:
        """The variables of the deployment."""
        above = f"{self._znodes.deployment}/{VARIABLES}"
        yield children_of(above)
        yield from (stat_of(f"{above}/{name}") for name in view.get(children_of(above), ()))

    def queries(self, service: str, graph: Graph, view: KnownAnswers) -> Iterator[Query]:
        """The variables and files of a service."""
        path = self._znodes.service(service)
        if VARIABLES in view.get(children_of(path), ()):
            yield from self._own_queries(f"{path}/{VARIABLES}", view)
        yield from map(stat_of, self._files(service, graph))

    def _own_queries(self, above: str, view: KnownAnswers) -> Iterator[Query]:
        yield children_of(above)
        for name in view.get(children_of(above), ()):
            yield stat_of(f"{above}/{name}")
            if _is_parent(view.get(stat_of(f"{above}/{name}"))):
                yield children_of(f"{above}/{name}")
                for own in view.get(children_of(f"{above}/{name}"), ()):
                    yield stat_of(f"{above}/{name}/{own}")

    def template_queries(
        self, service: str, graph: Graph, containers: Sequence[Reader], view: KnownAnswers
    ) -> Iterator[Query]:
        """The templates of a service: they matter only if a variable has changed since they were rendered."""
        read = oldest(containers)
        if read is not None and self._changed(service, read, view):
            yield from map(data_of, self._files(service, graph))

    def _files(self, service: str, graph: Graph) -> list[str]:
        znodes = self._znodes._replace(service_name=service)
        return [znodes.file(file.name) for step in graph.steps for file in step.files if file.mounted is None]

    # -- what it means ------------------------------------------------------------------------------

    def look(self, view: KnownAnswers) -> None:
        """Note when the variables of the deployment have changed; call it before anything else is asked."""
        above = f"{self._znodes.deployment}/{VARIABLES}"
        found = ((view.get(stat_of(f"{above}/{name}")), name) for name in view.get(children_of(above), ()))
        self._shared = sorted((stat.mzxid, name) for stat, name in found if stat)

    def behind(
        self, service: str, graph: Graph, container: Reader, containers: Sequence[Reader], view: KnownAnswers
    ) -> list[Behind]:
        """The variables and files that one of the containers of a service has not read."""
        read = container.read
        if read is None or container.stage not in BEGUN:
            return []
        found = []
        changed = self._changed(service, read, view)
        if changed:
            # The same names for each container: what is parsed for one is known for all.
            names = self._changed(service, oldest(containers) or 0, view)
            used = self._used_names(service, graph, names, view)
            znodes = self._znodes._replace(service_name=service, host=container.host)
            for name in sorted(changed & used.all):
                stats = [view.get(stat_of(path)) for path in znodes.variable(name)]
                nearest = next((stat for stat in stats if stat), None)
                if nearest and nearest.mzxid > read:
                    found.append(Behind(f"variable {name}", name in used.followed, nearest.mtime / 1000))
        return found + self._behind_files(service, graph, read, view)

    def _behind_files(self, service: str, graph: Graph, read: int, view: KnownAnswers) -> list[Behind]:
        znodes = self._znodes._replace(service_name=service)
        own = {file.name for file in graph.daemon.files} if graph.daemon else set()
        names = sorted({file.name for step in graph.steps for file in step.files if file.mounted is None})
        stats = {name: view.get(stat_of(znodes.file(name))) for name in names}
        return [
            Behind(f"file {name}", name in own, stat.mtime / 1000)
            for name, stat in stats.items()
            if stat and stat.mzxid > read
        ]

    def _changed(self, service: str, read: int, view: KnownAnswers) -> frozenset[str]:
        """The variables that have changed after a zxid, of the deployment or of the service."""
        names = {name for _, name in self._shared[bisect_left(self._shared, (read + 1, "")) :]}
        above = f"{self._znodes.service(service)}/{VARIABLES}"
        for name in view.get(children_of(above), ()):
            stat = view.get(stat_of(f"{above}/{name}"))
            if stat and stat.mzxid > read:
                names.add(name)
            if _is_parent(stat):
                names.update(view.get(children_of(f"{above}/{name}"), ()))
        return frozenset(names) - self._given - BUILTIN

    def _used_names(self, service: str, graph: Graph, names: frozenset[str], view: KnownAnswers) -> Used:
        """Those of the names that the service's templates use; kept, since parsing takes long."""
        files = {path: view.get(data_of(path)) for path in self._files(service, graph)}
        key = (graph, names, tuple(znode and znode.stat.mzxid for znode in files.values()))
        known = self._used.get(service)
        if known is None or known[0] != key:
            by_step = {step.path: _names(self._texts(service, step, files), names) for step in graph.steps}
            own = by_step.get(graph.daemon.path, frozenset()) if graph.daemon else frozenset()
            known = self._used[service] = key, Used(own, frozenset().union(*by_step.values()))
        return known[1]

    def _texts(self, service: str, step: Command, files: Mapping[str, Any]) -> Iterator[Text]:
        """What a container renders for a step. A one-time command that is done is not run by a restart."""
        znodes = self._znodes._replace(service_name=service)
        yield from late_texts(step._replace(command="true", env=(), user=None) if step.run_once else step)
        for file in step.files:
            znode = files.get(znodes.file(file.name))
            try:
                text = file_text(file.name, znode.data, file.template) if znode else None
            except CannotRender:
                continue
            if text:
                yield text


def _is_parent(stat: Any) -> bool:
    """Whether a znode has others below it."""
    return bool(stat and stat.numChildren)


def oldest(containers: Sequence[Reader]) -> int | None:
    """The zxid up to which every container that runs a daemon has read; None where there is none."""
    return min(
        (each.read for each in containers if each.read is not None and each.stage in BEGUN), default=None
    )


def _names(texts: Iterator[Text], names: Set[str]) -> frozenset[str]:
    """Those of the names that the templates use. Only templates that hold one of the words are parsed."""
    found: set[str] = set()
    for text in texts:
        words = {name for name in names if name in text.text} if text.is_template else set()
        if words - found:
            found |= words & _parsed(text.text, words)
    return frozenset(found)


def _parsed(source: str, words: Set[str]) -> Set[str]:
    try:
        return templates.read(source).names.keys()
    except templates.BadTemplate:
        return words
