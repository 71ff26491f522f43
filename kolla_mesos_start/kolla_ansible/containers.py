"""The containers of a recording: daemons with their files, and the steps that run once.

This module decides which task is which. Texts may have marks (`lift`), which are never read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.recording import CONFIG_DIRECTORY, Task
from kolla_mesos_start.kolla_ansible.rules import Rules

CONFIG_FILES = "/var/lib/kolla/config_files"
ONESHOT = ("oneshot", "no")
# Actions of kolla_container that say how a daemon runs.
DESCRIBED = ("compare_container", "recreate_or_restart_container", "start_container")
STARTED = ("recreate_or_restart_container", "start_container")
COMMANDS = ("command", "shell")
# Modules that change the host itself.
OF_HOST = (
    *("sysctl", "modprobe", "systemd", "systemd_service", "service", "firewalld"),
    *("lineinfile", "blockinfile"),
)
HELPED = re.compile(r" for ([a-z][a-z0-9_-]*)$")
NO_NAME = re.compile(r"[^A-Za-z0-9_]")
EXEC = re.compile(r"\b(?:docker|podman) exec\s+")
# What `docker exec` has before the name of the container. A terminal changes nothing in a step.
EXEC_OPTIONS_WITH_VALUE = ("-e", "--env", "-u", "--user", "-w", "--workdir")
TERMINAL_OPTIONS = ("-i", "-t", "-it", "-ti", "--interactive", "--tty")
# A word of a shell, with quoted parts and marks.
WORD = re.compile(rf"""(?:{lift.MARK.pattern}|"[^"]*"|'[^']*'|[^\s"'])+""")
# Commands of the shell before it, which do in a container what they do on the host.
PORTABLE = re.compile(rf"\s*((set|echo|printf|export)\b({lift.MARK.pattern}|[^|;&<>`$])*(\||;|&&)\s*)*")


class Kind(Enum):
    """How a step runs."""

    BOOTSTRAP = "bootstrap"  # its own container
    TOOLBOX = "toolbox"  # modules of ansible in kolla_toolbox
    EXEC = "exec"  # in the image of a daemon


@dataclass(frozen=True)
class ConfigFile:
    """A file below a config directory of kolla-ansible.

    `directory` is the name of the config directory, `path` is relative to it, and `dest` is the whole path.
    """

    directory: str
    path: str
    dest: str
    content: bytes
    task: Task


@dataclass(frozen=True)
class Daemon:
    """A container that stays. `started` is the number of the task that starts it first, by host."""

    name: str
    role: str
    settings: Mapping[str, Mapping[str, Any]]  # by host
    started: Mapping[str, int]

    @property
    def hosts(self) -> Sequence[str]:
        """Where it runs."""
        return list(self.settings)

    @property
    def first(self) -> Mapping[str, Any]:
        """Its settings on the first host."""
        return next(iter(self.settings.values()))


@dataclass(frozen=True)
class Step:
    """A one-time step: one task, or consecutive ones of kolla_toolbox. `image_of` is a daemon."""

    name: str
    role: str
    kind: Kind
    host: str
    tasks: Sequence[Task]
    image_of: str = ""

    @property
    def number(self) -> int:
        """Its place in the recorded order."""
        return self.tasks[0].number

    @property
    def user(self) -> str | None:
        """Who runs it in kolla_toolbox, if not the user of the image."""
        user = self.tasks[0].args.get("user") if self.kind is Kind.TOOLBOX else None
        return None if user is None else str(user)

    def is_beside(self, other: Step) -> bool:
        """Whether another host does the same."""
        same = (self.role, self.kind, self.tasks[0].place) == (other.role, other.kind, other.tasks[0].place)
        return same and self.host != other.host


@dataclass(frozen=True)
class Containers:
    """Everything that was recorded, by its use. `files` are by host and config directory.

    `earlier` are tasks of an upgrade in containers of the release before it.
    """

    daemons: Mapping[str, Daemon]
    steps: Sequence[Step]
    files: Mapping[str, Mapping[str, Sequence[ConfigFile]]]
    left: Sequence[Task] = field(default_factory=tuple)
    inside: Mapping[str, Sequence[Task]] = field(default_factory=dict)  # by daemon
    outside: Sequence[Task] = field(default_factory=tuple)  # commands that need a host and a container
    earlier: Sequence[Task] = field(default_factory=tuple)

    def config_files(self, settings: Mapping[str, Any], host: str) -> Sequence[ConfigFile]:
        """The config files of a container with these settings."""
        return self.files.get(host, {}).get(config_directory_of(settings), ())


