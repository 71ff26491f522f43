"""Reads a definition: a Document becomes the command graph of its service.

The tables at the end list all keys, each with the function that reads it, its default and its form. The JSON
Schema for editors and the reference are made from the same tables.

Templates are rendered by a function that the caller passes in: those of `early_texts` here, the
others by `resolve` when the command is about to run.

A definition with such templates is read twice, by the same function, `read`. The first time nothing is known
about variables: `early_texts` lists the templates, so that the caller can fetch all their variables with one
request. The second time `build` renders them. `late_texts` and `resolve` do the same for one command.
"""

from __future__ import annotations

import json

from kolla_mesos_start.definition import argv, strings
from kolla_mesos_start.definition.document import (
    Fields,
    Reading,
    WrittenNumber,
    digest,
    json_type,
    nearest,
    to_boolean,
)
from kolla_mesos_start.definition.model import (
    BeforeStop,
    Command,
    Dependency,
    Election,
    External,
    File,
    Graph,
    Members,
    OnChange,
)
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.definition.strings import (
    ANY,
    DAEMON,
    ELECTION,
    ENDED,
    GLOBAL,
    LOCAL,
    SHOWN,
    Text,
    labelled,
    rendered_by,
    sublabel,
)
from kolla_mesos_start.errors import BadDefinition, Issue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from kolla_mesos_start.definition.document import Document, Table
    from kolla_mesos_start.definition.strings import Render

# Ignored: written by kolla-mesos for its schedulers, or allowed by it but never read.
SCHEDULER_KEYS = ("enabled", "container", "task", "openstack_role", "openstack_roles", "mem", "cpus")
UNREAD_KEYS = ("reload_signal",)

DEFAULT_PERM = "0600"
DEFAULT_ALIVE = 20.0
"""Without a check, a daemon that never notifies is ready after so many seconds."""
DEFAULT_BEFORE_STOP = 10.0
"""Seconds after which the command of `before_stop` is killed."""
MOST_STATUS = 255
LEAST = 0.001
"""The least number of seconds if 0 would make no sense."""
LEAST_INTERVAL = 0.1
"""The least number of seconds between two connections to a program that all containers may ask."""


def build(document: Document, service_name: str, render: Render) -> Graph:
    """The command graph of a service. Raises BadDefinition with all issues."""
    graph, issues = read(document, service_name, render)
    if issues:
        raise BadDefinition(issues)
    return graph._replace(digest=digest(document))


def early_texts(document: Document) -> tuple[Text, ...]:
    """The templates that `build` renders: dependencies, numbers, booleans, generations."""
    return rendered_by(lambda render: read(document, "", render))


def read(document: Document, service_name: str, render: Render) -> tuple[Graph, list[Issue]]:
    """The command graph as far as it can be read, and all issues."""
    reading = Reading(render)
    root = Fields(reading, "", document.root, ("name", "commands", "service"), SCHEDULER_KEYS)
    name = root.raw("name")
    if "name" in root and name != service_name:
        shown = repr(name) if isinstance(name, str) else json_type(name)
        root.report("name", f"expected {service_name!r}, the service it is published for, found {shown}")
    role = service_name.rsplit("/", 1)[-1]
    commands = tuple(_commands(root, role))
    service = root.mapping("service")
    daemon = _daemon(reading, role, service[DAEMON]) if DAEMON in service else None
    if not root.raw("commands") and daemon is None:
        reading.report("definition", "has nothing to run: expected commands, or service.daemon")
    graph = Graph(service_name, commands, daemon)
    _check_position(reading, graph)
    _check_own_dependencies(reading, graph)
    return graph, reading.issues


def _commands(root: Fields, role: str) -> Iterator[Command]:
    for name, value in root.mapping("commands").items():
        label = sublabel("commands", name)
        if name == DAEMON:
            root.reading.report(
                label, "is not allowed as the name of a command: the daemon belongs under service"
            )
        elif name in (ENDED, ELECTION):
            root.reading.report(label, "is not allowed as the name of a command: give it another one")
        elif strings.bad_segment(name):
            root.reading.report(label, strings.bad_segment(name) or "")
        else:
            misplaced = dict.fromkeys(DAEMON_KEYS, f"is only allowed in service.{DAEMON}")
            misplaced["ready"] += ": a command is done when it has succeeded"
            table = {**COMMAND_KEYS, **SHARED_KEYS}
            fields = Fields(root.reading, label, value, table, UNREAD_KEYS, misplaced)
            yield _step(role, name, fields.values(table))


