"""What each key of a definition means: a Document becomes the command graph of its service.

Templates are rendered by a function that the caller passes in: those of `early_texts` here, the
others by `resolve` when the command is about to run.
"""

from __future__ import annotations

import json

from kolla_mesos_start.definition import argv, forms
from kolla_mesos_start.definition.cycles import check_own_dependencies
from kolla_mesos_start.definition.document import digest, json_type
from kolla_mesos_start.definition.fields import Fields, Reading, to_boolean
from kolla_mesos_start.definition.forms import ANY, DAEMON, ENDED, GLOBAL, LOCAL
from kolla_mesos_start.definition.model import (
    Command,
    Dependency,
    External,
    File,
    Graph,
    Members,
    OnChange,
    Ready,
)
from kolla_mesos_start.definition.texts import Text, labelled, rendered_by, sublabel
from kolla_mesos_start.errors import BadDefinition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kolla_mesos_start.definition.document import Document
    from kolla_mesos_start.definition.texts import Render

SHARED_KEYS = (
    *("command", "dependencies", "env", "files", "user"),
    *("retries", "delay", "timeout", "stop_grace"),
)
COMMAND_KEYS = ("run_once", "generation", "succeeds")
DAEMON_KEYS = ("ready", "retired_by", "on_change", "width")
CHECKS = ("notify", "tcp", "http", "command", "alive")
PROBES = ("tcp", "http")
REACTIONS = ("signal", "command", "restart")
# Accepted and ignored: what kolla-mesos wrote for its schedulers, and what it allowed but never read.
SCHEDULER_KEYS = ("enabled", "container", "task", "openstack_role", "openstack_roles", "mem", "cpus")
UNREAD_KEYS = ("reload_signal",)

DEFAULT_PERM = "0600"
DEFAULT_ALIVE = 20.0
"""After so many seconds alive a daemon is ready that never notifies, if its definition has no check."""
MOST_STATUS = 255
LEAST = 0.001
"""The least number of seconds where 0 would make no sense."""
LEAST_INTERVAL = 0.1
"""The least number of seconds between two questions to what all containers may ask."""


def build(document: Document, service_name: str, render: Render) -> Graph:
    """The command graph of a service. Raises BadDefinition with all issues.

    `render` is called with the templates that `early_texts` returns.
    """
    graph, issues = read(document, service_name, render)
    if issues:
        raise BadDefinition(issues)
    return graph._replace(digest=digest(document))


def early_texts(document: Document) -> tuple[Text, ...]:
    """The templates that `build` renders: dependencies, numbers, booleans, generations."""
    return rendered_by(lambda render: read(document, "", render))


def read(document: Document, service_name: str, render: Render) -> tuple[Graph, list[str]]:
    """The command graph as far as it can be read, and all issues."""
    reading = Reading(render)
    root = Fields(reading, "", document.root, ("name", "commands", "service"), ignored=SCHEDULER_KEYS)
    _check_name(root, service_name)
    role = service_name.rsplit("/", 1)[-1]
    commands = tuple(_commands(root, role))
    service = root.mapping("service")
    daemon = _daemon(reading, role, service[DAEMON]) if DAEMON in service else None
    if not root.raw("commands") and daemon is None:
        reading.report("definition", "has nothing to run: expected commands, or service.daemon")
    graph = Graph(service_name, commands, daemon)
    check_own_dependencies(reading, graph)
    return graph, reading.issues


def _check_name(root: Fields, service_name: str) -> None:
    name = root.raw("name")
    if "name" in root and name != service_name:
        shown = repr(name) if isinstance(name, str) else json_type(name)
        root.report("name", f"expected {service_name!r}, the service it is published for, found {shown}")


def _commands(root: Fields, role: str) -> Iterator[Command]:
    for name, value in root.mapping("commands").items():
        label = sublabel("commands", name)
        if name == DAEMON:
            root.reading.report(
                label, "is not allowed as the name of a command: the daemon belongs under service"
            )
        elif name == ENDED:
            root.reading.report(label, "is not allowed as the name of a command: give it another one")
        elif forms.bad_segment(name):
            root.reading.report(label, forms.bad_segment(name) or "")
        else:
            yield _command(root.reading, label, role, name, value)


def _command(reading: Reading, label: str, role: str, name: str, value: object) -> Command:
    misplaced = dict.fromkeys(DAEMON_KEYS, f"is only allowed in service.{DAEMON}")
    misplaced["ready"] += ": a command is done when it has succeeded"
    fields = Fields(reading, label, value, (*SHARED_KEYS, *COMMAND_KEYS), UNREAD_KEYS, misplaced)
    run_once = _run_once(fields)
    generation = fields.text("generation", None, forms.bad_generation)
    succeeds = tuple(_succeeds(fields))
    return _step(fields, role, name)._replace(run_once=run_once, generation=generation, succeeds=succeeds)


