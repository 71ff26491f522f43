"""Checks over all services of a deployment, one function for each kind of mistake.

Pure: each takes the services as their agents will read them, and yields issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from posixpath import normpath
from typing import NamedTuple
from urllib.parse import urlsplit

from kolla_mesos_start.ctl.directory.findings import ERROR, WARNING, counted
from kolla_mesos_start.ctl.directory.secrecy import is_secret
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.definition.model import (
    Command,
    Dependency,
    External,
    File,
    Graph,
    Members,
    Ready,
    Step,
)
from kolla_mesos_start.definition.strings import ANY, DAEMON, LOCAL, sublabel, untidy

# Keys of the daemon that Marathon does not have.
MISPLACED = frozenset({"command", "files", "ready", "retries", "delay", "timeout", "stop_grace"})
IMAGE = "image-generation"  # the text for a generation that only its agent knows
OWN_ADDRESSES = ("127.0.0.1", "localhost", "::1")
# Values that still have to be replaced.
_PLACEHOLDER = re.compile(r"(?i)(replace|change)[-_ ]?(me|this|it)([-_ ]?[0-9]+)?|todo|fixme|x{3,}|<[^<>]*>")


class ServiceIssue(NamedTuple):
    """A mistake in a znode of the deployment, at the `label` in its value.

    `others` are places of the same mistake in other services.
    """

    severity: str
    node: str
    label: str
    message: str
    others: Sequence[tuple[str, str]] = ()


class ServiceReading(NamedTuple):
    """A service as its agents will read it; without a graph if it is unreadable.

    `commands` are the names of its commands and its daemon, None if unknown. `hosts` are those with values of
    their own. `steps` has the commands for each of them (under "" if there are none). `wanted` is the number
    of instances, None if only an agent knows it. `service_keys` are the keys beside the daemon.
    """

    name: str
    commands: frozenset[str] | None
    graph: Graph | None
    hosts: Sequence[str]
    steps: Mapping[str, Sequence[Step]]
    wanted: int | None
    service_keys: Set[str] = frozenset()

    @property
    def role(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @property
    def has_daemon(self) -> bool:
        return self.commands is None or DAEMON in self.commands


class ServiceNeed(NamedTuple):
    """One dependency of one command."""

    service: ServiceReading
    command: Command
    dependency: Dependency | Members
    label: str


def by_role(readings: Iterable[ServiceReading]) -> dict[str, ServiceReading]:
    """The service of each role."""
    return {each.role: each for each in readings}


def needs(readings: Iterable[ServiceReading]) -> Iterator[ServiceNeed]:
    """Every dependency of every command."""
    for each in readings:
        for command in each.graph.steps if each.graph else ():
            for index, dependency in enumerate(command.dependencies):
                if isinstance(dependency, External):
                    continue  # A directory does not show whether it will answer.
                yield ServiceNeed(each, command, dependency, f"{command.label}.dependencies[{index}]")


def check(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """All mistakes between services, and between the commands of one service."""
    for one in CHECKS:
        yield from one(readings)


# -- dependencies -------------------------------------------------------------------------------------


def same_role(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    owners: dict[str, ServiceReading] = {}
    for each in readings:
        first = owners.setdefault(each.role, each)
        if first is not each:
            message = f"{first.name} and {each.name} have the same role, {each.role!r}: rename one of them"
            yield ServiceIssue(ERROR, each.name, "", message, [(first.name, "")])


def unknown_dependencies(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    roles = by_role(readings)
    by_name = {each.name: each for each in readings}
    for service, _, dependency, label in needs(readings):
        if isinstance(dependency, Members):
            what, known, kind = dependency.service, by_name, "this name"
        else:
            what, known, kind = dependency.role, roles, f"the role {dependency.role!r}"
        owner = known.get(what)
        if owner is None:
            reason = f"no service has {kind}{nearest(what, known)}"
        else:
            reason = _why_not_provided(service, dependency, owner)
        if reason:
            path = what if isinstance(dependency, Members) else dependency.path
            yield ServiceIssue(ERROR, service.name, label, f"{path}: {reason}")


def _why_not_provided(
    service: ServiceReading, dependency: Dependency | Members, owner: ServiceReading
) -> str:
    """Why a service does not provide a dependency; empty if it does."""
    # The agent's parser knows the commands of the same service.
    if owner is service or owner.commands is None:
        return ""
    if isinstance(dependency, Members):
        return "" if owner.has_daemon else f"{owner.name} has no daemon, and a task has no members"
    if dependency.name in owner.commands:
        return ""
    if dependency.is_daemon:
        return f"{owner.name} has no daemon"
    return f"{owner.name} has no command {dependency.name!r}{nearest(dependency.name, owner.commands)}"


def cycles(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Cycles across services; the agent's parser finds those inside one service."""
    labels: dict[tuple[str, str], tuple[str, str]] = {}
    edges: dict[str, list[str]] = {}
    for each in readings:
        for command in each.graph.steps if each.graph else ():
            before = each.graph.commands if each.graph and command.is_daemon else ()
            edges[command.path] = [own.path for own in before]
    for service, command, dependency, label in needs(readings):
        if isinstance(dependency, Dependency) and dependency.path in edges:
            edges[command.path].append(dependency.path)
            labels[command.path, dependency.path] = service.name, label
    while (path := _cycle(edges)) is not None:
        steps = list(zip(path, path[1:]))
        edges[path[-2]] = [name for name in edges[path[-2]] if name != path[-1]]
        places = [labels[step] for step in steps if step in labels]
        if len({name.split("/")[0] for name in path}) > 1:
            (node, label), *others = places
            yield ServiceIssue(ERROR, node, label, f"a cycle across services: {' -> '.join(path)}", others)