def sort(tasks: Sequence[Task], rules: Rules, *, is_upgrade: bool = False) -> Containers:
    """Sort the tasks.

    Readiness replaces the commands that `dropped` of the rules matches. The effect of those in `inside` stays
    in the container that they run in.
    """
    daemons = {each.name: each for each in _daemons(tasks)}
    waits, stays = rules.matches("dropped"), rules.matches("inside")
    steps, left, outside, earlier = [], [], [], []
    within: dict[str, list[Task]] = {}
    for task in tasks:
        step, in_container = _step(task, daemons), executed(task)
        if (step or task.module in COMMANDS) and waits.search(f"{task.name}: {_command(task)}"):
            continue
        if in_container and (step is None or in_container.host_part):
            outside.append(task)
        elif step is not None and in_container and stays.search(_command(task)):
            within.setdefault(step.image_of, []).append(task)
        elif step is not None and is_upgrade and _is_earlier(step, daemons):
            earlier.append(task)
        elif step is not None:
            steps.append(step)
        elif _is_left(task):
            left.append(task)
    named = _named(_joined(steps, tasks))
    if is_upgrade:
        earlier += _stopped(tasks, named, daemons)
    return Containers(daemons, named, _files(tasks), left, within, outside, earlier)


def config_directory_of(settings: Mapping[str, Any]) -> str:
    """The name of the config directory that a container mounts; empty if it has none."""
    for volume in settings.get("volumes") or ():
        source, _, rest = str(volume).partition(":")
        if rest.partition(":")[0].rstrip("/") == CONFIG_FILES:
            return source.rstrip("/").rpartition("/")[2]
    return ""


# -- daemons --------------------------------------------------------------------------------------


def _daemons(tasks: Sequence[Task]) -> Iterator[Daemon]:
    settings: dict[str, dict[str, Mapping[str, Any]]] = {}
    started: dict[str, dict[str, int]] = {}
    roles: dict[str, str] = {}
    known = {task.role for task in tasks}
    for task in tasks:
        args = task.args
        if task.module != "kolla_container" or args.get("action") not in DESCRIBED or _is_oneshot(args):
            continue
        name = args["name"]
        role = _role(task)
        # The helper that compares containers is about `nova_cell`, for the role nova-cell.
        roles.setdefault(name, role if role in known else role.replace("_", "-"))
        if args["action"] == "compare_container" or task.host not in settings.get(name, {}):
            settings.setdefault(name, {})[task.host] = args
        if args["action"] in STARTED:
            started.setdefault(name, {}).setdefault(task.host, task.number)
    for name, by_host in settings.items():
        yield Daemon(name, roles[name], by_host, started.get(name, {}))


def _is_oneshot(args: Mapping[str, Any]) -> bool:
    detached = args.get("detach", True)
    return args.get("restart_policy") in ONESHOT or str(detached).lower() in ("false", "no")


def _role(task: Task) -> str:
    """The role that a task is about. Roles that help others, such as service-ks-register, name it."""
    named = HELPED.search(task.name) if task.role.startswith("service-") else None
    return named[1] if named else task.role


# -- steps ----------------------------------------------------------------------------------------


def _step(task: Task, daemons: Mapping[str, Daemon]) -> Step | None:
    if (
        task.module == "kolla_container"
        and task.args.get("action") == "start_container"
        and _is_oneshot(task.args)
    ):
        name = str(task.args["name"])
        # The first start of a daemon, as MariaDB's as the first of a cluster, is no step of its own.
        return None if name in daemons else Step(name, _role(task), Kind.BOOTSTRAP, task.host, [task])
    if task.module == "kolla_toolbox":
        return Step(f"{_role(task)}_toolbox", _role(task), Kind.TOOLBOX, task.host, [task], "kolla_toolbox")
    found = executed(task)
    if found and found.container in daemons:
        name = f"{found.container}_exec"
        return Step(name, _role(task), Kind.EXEC, task.host, [task], found.container)
    return None


def _is_earlier(step: Step, daemons: Mapping[str, Daemon]) -> bool:
    """Whether it ran in the container of the release before: the new one had not been started."""
    return step.kind is Kind.EXEC and step.number < min(daemons[step.image_of].started.values(), default=0)


def _stopped(tasks: Sequence[Task], steps: Sequence[Step], daemons: Mapping[str, Daemon]) -> Iterator[Task]:
    """Tasks that stop a daemon for a step of its role, after which it is started again."""
    for task in tasks:
        daemon = daemons.get(str(task.args.get("name")))
        if daemon is None or task.args.get("action") != "stop_container":
            continue
        last = max(daemon.started.values(), default=0)
        if any(step.role == daemon.role and task.number < step.number < last for step in steps):
            yield task