def _daemon(reading: Reading, role: str, value: object) -> Command:
    misplaced = dict.fromkeys(COMMAND_KEYS, "is not allowed here: the daemon runs in every container")
    misplaced["succeeds"] = "is not allowed here: the daemon's exit status is the container's"
    fields = Fields(reading, f"service.{DAEMON}", value, (*SHARED_KEYS, *DAEMON_KEYS), UNREAD_KEYS, misplaced)
    if "width" in fields and "on_change" not in fields:
        fields.report("width", "is only allowed with on_change")
    return _step(fields, role, DAEMON)._replace(
        ready=_ready(fields),
        retired_by=_retired_by(fields, role),
        on_change=_on_change(fields) if fields.raw("on_change") is not None else None,
        width=fields.integer("width", None, least=1),
    )


def _step(fields: Fields, role: str, name: str) -> Command:
    """The keys that a command and the daemon share."""
    return Command(
        path=f"{role}/{name}",
        name=name,
        command=_command_text(fields),
        dependencies=tuple(_dependencies(fields)),
        run_once=None,
        generation=None,
        env=tuple(_env(fields)),
        files=tuple(_files(fields)),
        succeeds=(0,),
        retries=fields.integer("retries", 0),
        delay=fields.seconds("delay", 5.0),
        timeout=fields.seconds("timeout", None, least=LEAST),
        stop_grace=fields.seconds("stop_grace", 10.0),
        user=fields.template("user", None, forms.bad_user, number=True),
        ready=None,
        retired_by=None,
        on_change=None,
        width=None,
    )


def _command_text(fields: Fields, key: str = "command") -> str | tuple[str, ...]:
    """A command: a string, or a list of strings."""
    if not fields.require(key, "text or a list of texts"):
        return ()
    value = fields.raw(key)
    if isinstance(value, str):
        fields.reading.check(Text(fields.label_of(key), value), argv.problem)
        return value
    if not isinstance(value, list):
        fields.report(key, f"expected text or a list of texts, found {json_type(value)}")
        return ()
    words = []
    for label, item in labelled(fields.label_of(key), value):
        if isinstance(item, str):
            fields.reading.check(Text(label, item), forms.any_text)
            words.append(item)
        else:
            fields.reading.report(label, f"expected text, found {json_type(item)}")
    if len(words) == len(value) and argv.problem(tuple(words)):
        fields.report(key, argv.EMPTY)
    return tuple(words)


def _succeeds(fields: Fields) -> Iterator[int]:
    if fields.raw("succeeds") is None:
        yield 0
        return
    if fields.raw("succeeds") == []:
        fields.report("succeeds", "is empty: expected exit statuses, such as [0, 1]")
    for label, item in labelled(fields.label_of("succeeds"), fields.items("succeeds")):
        status = fields.reading.integer(label, item)
        if status is None or not 0 <= status <= MOST_STATUS:
            fields.reading.report(label, f"expected an exit status, a whole number from 0 to {MOST_STATUS}")
        else:
            yield status


def _run_once(fields: Fields) -> str | None:
    value = fields.rendered("run_once", False)
    if isinstance(value, str) and value.strip() == "host":
        return LOCAL
    flag = to_boolean(value)
    if flag is None:
        fields.report("run_once", f'expected true, false or "host"{fields.found("run_once")}')
    elif not flag and fields.raw("generation") is not None:
        fields.report("generation", "is only allowed with run_once")
    return GLOBAL if flag else None


def _dependencies(fields: Fields) -> Iterator[Dependency | Members | External]:
    for label, item in labelled(fields.label_of("dependencies"), fields.items("dependencies")):
        value = {"path": item} if isinstance(item, str) else item
        dependency: Dependency | Members | External | None
        if isinstance(value, dict) and "members" in value:
            dependency = _members(Fields(fields.reading, label, value, ("members", "count", "timeout")))
        elif isinstance(value, dict) and "external" in value:
            dependency = _external(Fields(fields.reading, label, value, ("external", "interval", "timeout")))
        else:
            dependency = _dependency(Fields(fields.reading, label, value, Dependency._fields))
        if dependency:
            yield dependency


def _dependency(fields: Fields) -> Dependency | None:
    dependency = Dependency(
        path=fields.text("path", "", forms.bad_path),
        scope=fields.text("scope", GLOBAL, forms.bad_scope),
        count=fields.integer("count", None, least=1),
        generation=fields.text("generation", None, forms.bad_generation),
        exclusive=fields.boolean("exclusive", False),
        timeout=fields.seconds("timeout", None, least=LEAST),
    )
    if dependency.is_daemon and dependency.generation == ANY:
        dependency = dependency._replace(generation=None)
    fields.require("path", "role/command (or members: the path of a service, or external: tcp or http)")
    if dependency.exclusive and not (dependency.is_daemon and dependency.generation):
        fields.report("exclusive", f"is only allowed on role/{DAEMON}, with generation")
    return dependency if dependency.path else None


def _members(fields: Fields) -> Members | None:
    members = Members(
        service=fields.text("members", "", forms.bad_service),
        count=fields.integer("count", 1, least=1),
        timeout=fields.seconds("timeout", None, least=LEAST),
    )
    return members if members.service else None


