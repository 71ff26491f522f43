"""The definition of a service becomes its command graph; everything wrong with it is told at once.

    load(bytes) -> Document -> build(document, ...) -> Graph -> resolve(command, ...) -> Step

What lives here: what each key of a definition means. Pure: templates are rendered by a function
that the caller gives. JSON and kinds of values are the business of `document`, the look of single
strings that of `forms`, command lines that of `command_line`, the records stand in `command`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.definition import argv, forms
from kolla_mesos_start.definition.fields import (
    Document,
    Fields,
    Reading,
    Render,
    Text,
    as_flag,
    joined,
    kind,
    labelled,
    nearest,
)
from kolla_mesos_start.definition.model import Command, Dependency, File, Graph, Members, Ready, Step
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.tree.znodes import DAEMON, GLOBAL, LOCAL

SHARED_KEYS = (
    *("command", "dependencies", "env", "files", "user"),
    *("retries", "delay", "timeout", "stop_grace"),
)
ONCE_KEYS = ("run_once", "generation")
CHECKS = ("notify", "tcp", "http", "command", "alive")
# What kolla-mesos wrote for its schedulers over its years, and what it allowed but never read.
SCHEDULER_KEYS = ("enabled", "container", "task", "openstack_role", "openstack_roles", "mem", "cpus")
UNREAD_KEYS = ("reload_signal",)

DEFAULT_PERM = "0600"
DEFAULT_ALIVE = 20.0
"""Seconds of life that make a daemon ready which never notifies, where its definition says nothing."""
LEAST = 0.001
"""The least number of seconds where none at all would make no sense."""


# -- when the definition is read ------------------------------------------------------------------


def build(document: Document, service_name: str, render: Render) -> Graph:
    """The command graph of a service. Raises BadDefinition with all that is wrong.

    `render` is given the templates that are due now: those of `early_texts`.
    """
    graph, issues = _read(document, service_name, render)
    if issues:
        raise BadDefinition(issues)
    return graph


def early_texts(document: Document) -> tuple[Text, ...]:
    """The templates that `build` renders: dependencies, numbers, booleans, generations."""
    recorder = _Recorder()
    _read(document, "", recorder.record)
    return tuple(recorder.texts)


class _Recorder:
    """A `Render` that changes nothing: which templates a pass needs is what the pass asks for."""

    def __init__(self) -> None:
        self.texts: list[Text] = []

    def record(self, text: Text) -> str:
        self.texts.append(text)
        return text.text


def _read(document: Document, service_name: str, render: Render) -> tuple[Graph, list[str]]:
    reading = Reading(render)
    root = Fields(reading, "", document.root, ("name", "commands", "service"), ignored=SCHEDULER_KEYS)
    _check_name(root, service_name)
    role = service_name.rsplit("/", 1)[-1]
    commands = tuple(_commands(root, role))
    service = root.mapping("service")
    daemon = _daemon(reading, role, service[DAEMON]) if DAEMON in service else None
    if not root.raw("commands") and daemon is None:
        reading.wrong("definition", "has nothing to run: expected commands, or a daemon under service")
    graph = Graph(service_name, commands, daemon)
    _check_own_dependencies(reading, graph)
    return graph, reading.issues


def _check_name(root: Fields, service_name: str) -> None:
    name = root.raw("name")
    if "name" in root and name != service_name:
        shown = repr(name) if isinstance(name, str) else kind(name)
        root.wrong("name", f"the definition stands at the service {service_name!r}, but its name is {shown}")


def _commands(root: Fields, role: str) -> Iterator[Command]:
    for name, value in root.mapping("commands").items():
        label = joined("commands", name)
        if name == DAEMON:
            root.reading.wrong(label, "no command can have this name: the daemon stands under service")
        elif forms.bad_segment(name):
            root.reading.wrong(label, forms.bad_segment(name) or "")
        else:
            yield _command(root.reading, label, role, name, value)


def _command(reading: Reading, label: str, role: str, name: str, value: object) -> Command:
    misplaced = {"ready": "only the daemon can have it; a command is done once it has succeeded"}
    fields = Fields(reading, label, value, (*SHARED_KEYS, *ONCE_KEYS), UNREAD_KEYS, misplaced)
    run_once = _run_once(fields)
    generation = fields.word("generation", None, forms.bad_generation)
    return _step(fields, role, name)._replace(run_once=run_once, generation=generation)


def _daemon(reading: Reading, role: str, value: object) -> Command:
    misplaced = dict.fromkeys(ONCE_KEYS, "the daemon can't have it: it runs in every container")
    fields = Fields(reading, f"service.{DAEMON}", value, (*SHARED_KEYS, "ready"), UNREAD_KEYS, misplaced)
    return _step(fields, role, DAEMON)._replace(ready=_ready(fields))


def _step(fields: Fields, role: str, name: str) -> Command:
    """What a command and the daemon have in common."""
    return Command(
        path=f"{role}/{name}",
        name=name,
        command=_command_text(fields),
        dependencies=tuple(_dependencies(fields)),
        run_once=None,
        generation=None,
        env=tuple(_env(fields)),
        files=tuple(_files(fields)),
        retries=fields.whole("retries", 0),
        delay=fields.seconds("delay", 5.0),
        timeout=fields.seconds("timeout", None, least=LEAST),
        stop_grace=fields.seconds("stop_grace", 10.0),
        user=fields.late("user", None, forms.bad_user, number=True),
        ready=None,
    )


def _command_text(fields: Fields) -> str | tuple[str, ...]:
    """The `command` of a step or of a readiness check: a string, or a list of strings."""
    if not fields.require("command", "text or a list of texts"):
        return ()
    value = fields.raw("command")
    if isinstance(value, str):
        fields.judge(Text(fields.at("command"), value), argv.complaint)
        return value
    if not isinstance(value, list):
        fields.wrong("command", f"expected text or a list of texts, found {kind(value)}")
        return ()
    words = []
    for label, item in labelled(fields.at("command"), value):
        if isinstance(item, str):
            fields.judge(Text(label, item), forms.any_text)
            words.append(item)
        else:
            fields.reading.wrong(label, f"expected text, found {kind(item)}")
    if len(words) == len(value) and argv.complaint(tuple(words)):
        fields.wrong("command", argv.EMPTY)
    return tuple(words)


def _run_once(fields: Fields) -> str | None:
    value = fields.early("run_once", False)
    if isinstance(value, str) and value.strip() == "host":
        return LOCAL
    flag = as_flag(value)
    if flag is None:
        fields.wrong("run_once", f'expected true, false or "host"{fields.found("run_once")}')
    elif not flag and fields.raw("generation") is not None:
        fields.wrong("generation", "has no meaning without run_once")
    return GLOBAL if flag else None


def _dependencies(fields: Fields) -> Iterator[Dependency | Members]:
    for label, item in labelled(fields.at("dependencies"), fields.items("dependencies")):
        value = {"path": item} if isinstance(item, str) else item
        dependency: Dependency | Members | None
        if isinstance(value, dict) and "members" in value:
            dependency = _members(Fields(fields.reading, label, value, ("members", "count", "timeout")))
        else:
            dependency = _dependency(Fields(fields.reading, label, value, Dependency._fields))
        if dependency:
            yield dependency


def _dependency(fields: Fields) -> Dependency | None:
    dependency = Dependency(
        path=fields.word("path", "", forms.bad_path),
        scope=fields.word("scope", GLOBAL, forms.bad_scope),
        count=fields.whole("count", None, least=1),
        generation=fields.word("generation", None, forms.bad_generation),
        timeout=fields.seconds("timeout", None, least=LEAST),
    )
    fields.require("path", "role/command; or members, the path of a service")
    if dependency.is_daemon and dependency.generation:
        fields.wrong("generation", "a daemon has no generations")
    return dependency if dependency.path else None


def _members(fields: Fields) -> Members | None:
    members = Members(
        service=fields.word("members", "", forms.bad_service),
        count=fields.whole("count", 1, least=1),
        timeout=fields.seconds("timeout", None, least=LEAST),
    )
    return members if members.service else None


def _env(fields: Fields) -> Iterator[tuple[str, str]]:
    for name, value in fields.mapping("env").items():
        label = joined(fields.at("env"), name)
        if isinstance(value, (list, dict)):
            fields.reading.wrong(label, f"expected text, a number, true, false or null, found {kind(value)}")
            continue
        text = _as_text(value)
        fields.reading.judge_name(label, name, forms.bad_variable)
        fields.judge(Text(label, text), forms.any_text)
        yield name, text


def _as_text(value: object) -> str:
    """A value for the environment: null is set and empty, as KOLLA_BOOTSTRAP wants it; others as in JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _files(fields: Fields) -> Iterator[File]:
    for name, value in fields.mapping("files").items():
        label = joined(fields.at("files"), name)
        fields.reading.judge_name(label, name, forms.bad_segment)
        yield _file(Fields(fields.reading, label, value, File._fields[1:], ignored=("source",)), name)


