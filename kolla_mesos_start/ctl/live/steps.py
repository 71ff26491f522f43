"""The commands and daemons of a running deployment: what became of each, and what it waits for.

Pure. Dependencies are judged by the agent's own `tree.states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import product
from typing import Optional

from kolla_mesos_start.ctl.live.model import Attempt, LiveStep
from kolla_mesos_start.ctl.zk.containers import Container
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.model import Command, Dependency, Graph, Members
from kolla_mesos_start.definition.strings import GLOBAL, LOCAL
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.tree.znodes import Znodes

# The published generation of a one-time command, by path and scope; None if it has none, or it is unknown.
Published = Mapping[tuple[str, str], Optional[str]]


def live_steps(
    znodes: Znodes,
    graph: Graph,
    wanted: int,
    containers: Sequence[Container],
    view: View,
    generations: Published,
) -> Iterator[LiveStep]:
    """The steps of a service. `generations` are the published ones of all one-time commands."""
    hosts = hosts_of(znodes, view)
    ready = sum(container.ready for container in containers)
    oldest = min((each.definition for each in containers if each.definition), default=None)
    done = {
        command.path: ready >= wanted if command.is_daemon else _is_done(command, znodes, hosts, view)
        for command in graph.steps
    }
    for command in graph.steps:
        unmet = (
            *_unmet(command, done, znodes, containers, view, generations),
            *_unmet_outside(command, containers),
        )
        superseded = (
            command.run_once == GLOBAL
            and oldest is not None
            and states.superseded_by(command, znodes, view, oldest) is not None
        )
        attempts = tuple(_attempts(command, znodes, hosts, view))
        yield LiveStep(command, done[command.path], attempts, unmet, superseded)


def hosts_of(znodes: Znodes, view: View) -> Sequence[str]:
    """The hosts on which containers of a service have started."""
    return view.hosts(znodes.status, znodes.role)


def _scopes(command: Command, znodes: Znodes, hosts: Sequence[str]) -> list[Znodes]:
    """Where a command has a state: once, or on each host."""
    return [znodes._replace(host=host) for host in hosts] if command.run_once == LOCAL else [znodes]


def _asking(dependency: Dependency | Members, znodes: Znodes, hosts: Sequence[str]) -> list[Znodes]:
    """The hosts for which a dependency may have different answers; one without a name if there are none."""
    if isinstance(dependency, Dependency) and dependency.scope == LOCAL:
        return [znodes._replace(host=host) for host in hosts]
    return [znodes]


def _images(containers: Sequence[Container]) -> Set[str | None]:
    """The generations of the containers' images; None if there is no live container."""
    return {container.generation for container in containers if container.is_live} or {None}


def _is_done(command: Command, znodes: Znodes, hosts: Sequence[str], view: View) -> bool:
    if command.run_once is None:
        return states.state_of(view, znodes.command(GLOBAL, command.path).state)[0] == states.DONE
    scopes = _scopes(command, znodes, hosts)
    return bool(scopes) and all(states.is_done(command, own, view) for own in scopes)


def _attempts(command: Command, znodes: Znodes, hosts: Sequence[str], view: View) -> Iterator[Attempt]:
    for own in _scopes(command, znodes, hosts):
        at = own.command(command.run_once or GLOBAL, command.path)
        state, since = states.state_of(view, at.state)
        if state is not None and since is not None:
            detail = states.decode_detail(view.znode(at.detail))
            yield Attempt(own.host or GLOBAL, state, since, detail, len(view.held(at.lock)))


def _unmet(
    command: Command,
    done: Mapping[str, bool],
    znodes: Znodes,
    containers: Sequence[Container],
    view: View,
    generations: Published,
) -> Iterator[Unmet]:
    """Each unsatisfied dependency once, for the first host and image for which it is not satisfied."""
    hosts, images = hosts_of(znodes, view), sorted(_images(containers), key=str)

    def published(dependency: Dependency) -> str | None:
        return generations.get((dependency.path, dependency.scope))

    for dependency in command.inside:
        if isinstance(dependency, Dependency) and dependency.path in done and dependency.count is None:
            # A step of the same definition: its own container is the one that counts.
            if not done[dependency.path]:
                yield Unmet(dependency, "not done")
            continue
        for own, image in product(_asking(dependency, znodes, hosts), images):
            if found := states.unmet(dependency, view, own, image, published):
                yield found
                break


def _unmet_outside(command: Command, containers: Sequence[Container]) -> Iterator[Unmet]:
    """The external services that do not answer the containers that wait for them: only these can ask."""
    for external in command.outside:
        answers = {
            container.host: container.outside[external.what]
            for container in containers
            if container.is_live and container.outside.get(external.what)
        }
        if answers:
            host, why = min(answers.items())
            more = f" and {len(answers) - 1} more" if len(answers) > 1 else ""
            yield Unmet(external, f"{why} (asked from {host}{more})")