def _daemon(reading: Reading, role: str, value: object) -> Command:
    misplaced = dict.fromkeys(COMMAND_KEYS, "is not allowed here: the daemon runs in every container")
    misplaced["succeeds"] = "is not allowed here: the daemon's exit status is the container's"
    table = {**SHARED_KEYS, **DAEMON_KEYS}
    fields = Fields(reading, f"service.{DAEMON}", value, table, UNREAD_KEYS, misplaced)
    if "width" in fields and "on_change" not in fields:
        fields.report("width", "is only allowed with on_change")
    return _step(role, DAEMON, fields.values(table))


def _check_position(reading: Reading, graph: Graph) -> None:
    """Report a `position` that is not a plain command of the definition."""
    if not (graph.daemon and graph.daemon.election and graph.daemon.election.position):
        return
    name, label = graph.daemon.election.position, f"{graph.daemon.label}.election.position"
    found = next((command for command in graph.commands if command.path == name), None)
    if found is None:
        known = [command.path for command in graph.commands]
        reading.report(label, f"this definition has no command {name[:SHOWN]!r}{nearest(name, known)}")
    elif found.run_once is not None:
        reading.report(label, f"{name}: expected a plain command, which runs at every start, not run_once")


def _step(role: str, name: str, values: Mapping[str, Any]) -> Command:
    """A command or the daemon, without the keys of the other one."""
    absent = dict.fromkeys((*COMMAND_KEYS, *DAEMON_KEYS))
    return Command(path=f"{role}/{name}", name=name, **{**absent, "succeeds": (0,), **values})


def _dependency(reading: Reading, label: str, item: object) -> Dependency | Members | External | None:
    value = {"path": item} if isinstance(item, str) else item
    if isinstance(value, dict) and "members" in value:
        values = Fields(reading, label, value, MEMBERS_KEYS).values(MEMBERS_KEYS)
        return Members(values.pop("members"), **values) if values["members"] else None
    if isinstance(value, dict) and "external" in value:
        values = Fields(reading, label, value, EXTERNAL_KEYS).values(EXTERNAL_KEYS)
        target = values.pop("external")
        return External(*target, **values) if target else None
    fields = Fields(reading, label, value, DEPENDENCY_KEYS)
    dependency = Dependency(**fields.values(DEPENDENCY_KEYS))
    if dependency.is_daemon and dependency.generation == ANY:
        dependency = dependency._replace(generation=None)
    fields.require("path", "role/command (or members: the path of a service, or external: tcp or http)")
    if dependency.exclusive and not (dependency.is_daemon and dependency.generation):
        fields.report("exclusive", f"is only allowed on role/{DAEMON}, with generation")
    return dependency if dependency.path else None


def _check_own_dependencies(reading: Reading, graph: Graph) -> None:
    """Report dependencies on commands that this definition doesn't have, and cycles."""
    by_name = {step.name: step for step in graph.all_commands}
    edges: dict[str, list[str]] = {}
    for step in graph.all_commands:
        edges[step.name] = []
        for dependency in step.dependencies:
            if not isinstance(dependency, Dependency) or dependency.role != step.path.split("/")[0]:
                continue
            reason = _why_never(step, dependency, by_name)
            if reason:
                reading.report(f"{step.label}.dependencies", f"{dependency.path}: {reason}")
            else:
                edges[step.name].append(dependency.name)
    for cycle in _cycles(edges):
        reading.report("commands", f"a cycle: {' -> '.join(cycle)}")


def _why_never(step: Command, dependency: Dependency, by_name: Mapping[str, Command]) -> str | None:
    """Why the dependency itself could never be satisfied; None if it could."""
    target = by_name.get(dependency.name)
    if target is step:
        return f"{step.name} depends on itself"
    if target is None:
        return f"this definition has no {dependency.name}{nearest(dependency.name, by_name)}"
    if target.is_daemon:
        return f"a cycle: {step.name} -> {DAEMON} -> {step.name}: the daemon comes last"
    if dependency.generation not in (None, ANY) and target.generation is None:
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


# -- functions that read one key ----------------------------------------------------------------------


def command(fields: Fields, key: str, *default: None) -> str | tuple[str, ...] | None:
    """A command: a string, or a list of strings. It is required unless there is a default."""
    value = fields.raw(key)
    if default and value is None:
        return None
    if not fields.require(key, "text or a list of texts"):
        return ()
    if isinstance(value, str):
        fields.reading.check(Text(fields.label_of(key), value), argv.problem)
        return value
    if not isinstance(value, list):
        fields.report(key, f"expected text or a list of texts, found {json_type(value)}")
        return ()
    words = []
    for label, item in labelled(fields.label_of(key), value):
        if isinstance(item, str):
            fields.reading.check(Text(label, item), strings.any_text)
            words.append(item)
        else:
            fields.reading.report(label, f"expected text, found {json_type(item)}")
    if len(words) == len(value) and argv.problem(tuple(words)):
        fields.report(key, argv.EMPTY)
    return tuple(words)


