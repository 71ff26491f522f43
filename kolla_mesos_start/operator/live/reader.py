"""A running deployment as one record, from what stands in ZooKeeper: no agent is asked.

Pure: `queries` says what must be read, which grows with what is found; `deployment` says what it means. How
it is read is `mirror`'s business. Dependencies are judged by the agent's own `tree.states`.

What an agent does not write (an older one has no `.containers`) is not made up: its stage is PRESENT.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, product
from types import MappingProxyType
from typing import Any, NamedTuple

from kolla_mesos_start.definition.document import Document, load
from kolla_mesos_start.definition.forms import DAEMON, GLOBAL, LOCAL
from kolla_mesos_start.definition.model import Command, Dependency, Graph, Members
from kolla_mesos_start.definition.schema import early_texts
from kolla_mesos_start.errors import BadDefinition, CannotRender
from kolla_mesos_start.operator.deployment import instances
from kolla_mesos_start.operator.deployment.container_variables import HINT
from kolla_mesos_start.operator.deployment.directory import VARIABLES
from kolla_mesos_start.operator.live.unread import Behind, Unread
from kolla_mesos_start.operator.validation.rules import build_graph, known_graph, rendered
from kolla_mesos_start.render.context import variable_names
from kolla_mesos_start.report import (
    NEVER_READY,
    REFRESH_FAILED,
    REFRESH_PENDING,
    REFRESH_RUNNING,
    REFRESH_SETTLING,
    REFRESH_STUCK,
    RESTART,
)
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.publication import Mark, unfinished
from kolla_mesos_start.tree.states import Detail, Unmet, printable
from kolla_mesos_start.tree.znodes import RECORDED_ACL, RESERVED, CommandZnodes, Znodes
from kolla_mesos_start.zookeeper.query import Query, Znode, children_of, data_of, stat_of

CONTAINERS, PARTY, ENDED = ".containers", ".party", "ended"
DEFINITION = "definition"
PRESENT = "present"  # It is there; what it is doing it does not say.
SUFFIX = "__party__"
# Of a daemon in exec mode: no process of ours is its parent.
UNKNOWN_STATUS = "only its launcher knows its exit status (KOLLA_START_MODE is exec)"
RUNNING_STATE = b"running"
MAX_HOST = 253  # characters of a host's name
MAX_DATA = 16 * 1024  # bytes of what a container has written about itself


class View(dict[Query, Any]):
    """What is known. How many names somebody waits for makes no difference to what is there.

    It changes by `update` and `pop` only.
    """

    def __init__(self, answers: Mapping[Query, Any] = MappingProxyType({})) -> None:
        super().__init__(answers)
        self._hosts: dict[str, list[str]] = {}

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
        return super().pop(query, default)

    def hosts(self, status: str) -> Mapping[str, Sequence[str]]:
        """The hosts on which containers of each role have begun; kept, because each command asks for them."""
        if not self._hosts:
            for scope in self.get(children_of(status), ()):
                for role in self.get(children_of(f"{status}/{scope}"), ()) if scope != GLOBAL else ():
                    self._hosts.setdefault(role, []).append(scope)
        return self._hosts


class Container(NamedTuple):
    """One container that is there. `since` is when its stage began (seconds since the epoch); `ready`:
    it is among the ready instances. `definition` is the mzxid that it runs, `digest` says what an agent reads
    of that, `read` is the zxid up to which it has read; None: it does not say. `follows`: its files are
    refreshed after a change. `behind`: what it runs that is published otherwise by now. `code`: the topic
    of `reason`, see `report`. `outside`: why external services have not answered it."""

    id: str
    host: str
    stage: str
    command: str
    reason: str
    since: float
    definition: int | None
    digest: str | None
    generation: str | None
    ready: bool
    read: int | None = None
    follows: bool = False
    behind: tuple[Behind, ...] = ()
    code: str = ""
    outside: Mapping[str, str] = MappingProxyType({})

    @property
    def is_live(self) -> bool:
        """Whether it may still do something."""
        return self.stage not in ("ended", "finished")

    @property
    def keeps_old_files(self) -> bool:
        """Whether its daemon is ready, with files that do not follow what is published any more."""
        return self.stage == "ready" and self.code in (REFRESH_FAILED, REFRESH_STUCK)

    @property
    def needs_restart(self) -> bool:
        """Whether it runs something that is published otherwise, and no refresh will bring."""
        return any(self.code == RESTART or not (self.follows and each.is_followed) for each in self.behind)

    @property
    def is_refreshing(self) -> bool:
        """Whether a refresh of its files is due, or not over."""
        if self.keeps_old_files:
            return False
        under_way = self.stage == "ready" and self.code in (
            REFRESH_PENDING,
            REFRESH_RUNNING,
            REFRESH_SETTLING,
        )
        return under_way or (bool(self.behind) and not self.needs_restart)

    @property
    def runs_older_definition(self) -> bool:
        return any(each.what == DEFINITION for each in self.behind)

    @property
    def is_current(self) -> bool:
        """Whether it runs what is published."""
        return not (self.behind or self.is_refreshing or self.keeps_old_files)


class EndedStart(NamedTuple):
    """How the last start on a host went wrong: its last line, and when. `retriable`: the same container may
    be started again."""

    host: str
    stage: str
    command: str
    reason: str
    retriable: bool
    status: int | None
    at: float
    zxid: int
    code: str = ""

    def how(self, ago: str = "") -> str:
        """In words, to follow a name: with the exit status, or why that is not known."""
        status = "" if self.status is None else f"exit status {self.status}"
        if self.stage != DAEMON:
            return f"ended{ago} in stage {self.stage}{status and ', '}{status}: {self.reason}"
        # Otherwise it was to be started again with new files, and could not be.
        how = self.reason if self.code == NEVER_READY else f"ended: {self.reason}"
        return f"{how}{ago and ','}{ago}; {status or UNKNOWN_STATUS}"


class Gone(NamedTuple):
    """A container that was ready on a host and is there no longer, since the zxid `left`.

    `why` is `refresh` (it has not come back from one that began at `since`), `ended` (its daemon did, at
    `since`) or `killed` (it had been ready since then).
    """

    host: str
    left: int
    since: float
    why: str


class Attempt(NamedTuple):
    """What became of a command in one scope (`global`, or a host): its text, the last attempt, and how many
    contend for its lock (0 for a plain one)."""

    scope: str
    state: str
    since: float
    detail: Detail
    contenders: int


class LiveStep(NamedTuple):
    """A command or a daemon: whether nobody waits for it any more, and what keeps it from beginning."""

    command: Command
    done: bool
    attempts: tuple[Attempt, ...]
    unmet: tuple[Unmet, ...]
    superseded: bool

    @property
    def path(self) -> str:
        return self.command.path


class LiveService(NamedTuple):
    """`definition` is its mzxid (0: nothing is published), `issues` why no graph can be made of it;
    `begun`: some container has begun here, ever; `tells`: its containers say what they do. `owner` has
    claimed its role."""

    name: str
    definition: int
    graph: Graph | None
    issues: tuple[str, ...]
    wanted: int
    containers: tuple[Container, ...]
    ended: tuple[EndedStart, ...]
    steps: tuple[LiveStep, ...]
    begun: bool
    tells: bool
    owner: str
    gone: tuple[Gone, ...]

    @property
    def role(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @property
    def is_task(self) -> bool:
        return self.graph is not None and self.graph.daemon is None

    @property
    def ready(self) -> int:
        """Ready instances; of a task, whose commands need to be done once only: all or none."""
        if self.is_task:
            return self.wanted if all(step.done for step in self.steps) else 0
        return sum(container.ready for container in self.containers)

    @property
    def is_up(self) -> bool:
        return self.graph is not None and self.ready >= self.wanted

    @property
    def role_taken(self) -> bool:
        """Whether another service has claimed its role: then no container of it begins."""
        return self.owner not in ("", self.name)


class Publication(NamedTuple):
    """The last publication if it has not finished, and whether somebody is publishing now."""

    mark: Mark | None
    is_running: bool

    @property
    def problem(self) -> str:
        """That it has not finished; empty if it has."""
        return "" if self.mark is None else f"{self.mark} yet" if self.is_running else self.mark.problem


class LiveDeployment(NamedTuple):
    """All services by their names."""

    id: str
    services: Mapping[str, LiveService]
    published: float
    """when something was published last (seconds since the epoch)"""
    publication: Publication = Publication(None, False)

    @property
    def roles(self) -> Mapping[str, LiveService]:
        """The service of each role; of two the one that has claimed it."""
        services = sorted(self.services.values(), key=lambda service: not service.role_taken)
        return {service.role: service for service in services if service.definition}

    @property
    def is_up(self) -> bool:
        return self.publication.mark is None and all(service.is_up for service in self.services.values())


class WrittenDefinition(NamedTuple):
    """A definition as it is written, and the variables that its graph depends on; or what is wrong."""

    document: Document | None
    variables: Sequence[str] = ()
    issues: tuple[str, ...] = ()


class PublishedDefinition(NamedTuple):
    """What is published for a service, as its agents read it."""

    graph: Graph | None
    issues: tuple[str, ...]
    wanted: int


NOT_PUBLISHED = PublishedDefinition(None, (), 1)


class DeploymentReader:
    """What one deployment's znodes mean. Graphs are kept: definitions change seldom."""

    def __init__(self, znodes: Znodes, given: Mapping[str, str] = MappingProxyType({})) -> None:
        """`znodes` are those of the deployment, of no service; `given` is what only containers have."""
        self.znodes, self._given = znodes, given
        self._unread = Unread(znodes, given.keys())
        self._sources: dict[bytes, WrittenDefinition] = {}
        self._definitions: dict[tuple[object, ...], PublishedDefinition] = {}
        self._published: states.Published = {}

    # -- what must be read --------------------------------------------------------------------------

    def queries(self, view: View) -> set[Query]:
        """What must be known; call it again when that is known, until nothing is new."""
        found = {*self._scaffold(view), *self._unread.shared_queries(view)}
        self._unread.look(view)
        for name in service_names(self.znodes, view):
            found.update(self._below_service(name, view))
            definition = self._definition(name, view)
            if definition and definition.graph:
                images = self._images(name, view)
                for command in definition.graph.steps:
                    found.update(self._below_command(command, images, view))
                found.update(self._not_read(name, definition.graph, view))
                found.update(self._gone_queries(name, definition, view))
            else:  # Its containers run on by what they have read.
                found.add(children_of(self._daemon(name).ready))
        return {query._replace(required=1) for query in found}

    def _scaffold(self, view: View) -> Iterator[Query]:
        """The services, the scopes, the roles in them, and how starts ended there."""
        yield from _tree(self.znodes, view)
        yield data_of(self.znodes.publication)
        yield children_of(self.znodes.publication)
        yield children_of(self.znodes.status)
        for scope in view.get(children_of(self.znodes.status), ()):
            yield children_of(f"{self.znodes.status}/{scope}")
            for role in view.get(children_of(f"{self.znodes.status}/{scope}"), ()):
                at = f"{self.znodes.status}/{scope}/{role}"
                if scope == GLOBAL:
                    yield data_of(at)
                else:
                    yield children_of(at)
                    if ENDED in view.get(children_of(at), ()):
                        yield data_of(f"{at}/{ENDED}")

    def _below_service(self, name: str, view: View) -> Iterator[Query]:
        """Its variables, as far as its graph depends on them, and its containers."""
        yield from map(data_of, self._places(name, view))
        path = self.znodes.service(name)
        if self._lacks_values(name, view):
            yield children_of(f"{path}/{VARIABLES}")
        below = view.get(children_of(path), ())
        for place in {CONTAINERS, PARTY}.intersection(below):
            yield children_of(f"{path}/{place}")
        told = view.get(children_of(f"{path}/{CONTAINERS}"), ())
        yield from (data_of(f"{path}/{CONTAINERS}/{each}") for each in told)
        # What a member says of its host is of use only where it says nothing else.
        silent = set(view.get(children_of(f"{path}/{PARTY}"), ())).difference(told)
        yield from (data_of(f"{path}/{PARTY}/{each}") for each in silent)

    def _not_read(self, name: str, graph: Graph, view: View) -> Iterator[Query]:
        """What tells whether its containers, if there are any, have read what is published."""
        if not view.get(children_of(f"{self.znodes.service(name)}/{CONTAINERS}"), ()):
            return
        asked = list(self._unread.queries(name, graph, view))
        yield from asked
        if all(query in view for query in asked):
            containers = list(self._containers(name, view))
            yield from self._unread.template_queries(name, graph, containers, view)

    def _gone_queries(self, name: str, definition: PublishedDefinition, view: View) -> Iterator[Query]:
        """What tells which of its containers have been there, if some are missing."""
        role, path = name.rsplit("/", 1)[-1], self.znodes.service(name)
        daemon = definition.graph.daemon if definition.graph else None
        if daemon is None or len(view.get(children_of(f"{path}/{CONTAINERS}"), ())) >= definition.wanted:
            return
        for host in hosts_of(role, self.znodes, view):
            at = self.znodes._replace(host=host).command(LOCAL, daemon.path)
            yield from (stat_of(at.ready), data_of(at.state))

    def _below_command(self, command: Command, images: Iterable[str | None], view: View) -> Iterator[Query]:
        hosts = hosts_of(command.path.split("/")[0], self.znodes, view)
        for scope in _scopes(command, hosts):
            at = self.znodes._replace(host=scope).command(scope, command.path)
            yield data_of(at.state)
            if command.is_daemon:
                yield children_of(at.ready)
                if command.width is not None:
                    slots = f"{at.refreshes}/slots"
                    yield children_of(slots)
                    yield from (data_of(f"{slots}/{each}") for each in view.get(children_of(slots), ()))
                continue
            yield data_of(at.detail)
            if command.run_once:
                yield children_of(at.lock)
                yield from states.once_queries(command, self.znodes._replace(host=scope), view)
                if command.generation is not None:  # Containers of an older definition may wait.
                    yield from states.mark_queries(at, view)
        for dependency in command.inside:
            for host, image in product(_asking(dependency, hosts), images):
                yield from states.queries(dependency, self.znodes._replace(host=host), view, image)

    # -- what it means --------------------------------------------------------------------------------

    def deployment(self, view: View) -> LiveDeployment:
        """The deployment, once all `queries` are answered."""
        self._unread.look(view)
        names = service_names(self.znodes, view)
        self._published = dict(chain.from_iterable(self._generations(name, view) for name in names))
        services = {name: self._service(name, view) for name in names}
        read = [view.get(data_of(self.znodes.service(name))) for name in services]
        stats = [znode.stat for znode in read if znode]
        own = f"{self.znodes.status}/"
        stats += [stat for each, stat in view.items() if each.stat and stat and not each.path.startswith(own)]
        published = max((stat.mtime / 1000 for stat in stats), default=0.0)
        return LiveDeployment(self.znodes.deployment_id, services, published, self._publication(view))

    def _publication(self, view: View) -> Publication:
        znode = view.get(data_of(self.znodes.publication))
        mark = unfinished(znode.data) if znode else None
        return Publication(mark, bool(view.get(children_of(self.znodes.publication))))

    def _service(self, name: str, view: View) -> LiveService:
        role = name.rsplit("/", 1)[-1]
        definition = self._definition(name, view) or NOT_PUBLISHED
        published = view.get(data_of(self.znodes.service(name)))
        there = tuple(self._containers(name, view))
        containers = tuple(self._compared(name, definition.graph, there, view))
        owner = view.get(data_of(self.znodes.owner(GLOBAL, role)))
        ended = tuple(self._ended(role, view))
        steps = self._steps(definition, containers, view) if definition.graph else ()
        below = view.get(children_of(self.znodes.service(name)), ())
        # Under acl.yml it is `publish` that claims the role.
        recorded = any(step.attempts for step in steps) if RECORDED_ACL in below else owner is not None
        return LiveService(
            name=name,
            definition=published.stat.mzxid if published and published.data.strip() else 0,
            graph=definition.graph,
            issues=definition.issues,
            wanted=definition.wanted,
            containers=containers,
            ended=ended,
            steps=steps,
            begun=recorded or bool(containers or ended),
            tells=CONTAINERS in below,
            owner=printable(owner.data.decode("utf-8", "replace")) if owner else "",
            gone=tuple(self._gone(name, containers, view)),
        )

    def _daemon(self, name: str) -> CommandZnodes:
        return self.znodes.command(GLOBAL, f"{name.rsplit('/', 1)[-1]}/{DAEMON}")

    def _containers(self, name: str, view: View) -> Iterator[Container]:
        path = self.znodes.service(name)
        ready = {identity(each) for each in view.get(children_of(self._daemon(name).ready), ())}
        seen = set()
        for place in (CONTAINERS, PARTY):
            for each in view.get(children_of(f"{path}/{place}"), ()):
                znode = view.get(data_of(f"{path}/{place}/{each}"))
                # It may have left between two reads.
                if znode is not None and identity(each) not in seen:
                    seen.add(identity(each))
                    yield _container(identity(each), znode, identity(each) in ready)

    def _compared(
        self, name: str, graph: Graph | None, containers: tuple[Container, ...], view: View
    ) -> Iterator[Container]:
        """The containers, each with what it runs that is published otherwise."""
        published = view.get(data_of(self.znodes.service(name)))
        current = published.stat.mzxid if published and published.data.strip() else 0
        since = published.stat.mtime / 1000 if published else 0.0
        for each in containers:
            behind = []
            if each.definition not in (None, current) and (graph is None or each.digest != graph.digest):
                behind.append(Behind(DEFINITION, True, since))
            if graph is not None:
                behind += self._unread.behind(name, graph, each, containers, view)
                image = other_generation(graph, each, containers)
                behind += [Behind(image, False, since)] if image else []
            yield each._replace(behind=tuple(behind)) if behind else each

    def _ended(self, role: str, view: View) -> Iterator[EndedStart]:
        for host in hosts_of(role, self.znodes, view):
            znode = view.get(data_of(f"{self.znodes.status}/{host}/{role}/{ENDED}"))
            if znode is not None:
                told = told_by(znode)
                yield EndedStart(
                    host=host,
                    stage=text_of(told, "stage"),
                    command=text_of(told, "command"),
                    reason=text_of(told, "reason") or "it does not say why",
                    retriable=told.get("retriable") is True,
                    status=told["status"] if isinstance(told.get("status"), int) else None,
                    at=znode.stat.mtime / 1000,
                    zxid=znode.stat.mzxid,
                    code=text_of(told, "code"),
                )

    def _gone(self, name: str, containers: Sequence[Container], view: View) -> Iterator[Gone]:
        """What is known of containers that are there no longer."""
        role, slots = name.rsplit("/", 1)[-1], f"{self._daemon(name).refreshes}/slots"
        there = {each.id for each in containers}
        hosts = {each.host for each in containers if each.is_live}
        for each in view.get(children_of(slots), ()):
            znode = view.get(data_of(f"{slots}/{each}"))
            host = _slot_host(znode.data) if znode else ""
            if identity(each) not in there and host and host not in hosts:
                hosts.add(host)
                yield Gone(host, znode.stat.mzxid, znode.stat.mtime / 1000, "refresh")
        for host in hosts_of(role, self.znodes, view):
            at = self.znodes._replace(host=host).command(LOCAL, f"{role}/{DAEMON}")
            ready, state = view.get(stat_of(at.ready)), view.get(data_of(at.state))
            # It has had a child, and has none.
            if host not in hosts and state and ready and ready.cversion and not ready.numChildren:
                why = "killed" if state.data == RUNNING_STATE else "ended"
                yield Gone(host, ready.pzxid, state.stat.mtime / 1000, why)

    # -- steps ----------------------------------------------------------------------------------------

    def _steps(
        self, definition: PublishedDefinition, containers: Sequence[Container], view: View
    ) -> tuple[LiveStep, ...]:
        assert definition.graph is not None
        ready = sum(container.ready for container in containers)
        done: dict[str, bool] = {}
        steps = []
        for command in definition.graph.steps:
            path = command.path
            done[path] = ready >= definition.wanted if command.is_daemon else self._is_done(command, view)
        oldest = min((each.definition for each in containers if each.definition), default=None)
        for command in definition.graph.steps:
            once = command.run_once == GLOBAL and oldest is not None
            steps.append(
                LiveStep(
                    command,
                    done[command.path],
                    tuple(self._attempts(command, view)),
                    (*self._unmet(command, done, containers, view), *_unmet_outside(command, containers)),
                    superseded=once
                    and states.superseded_by(command, self.znodes, view, oldest or 0) is not None,
                )
            )
        return tuple(steps)

    def _is_done(self, command: Command, view: View) -> bool:
        hosts = hosts_of(command.path.split("/")[0], self.znodes, view)
        if command.run_once is None:
            at = self.znodes.command(GLOBAL, command.path)
            return states.state_of(view, at.state)[0] == states.DONE
        scopes = _scopes(command, hosts)
        return bool(scopes) and all(
            states.is_done(command, self.znodes._replace(host=scope), view) for scope in scopes
        )

    def _attempts(self, command: Command, view: View) -> Iterator[Attempt]:
        for scope in _scopes(command, hosts_of(command.path.split("/")[0], self.znodes, view)):
            at = self.znodes._replace(host=scope).command(scope, command.path)
            state, since = states.state_of(view, at.state)
            if state is not None and since is not None:
                detail = states.decode_detail(view.get(data_of(at.detail)))
                yield Attempt(scope, state, since, detail, len(view.get(children_of(at.lock), ())))

    def _unmet(
        self, command: Command, done: Mapping[str, bool], containers: Sequence[Container], view: View
    ) -> Iterator[Unmet]:
        """Each unmet dependency once, for the first host and the first generation of an image where it is."""
        images = {container.generation for container in containers if container.is_live} or {None}
        hosts = hosts_of(command.path.split("/")[0], self.znodes, view)
        for dependency in command.inside:
            if isinstance(dependency, Dependency) and dependency.path in done and dependency.count is None:
                # Inside one definition it means that the command is behind the container.
                if not done[dependency.path]:
                    yield Unmet(dependency, "not done")
                continue
            for host, image in product(_asking(dependency, hosts), sorted(images, key=str)):
                found = states.unmet(
                    dependency, view, self.znodes._replace(host=host), image, self._published
                )
                if found:
                    yield found
                    break

    def _generations(self, name: str, view: View) -> Iterator[tuple[tuple[str, str], str]]:
        """The generations that are published for the one-time commands of a service."""
        definition = self._definition(name, view)
        for command in definition.graph.commands if definition and definition.graph else ():
            if command.run_once and command.generation:
                yield (command.path, command.run_once), command.generation

    def _images(self, name: str, view: View) -> set[str | None]:
        """The generations of the images of a service's containers; None if none says which it has."""
        path = f"{self.znodes.service(name)}/{CONTAINERS}"
        told = [view.get(data_of(f"{path}/{each}")) for each in view.get(children_of(path), ())]
        # Where images have no generation, thousands of containers need not be looked into.
        with_one = [znode for znode in told if znode and b'"generation": "' in znode.data]
        return {states.decode_registered(znode).generation for znode in with_one} or {None}

    # -- definitions ----------------------------------------------------------------------------------

    def _source(self, name: str, view: View) -> WrittenDefinition | None:
        znode = view.get(data_of(self.znodes.service(name)))
        if znode is None or not znode.data.strip():
            return None
        if znode.data not in self._sources:
            self._sources[znode.data] = _source(znode.data)
        return self._sources[znode.data]

    def _places(self, name: str, view: View) -> Mapping[str, str]:
        """Where the variables may stand that the graph depends on, nearest first, and their names.

        One that only single hosts have has the value of the first of them: there is one graph for all.
        """
        found = self._common_places(name, view)
        above = f"{self.znodes.service(name)}/{VARIABLES}"
        hosts = view.get(children_of(above), ())
        for each in self._lacks_values(name, view):
            found.update({f"{above}/{host}/{each}": each for host in hosts})
        return found

    def _common_places(self, name: str, view: View) -> dict[str, str]:
        """Those of no single host."""
        source = self._source(name, view)
        znodes = self.znodes._replace(service_name=name)
        names = source.variables if source else ()
        return {path: each for each in names for path in znodes.variable(each) if "//" not in path}

    def _lacks_values(self, name: str, view: View) -> Sequence[str]:
        """The variables that its graph depends on, and that have no value for all hosts."""
        given: dict[str, bool] = {}
        for path, each in self._common_places(name, view).items():
            given[each] = given.get(each, False) or view.get(data_of(path), 0) is not None
        return [each for each, is_given in given.items() if not is_given]

    def _definition(self, name: str, view: View) -> PublishedDefinition | None:
        """None while there is none, or something that it depends on is not known yet."""
        source = self._source(name, view)
        if source is None:
            return None
        if source.document is None:
            return PublishedDefinition(None, source.issues, 1)
        places = self._places(name, view)
        needed = [*map(data_of, places)]
        if self._lacks_values(name, view):
            needed.append(children_of(f"{self.znodes.service(name)}/{VARIABLES}"))
        if not all(query in view for query in needed):
            return None
        values: dict[str, str] = {}
        for path, each in places.items():
            znode = view[data_of(path)]
            if znode is not None:
                values.setdefault(each, znode.data.decode("utf-8", "replace"))
        values.update({each: self._given[each] for each in source.variables if each in self._given})
        key = (name, id(source), tuple(sorted(values.items())))
        if key not in self._definitions:
            self._definitions[key] = _read(source.document, self.znodes._replace(service_name=name), values)
        return self._definitions[key]