def _file(fields: Fields, name: str) -> File:
    fields.require("dest", "the absolute path of a file")
    return File(
        name=name,
        dest=fields.late("dest", "", forms.bad_file),
        owner=fields.late("owner", None, forms.bad_owner, number=True),
        perm=_perm(fields),
        optional=fields.flag("optional", False),
        mounted=fields.word("mounted", None, forms.bad_file),
        template=fields.flag("template", True),
    )


def _perm(fields: Fields) -> str:
    # YAML makes 384 of an unquoted 0600 and 600 of 600: which mode was meant can't be told.
    if kind(fields.raw("perm")) == "a number":
        fields.wrong("perm", 'expected octal text such as "0600", found a number: put it in quotes')
        return DEFAULT_PERM
    return fields.late("perm", DEFAULT_PERM, forms.bad_perm)


def _ready(daemon: Fields) -> Ready:
    tuning = ("interval", "timeout", "fall")
    fields = Fields(daemon.reading, daemon.at("ready"), daemon.raw("ready"), (*CHECKS, *tuning))
    checks = [check for check in CHECKS if check in fields]
    if len(checks) > 1 or (not checks and any(key in fields for key in tuning)):
        found = " and ".join(checks) or "none"
        daemon.wrong("ready", f"expected one of {', '.join(CHECKS)}, found {found}")
    check = checks[0] if checks else "default"
    return Ready(
        kind=check,
        value=_ready_value(fields, check),
        interval=fields.seconds("interval", 10.0, least=LEAST),
        timeout=fields.seconds("timeout", 5.0, least=LEAST),
        fall=fields.whole("fall", 3, least=1),
    )


