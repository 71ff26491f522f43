"""`kolla_mesos_ctl schema`: the JSON Schema of a definition, with which editors complete and check it.

What lives here: what each key may hold, as far as JSON Schema can say it; the names of the keys are those
of the agent's parser, and a test holds what they may hold together with it. What needs more than one key
(cycles, the commands of others) is found by `validate`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from kolla_mesos_start.definition import schema
from kolla_mesos_start.definition.fields import MAX_NUMBER
from kolla_mesos_start.definition.forms import DAEMON, ENDPOINT, EXTERNAL_URL, GLOBAL, LOCAL, SIGNALS, URL
from kolla_mesos_start.operator.invocation import Invocation, Subcommand

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
    "dest": {"description": "where it is written: an absolute path", **ABSOLUTE},
    "owner": {
        "description": "user or user:group",
        **_either(_text(r"^[^\s:/]+(:[^\s:/]+)?$"), NUMERIC, NULL),
    },
    "perm": {
        "description": "octal, in quotes; without it 0600",
        **_text("^([0-7]{3,4}|0o0*[0-7]{1,4})$"),
    },
    "optional": {"description": "whether its content may be missing", **BOOLEAN},
    "mounted": {"description": "a path in the container that has its content", **_or_null(ABSOLUTE)},
    "template": {"description": "false: it is written as it is", **BOOLEAN},
    "check": {"description": "a command that a new file must pass; {} is its path", **_or_null(COMMAND)},
    "keep_last": {
        "description": "true: it stays as it was while none of the instances that it lists is left",
        **BOOLEAN,
    },
}
DEPENDENCY: Mapping[str, Schema] = {
    "path": {"description": "role/command, or role/daemon", **_text(f"^{SEGMENT}/{SEGMENT}$")},
    "scope": {
        "description": "local: on the same host",
        **_either({"type": "string", "enum": [GLOBAL, LOCAL]}, TEMPLATE),
    },
    "count": {
        "description": "ready instances of a daemon, hosts of a command; without it 1",
        **_or_null(_integer(least=1)),
    },
    "generation": {
        "description": "the one for which it must be done (any: one of them); of a daemon: that its instances"
        " must have",
        **GENERATION,
    },
    "exclusive": {
        "description": "true: no container of the daemon's service may have another generation",
        **BOOLEAN,
    },
    "timeout": {"description": "seconds after which the agent ends", **_or_null(_seconds(schema.LEAST))},
}
MEMBERS: Mapping[str, Schema] = {
    "members": {
        "description": "a service, whose containers must be present",
        **_text(f"^{SEGMENT}(/{SEGMENT})*$"),
    },
    "count": {"description": "how many; without it 1", **_integer(least=1)},
    "timeout": DEPENDENCY["timeout"],
}
PROBES: Mapping[str, Schema] = {
    "tcp": {"description": "host:port that accepts connections", **_text(f"^{ENDPOINT}$")},
    "http": {"description": "a URL that answers with success", **_text(f"^{EXTERNAL_URL}$")},
}
EXTERNAL: Mapping[str, Schema] = {
    "external": {
        "description": "something outside the deployment, which must answer",
        **_object(PROBES, oneOf=[{"required": [kind]} for kind in PROBES]),
    },
    "interval": {
        "description": "the most seconds between two questions; without it 10",
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
        "description": "the daemon says READY=1, as sd_notify does",
        **_either({"const": True}, _text(_words("true", "yes"))),
    },
    "tcp": {"description": "a port that accepts connections", **_integer(1, 65535)},
    "http": {"description": "a URL that answers with success", **_text(f"^{URL}$")},
    "command": {"description": "a command that succeeds", **COMMAND},
    "alive": {"description": "seconds that the daemon has run for", **_seconds()},
}
TUNING: Mapping[str, Schema] = {
    "interval": {"description": "seconds between checks; without it 10", **_seconds(schema.LEAST)},
    "timeout": {"description": "seconds that one check may take; without it 5", **_seconds(schema.LEAST)},
    "fall": {"description": "failures after which it is not ready; without it 3", **_integer(least=1)},
}
READY: Schema = _or_null(
    _object({**CHECKS, **TUNING}, oneOf=[{"maxProperties": 0}, *({"required": [check]} for check in CHECKS)])
)
REACTIONS: Mapping[str, Schema] = {
    "signal": {
        "description": "the signal that it gets",
        **_either({"enum": [prefix + name for prefix in ("", "SIG") for name in SIGNALS]}, TEMPLATE),
    },
    "command": {"description": "a command that is run in its container", **COMMAND},
    "restart": {
        "description": "true: it is stopped and started again; only where KOLLA_START_MODE is supervise",
        **_either({"const": True}, _text(_words("true", "yes"))),
    },
}
ON_CHANGE: Schema = _or_null(_object(REACTIONS, oneOf=[{"required": [kind]} for kind in REACTIONS]))
SHARED: Mapping[str, Schema] = {
    "command": {"description": "a list is argv; a text with shell syntax runs in sh", **COMMAND},
    "dependencies": {"description": "what must be done or ready before", **DEPENDENCIES},
    "env": {
        "description": "added to the environment; null is an empty variable",
        **_or_null(_mapping("^[^=]+$", {"type": ["string", "number", "boolean", "null"]})),
    },
    "files": {
        "description": "config files, by the name of their content in files/",
        **_or_null(_mapping(f"^{SEGMENT}$", _object(FILE, ["dest"], ["source"]))),
    },
    "user": {"description": "who runs it", **_either(USER, NUMERIC, NULL)},
    "retries": {"description": "attempts after the first; without it none", **_integer()},
    "delay": {"description": "seconds between attempts; without it 5", **_seconds()},
    "timeout": {"description": "seconds, then it is ended", **_or_null(_seconds(schema.LEAST))},
    "stop_grace": {"description": "seconds between TERM and KILL; without it 10", **_seconds()},
}
STATUS: Schema = _either(
    {"type": "integer", "minimum": 0, "maximum": schema.MOST_STATUS},
    _text(r"^\s*0*(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\s*$"),
)
COMMANDS: Mapping[str, Schema] = {
    "run_once": {
        "description": "true: once in the deployment; host: once on each host",
        **_either({"type": "boolean"}, _text(_words("true", "yes", "false", "no")), _text(r"^\s*host\s*$")),
    },
    "generation": {"description": "with run_once: once for each value", **GENERATION},
    "succeeds": {
        "description": "the exit statuses that count as success; without it 0",
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
    "ready": {"description": "when it counts as ready", **READY},
    "retired_by": {
        "description": "a one-time command: once it is done for a newer generation, older images start no"
        " daemon",
        **_or_null(_text(f"^{SEGMENT}/{SEGMENT}$")),
    },
    "on_change": {"description": "how it is told that its files have changed", **ON_CHANGE},
    "width": {
        "description": "how many instances may refresh at a time; without it all",
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


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """It always prints the same."""


def run(invocation: Invocation) -> int:
    """Print the schema."""
    invocation.print_json(DEFINITION)
    return 0


SUBCOMMAND = Subcommand(
    description="""\
Print the JSON Schema (draft 7) of a definition, with which editors complete and check definition.yml.

For the YAML language server, write this above a definition:

  # yaml-language-server: $schema=/path/to/definition.schema.json
""",
    example="kolla_mesos_ctl schema > definition.schema.json",
    add_arguments=_no_arguments,
    run=run,
)
