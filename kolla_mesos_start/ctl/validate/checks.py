"""Checks over all services of a deployment, one function for each kind of mistake.

Pure: each takes the services as their agents will read them, and yields issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from posixpath import normpath
from typing import NamedTuple
from urllib.parse import urlsplit

from kolla_mesos_start.ctl.directory.findings import ERROR, WARNING, counted
from kolla_mesos_start.ctl.directory.secrecy import is_secret
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.definition import argv
from kolla_mesos_start.definition.model import (
    Command,
    Dependency,
    External,
    File,
    Graph,
    Members,
    ResolvedCommand,
)
from kolla_mesos_start.definition.ready import Ready
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

    `commands` are the names of its commands and its daemon, None if unknown. `hosts` are those on which
    launch.yml places it: values for a host do not mean that it runs there, or only there. `steps` has the
    commands for each host with values of its own, and under "" those for others. `wanted` is the number of
    instances, None if only an agent knows it. `service_keys` are the keys beside the daemon.
    """

    name: str
    commands: frozenset[str] | None
    graph: Graph | None
    hosts: Sequence[str]
    steps: Mapping[str, Sequence[ResolvedCommand]]
    wanted: int | None
    service_keys: Set[str] = frozenset()

    @property
    def role(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @property
    def known(self) -> Sequence[Command]:
        """Its commands and its daemon, as far as they could be read."""
        return self.graph.all_commands if self.graph else ()

    @property
    def daemon(self) -> Command | None:
        return self.graph.daemon if self.graph else None

    @property
    def has_daemon(self) -> bool:
        return self.commands is None or DAEMON in self.commands


class ServiceNeed(NamedTuple):
    """One dependency of one command inside the deployment; `owner` is the service that has to provide it."""

    service: ServiceReading
    command: Command
    dependency: Dependency | Members
    label: str
    owner: ServiceReading | None


def needs(readings: Sequence[ServiceReading]) -> Iterator[ServiceNeed]:
    """Every dependency of every command."""
    roles, names = {each.role: each for each in readings}, {each.name: each for each in readings}
    for each in readings:
        for command in each.known:
            for index, one in enumerate(command.dependencies):
                if isinstance(one, External):
                    continue  # A directory does not show whether it will answer.
                owner = names.get(one.service) if isinstance(one, Members) else roles.get(one.role)
                yield ServiceNeed(each, command, one, f"{command.label}.dependencies[{index}]", owner)


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
    for service, _, one, label, owner in needs(readings):
        is_members = isinstance(one, Members)
        if owner is None:
            name = one.service if isinstance(one, Members) else one.role
            known = [each.name if is_members else each.role for each in readings]
            kind = "this name" if is_members else f"the role {name!r}"
            reason = f"no service has {kind}{nearest(name, known)}"
        elif owner is service or owner.commands is None:
            continue  # The agent's parser knows the commands of the same service.
        elif isinstance(one, Members):
            reason = "" if owner.has_daemon else f"{owner.name} has no daemon, and a task has no members"
        elif one.name in owner.commands:
            continue
        else:
            which = "daemon" if one.is_daemon else f"command {one.name!r}{nearest(one.name, owner.commands)}"
            reason = f"{owner.name} has no {which}"
        if reason:
            path = one.service if isinstance(one, Members) else one.path
            yield ServiceIssue(ERROR, service.name, label, f"{path}: {reason}")


def cycles(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Cycles across services; the agent's parser finds those inside one service."""
    labels: dict[tuple[str, str], tuple[str, str]] = {}
    edges: dict[str, list[str]] = {}
    for each in readings:
        for command in each.known:
            before = [own.path for own in each.known if not own.is_daemon]
            edges[command.path] = before if command.is_daemon else []
    for service, command, dependency, label, _ in needs(readings):
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
    for service, _, dependency, label, owner in needs(readings):
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
    for service, _, dependency, label, owner in needs(readings):
        if owner is None or not owner.hosts or not isinstance(dependency, Dependency):
            continue
        alone = sorted(set(service.hosts) - set(owner.hosts))
        if dependency.scope == LOCAL and alone:
            message = (
                f"{dependency.path} of scope local is never on {', '.join(alone)}: "
                f"launch.yml places {owner.name} on {', '.join(sorted(owner.hosts))}"
            )
            yield ServiceIssue(ERROR, service.name, label, message)


# -- the commands of one service ------------------------------------------------------------------------


def daemons_without_check(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    waiting: dict[str, str] = {}
    for service, command, dependency, _, _ in needs(readings):
        if isinstance(dependency, Dependency) and dependency.is_daemon and dependency.role != service.role:
            waiting.setdefault(dependency.role, command.path)
    for each in readings:
        daemon = each.daemon
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
        once = [command for command in each.known if command.run_once]
        with_one = [command.name for command in once if command.generation]
        for command in once if with_one else ():
            if not command.generation:
                message = f"no generation, but {with_one[0]} has one: an upgrade does not run it again"
                yield ServiceIssue(WARNING, each.name, command.label, message)


def generations_that_cannot_be(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Dependencies on a generation that no container will have."""
    for service, _, dependency, label, owner in needs(readings):
        if not isinstance(dependency, Dependency) or dependency.generation in (None, ANY) or owner is None:
            continue
        if dependency.is_daemon:
            wrong = _no_such_image(dependency, owner)
        else:
            targets = [each for each in owner.known if each.path == dependency.path]
            wrong = _no_such_mark(dependency, targets[0]) if targets else ""
        if wrong:
            yield ServiceIssue(ERROR, service.name, label, f"{dependency.path}: {wrong}")


def _no_such_image(dependency: Dependency, owner: ServiceReading) -> str:
    """Why there will be no instance of this generation: its one-time commands have another one."""
    known = {command.generation for command in owner.known if command.generation}
    if not known or known & {dependency.generation, IMAGE}:
        return ""
    names = ", ".join(sorted(map(repr, known)))
    return f"generation {dependency.generation!r}, but {owner.name} is for {names}"


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
        listed = (each.daemon and each.daemon.generations) or ()
        for command in each.known if listed else ():
            if command.generation not in (None, IMAGE, *listed):
                message = f"lacks {command.generation}, the generation of {command.path}"
                yield ServiceIssue(ERROR, each.name, f"service.{DAEMON}.generations", message)


def variables_that_a_shell_drops(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """dash and ash pass on only variables whose names they could use themselves."""
    for each in readings:
        for command in each.known:
            # An impossible name is an error already.
            names = [
                name for name, _ in command.env if re.fullmatch(r"(?![A-Za-z_]\w*\Z)[^=\0]+", name, re.A)
            ]
            for name in names if any(map(_runs_a_shell, _commands(command))) else ():
                message = (
                    f"the shell of {command.name} may drop {name!r}, which is no name in a shell: rename"
                    " it, or write the command as a list without a shell"
                )
                yield ServiceIssue(WARNING, each.name, sublabel(f"{command.label}.env", name), message)


def _commands(command: Command) -> Iterator[str | tuple[str, ...]]:
    """The command and those of its settings, which have the same environment."""
    yield command.command
    for each in (command.ready, command.on_change):
        if each and each.kind == "command" and isinstance(each.value, (str, tuple)):
            yield each.value
    if command.before_stop:
        yield command.before_stop.command
    if command.election:
        yield command.election.start
    yield from (file.check for file in command.files if file.check)


def _runs_a_shell(command: str | tuple[str, ...]) -> bool:
    try:
        return argv.parse(command).argv[0].rpartition("/")[2] in ("sh", "dash", "ash")
    except ValueError:
        return False  # Reported as an error.


def files_in_the_way(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Different files with the same `dest`, and a `dest` below another one."""
    for service, steps in ((each.name, steps) for each in readings for steps in each.steps.values()):
        places: dict[str, tuple[str, Command, File]] = {}
        for step in steps:
            for file in step.command.files:
                label = f"{sublabel(f'{step.command.label}.files', file.name)}.dest"
                _, command, other = places.setdefault(normpath(file.dest), (label, step.command, file))
                if other != file:
                    message = f"{file.dest} is the dest of {other.name!r} of {command.name} too"
                    yield ServiceIssue(ERROR, service, label, message)
        for dest, (label, _, _) in places.items():
            above = next((str(path) for path in PurePosixPath(dest).parents if str(path) in places), None)
            if above is not None:
                message = f"{dest} is below {above}, where the file {places[above][2].name!r} is written"
                yield ServiceIssue(ERROR, service, label, message)


def ports_used_twice(readings: Sequence[ServiceReading]) -> Iterator[ServiceIssue]:
    """Two daemons that launch.yml places on the same host, and that are checked at the same port."""
    users: dict[tuple[str, int], str] = {}
    for each in readings:
        for host in each.hosts:
            steps = each.steps.get(host) or each.steps.get("", ())
            daemon = next((step for step in steps if step.command.is_daemon), None)
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
        daemon = each.daemon
        if daemon is None or daemon.election is None:
            continue
        election, label = daemon.election, f"{daemon.label}.election"
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
        for command in each.known:
            for message in _bad_position(command, daemon) if command.path == election.position else ():
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
    variables_that_a_shell_drops,
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