def dependencies(fields: Fields, key: str) -> tuple[Dependency | Members | External, ...]:
    """What a command waits for."""
    items = labelled(fields.label_of(key), fields.items(key))
    found = [_dependency(fields.reading, label, item) for label, item in items]
    return tuple(each for each in found if each)


def env(fields: Fields, key: str) -> tuple[tuple[str, str], ...]:
    """Variables of the environment. null is empty text, which KOLLA_BOOTSTRAP needs; others as written."""
    found = []
    for name, value in fields.mapping(key).items():
        label = sublabel(fields.label_of(key), name)
        if isinstance(value, (list, dict)):
            expected = "expected text, a number, true, false or null"
            fields.reading.report(label, f"{expected}, found {json_type(value)}")
            continue
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        text = value.text if isinstance(value, WrittenNumber) else text
        fields.reading.check_name(label, name, strings.bad_variable)
        fields.reading.check(Text(label, text), strings.any_text)
        found.append((name, text))
    return tuple(found)


def files(fields: Fields, key: str) -> tuple[File, ...]:
    """Config files by the name of their content."""
    found = []
    for name, value in fields.mapping(key).items():
        label = sublabel(fields.label_of(key), name)
        fields.reading.check_name(label, name, strings.bad_segment)
        inside = Fields(fields.reading, label, value, FILE_KEYS, ignored=("source",))
        inside.require("dest", "the absolute path of a file")
        found.append(File(name, **inside.values(FILE_KEYS)))
    return tuple(found)


def perm(fields: Fields, key: str, default: str) -> str:
    """A mode as octal text."""
    # YAML reads an unquoted 0600 as 384, but 600 as 600: the number doesn't show which mode was meant.
    if json_type(fields.raw(key)) == "a number":
        fields.report(key, 'expected octal text such as "0600", found a number: put it in quotes')
        return default
    return fields.late(key, default, strings.bad_perm)


def run_once(fields: Fields, key: str) -> str | None:
    """The scope in which a command runs once."""
    value = fields.rendered(key, False)
    if isinstance(value, str) and value.strip() == "host":
        return LOCAL
    flag = to_boolean(value)
    if flag is None:
        fields.unexpected(key, 'expected true, false or "host"')
    elif not flag and fields.raw("generation") is not None:
        fields.report("generation", "is only allowed with run_once")
    return GLOBAL if flag else None


def succeeds(fields: Fields, key: str) -> tuple[int, ...]:
    """The exit statuses that count as success."""
    if fields.raw(key) == []:
        fields.report(key, "is empty: expected exit statuses, such as [0, 1]")
    found = []
    for label, item in labelled(fields.label_of(key), fields.items(key)):
        status = fields.reading.integer(label, item)
        if status is None or not 0 <= status <= MOST_STATUS:
            fields.reading.report(label, f"expected an exit status, a whole number from 0 to {MOST_STATUS}")
        else:
            found.append(status)
    return tuple(found) or (0,)


def generations(fields: Fields, key: str) -> tuple[str, ...]:
    """The generations of images that may run the daemon."""
    found = []
    for label, item in labelled(fields.label_of(key), fields.items(key)):
        if isinstance(item, str):
            found.append(fields.reading.resolve(Text(label, item), strings.bad_generation))
        else:
            fields.reading.report(label, f"expected text, found {json_type(item)}")
    if fields.raw(key) == []:
        fields.report(key, "is empty: no image could run the daemon")
    return tuple(found)


def true(fields: Fields, key: str, otherwise: str) -> None:
    """true; any other value makes no sense for the reason `otherwise`."""
    if not fields.boolean(key, True):
        fields.report(key, f"expected true; {otherwise}")


def external(fields: Fields, key: str) -> tuple[str, str] | None:
    """The kind and the target of a dependency outside the deployment."""
    found = _one_of(fields.nested(key, EXTERNAL_KINDS), EXTERNAL_KINDS, fields.raw(key) in (None, {}))
    return found if found and found[1] else None


def on_change(fields: Fields, key: str) -> OnChange | None:
    """How a daemon is notified of changed files."""
    found = _one_of(fields.nested(key, REACTIONS), REACTIONS, fields.raw(key) == {})
    if found and found[0] == "signal":
        return OnChange("signal", found[1].removeprefix("SIG"))
    return OnChange(*found) if found else None


def election(fields: Fields, key: str) -> Election | None:
    """Which instance bootstraps a cluster that is down."""
    if fields.raw(key) is None:
        return None
    inside = fields.nested(key, ELECTION_KEYS)
    inside.require("position", "role/command, a command of this definition that prints the position")
    inside.require("members", "how many hosts there are, all of them")
    return Election(**inside.values(ELECTION_KEYS))


