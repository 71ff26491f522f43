"""Makes the record of a running deployment from what was read. No agent is asked.

Pure: `mirror` reads the View, and calls this again when the View lacked a value. The parts are made by
`definitions` (what is published), `zk.containers` (which containers exist) and `unread` (what these have not
read). What became of each command and daemon, and what it waits for, is worked out here, by the agent's own
`tree.states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Optional

from kolla_mesos_start.ctl.live import election
from kolla_mesos_start.ctl.live.definitions import Definitions, PublishedDefinition
from kolla_mesos_start.ctl.live.model import (
    Attempt,
    EndedStart,
    GoneContainer,
    LiveDeployment,
    LiveService,
    LiveStep,
    Publication,
)
from kolla_mesos_start.ctl.live.unread import Changes, compare, last_changes
from kolla_mesos_start.ctl.zk import containers
from kolla_mesos_start.ctl.zk.containers import Container, text
from kolla_mesos_start.ctl.zk.services import is_service_part
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.model import Command, Dependency, Graph
from kolla_mesos_start.definition.strings import GLOBAL, LOCAL
from kolla_mesos_start.log import printable
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.codec import unfinished
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.tree.znodes import RECORDED_ACL, RESERVED, Znodes

PARTS = {*RESERVED, *containers.NAMES}  # children that only services have
# The published generation of a one-time command, by path and scope; None if it has none, or it is unknown.
Generations = Mapping[tuple[str, str], Optional[str]]


def hosts_of(znodes: Znodes, view: View) -> Sequence[str]:
    """The hosts on which containers of a service have started."""
    return view.hosts(znodes.status, znodes.role)


class DeploymentReader:
    """Reads one deployment, as often as needed. What is published is parsed only after a change."""

    def __init__(self, znodes: Znodes, given: Mapping[str, str] = MappingProxyType({})) -> None:
        """`znodes` are those of the deployment, of no service; `given` are variables of containers only."""
        self.znodes = znodes
        self.definitions = Definitions(given)
        self._given = given.keys()

    def services(self, view: View) -> Sequence[Znodes]:
        """The znodes of each service: of a definition, or of anything that belongs to one."""
        found, level = [], [self.znodes.deployment]
        while level:
            path = level.pop()
            names = view.names(path)
            own = self.znodes._replace(service_name=path[len(self.znodes.deployment) + 1 :])
            znode = view.znode(path)
            is_service = (znode and znode.data.strip()) or PARTS.intersection(names)
            if own.service_name and (is_service or path in view.denied):
                found.append(own)
            level += [below for name in names if is_service_part(below := f"{path}/{name}")]
        return sorted(found)

    # -- what it means --------------------------------------------------------------------------------

    def deployment(self, view: View) -> LiveDeployment:
        """The deployment; without the effect of values that are still `wanted`."""
        changes = last_changes(self.znodes, view)
        services = self.services(view)
        graphs = [self.definitions.find(znodes, view).graph for znodes in services]
        generations = {
            (command.path, command.run_once): command.generation
            for graph in graphs
            for command in (graph.commands if graph else ())
            if command.run_once and command.generation
        }
        found = {each.service_name: self._service(each, generations, changes, view) for each in services}
        znodes = [view.znode(each.definition) for each in services]
        times = [znode.stat.mtime / 1000 for znode in znodes if znode]
        published_at = max([*times, view.last_write()])
        return LiveDeployment(self.znodes.deployment_id, found, published_at, self._publication(view))

    def _publication(self, view: View) -> Publication:
        znode = view.znode(self.znodes.publication)
        mark = unfinished(znode.data) if znode else None
        return Publication(mark, bool(view.held(self.znodes.publication)))

    def _service(self, znodes: Znodes, generations: Generations, changes: Changes, view: View) -> LiveService:
        view.met_denied = False
        published = self.definitions.find(znodes, view)
        graph, definition = published.graph, view.znode(znodes.definition)
        existing = containers.containers(znodes, view)
        compared = tuple(compare(znodes, graph, existing, changes, self._given, view))
        owner = view.znode(znodes.owner(GLOBAL, znodes.role))
        ended = tuple(_ended(znodes, view))
        steps: tuple[LiveStep, ...] = ()
        if graph:
            steps = tuple(_StepReader(znodes, graph, published.wanted, compared, generations, view).steps())
        # With acl.yml it is `publish` that claims the role.
        is_secured = RECORDED_ACL in view.names(znodes.definition)
        recorded = any(step.attempts for step in steps) if is_secured else owner is not None
        daemon = graph.daemon if graph else None
        elected = None
        if daemon and daemon.election:
            how = {each.host: each.how() for each in ended}
            elected = election.live_election(znodes, daemon.election, compared, how, view)
        return LiveService(
            name=znodes.service_name,
            definition_zxid=definition.stat.mzxid if definition and definition.data.strip() else 0,
            graph=graph,
            issues=published.issues,
            wanted=published.wanted,
            containers=compared,
            ended=ended,
            steps=steps,
            begun=recorded or bool(compared or ended),
            tells=containers.says_what_it_does(znodes, view),
            owner=printable(owner.data.decode("utf-8", "replace")) if owner else "",
            gone=tuple(_gone(znodes, published, compared, view)),
            election=elected,
            started_on=tuple(hosts_of(znodes, view)),
            denied=view.met_denied,
            definition_denied=znodes.definition in view.denied,
            left_out=tuple(printable(each) for each in containers.left_out(znodes, view)),
        )


# -- containers that have ended ---------------------------------------------------------------------------


def _ended(znodes: Znodes, view: View) -> Iterator[EndedStart]:
    """How starts on hosts failed."""
    for host in hosts_of(znodes, view):
        path = znodes._replace(host=host).ended
        znode, fields = view.znode(path), view.json_object(path)
        if znode is not None:
            yield EndedStart(
                host=host,
                stage=text(fields, "stage"),
                command=text(fields, "command"),
                reason=text(fields, "reason") or "it does not say why",
                retriable=fields.get("retriable") is True,
                status=fields["status"] if isinstance(fields.get("status"), int) else None,
                at=znode.stat.mtime / 1000,
                zxid=znode.stat.mzxid,
                code=text(fields, "code"),
                logs=containers.log_location(fields),
                # Each failure writes the znode, and a success deletes it.
                times=znode.stat.version,
            )


def _gone(
    znodes: Znodes, published: PublishedDefinition, existing: Sequence[Container], view: View
) -> Iterator[GoneContainer]:
    """The containers that were ready and have disappeared; one for each host that has no other one."""
    daemon = published.graph.daemon if published.graph else None
    if daemon is None or len(existing) >= published.wanted:
        return
    hosts = {each.host for each in existing if each.is_live}
    for own in (znodes._replace(host=host) for host in hosts_of(znodes, view) if host not in hosts):
        ready = containers.ready_on_host(own, view)
        state = view.znode(containers.daemon(own, LOCAL).state)
        if state and ready and ready.cversion and not ready.numChildren:  # It had a child once.
            why = "killed" if state.data == states.RUNNING.encode() else "ended"
            yield GoneContainer(own.host, ready.pzxid, state.stat.mtime / 1000, why)


# -- commands and daemons ---------------------------------------------------------------------------------


class _StepReader:
    """Finds the steps of a service. `generations` are the published ones of all one-time commands."""

    def __init__(
        self,
        znodes: Znodes,
        graph: Graph,
        wanted: int,
        containers: Sequence[Container],
        generations: Generations,
        view: View,
    ) -> None:
        self._znodes, self._graph, self._containers, self._view = znodes, graph, containers, view
        self._generations = generations
        self._hosts = [znodes._replace(host=host) for host in hosts_of(znodes, view)]
        # The generations of the containers' images; None if there is no live container.
        images = {container.generation for container in containers if container.is_live} or {None}
        self._images = sorted(images, key=str)
        zxids = (container.definition_zxid for container in containers)
        self._oldest = min(filter(None, zxids), default=None)
        is_ready = sum(container.ready for container in containers) >= wanted
        self._done = {
            each.path: is_ready if each.is_daemon else self._is_done(each) for each in graph.all_commands
        }

    def steps(self) -> Iterator[LiveStep]:
        """What became of each, and what it waits for."""
        for command in self._graph.all_commands:
            superseded = (
                command.run_once == GLOBAL
                and self._oldest is not None
                and states.superseded_by(command, self._znodes, self._view, self._oldest) is not None
            )
            unmet = (*self._unmet(command), *self._unmet_outside(command))
            attempts = tuple(self._attempts(command))
            yield LiveStep(command, self._done[command.path], attempts, unmet, superseded)

    def _places(self, scope: str | None) -> Sequence[Znodes]:
        """Where there are different answers: on each host, or once."""
        return self._hosts if scope == LOCAL else [self._znodes]

    def _is_done(self, command: Command) -> bool:
        if command.run_once is None:
            path = self._znodes.command(GLOBAL, command.path).state
            return states.state_of(self._view, path)[0] == states.DONE
        places = self._places(command.run_once)
        return bool(places) and all(states.is_done(command, each, self._view) for each in places)

    def _attempts(self, command: Command) -> Iterator[Attempt]:
        for each in self._places(command.run_once):
            at = each.command(command.run_once or GLOBAL, command.path)
            state, since = states.state_of(self._view, at.state)
            if state is not None and since is not None:
                detail = states.decode_detail(self._view.znode(at.detail))
                yield Attempt(each.host or GLOBAL, state, since, detail, len(self._view.held(at.lock)))

    def _unmet(self, command: Command) -> Iterator[Unmet]:
        """Each unsatisfied dependency once, for the first host and image for which it is not satisfied."""
        for each in command.inside:
            if isinstance(each, Dependency) and each.path in self._done and each.count is None:
                # A step of the same definition: its own container is the one that counts.
                if not self._done[each.path]:
                    yield Unmet(each, "not done")
                continue
            places = self._places(each.scope if isinstance(each, Dependency) else None)
            for place, image in product(places, self._images):
                if found := states.unmet(each, self._view, place, image, self._published):
                    yield found
                    break

    def _published(self, dependency: Dependency) -> str | None:
        return self._generations.get((dependency.path, dependency.scope))

    def _unmet_outside(self, command: Command) -> Iterator[Unmet]:
        """The external services that do not answer the containers that wait for them: only these can ask."""
        for external in command.outside:
            answers = {
                each.host: each.outside[external.what]
                for each in self._containers
                if each.is_live and each.outside.get(external.what)
            }
            if answers:
                host, why = min(answers.items())
                more = f" and {len(answers) - 1} more" if len(answers) > 1 else ""
                yield Unmet(external, f"{why} (asked from {host}{more})")