def _source(data: bytes) -> WrittenDefinition:
    try:
        document = load(data)
        early = (*early_texts(document), instances.text_of(document.root))
        texts = [text for text in early if text.is_template]
        return WrittenDefinition(document, sorted(variable_names(texts)) if texts else ())
    except BadDefinition as error:
        return WrittenDefinition(None, issues=error.issues)
    except CannotRender as error:
        return WrittenDefinition(None, issues=(error.reason,))


def _read(document: Document, znodes: Znodes, variables: Mapping[str, str]) -> PublishedDefinition:
    found = instances.wanted(document.root, lambda text: rendered(text, znodes, variables))
    wanted = 1 if found is None else found
    try:
        graph = build_graph(document, znodes, variables)
    except BadDefinition as error:
        return PublishedDefinition(None, error.issues, wanted)
    except CannotRender as error:
        hint = HINT if error.reason.startswith("missing: ") else ""
        return PublishedDefinition(None, (error.reason + hint,), wanted)
    return PublishedDefinition(graph or known_graph(document, znodes, variables), (), wanted)


# -- places -------------------------------------------------------------------------------------------


def _tree(znodes: Znodes, view: View) -> Iterator[Query]:
    """The data and the names at everything that may be a service, or lead to one."""
    yield children_of(znodes.deployment)
    for name in _names(znodes, view):
        yield data_of(znodes.service(name))
        yield children_of(znodes.service(name))