def before_stop(fields: Fields, key: str) -> BeforeStop | None:
    """The command that runs before a daemon is stopped: alone, or as an object with its limit."""
    if fields.raw(key) is None:
        return None
    if isinstance(fields.raw(key), dict):
        return BeforeStop(**fields.nested(key, BEFORE_STOP).values(BEFORE_STOP))
    return BeforeStop(command(fields, key) or (), DEFAULT_BEFORE_STOP)


def ready(fields: Fields, key: str) -> Ready:
    """When a daemon is ready."""
    inside = fields.nested(key, {**CHECKS, **TUNING})
    tuned = any(each in inside for each in TUNING)
    kind, value = _one_of(inside, CHECKS, tuned) or ("default", DEFAULT_ALIVE)
    return Ready(kind, value, **inside.values(TUNING))


def _one_of(fields: Fields, kinds: Table, is_required: bool) -> tuple[str, Any] | None:
    """The one key of an object that is in `kinds`, and its value."""
    found = [kind for kind in kinds if kind in fields]
    if len(found) > 1 or (not found and is_required):
        names = " and ".join(found) or "none"
        fields.reading.report(fields.label, f"expected one of {', '.join(kinds)}, found {names}")
    if len(found) != 1:
        return None
    return next(iter(fields.values({found[0]: kinds[found[0]]}).items()))


# -- the keys -------------------------------------------------------------------------------------------
# Each with the function that reads it, and the function's further arguments; the first is the default.

SHARED_KEYS: Table = {
    "command": (command,),
    "dependencies": (dependencies,),
    "env": (env,),
    "files": (files,),
    "user": (Fields.late, None, strings.bad_user, True),
    "retries": (Fields.integer, 0),
    "delay": (Fields.seconds, 5.0),
    "timeout": (Fields.seconds, None, LEAST),
    "stop_grace": (Fields.seconds, 10.0),
}
COMMAND_KEYS: Table = {
    "run_once": (run_once,),
    "generation": (Fields.early, None, strings.bad_generation),
    "succeeds": (succeeds,),
}
DAEMON_KEYS: Table = {
    "ready": (ready,),
    "generations": (generations,),
    "on_change": (on_change,),
    "width": (Fields.integer, None, 1),
    "election": (election,),
    "drain": (Fields.seconds, 0.0),
    "before_stop": (before_stop,),
}
ELECTION_KEYS: Table = {
    "position": (Fields.early, "", strings.bad_path),
    "members": (Fields.integer, 1, 1),
    "start": (command,),
    "start_timeout": (Fields.seconds, None, LEAST),
    "give_up": (Fields.seconds, 20.0, LEAST),
}
BEFORE_STOP: Table = {
    "command": (command,),
    "timeout": (Fields.seconds, DEFAULT_BEFORE_STOP, LEAST),
}
FILE_KEYS: Table = {
    "dest": (Fields.late, "", strings.bad_file),
    "owner": (Fields.late, None, strings.bad_owner, True),
    "perm": (perm, DEFAULT_PERM),
    "optional": (Fields.boolean, False),
    "mounted": (Fields.early, None, strings.bad_file),
    "template": (Fields.boolean, True),
    "check": (command, None),
    "keep_last": (Fields.boolean, False),
}
DEPENDENCY_KEYS: Table = {
    "path": (Fields.early, "", strings.bad_path),
    "scope": (Fields.early, GLOBAL, strings.bad_scope),
    "count": (Fields.integer, None, 1),
    "generation": (Fields.early, None, strings.bad_generation),
    "exclusive": (Fields.boolean, False),
    "timeout": (Fields.seconds, None, LEAST),
}
MEMBERS_KEYS: Table = {
    "members": (Fields.early, "", strings.bad_service),
    "count": (Fields.integer, 1, 1),
    "timeout": (Fields.seconds, None, LEAST),
}
EXTERNAL_KEYS: Table = {
    "external": (external,),
    "interval": (Fields.seconds, 10.0, LEAST_INTERVAL),
    "timeout": (Fields.seconds, None, LEAST),
}
EXTERNAL_KINDS: Table = {
    "tcp": (Fields.early, "", strings.bad_endpoint, True),
    "http": (Fields.early, "", strings.bad_external_url, True),
}
CHECKS: Table = {
    "notify": (true, "for a daemon that does not notify choose another check"),
    "tcp": (Fields.integer, 1, 1, 65535),
    "http": (Fields.late, "", strings.bad_url),
    "command": (command,),
    "alive": (Fields.seconds, DEFAULT_ALIVE),
}
TUNING: Table = {
    "interval": (Fields.seconds, 10.0, LEAST),
    "timeout": (Fields.seconds, 5.0, LEAST),
    "fall": (Fields.integer, 3, 1),
}
REACTIONS: Table = {
    "signal": (Fields.early, "", strings.bad_signal),
    "command": (command,),
    "restart": (true, "without on_change nothing is rendered again"),
}
