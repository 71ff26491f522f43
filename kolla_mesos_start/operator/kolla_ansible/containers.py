"""The containers of a recording: daemons with their files, and the steps that run once.

What lives here: which task is which. Texts may have marks (`lift`); nothing here looks at them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kolla_mesos_start.operator.kolla_ansible.recording import Task

CONFIG_FILES = "/var/lib/kolla/config_files"
ONESHOT = ("oneshot", "no")
# Actions of kolla_container that say how a daemon runs.
DESCRIBED = ("compare_container", "recreate_or_restart_container", "start_container")
STARTED = ("recreate_or_restart_container", "start_container")
# What `docker exec` has before the name of the container.
HELPED = re.compile(r" for ([a-z][a-z0-9_-]*)$")
EXEC_OPTIONS_WITH_VALUE = ("-e", "--env", "-u", "--user", "-w")


class Kind(Enum):
    """How a step runs."""

    BOOTSTRAP = "bootstrap"  # its own container
    TOOLBOX = "toolbox"  # modules of ansible in kolla_toolbox
    EXEC = "exec"  # in the image of a daemon


@dataclass(frozen=True)
class ConfigFile:
    """A file below the config directory of a container. `path` is relative to it."""

    path: str
    content: bytes
    task: Task


@dataclass(frozen=True)
class Daemon:
    """A container that stays. `started` is the number of the task that starts it, by host."""

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
    """What runs once: one task, or consecutive ones of kolla_toolbox. `image_of` is a daemon."""

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


@dataclass(frozen=True)
class Containers:
    """All that was recorded, by what becomes of it. `files` are by host and config directory."""

    daemons: Mapping[str, Daemon]
    steps: Sequence[Step]
    files: Mapping[str, Mapping[str, Sequence[ConfigFile]]]
    left: Sequence[Task] = field(default_factory=tuple)
    dropped: Sequence[Task] = field(default_factory=tuple)
    inside: Mapping[str, Sequence[Task]] = field(default_factory=dict)  # by daemon


def sort(
    tasks: Sequence[Task], config_directory: str, dropped: Sequence[str], inside: Sequence[str] = ()
) -> Containers:
    """Sort the tasks.

    `dropped` are regular expressions for commands that readiness replaces, and `inside` those for commands
    whose effect stays in the container that they run in.
    """
    daemons = {each.name: each for each in _daemons(tasks)}
    waits, stays = _any(dropped), _any(inside)
    steps, left, unused = [], [], []
    within: dict[str, list[Task]] = {}
    for task in tasks:
        step = _step(task, daemons)
        if step is not None and waits.search(f"{task.name}: {_command(task)}"):
            unused.append(task)
        elif step is not None and step.kind is Kind.EXEC and stays.search(_command(task)):
            within.setdefault(step.image_of, []).append(task)
        elif step is not None:
            steps.append(step)
        elif _is_left(task, config_directory):
            left.append(task)
    named, files = _named(_joined(steps, tasks)), _files(tasks, config_directory)
    return Containers(daemons, named, files, left, unused, within)


def _any(expressions: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in expressions) or r"(?!)")


def config_directory_of(volumes: Sequence[str]) -> str | None:
    """The host's directory that a container has as its config files."""
    for volume in volumes:
        source, _, rest = volume.partition(":")
        if rest.partition(":")[0].rstrip("/") == CONFIG_FILES:
            return source.rstrip("/")
    return None


# -- daemons --------------------------------------------------------------------------------------


def _daemons(tasks: Sequence[Task]) -> Iterator[Daemon]:
    settings: dict[str, dict[str, Mapping[str, Any]]] = {}
    started: dict[str, dict[str, int]] = {}
    roles: dict[str, str] = {}
    for task in tasks:
        args = task.args
        if task.module != "kolla_container" or args.get("action") not in DESCRIBED or _is_oneshot(args):
            continue
        name = args["name"]
        roles.setdefault(name, _role(task))
        if args["action"] == "compare_container" or task.host not in settings.get(name, {}):
            settings.setdefault(name, {})[task.host] = args
        if args["action"] in STARTED:
            started.setdefault(name, {})[task.host] = task.number
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
    if task.module in ("command", "shell"):
        container = executed_in(_command(task))
        if container in daemons:
            return Step(f"{container}_exec", _role(task), Kind.EXEC, task.host, [task], container)
    return None