def _ready_value(fields: Fields, check: str) -> int | float | str | tuple[str, ...] | None:
    if check == "notify":
        if not fields.flag("notify", True):
            fields.wrong("notify", "expected true; to wait for no notification name another check")
        return None
    if check == "tcp":
        return fields.whole("tcp", 1, least=1, most=65535)
    if check == "http":
        return fields.late("http", "", forms.bad_url)
    if check == "command":
        return _command_text(fields)
    return fields.seconds("alive", DEFAULT_ALIVE)


# -- dependencies inside the definition -----------------------------------------------------------


def _check_own_dependencies(reading: Reading, graph: Graph) -> None:
    """Refuse what could never be satisfied: a command of this definition waiting for itself in the end."""
    by_name = {step.name: step for step in graph.steps}
    edges: dict[str, list[str]] = {}
    for step in graph.steps:
        edges[step.name] = []
        for dependency in step.dependencies:
            if not isinstance(dependency, Dependency) or dependency.role != step.path.split("/")[0]:
                continue
            reason = _why_never(step, dependency, by_name)
            if reason:
                reading.wrong(f"{step.label}.dependencies", f"{dependency.path}: {reason}")
            else:
                edges[step.name].append(dependency.name)
    for cycle in _cycles(edges):
        reading.wrong("commands", f"a cycle: {' -> '.join(cycle)}")