def _cycle(edges: Mapping[str, Sequence[str]]) -> list[str] | None:
    """One cycle, in the order of waiting, from its first name in the alphabet back to it."""
    try:
        TopologicalSorter(edges).prepare()
        return None
    except CycleError as error:
        found: list[str] = error.args[1][:0:-1]
        first = found.index(min(found))
        return [*found[first:], *found[:first], found[first]]


def more_than_wanted(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    roles = by_role(readings)
    by_name = {each.name: each for each in readings}
    for service, _, dependency, label in needs(readings):
        is_members = isinstance(dependency, Members)
        name = dependency.service if isinstance(dependency, Members) else dependency.role
        owner = (by_name if is_members else roles).get(name)
        if owner is None or owner.wanted is None or not owner.has_daemon:
            continue
        count = dependency.count or (0 if owner is service else 1)
        if count > owner.wanted:
            message = (
                f"count {count} of {owner.name}, of which {owner.wanted} "
                f"{'is' if owner.wanted == 1 else 'are'} wanted (`instances` in its `service`)"
            )
            yield ServiceIssue(ERROR, service.name, label, message)


def scopes_that_cannot_meet(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Dependencies of scope local on a service that never runs on the same host."""
    roles = by_role(readings)
    for service, _, dependency, label in needs(readings):
        owner = roles.get(dependency.role) if isinstance(dependency, Dependency) else None
        if owner is None or not owner.hosts or not isinstance(dependency, Dependency):
            continue
        alone = sorted(set(service.hosts) - set(owner.hosts))
        if dependency.scope == LOCAL and alone:
            message = (
                f"{dependency.path} of scope local is never on {', '.join(alone)}: "
                f"{owner.name} has values for {', '.join(sorted(owner.hosts))}"
            )
            yield ServiceIssue(ERROR, service.name, label, message)


# -- the commands of one service ------------------------------------------------------------------------


def daemons_without_check(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    waiting: dict[str, str] = {}
    for service, command, dependency, _ in needs(readings):
        if isinstance(dependency, Dependency) and dependency.is_daemon and dependency.role != service.role:
            waiting.setdefault(dependency.role, command.path)
    for each in readings:
        daemon = each.graph and each.graph.daemon
        if not (daemon and daemon.ready) or each.role not in waiting or "ready" in each.service_keys:
            continue
        if daemon.ready.kind == "default":
            message = (
                f"{waiting[each.role]} waits for it, but it has no `ready` check: unless it notifies, it "
                f"counts as ready after {daemon.ready.value:g} s"
            )
            yield ServiceIssue(WARNING, each.name, daemon.label, message)


def keys_beside_the_daemon(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Keys there are for schedulers and ignored, but no scheduler has these."""
    for each in readings:
        for key in sorted(MISPLACED & each.service_keys):
            yield ServiceIssue(
                WARNING, each.name, f"service.{key}", f"is ignored: it belongs under service.{DAEMON}"
            )


def mixed_generations(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    for each in readings:
        once = [command for command in each.graph.commands if command.run_once] if each.graph else []
        with_one = [command.name for command in once if command.generation]
        for command in once if with_one else ():
            if not command.generation:
                message = f"no generation, but {with_one[0]} has one: an upgrade does not run it again"
                yield ServiceIssue(WARNING, each.name, command.label, message)


def generations_that_cannot_be(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Dependencies on a generation that no container will have."""
    roles = by_role(readings)
    for service, _, dependency, label in needs(readings):
        if not isinstance(dependency, Dependency) or dependency.generation in (None, ANY):
            continue
        owner = roles.get(dependency.role)
        if owner is None or owner.graph is None:
            continue
        if dependency.is_daemon:
            wrong = _no_such_image(dependency.generation or "", owner)
        else:
            target = next((each for each in owner.graph.commands if each.path == dependency.path), None)
            wrong = _no_such_mark(dependency, target) if target else ""
        if wrong:
            yield ServiceIssue(ERROR, service.name, label, f"{dependency.path}: {wrong}")


def _no_such_image(generation: str, owner: ServiceReading) -> str:
    """Why there will be no instance of this generation: its one-time commands have another one."""
    assert owner.graph is not None
    known = {command.generation for command in owner.graph.commands if command.generation}
    if not known or generation in known or IMAGE in known:
        return ""
    return f"generation {generation!r}, but {owner.name} is for {', '.join(sorted(map(repr, known)))}"


def _no_such_mark(dependency: Dependency, target: Command) -> str:
    if target.run_once is None:
        return "it is not a one-time command, so it has no record for a generation"
    if target.run_once != dependency.scope:
        where = "on each host" if target.run_once == LOCAL else "in the deployment"
        return f"its generations are recorded {where}, where it runs once: write `scope: {target.run_once}`"
    if target.generation is None:
        return f"it has no generation, so it is never done for {dependency.generation!r}"
    return ""


def unlisted_generations(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Daemons that no container can start which has run the one-time commands beside them."""
    for each in readings:
        daemon = each.graph and each.graph.daemon
        if not (each.graph and daemon and daemon.generations):
            continue
        for command in each.graph.commands:
            if command.generation not in (None, IMAGE, *daemon.generations):
                message = f"lacks {command.generation}, the generation of {command.path}"
                yield ServiceIssue(ERROR, each.name, f"{daemon.label}.generations", message)


def files_in_the_way(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    for each in readings:
        for steps in each.steps.values():
            yield from _files_in_the_way(each.name, steps)


def _files_in_the_way(service: str, steps: Sequence[Step]) -> Iterator[ServiceIssue]:
    """Different files with the same `dest`, and a `dest` below another one."""
    places: dict[str, tuple[Command, File]] = {}
    for step in steps:
        for file in step.command.files:
            command, other = places.setdefault(normpath(file.dest), (step.command, file))
            if other != file:
                message = f"{file.dest} is the dest of {other.name!r} of {command.name} too"
                yield ServiceIssue(ERROR, service, _dest(step.command, file), message)
    for dest, (command, file) in places.items():
        above = next((path for path in _above(dest) if path in places), None)
        if above is not None:
            other = places[above][1]
            message = f"{dest} is below {above}, where the file {other.name!r} is written"
            yield ServiceIssue(ERROR, service, _dest(command, file), message)


def _dest(command: Command, file: File) -> str:
    return f"{sublabel(f'{command.label}.files', file.name)}.dest"


def _above(path: str) -> Iterator[str]:
    while (path := path.rpartition("/")[0]) != "":
        yield path


def ports_used_twice(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Two daemons on the same named host that are checked at the same port."""
    users: dict[tuple[str, int], str] = {}
    for each in readings:
        for host in each.hosts:
            daemon = next((step for step in each.steps.get(host, ()) if step.command.is_daemon), None)
            port = daemon and daemon.command.ready and _port(daemon.command.ready)
            other = users.setdefault((host, port), each.name) if port else each.name
            if other != each.name:
                label = f"service.{DAEMON}.ready"
                message = f"port {port} of host {host} is used by {other} too"
                yield ServiceIssue(ERROR, each.name, label, message, [(other, label)])


def checks_at_no_port(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """URLs with an impossible port; the agent's parser checks that of `tcp`."""
    for each in readings:
        for ready in (step.command.ready for steps in each.steps.values() for step in steps):
            if ready and ready.kind == "http" and _bad_port(str(ready.value)):
                message = "expected a port from 1 to 65535 in its URL"
                yield ServiceIssue(ERROR, each.name, f"service.{DAEMON}.ready.http", message)


def _bad_port(url: str) -> bool:
    try:
        return urlsplit(url).port == 0
    except ValueError:
        return True


def _port(ready: Ready) -> int | None:
    """The port of a daemon's check on its own host."""
    if ready.kind == "tcp" and isinstance(ready.value, int):
        return ready.value
    if ready.kind != "http":
        return None
    url = urlsplit(str(ready.value))
    try:
        return (url.port or {"http": 80, "https": 443}[url.scheme]) if url.hostname in OWN_ADDRESSES else None
    except ValueError:  # A port above 65535.
        return None


def elections(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Elections that are never decided, or whose position command does harm."""
    for each in readings:
        daemon = each.graph.daemon if each.graph else None
        election = daemon.election if daemon else None
        if not (each.graph and daemon and election):
            continue
        label = f"{daemon.label}.election"
        if each.wanted is not None and each.wanted != election.members:
            message = (
                f"{election.members}, but the service has {counted(each.wanted, 'instance')}: an election"
                " waits for every member, and no other host takes part"
            )
            yield ServiceIssue(ERROR, each.name, f"{label}.members", message)
        if daemon.ready and daemon.ready.kind in ("default", "alive"):
            message = (
                "with an election, expected a check that holds only for a member of a working cluster, not"
                " for any daemon that runs"
            )
            yield ServiceIssue(WARNING, each.name, f"{daemon.label}.ready", message)
        command = next((one for one in each.graph.commands if one.path == election.position), None)
        if command:
            for message in _bad_position(command, daemon):
                yield ServiceIssue(WARNING, each.name, f"{label}.position", message)


def _bad_position(command: Command, daemon: Command) -> Iterator[str]:
    """What may go wrong with the position command of an election."""
    if command.user != daemon.user:
        users = [each.user or "the agent's user" for each in (command, daemon)]
        yield (
            f"{command.path} runs as {users[0]}, and the daemon as {users[1]}: the daemon may not be able to"
            " use files that it leaves behind"
        )
    if command.timeout is None:
        yield f"{command.path} has no `timeout`: if it hangs, no host bootstraps the cluster"
    if command.succeeds != (0,):
        statuses = ", ".join(map(str, command.succeeds))
        yield f"{command.path} succeeds with {statuses}: its output then counts as the position of the data"


CHECKS = (
    same_role,
    unknown_dependencies,
    cycles,
    more_than_wanted,
    scopes_that_cannot_meet,
    daemons_without_check,
    keys_beside_the_daemon,
    mixed_generations,
    generations_that_cannot_be,
    unlisted_generations,
    files_in_the_way,
    ports_used_twice,
    checks_at_no_port,
    elections,
)


# -- variables ------------------------------------------------------------------------------------------


def bad_value(name: str, value: str) -> str | None:
    """Why this value of a variable is probably a mistake; None if it is not."""
    if "{{" in value or "{%" in value:
        return f"{name} contains a template, but values are not rendered: write the text itself"
    if untidy(value):
        return f"{name} {untidy(value)}: remove it, or it becomes a part of the value"
    if _PLACEHOLDER.fullmatch(value.strip()):
        return f"{name} is a placeholder: give it a value of your own"
    if not value.strip() and is_secret(name):
        return f"{name} is empty: give it a value"
    return None