def _command(task: Task) -> str:
    args = task.args
    if task.module == "kolla_toolbox":
        return f"{args.get('module_name', '')} {args.get('module_args', '')}"
    return str(
        args.get("_raw_params") or args.get("cmd") or args.get("command") or " ".join(args.get("argv") or ())
    )


def executed_in(command: str) -> str:
    """The container that a `docker exec` or `podman exec` names; empty for another command."""
    return exec_parts(command)[0]


def exec_parts(command: str) -> tuple[str, str, Mapping[str, str]]:
    """The container, the command in it, and its environment; empty ones for another command."""
    found = re.search(r"\b(?:docker|podman) exec\s+(.*)", command, re.DOTALL)
    rest = found[1].strip() if found else ""
    environment = {}
    while rest.startswith("-"):
        option, _, rest = rest.partition(" ")
        if option in EXEC_OPTIONS_WITH_VALUE:
            value, _, rest = rest.lstrip().partition(" ")
            if option in ("-e", "--env"):
                name, _, text = value.partition("=")
                environment[name] = "".join(shlex.split(text))
        rest = rest.lstrip()
    container, _, inner = rest.partition(" ")
    return container, inner.strip(), environment


def inside_command(task: Task) -> str:
    """The command of a `docker exec` with the rest of its line, as the container itself runs it."""
    command = _command(task).strip()
    before = re.split(r"\b(?:docker|podman) exec\s", command, maxsplit=1)[0]
    return before + exec_parts(command)[1]


def _joined(steps: Sequence[Step], tasks: Sequence[Task]) -> Iterator[Step]:
    """Join what kolla_toolbox runs consecutively for one role, on one host; the same command on several hosts
    of an `exec` stays one step for each."""
    starts = sorted(
        task.number
        for task in tasks
        if task.module == "kolla_container" and task.args.get("action") in STARTED
    )
    waiting: Step | None = None
    for step in steps:
        if waiting and _goes_on(waiting, step, starts):
            waiting = Step(
                waiting.name,
                waiting.role,
                waiting.kind,
                waiting.host,
                [*waiting.tasks, *step.tasks],
                waiting.image_of,
            )
            continue
        if waiting:
            yield waiting
        waiting = step
    if waiting:
        yield waiting


def _goes_on(before: Step, step: Step, starts: Sequence[int]) -> bool:
    """Whether nothing starts between them."""
    if not before.kind is step.kind is Kind.TOOLBOX or before.host != step.host or before.role != step.role:
        return False
    return not any(before.tasks[-1].number < each < step.number for each in starts)


def _named(steps: Iterator[Step]) -> Sequence[Step]:
    """Give each step a name of its own."""
    found: dict[str, Step] = {}
    for step in steps:
        name, number = step.name, 2
        while name in found:
            name, number = f"{step.name}_{number}", number + 1
        found[name] = Step(name, step.role, step.kind, step.host, step.tasks, step.image_of)
    return list(found.values())


# -- files ----------------------------------------------------------------------------------------


def _files(tasks: Sequence[Task], config_directory: str) -> Mapping[str, Mapping[str, Sequence[ConfigFile]]]:
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
        if not dest.startswith(f"{config_directory}/"):
            continue
        directory, _, path = dest[len(config_directory) + 1 :].partition("/")
        if path:
            of_host = found.setdefault(task.host, {}).setdefault(directory, {})
            of_host[path] = ConfigFile(path, task.content, task)
    return {
        host: {name: list(files.values()) for name, files in by_name.items()}
        for host, by_name in found.items()
    }


def _is_left(task: Task, config_directory: str) -> bool:
    """Whether it changes the host itself: only the operator can do that."""
    if task.module in (
        "sysctl",
        "modprobe",
        "systemd",
        "systemd_service",
        "service",
        "firewalld",
        "lineinfile",
        "blockinfile",
    ):
        return True
    return task.module == "copy" and not (task.dest or "").startswith(f"{config_directory}/")