def _names(znodes: Znodes, view: View) -> Iterator[str]:
    level = [""]
    while level:
        deeper = []
        for name in level:
            path = znodes.service(name) if name else znodes.deployment
            for child in view.get(children_of(path), ()):
                if child not in RESERVED and not child.startswith("."):
                    deeper.append(f"{name}/{child}".lstrip("/"))
        yield from deeper
        level = deeper


def service_names(znodes: Znodes, view: View) -> list[str]:
    """The names of the services: what has a definition, or what belongs to one."""
    parts = {*RESERVED, CONTAINERS, PARTY}
    found = []
    for name in _names(znodes, view):
        path = znodes.service(name)
        znode = view.get(data_of(path))
        if (znode and znode.data.strip()) or parts.intersection(view.get(children_of(path), ())):
            found.append(name)
    return sorted(found)


def hosts_of(role: str, znodes: Znodes, view: View) -> Sequence[str]:
    """The hosts on which containers of a role have begun."""
    return view.hosts(znodes.status).get(role, ())


def _scopes(command: Command, hosts: Sequence[str]) -> Sequence[str]:
    return hosts if command.run_once == LOCAL else [GLOBAL]


def _unmet_outside(command: Command, containers: Sequence[Container]) -> Iterator[Unmet]:
    """What does not answer from outside, as containers say that wait for it: only they can ask it."""
    for external in command.outside:
        said = {
            container.host: container.outside[external.what]
            for container in containers
            if container.is_live and container.outside.get(external.what)
        }
        if said:
            host, why = min(said.items())
            more = f" and {len(said) - 1} more" if len(said) > 1 else ""
            yield Unmet(external, f"{why} (asked from {host}{more})")