def _command(task: Task) -> str:
    args = task.args
    if task.module == "kolla_toolbox":
        return f"{args.get('module_name', '')} {args.get('module_args', '')}"
    return str(
        args.get("_raw_params")
        or args.get("cmd")
        or args.get("command")
        or shlex.join(args.get("argv") or ())
    )


@dataclass(frozen=True)
class Executed:
    """What a `docker exec` or `podman exec` runs in a container, as a line for a shell there.

    `host_part` is what only the host can do: a part of the line, or an option of `exec`; empty if the line
    does the same in the container.
    """

    container: str
    line: str
    environment: Mapping[str, str]
    host_part: str


def executed(task: Task) -> Executed | None:
    """What a task runs in a container; None for another task."""
    before, *others = EXEC.split(_command(task).strip())
    if task.module not in COMMANDS or not others:
        return None
    rest, environment, unknown = others[0], {}, "" if PORTABLE.fullmatch(before) else before.strip()
    while rest.startswith("-"):
        option, _, rest = rest.partition(" ")
        value = ""
        if option in EXEC_OPTIONS_WITH_VALUE:
            found = WORD.match(rest.lstrip())
            value, rest = (found[0], rest.lstrip()[found.end() :]) if found else ("", rest)
        if option in ("-e", "--env"):
            name, _, text = value.partition("=")
            environment[name] = "".join(lift.words(text))
        elif option not in TERMINAL_OPTIONS:
            unknown = unknown or f"{option} {value}".strip()
        rest = rest.lstrip()
    if others[1:]:
        unknown = unknown or "a second container"
    container, _, inner = rest.partition(" ")
    return Executed(container, before + inner.strip(), environment, unknown)


def _joined(steps: Sequence[Step], tasks: Sequence[Task]) -> Iterator[Step]:
    """Join what kolla_toolbox runs consecutively for one role and as one user, also beside other hosts."""
    starts = sorted(
        task.number
        for task in tasks
        if task.module == "kolla_container" and task.args.get("action") in STARTED
    )
    waiting: dict[str, Step] = {}  # by host
    last: Step | None = None
    for step in steps:
        if last and not _goes_on(last, step, starts):
            yield from waiting.values()
            waiting = {}
        before = waiting.get(step.host, replace(step, tasks=()))
        waiting[step.host] = replace(before, tasks=[*before.tasks, *step.tasks])
        last = step
    yield from waiting.values()


def _goes_on(before: Step, step: Step, starts: Sequence[int]) -> bool:
    """Whether nothing starts between them."""
    if not before.kind is step.kind is Kind.TOOLBOX or (before.role, before.user) != (step.role, step.user):
        return False
    return not any(before.number < each < step.number for each in starts)


def _named(steps: Iterator[Step]) -> Sequence[Step]:
    """Give each step a name of its own, with the host if others do the same."""
    found: dict[str, Step] = {}
    every = list(steps)
    for step in every:
        name = step.name
        if any(step.is_beside(other) for other in every):
            # A number would be another step's after a change of the inventory.
            name = f"{name}_{NO_NAME.sub('_', step.host)}"
        base, number = name, 2
        while name in found:
            name, number = f"{base}_{number}", number + 1
        found[name] = replace(step, name=name)
    return list(found.values())


# -- files ----------------------------------------------------------------------------------------


def _files(tasks: Sequence[Task]) -> Mapping[str, Mapping[str, Sequence[ConfigFile]]]:
    """The last content of each file below the config directory."""
    directories = {
        (task.host, str(task.args.get("path", task.args.get("dest"))).rstrip("/"))
        for task in tasks
        if task.module == "file"
    }
    found: dict[str, dict[str, dict[str, ConfigFile]]] = {}
    for task in tasks:
        if task.content is None or task.dest is None:
            continue
        dest = task.dest
        if (task.host, dest.rstrip("/")) in directories:
            dest = f"{dest.rstrip('/')}/{str(task.args.get('src', '')).rpartition('/')[2]}"
        directory, _, path = dest.removeprefix(f"{CONFIG_DIRECTORY}/").partition("/")
        if path and dest.startswith(f"{CONFIG_DIRECTORY}/"):
            of_host = found.setdefault(task.host, {}).setdefault(directory, {})
            of_host[path] = ConfigFile(directory, path, dest, task.content, task)
    return {
        host: {name: list(files.values()) for name, files in by_name.items()}
        for host, by_name in found.items()
    }


def _is_left(task: Task) -> bool:
    """Whether it changes the host itself: only the operator can do that."""
    if task.module in (*COMMANDS, *OF_HOST):
        return True
    return task.module == "copy" and not (task.dest or "").startswith(f"{CONFIG_DIRECTORY}/")
