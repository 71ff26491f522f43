"""The JSON Schema of a definition, with which editors complete and check it.

What lives here: what each key may hold, as far as JSON Schema can say it; the names of the keys are those
of the agent's parser, and a test holds what they may hold together with it. What needs more than one key
(cycles, the commands of others) is found by `validate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kolla_mesos_start.definition import schema
from kolla_mesos_start.definition.fields import MAX_NUMBER
from kolla_mesos_start.definition.forms import DAEMON, ENDPOINT, EXTERNAL_URL, GLOBAL, LOCAL, SIGNALS, URL

Schema = dict[str, Any]

TEMPLATE: Schema = {"type": "string", "pattern": r"\{[{%#]"}
NULL: Schema = {"type": "null"}
ANYTHING: Schema = {}
SEGMENT = r"(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+"


def _either(*kinds: Schema) -> Schema:
    return {"anyOf": list(kinds)}


def _text(pattern: str = "") -> Schema:
    """A text of this form, or a template, which is checked when it is rendered."""
    return _either({"type": "string", "pattern": pattern}, TEMPLATE) if pattern else {"type": "string"}


def _or_null(kind: Schema) -> Schema:
    return _either(kind, NULL)


def _integer(least: int = 0, most: int = MAX_NUMBER) -> Schema:
    return _either(
        {"type": "integer", "minimum": least, "maximum": most}, _text(_number("[0-9]{1,18}", least))
    )


def _seconds(least: float = 0) -> Schema:
    digits = r"[0-9]{1,18}(\.[0-9]{1,18})?"
    return _either({"type": "number", "minimum": least, "maximum": MAX_NUMBER}, _text(_number(digits, least)))


def _number(digits: str, least: float) -> str:
    not_zero = r"(?!0*(\.0*)?\s*$)" if least else ""
    return rf"^\s*{not_zero}{digits}\s*$"


def _words(*words: str) -> str:
    """Any of the words, in upper or lower case."""
    letters = ("".join(f"[{letter.upper()}{letter}]" for letter in word) for word in words)
    return rf"^\s*({'|'.join(letters)})\s*$"


def _object(
    known: Mapping[str, Schema], required: Iterable[str] = (), ignored: Iterable[str] = (), **more: Any
) -> Schema:
    properties = {**known, **dict.fromkeys(ignored, ANYTHING)}
    found = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return {**found, "required": list(required)} if required else found


def _mapping(names: str, values: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": names}, "additionalProperties": values}


BOOLEAN = _either({"type": "boolean"}, _text(_words("true", "yes", "false", "no")))
NO: Schema = _either({"const": False}, {"type": "string", "pattern": _words("false", "no")})
COMMAND: Schema = _either(
    {"type": "string", "pattern": r"\S"},
    {
        "type": "array",
        "minItems": 1,
        "items": [{"type": "string", "minLength": 1}],
        "additionalItems": {"type": "string"},
    },
)
ABSOLUTE = _text(r"^/(.*/)?(?!\.{0,2}$)[^/]+$")
USER = _text(r"^[^\s:/]+$")
NUMERIC: Schema = {"type": "integer", "minimum": 0}
GENERATION = _or_null({"type": "string", "pattern": r"\S"})

FILE: Mapping[str, Schema] = {
    "dest": {"description": "Where the file is written: an absolute path.", **ABSOLUTE},
    "owner": {
        "description": "``user`` or ``user:group``, names or numbers. Default: the agent's own.",
        **_either(_text(r"^[^\s:/]+(:[^\s:/]+)?$"), NUMERIC, NULL),
    },
    "perm": {
        "default": "0600",
        "description": "The mode: octal, in quotes.",
        **_text("^([0-7]{3,4}|0o0*[0-7]{1,4})$"),
    },
    "optional": {
        "default": False,
        "description": "The content may be missing; then no file is written.",
        **BOOLEAN,
    },
    "mounted": {
        "description": (
            "Take the content from this absolute path in the container, such as a mounted ConfigMap."
        ),
        **_or_null(ABSOLUTE),
    },
    "template": {
        "default": True,
        "description": "false: the content is written as it is, not rendered.",
        **BOOLEAN,
    },
    "check": {
        "description": (
            "A command that a new file must pass before it is placed. ``{}`` in it is the path of the "
            "new file."
        ),
        **_or_null(COMMAND),
    },
    "keep_last": {
        "default": False,
        "description": "true: the file stays as it was while no instance is left of a service that it lists.",
        **BOOLEAN,
    },
}
DEPENDENCY: Mapping[str, Schema] = {
    "path": {"description": "``role/command`` or ``role/daemon``.", **_text(f"^{SEGMENT}/{SEGMENT}$")},
    "scope": {
        "default": "global",
        "description": "``local``: on the same host.",
        **_either({"type": "string", "enum": [GLOBAL, LOCAL]}, TEMPLATE),
    },
    "count": {
        "default": 1,
        "description": (
            "The number of ready instances of a daemon, or of hosts on which a command has succeeded."
        ),
        **_or_null(_integer(least=1)),
    },
    "generation": {
        "description": (
            "The generation for which a one-time command must be done (``any``: one of them), or that a "
            "daemon's instances must have."
        ),
        **GENERATION,
    },
    "exclusive": {
        "default": False,
        "description": "true: and no container of the daemon's service has another generation.",
        **BOOLEAN,
    },
    "timeout": {
        "description": "Seconds to wait for it; then the agent exits with status 75.",
        **_or_null(_seconds(schema.LEAST)),
    },
}
MEMBERS: Mapping[str, Schema] = {
    "members": {
        "description": "The service whose containers must be present, by its whole path.",
        **_text(f"^{SEGMENT}(/{SEGMENT})*$"),
    },
    "count": {"default": 1, "description": "The number of members.", **_integer(least=1)},
    "timeout": DEPENDENCY["timeout"],
}
PROBES: Mapping[str, Schema] = {
    "tcp": {"description": "``host:port`` that must accept connections.", **_text(f"^{ENDPOINT}$")},
    "http": {
        "description": "A URL that must answer with a status of 2xx or 3xx.",
        **_text(f"^{EXTERNAL_URL}$"),
    },
}
EXTERNAL: Mapping[str, Schema] = {
    "external": {
        "description": ('``{"tcp": "host:port"}`` or ``{"http": url}``: something outside the deployment.'),
        **_object(PROBES, oneOf=[{"required": [kind]} for kind in PROBES]),
    },
    "interval": {
        "default": 10,
        "description": "The longest time between two attempts, in seconds.",
        **_seconds(schema.LEAST_INTERVAL),
    },
    "timeout": DEPENDENCY["timeout"],
}
# Only of a daemon's instances it can be said that no other has another generation.
EXCLUSIVE: Schema = {
    "if": {"required": ["exclusive"], "properties": {"exclusive": {"not": NO}}},
    "then": {
        "required": ["generation"],
        "properties": {"path": _text(f"/{DAEMON}$"), "generation": {"type": "string"}},
    },
}
DEPENDENCIES: Schema = {
    "type": ["array", "null"],
    "items": _either(
        DEPENDENCY["path"],
        _object(DEPENDENCY, ["path"], **EXCLUSIVE),
        _object(MEMBERS, ["members"]),
        _object(EXTERNAL, ["external"]),
    ),
}
CHECKS: Mapping[str, Schema] = {
    "notify": {
        "description": "true: the daemon sends READY=1 (sd_notify).",
        **_either({"const": True}, _text(_words("true", "yes"))),
    },
    "tcp": {"description": "A local port that must accept connections.", **_integer(1, 65535)},
    "http": {"description": "A URL that must answer with a status of 2xx or 3xx.", **_text(f"^{URL}$")},
    "command": {"description": "A command that must succeed.", **COMMAND},
    "alive": {"description": "The daemon must have run for so many seconds.", **_seconds()},
}
TUNING: Mapping[str, Schema] = {
    "interval": {"default": 10, "description": "Seconds between two checks.", **_seconds(schema.LEAST)},
    "timeout": {"default": 5, "description": "Seconds that one check may take.", **_seconds(schema.LEAST)},
    "fall": {
        "default": 3,
        "description": "After so many failures in a row the daemon is no longer ready.",
        **_integer(least=1),
    },
}
READY: Schema = _or_null(
    _object({**CHECKS, **TUNING}, oneOf=[{"maxProperties": 0}, *({"required": [check]} for check in CHECKS)])
)
REACTIONS: Mapping[str, Schema] = {
    "signal": {
        "description": "The signal that the daemon gets, such as ``HUP``.",
        **_either({"enum": [prefix + name for prefix in ("", "SIG") for name in SIGNALS]}, TEMPLATE),
    },
    "command": {"description": "A command that is run in the daemon's container.", **COMMAND},
    "restart": {
        "description": "true: the daemon is stopped and started again. Needs ``KOLLA_START_MODE=supervise``.",
        **_either({"const": True}, _text(_words("true", "yes"))),
    },
}
ON_CHANGE: Schema = _or_null(_object(REACTIONS, oneOf=[{"required": [kind]} for kind in REACTIONS]))
SHARED: Mapping[str, Schema] = {
    "command": {
        "description": (
            "A list is argv. A string is split into words as a shell would and run directly; if it "
            "contains shell syntax, it runs as ``/bin/sh -c``. ``kolla_extend_start`` is sourced, as in"
            " Kolla's own start script."
        ),
        **COMMAND,
    },
    "dependencies": {"description": "What must be done or ready before: see *Dependencies*.", **DEPENDENCIES},
    "env": {
        "description": "Added to the environment. null sets an empty variable.",
        **_or_null(_mapping("^[^=]+$", {"type": ["string", "number", "boolean", "null"]})),
    },
    "files": {
        "description": "Config files, by the name of their content in ``files/``: see *Files*.",
        **_or_null(_mapping(f"^{SEGMENT}$", _object(FILE, ["dest"], ["source"]))),
    },
    "user": {
        "description": "Run as this user, with its supplementary groups. Needs root. Default: unchanged.",
        **_either(USER, NUMERIC, NULL),
    },
    "retries": {"default": 0, "description": "Attempts after the first one has failed.", **_integer()},
    "delay": {"default": 5, "description": "Seconds between attempts.", **_seconds()},
    "timeout": {
        "description": "Seconds; then all processes of the command get TERM and, after ``stop_grace``, KILL.",
        **_or_null(_seconds(schema.LEAST)),
    },
    "stop_grace": {"default": 10, "description": "Seconds between TERM and KILL.", **_seconds()},
}
STATUS: Schema = _either(
    {"type": "integer", "minimum": 0, "maximum": schema.MOST_STATUS},
    _text(r"^\s*0*(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\s*$"),
)
COMMANDS: Mapping[str, Schema] = {
    "run_once": {
        "default": False,
        "description": '``true``: once in the deployment, under a lock. ``"host"``: once on each host.',
        **_either({"type": "boolean"}, _text(_words("true", "yes", "false", "no")), _text(r"^\s*host\s*$")),
    },
    "generation": {
        "description": (
            "With ``run_once``: once for each value, for example an image tag. An upgrade runs the "
            "command again, a rollback does not."
        ),
        **GENERATION,
    },
    "succeeds": {
        "default": [0],
        "description": "The exit statuses that count as success. Any except 0 is logged as a warning.",
        **_or_null({"type": "array", "minItems": 1, "items": STATUS}),
    },
}
STEP: Schema = _object(
    {**SHARED, **COMMANDS},
    ["command"],
    schema.UNREAD_KEYS,
    **{
        "if": {"required": ["generation"], "properties": {"generation": {"type": "string"}}},
        "then": {"required": ["run_once"], "properties": {"run_once": {"not": NO}}},
    },
)
DAEMONS: Mapping[str, Schema] = {
    "ready": {"description": "When the daemon counts as ready: see *Readiness*.", **READY},
    "retired_by": {
        "description": (
            "``role/command``, the last step of an upgrade. Once it is done for a newer generation, "
            "containers of older images exit with status 76 instead of starting the daemon."
        ),
        **_or_null(_text(f"^{SEGMENT}/{SEGMENT}$")),
    },
    "on_change": {
        "description": (
            "How the daemon is notified of changed files: see *on_change*. Without it, its files never "
            "change."
        ),
        **ON_CHANGE,
    },
    "width": {
        "description": "How many instances may refresh their files at the same time. Default: all.",
        **_or_null(_integer(least=1)),
    },
}
DAEMON_STEP: Schema = _object(
    {**SHARED, **DAEMONS},
    ["command"],
    schema.UNREAD_KEYS,
    dependencies={"width": ["on_change"]},
)
SERVICE: Schema = {
    "type": ["object", "null"],
    "properties": {
        DAEMON: {"description": "the process that a container ends with", **DAEMON_STEP},
        "instances": {"description": "how many are wanted; without it 1", **_or_null(_integer())},
    },
}
DEFINITION: Schema = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "A service of kolla_mesos_start",
    **_object(
        {
            "name": {"description": "the service that it is published for", "type": "string"},
            "commands": {
                "description": "what runs before the daemon, each when its dependencies are satisfied",
                **_or_null(_mapping(f"^(?!{DAEMON}$){SEGMENT}$", STEP)),
            },
            "service": SERVICE,
        },
        ignored=schema.SCHEDULER_KEYS,
        anyOf=[
            {"required": ["commands"], "properties": {"commands": {"type": "object", "minProperties": 1}}},
            {"required": ["service"], "properties": {"service": {"type": "object", "required": [DAEMON]}}},
        ],
    ),
}