def _asking(dependency: Dependency | Members, hosts: Sequence[str]) -> Sequence[str]:
    """The hosts on which a dependency may have another answer; one without a name if there are none."""
    return hosts if isinstance(dependency, Dependency) and dependency.scope == LOCAL else [""]


# -- what containers have written -----------------------------------------------------------------------


def identity(name: str) -> str:
    return name.removesuffix(SUFFIX)


def _container(name: str, znode: Znode, ready: bool) -> Container:
    told = told_by(znode)
    since = _instant(told.get("since"), znode.stat.ctime / 1000)
    definition, generation = text_of(told, "definition"), text_of(told, "generation")
    stage, reason, code = text_of(told, "state"), text_of(told, "reason"), text_of(told, "code")
    outside = told.get("outside")
    # It says what it does a moment after it has joined or left the ready instances, which others count.
    if ready:
        if stage != "ready":
            stage, reason, code = "ready", "", ""
    elif stage == "ready":
        stage = "unready"
    return Container(
        id=name,
        host=text_of(told, "host") or "?",
        stage=stage or PRESENT,
        command=text_of(told, "command"),
        reason=reason,
        since=since,
        definition=_zxid(definition),
        digest=text_of(told, "digest") or None,
        generation=generation or None,
        ready=ready,
        read=_zxid(text_of(told, "read")),
        follows=told.get("follows") is True,
        code=code,
        outside={name: text_of(outside, name) for name in outside} if isinstance(outside, dict) else {},
    )