def _why_never(step: Command, dependency: Dependency, by_name: Mapping[str, Command]) -> str | None:
    target = by_name.get(dependency.name)
    if target is step:
        return f"{step.name} depends on itself"
    if target is None:
        return f"this definition has no {dependency.name}{nearest(dependency.name, by_name)}"
    if target.is_daemon:
        return f"a cycle: {step.name} -> {DAEMON} -> {step.name}, since the daemon comes last"
    if dependency.generation is not None and target.generation is None:
        return f"{target.name} has no generations"
    return None


def _cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """The cycles of a graph, each as the path that comes back to its start. Without recursion."""
    finished: set[str] = set()
    for root in edges:
        trail = {} if root in finished else {root: iter(edges[root])}
        while trail:
            here = next(reversed(trail))
            name = next(trail[here], None)
            if name is None:
                finished.add(trail.popitem()[0])
            elif name in trail:
                path = list(trail)
                yield [*path[path.index(name) :], name]
            elif name not in finished:
                trail[name] = iter(edges[name])


# -- when a command's turn comes ------------------------------------------------------------------


def resolve(command: Command, render: Render) -> Step:
    """The command with all its strings final. Raises BadDefinition for what only rendering could tell.

    `render` is given the templates that are due now: those of `late_texts`.
    """
    step, issues = _resolve(command, render)
    if issues:
        raise BadDefinition(issues)
    return step


def late_texts(command: Command) -> tuple[Text, ...]:
    """The templates that `resolve` renders: command, env, user, ready; dest, owner, perm of files."""
    recorder = _Recorder()
    _resolve(command, recorder.record)
    return tuple(recorder.texts)


def _resolve(command: Command, render: Render) -> tuple[Step, list[str]]:
    turn = _Turn(Reading(render), command.label)
    text = turn.command("command", command.command)
    line = turn.line("command", text)
    final = command._replace(
        command=text,
        env=tuple((name, turn.text(joined("env", name), value)) for name, value in command.env),
        files=tuple(turn.file(file) for file in command.files),
        user=turn.optional("user", command.user, forms.bad_user),
        ready=command.ready and turn.ready(command.ready),
    )
    return Step(final, line.argv, line.shell, line.lacks_exec), turn.reading.issues


class _Turn(NamedTuple):
    """Makes the strings of one command final; `key` is where each stands below the command's label."""

    reading: Reading
    label: str

    def text(self, key: str, text: str, form: forms.Form = forms.any_text) -> str:
        return self.reading.final(Text(f"{self.label}.{key}", text), form)

    def optional(self, key: str, text: str | None, form: forms.Form) -> str | None:
        return None if text is None else self.text(key, text, form)

    def command(self, key: str, command: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """A string is rendered whole and split later; a list keeps its items, whatever they become."""
        if isinstance(command, str):
            return self.text(key, command)
        return tuple(self.text(at, item) for at, item in labelled(key, command))

    def line(self, key: str, command: str | tuple[str, ...]) -> argv.CommandLine:
        reason = argv.complaint(command)
        if reason:
            self.reading.wrong(f"{self.label}.{key}", reason)
            return argv.CommandLine((), shell=False)
        return argv.parse(command)

    def file(self, file: File) -> File:
        at = joined("files", file.name)
        return file._replace(
            dest=self.text(f"{at}.dest", file.dest, forms.bad_file),
            owner=self.optional(f"{at}.owner", file.owner, forms.bad_owner),
            perm=self.text(f"{at}.perm", file.perm, forms.bad_perm),
        )

    def ready(self, ready: Ready) -> Ready:
        if ready.kind == "http":
            return ready._replace(value=self.text("ready.http", str(ready.value), forms.bad_url))
        if ready.kind == "command" and isinstance(ready.value, (str, tuple)):
            command = self.command("ready.command", ready.value)
            return ready._replace(value=self.line("ready.command", command).argv)
        return ready
