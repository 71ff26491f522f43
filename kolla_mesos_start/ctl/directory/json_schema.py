"""The JSON Schema of a definition, with which editors complete and check it, and the meaning of each key.

The keys and their defaults come from the tables of the agent's parser; MEANINGS has the same keys. The schema
has keys, types and simple forms, and accepts whatever the parser does; `validate` finds all other mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import Fields
from kolla_mesos_start.definition.strings import (
    DAEMON,
    ELECTION,
    ENDED,
    GLOBAL,
    LOCAL,
    SIGNALS,
    bad_scope,
    bad_signal,
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
        "optional": "The content may be missing; then no file is written, and an earlier one is removed.",
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


def _typed(*types: str, **more: Any) -> Schema:
    return {"type": [*types, "null"], **more}


def _words(*words: str) -> Schema:
    """One of these texts, or a template."""
    return {"anyOf": [{"enum": [*words, None]}, {"type": "string", "pattern": r"\{[{%#]"}]}


COMMAND = _typed("string", "array", minItems=1, items={"type": "string"})
# The values that a function of the parser reads. Most may be texts with templates.
TYPES: Mapping[Any, Schema] = {
    Fields.boolean: _typed("boolean", "string"),
    Fields.integer: _typed("integer", "string", minimum=0),
    Fields.seconds: _typed("number", "string", minimum=0),
    Fields.late: _typed("string", "integer", minimum=0),
    Fields.early: _typed("string"),
    keys.command: COMMAND,
    keys.env: _typed("object"),
    keys.perm: _typed("string"),
    keys.run_once: _typed("boolean", "string"),
    keys.generations: _typed("array", minItems=1, items={"type": "string"}),
    keys.succeeds: _typed("array", minItems=1),
    keys.true: _typed("boolean", "string"),
}
# Forms of texts that an editor can complete.
FORMS: Mapping[Any, Schema] = {
    bad_scope: _words(GLOBAL, LOCAL),
    bad_signal: _words(*(prefix + name for prefix in ("", "SIG") for name in SIGNALS)),
}
ONE_KEY: Mapping[str, Any] = {"minProperties": 1, "maxProperties": 1}


def _object(*kinds: str, required: Sequence[str] = (), ignored: Sequence[str] = (), **more: Any) -> Schema:
    """An object of these kinds, with no other keys."""
    known = {key: _property(kind, key, *row) for kind in kinds for key, row in OBJECTS[kind].items()}
    properties = {**known, **{key: {} for key in ignored}}
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return {**found, "required": list(required)} if required else found


def _property(kind: str, key: str, read: Any, *arguments: Any) -> Schema:
    default = default_of(kind, key)
    found = {} if default is None else {"default": default}
    form = next((FORMS[each] for each in arguments if each in FORMS), None)
    value = NESTED[read]() if read in NESTED else form or TYPES[read]
    return {**found, "description": MEANINGS[kind][key], **value}


def _or(*kinds: Schema) -> Schema:
    return {"anyOf": [*kinds, {"type": "null"}]}


def _dependencies() -> Schema:
    kinds = [_object(kind, required=[key]) for kind, key in DEPENDENCIES.items()]
    return _typed("array", items={"anyOf": [{"type": "string"}, *kinds]})


DEPENDENCIES = {"dependency": "path", "members": "members", "external": "external"}  # each with its own key
NESTED: Mapping[Any, Callable[[], Schema]] = {
    keys.before_stop: lambda: _or(COMMAND, _object("before_stop", required=["command"])),
    keys.dependencies: _dependencies,
    keys.election: lambda: _or(_object("election", required=["position", "members", "start"])),
    keys.external: lambda: _object("target", **ONE_KEY),
    keys.files: lambda: _typed(
        "object", additionalProperties=_object("file", required=["dest"], ignored=["source"])
    ),
    keys.on_change: lambda: _or(_object("on_change", **ONE_KEY)),
    keys.ready: lambda: _or(_object("ready")),
}
STEP = _object("shared", "command", required=["command"], ignored=keys.UNREAD_KEYS)
DAEMON_STEP = _object("shared", "daemon", required=["command"], ignored=keys.UNREAD_KEYS)
SERVICE = _typed(
    "object",
    properties={
        DAEMON: {"description": "The process that a container runs in the end.", **DAEMON_STEP},
        "instances": {
            "description": "How many containers are wanted. Default: 1.",
            **_typed("integer", "string", minimum=0),
        },
    },
)
COMMAND_NAME = rf"^(?!({DAEMON}|{ENDED}|{ELECTION}|\.{{1,2}})$)[^/]+$"
DEFINITION: Schema = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "A service of kolla_mesos_start",
    "type": "object",
    "properties": {
        "name": {"description": "The service for which it is published.", "type": "string"},
        "commands": {
            "description": "Commands that run before the daemon, each after its dependencies.",
            **_typed("object", propertyNames={"pattern": COMMAND_NAME}, additionalProperties=STEP),
        },
        "service": SERVICE,
        **{key: {} for key in keys.SCHEDULER_KEYS},
    },
    "additionalProperties": False,
    "anyOf": [
        {"required": ["commands"], "properties": {"commands": {"type": "object", "minProperties": 1}}},
        {"required": ["service"], "properties": {"service": {"type": "object", "required": [DAEMON]}}},
    ],
}
