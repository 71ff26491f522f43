"""The JSON Schema of a definition, with which editors complete and check it, and the meaning of each key.

The keys, their defaults and their forms come from the tables of the agent's parser; MEANINGS has the same
keys. A test compares which values both accept. `validate` finds mistakes that need more than one key, such as
cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from kolla_mesos_start.definition import keys, strings
from kolla_mesos_start.definition.document import MAX_NUMBER, Fields
from kolla_mesos_start.definition.strings import (
    DAEMON,
    ELECTION,
    ENDED,
    ENDPOINT,
    EXTERNAL_URL,
    GLOBAL,
    LOCAL,
    SIGNALS,
    URL,
)

OBJECTS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "shared": keys.SHARED_KEYS,
    "command": keys.COMMAND_KEYS,
    "daemon": keys.DAEMON_KEYS,
    "file": keys.FILE_KEYS,
    "dependency": keys.DEPENDENCY_KEYS,
    "members": keys.MEMBERS_KEYS,
    "external": keys.EXTERNAL_KEYS,
    "target": keys.EXTERNAL_KINDS,
    "ready": {**keys.CHECKS, **keys.TUNING},
    "on_change": keys.REACTIONS,
    "election": keys.ELECTION_KEYS,
    "before_stop": keys.BEFORE_STOP,
}
TIMEOUT = "Seconds to wait for it; then the agent exits with status 75."
URL_MEANING = "A URL that must answer with a status of 2xx or 3xx."
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "shared": {
        "command": "A list is argv. A string is split into words as a shell would and run directly; if it"
        " contains shell syntax, it runs as ``/bin/sh -c``. ``kolla_extend_start`` is sourced, as in Kolla's"
        " own start script.",
        "dependencies": "What must be done or ready before: see *Dependencies*.",
        "env": "Added to the environment. null sets an empty variable.",
        "files": "Config files, by the name of their content in ``files/``: see *Files*.",
        "user": "Run as this user, with its supplementary groups. Needs root. Default: unchanged.",
        "retries": "Attempts after the first one has failed.",
        "delay": "Seconds between attempts.",
        "timeout": "Seconds; then all processes of the command get TERM and, after ``stop_grace``, KILL.",
        "stop_grace": "Seconds between TERM and KILL.",
    },
    "command": {
        "run_once": '``true``: once in the deployment, under a lock. ``"host"``: once on each host.',
        "generation": "With ``run_once``: once for each value, for example an image tag. An upgrade runs the"
        " command again, a rollback does not.",
        "succeeds": "The exit statuses that count as success. Any except 0 is logged as a warning.",
    },
    "daemon": {
        "ready": "When the daemon counts as ready: see *Readiness*.",
        "generations": "The generations of images that may run the daemon: a container of another one exits"
        " with status 76 instead of starting it. Default: any.",
        "on_change": "How the daemon is notified of changed files: see *on_change*. Without it, its files"
        " never change.",
        "width": "How many instances may refresh their files at the same time. Default: all.",
        "election": "Which instance bootstraps a cluster that is down: see *election*. Default: each instance"
        " is started with ``command``.",
        "drain": "Seconds between withdrawing the daemon and stopping it: see *Stopping*.",
        "before_stop": "A command that runs before the daemon gets SIGTERM: see *Stopping*.",
    },
    "file": {
        "dest": "Where the file is written: an absolute path.",
        "owner": "``user`` or ``user:group``, names or numbers. Default: the agent's own.",
        "perm": "The mode: octal, in quotes.",
        "optional": "The content may be missing; then no file is written.",
        "mounted": "Take the content from this absolute path in the container, such as a mounted ConfigMap.",
        "template": "false: the content is written as it is, not rendered.",
        "check": "A command that a new file must pass before it is placed. ``{}`` in it is the path of the"
        " new file.",
        "keep_last": "true: the file stays as it was while no instance is left of a service that it lists.",
    },
    "dependency": {
        "path": "``role/command`` or ``role/daemon``.",
        "scope": "``local``: on the same host.",
        "count": "The number of ready instances of a daemon, or of hosts on which a command has succeeded.",
        "generation": "The generation for which a one-time command must be done (``any``: one of them), or"
        " that a daemon's instances must have.",
        "exclusive": "true: and no container of the daemon's service has another generation.",
        "timeout": TIMEOUT,
    },
    "members": {
        "members": "The service whose containers must be present, by its whole path.",
        "count": "The number of members.",
        "timeout": TIMEOUT,
    },
    "external": {
        "external": '``{"tcp": "host:port"}`` or ``{"http": url}``: something outside the deployment.',
        "interval": "The longest time between two attempts, in seconds.",
        "timeout": TIMEOUT,
    },
    "target": {"tcp": "``host:port`` that must accept connections.", "http": URL_MEANING},
    "ready": {
        "notify": "true: the daemon sends READY=1 (sd_notify).",
        "tcp": "A port that must accept connections on one of the host's own addresses: loopback, private,"
        " public or ``KOLLA_ADDRESS``.",
        "http": URL_MEANING,
        "command": "A command that must succeed.",
        "alive": "The daemon must have run for so many seconds.",
        "interval": "Seconds between two checks.",
        "timeout": "Seconds that one check may take.",
        "fall": "After so many failures in a row the daemon is no longer ready.",
    },
    "on_change": {
        "signal": "The signal that the daemon gets, such as ``HUP``.",
        "command": "A command that is run in the daemon's container.",
        "restart": "true: the daemon is stopped and started again. Needs ``KOLLA_START_MODE=supervise``.",
    },
    "election": {
        "position": "``role/command`` of this definition, without ``run_once``. The last line of its output"
        " is ``GROUP:NUMBER``, ``NUMBER``, or ``none`` if the host has no data.",
        "members": "How many hosts there are, all of them.",
        "start": "The command of the instance that bootstraps the cluster, in place of ``command``.",
        "start_timeout": "Seconds that this instance may take to become ready; then it is ended. Default: no"
        " limit.",
        "give_up": "Seconds that a daemon may be not ready while no instance is ready; then it is ended, so"
        " that all hosts can be candidates again.",
    },
    "before_stop": {
        "command": "The command. It has the daemon's environment and user.",
        "timeout": "Seconds; then the command is killed, and the daemon is stopped.",
    },
}
# Defaults that the parser determines in another way.
DEFAULTS = {("command", "run_once"): False, ("command", "succeeds"): [0], ("dependency", "count"): 1}

Schema = dict[str, Any]

TEMPLATE: Schema = {"type": "string", "pattern": r"\{[{%#]"}
SEGMENT = r"(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+"


def default_of(kind: str, key: str) -> Any:
    """The default of a key; None if it has none."""
    if (kind, key) in DEFAULTS:
        return DEFAULTS[kind, key]
    default = (*OBJECTS[kind][key][1:], None)[0]
    if (
        default == ""
        or (kind, key) == ("election", "members")
        or kind == "on_change"
        or (kind == "ready" and key in keys.CHECKS)
    ):
        return None
    return int(default) if isinstance(default, float) and default.is_integer() else default


def _either(*kinds: Schema) -> Schema:
    return {"anyOf": list(kinds)}


def _text(pattern: str) -> Schema:
    """A text of this form, or a template, which is checked when it is rendered."""
    return _either({"type": "string", "pattern": pattern}, TEMPLATE)


def _or_null(kind: Schema) -> Schema:
    return _either(kind, {"type": "null"})


def _number(kind: str, digits: str, least: float, most: float = MAX_NUMBER) -> Schema:
    not_zero = r"(?!0*(\.0*)?\s*$)" if least else ""
    return _either({"type": kind, "minimum": least, "maximum": most}, _text(rf"^\s*{not_zero}{digits}\s*$"))


def _integer(default: int | None, least: int = 0, most: int = MAX_NUMBER) -> Schema:
    return _number("integer", "[0-9]{1,18}", least, most)


def _seconds(default: float | None, least: float = 0) -> Schema:
    return _number("number", r"[0-9]{1,18}(\.[0-9]{1,18})?", least)


def _words(*words: str) -> str:
    """Any of the words, in upper or lower case."""
    letters = ("".join(f"[{letter.upper()}{letter}]" for letter in word) for word in words)
    return rf"^\s*({'|'.join(letters)})\s*$"


def _object(
    known: Mapping[str, Schema], required: Iterable[str] = (), ignored: Iterable[str] = (), **more: Any
) -> Schema:
    properties = {**known, **{key: {} for key in ignored}}
    found = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return {**found, "required": list(required)} if required else found


def _one_of(known: Mapping[str, Schema], kinds: Iterable[str], *others: Schema) -> Schema:
    return _object(known, oneOf=[*others, *({"required": [kind]} for kind in kinds)])


def _mapping(names: str, values: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": names}, "additionalProperties": values}


# -- the schema of each form and of each function that reads a key ------------------------------------

FORMS: Mapping[Callable[[str], Any], Schema] = {
    strings.bad_endpoint: _text(f"^{ENDPOINT}$"),
    strings.bad_external_url: _text(f"^{EXTERNAL_URL}$"),
    strings.bad_file: _text(r"^/(.*/)?(?!\.{0,2}$)[^/]+$"),
    strings.bad_generation: {"type": "string", "pattern": r"\S"},
    strings.bad_owner: _text(r"^[^\s:/]+(:[^\s:/]+)?$"),
    strings.bad_path: _text(f"^{SEGMENT}/{SEGMENT}$"),
    strings.bad_scope: _either({"type": "string", "enum": [GLOBAL, LOCAL]}, TEMPLATE),
    strings.bad_service: _text(f"^{SEGMENT}(/{SEGMENT})*$"),
    strings.bad_signal: _either(
        {"enum": [prefix + name for prefix in ("", "SIG") for name in SIGNALS]}, TEMPLATE
    ),
    strings.bad_url: _text(f"^{URL}$"),
    strings.bad_user: _text(r"^[^\s:/]+$"),
}
BOOLEAN = _either({"type": "boolean"}, _text(_words("true", "yes", "false", "no")))
TRUE = _either({"const": True}, _text(_words("true", "yes")))
NO: Schema = _either({"const": False}, {"type": "string", "pattern": _words("false", "no")})
NUMERIC: Schema = {"type": "integer", "minimum": 0}
COMMAND: Schema = _either(
    {"type": "string", "pattern": r"\S"},
    {
        "type": "array",
        "minItems": 1,
        "items": [{"type": "string", "minLength": 1}],
        "additionalItems": {"type": "string"},
    },
)
GENERATION: Schema = {"type": "string", "pattern": r"\S"}
STATUS: Schema = _either(
    {"type": "integer", "minimum": 0, "maximum": keys.MOST_STATUS},
    _text(r"^\s*0*(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\s*$"),
)
# Only a daemon's instances can exclude another generation.
EXCLUSIVE: Schema = {
    "if": {"required": ["exclusive"], "properties": {"exclusive": {"not": NO}}},
    "then": {
        "required": ["generation"],
        "properties": {"path": _text(f"/{DAEMON}$"), "generation": {"type": "string"}},
    },
}


def _properties(kind: str) -> dict[str, Schema]:
    """The schema of each key of one kind of object."""
    return {key: _property(kind, key, *row) for key, row in OBJECTS[kind].items()}


def _property(kind: str, key: str, read: Any, *arguments: Any) -> Schema:
    value, default = READERS[read](*arguments), default_of(kind, key)
    found = {} if default is None else {"default": default}
    found["description"] = MEANINGS[kind][key]
    return {**found, **(_or_null(value) if arguments[:1] == (None,) else value)}


def _dependencies() -> Schema:
    items = _either(
        FORMS[strings.bad_path],
        _object(_properties("dependency"), ["path"], **EXCLUSIVE),
        _object(_properties("members"), ["members"]),
        _object(_properties("external"), ["external"]),
    )
    return {"type": ["array", "null"], "items": items}


READERS: Mapping[Any, Callable[..., Schema]] = {
    Fields.boolean: lambda default: BOOLEAN,
    Fields.integer: _integer,
    Fields.seconds: _seconds,
    Fields.late: lambda default, form, number=False: _either(FORMS[form], NUMERIC) if number else FORMS[form],
    Fields.early: lambda default, form, secret=False: FORMS[form],
    keys.command: lambda *default: COMMAND,
    keys.dependencies: _dependencies,
    keys.election: lambda: _or_null(_object(_properties("election"), ["position", "members", "start"])),
    keys.env: lambda: _or_null(_mapping("^[^=]+$", {"type": ["string", "number", "boolean", "null"]})),
    keys.external: lambda: _one_of(_properties("target"), keys.EXTERNAL_KINDS),
    keys.files: lambda: _or_null(
        _mapping(f"^{SEGMENT}$", _object(_properties("file"), ["dest"], ["source"]))
    ),
    keys.before_stop: lambda: _or_null(_either(COMMAND, _object(_properties("before_stop"), ["command"]))),
    keys.on_change: lambda: _or_null(_one_of(_properties("on_change"), keys.REACTIONS)),
    keys.perm: lambda default: _text("^([0-7]{3,4}|0o0*[0-7]{1,4})$"),
    keys.ready: lambda: _or_null(_one_of(_properties("ready"), keys.CHECKS, {"maxProperties": 0})),
    keys.run_once: lambda: _either(*BOOLEAN["anyOf"], _text(r"^\s*host\s*$")),
    keys.generations: lambda: _or_null({"type": "array", "minItems": 1, "items": GENERATION}),
    keys.succeeds: lambda: _or_null({"type": "array", "minItems": 1, "items": STATUS}),
    keys.true: lambda otherwise: TRUE,
}
STEP: Schema = _object(
    {**_properties("shared"), **_properties("command")},
    ["command"],
    keys.UNREAD_KEYS,
    **{
        "if": {"required": ["generation"], "properties": {"generation": {"type": "string"}}},
        "then": {"required": ["run_once"], "properties": {"run_once": {"not": NO}}},
    },
)
DAEMON_STEP: Schema = _object(
    {**_properties("shared"), **_properties("daemon")},
    ["command"],
    keys.UNREAD_KEYS,
    dependencies={"width": ["on_change"]},
)
SERVICE: Schema = {
    "type": ["object", "null"],
    "properties": {
        DAEMON: {"description": "The process that a container runs in the end.", **DAEMON_STEP},
        "instances": {
            "description": "How many containers are wanted. Default: 1.",
            **_or_null(_integer(None)),
        },
    },
}
DEFINITION: Schema = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "A service of kolla_mesos_start",
    **_object(
        {
            "name": {"description": "The service for which it is published.", "type": "string"},
            "commands": {
                "description": "Commands that run before the daemon, each after its dependencies.",
                **_or_null(_mapping(f"^(?!({DAEMON}|{ENDED}|{ELECTION})$){SEGMENT}$", STEP)),
            },
            "service": SERVICE,
        },
        ignored=keys.SCHEDULER_KEYS,
        anyOf=[
            {"required": ["commands"], "properties": {"commands": {"type": "object", "minProperties": 1}}},
            {"required": ["service"], "properties": {"service": {"type": "object", "required": [DAEMON]}}},
        ],
    ),
}