def other_generation(graph: Graph, container: Container, others: Sequence[Container]) -> str:
    """The generation of its image, if another one is published, or none and others run another one."""
    own = container.generation
    published = sorted({command.generation for command in graph.commands if command.generation})
    if own is None or own in published or not container.is_live:
        return ""
    if published:
        return f"image of generation {own} (published: {', '.join(published)})"
    beside = sorted({each.generation for each in others if each.is_live and each.generation} - {own})
    return f"image of generation {own}, another container one of generation {beside[0]}" if beside else ""


def _slot_host(data: bytes) -> str:
    """The host of an instance that has a slot for its refresh, or had one; see `daemon.rollout`."""
    return printable(data.decode("utf-8", "replace").partition(" ")[2].partition(":")[0])[:MAX_HOST]


def told_by(znode: Znode | None) -> Mapping[str, Any]:
    """The JSON object in a znode; empty if it holds something else."""
    try:
        found = json.loads(znode.data) if znode and len(znode.data) <= MAX_DATA else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def text_of(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    return printable(value) if isinstance(value, str) else ""


def _zxid(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _instant(value: object, otherwise: float) -> float:
    """Seconds since the epoch, from a number or from the text of an instance's `since`."""
    if isinstance(value, (int, float)) and 0 < value < 1e11:
        return float(value)
    try:
        return datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return otherwise