def _external(fields: Fields) -> External | None:
    target = Fields(fields.reading, fields.label_of("external"), fields.raw("external"), PROBES)
    kinds = [kind for kind in PROBES if kind in target]
    if len(kinds) > 1 or fields.raw("external") in (None, {}):
        found = " and ".join(kinds) or "none"
        fields.report("external", f"expected one of {', '.join(PROBES)}, found {found}")
    if len(kinds) != 1:
        return None
    form = forms.bad_endpoint if kinds[0] == "tcp" else forms.bad_external_url
    external = External(
        kind=kinds[0],
        value=target.text(kinds[0], "", form, secret=True),
        interval=fields.seconds("interval", 10.0, least=LEAST_INTERVAL),
        timeout=fields.seconds("timeout", None, least=LEAST),
    )
    return external if external.value else None


def _env(fields: Fields) -> Iterator[tuple[str, str]]:
    for name, value in fields.mapping("env").items():
        label = sublabel(fields.label_of("env"), name)
        if isinstance(value, (list, dict)):
            fields.reading.report(
                label, f"expected text, a number, true, false or null, found {json_type(value)}"
            )
            continue
        text = _as_text(value)
        fields.reading.check_name(label, name, forms.bad_variable)
        fields.reading.check(Text(label, text), forms.any_text)
        yield name, text


def _as_text(value: object) -> str:
    """A value for the environment: null is empty text, which KOLLA_BOOTSTRAP needs; others as in JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _files(fields: Fields) -> Iterator[File]:
    for name, value in fields.mapping("files").items():
        label = sublabel(fields.label_of("files"), name)
        fields.reading.check_name(label, name, forms.bad_segment)
        yield _file(Fields(fields.reading, label, value, File._fields[1:], ignored=("source",)), name)


def _file(fields: Fields, name: str) -> File:
    fields.require("dest", "the absolute path of a file")
    return File(
        name=name,
        dest=fields.template("dest", "", forms.bad_file),
        owner=fields.template("owner", None, forms.bad_owner, number=True),
        perm=_perm(fields),
        optional=fields.boolean("optional", False),
        mounted=fields.text("mounted", None, forms.bad_file),
        template=fields.boolean("template", True),
        check=_command_text(fields, "check") if fields.raw("check") is not None else None,
        keep_last=fields.boolean("keep_last", False),
    )


def _perm(fields: Fields) -> str:
    # YAML reads an unquoted 0600 as 384, but 600 as 600: the number doesn't show which mode was meant.
    if json_type(fields.raw("perm")) == "a number":
        fields.report("perm", 'expected octal text such as "0600", found a number: put it in quotes')
        return DEFAULT_PERM
    return fields.template("perm", DEFAULT_PERM, forms.bad_perm)


def _retired_by(daemon: Fields, role: str) -> str | None:
    path = daemon.text("retired_by", None, forms.bad_path)
    if path and (path.split("/")[0] == role or path.endswith(f"/{DAEMON}")):
        daemon.report("retired_by", "expected a one-time command of another service")
    return path


def _on_change(daemon: Fields) -> OnChange | None:
    fields = Fields(daemon.reading, daemon.label_of("on_change"), daemon.raw("on_change"), REACTIONS)
    kinds = [kind for kind in REACTIONS if kind in fields]
    if len(kinds) > 1 or daemon.raw("on_change") == {}:
        found = " and ".join(kinds) or "none"
        daemon.report("on_change", f"expected one of {', '.join(REACTIONS)}, found {found}")
    if len(kinds) != 1:
        return None
    if kinds[0] == "signal":
        return OnChange("signal", fields.text("signal", "", forms.bad_signal).removeprefix("SIG"))
    if kinds[0] == "command":
        return OnChange("command", _command_text(fields))
    if not fields.boolean("restart", True):
        fields.report("restart", "expected true; without on_change nothing is rendered again")
    return OnChange("restart", None)


def _ready(daemon: Fields) -> Ready:
    tuning = ("interval", "timeout", "fall")
    fields = Fields(daemon.reading, daemon.label_of("ready"), daemon.raw("ready"), (*CHECKS, *tuning))
    checks = [check for check in CHECKS if check in fields]
    if len(checks) > 1 or (not checks and any(key in fields for key in tuning)):
        found = " and ".join(checks) or "none"
        daemon.report("ready", f"expected one of {', '.join(CHECKS)}, found {found}")
    check = checks[0] if checks else "default"
    return Ready(
        kind=check,
        value=_ready_value(fields, check),
        interval=fields.seconds("interval", 10.0, least=LEAST),
        timeout=fields.seconds("timeout", 5.0, least=LEAST),
        fall=fields.integer("fall", 3, least=1),
    )


def _ready_value(fields: Fields, check: str) -> int | float | str | tuple[str, ...] | None:
    if check == "notify":
        if not fields.boolean("notify", True):
            fields.report("notify", "expected true; for a daemon that does not notify choose another check")
        return None
    if check == "tcp":
        return fields.integer("tcp", 1, least=1, most=65535)
    if check == "http":
        return fields.template("http", "", forms.bad_url)
    if check == "command":
        return _command_text(fields)
    return fields.seconds("alive", DEFAULT_ALIVE)
