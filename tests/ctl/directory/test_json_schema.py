"""The JSON Schema of a definition and the agent's parser say the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kolla_mesos_start.ctl.directory import json_schema
from kolla_mesos_start.ctl.directory.directory import read
from kolla_mesos_start.definition import keys as parser
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Dependency, File
from tests.unit.definition.examples import TEMPLATED

ROOT = Path(__file__).parents[3]
SERVICE = "a/web"
SHARED: dict[str, Any] = {
    "command": ["true", "x"],
    "dependencies": [
        "db/daemon",
        {"path": "db/sync", "scope": "local", "count": 2, "generation": "g", "timeout": 3},
        {"path": "db/daemon", "generation": "g", "exclusive": True},
        {"members": "a/db", "count": 2, "timeout": 3},
        {"external": {"tcp": "db:3306"}, "interval": 2, "timeout": 3},
        {"external": {"http": "https://a/b"}},
    ],
    "env": {"A": "b"},
    "files": {
        "f": {
            "dest": "/f",
            "owner": "a:b",
            "perm": "0640",
            "optional": True,
            "mounted": "/m/f",
            "template": False,
            "check": "nginx -t -c {}",
            "keep_last": True,
            "source": "x",
        }
    },
    "user": "root",
    "retries": 1,
    "delay": 1,
    "timeout": 1,
    "stop_grace": 1,
    "reload_signal": "HUP",
}
FULL: dict[str, Any] = {
    "name": SERVICE,
    "commands": {"sync": {**SHARED, "run_once": True, "generation": "g", "succeeds": [0, 1]}},
    "service": {
        "daemon": {
            **SHARED,
            "ready": {"tcp": 80, "interval": 1, "timeout": 1, "fall": 1},
            "generations": ["1", "2"],
            "on_change": {"signal": "HUP"},
            "width": 2,
        }
    },
    **dict.fromkeys(parser.SCHEDULER_KEYS, "x"),
}
CHECKS = {"notify": True, "tcp": 80, "http": "http://a:80/b", "command": "x", "alive": 3}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 3, -1, 2.5, 0.0001, 10**10, 70000),
    *(
        "",
        " ",
        "x",
        "3",
        "0",
        "-1",
        "2.5",
        "true",
        "No",
        "host",
        "local",
        "a/b",
        "a/b/c",
        "../x",
        "/a/b",
        "/a/",
    ),
    *("a:1", "[::1]:65535", "a:65536", "::1:5", "http://a:0/", "https://[::1]:9?x", "http://u@a"),
    *("a:b", "a b", "0640", "0o640", "999", "http://x", "ftp://x", "daemon", "A=B"),
    *([], ["a"], [""], [1], {}, {"x": 1}, [{}], {"dest": "/x"}, {"command": "x"}, {"path": "a/b"}),
]


def parser_accepts(definition: Any) -> bool:
    return not parser.read(load(json.dumps(definition).encode()), SERVICE, lambda text: text.text)[1]


def schema_accepts(definition: Any) -> bool:
    return bool(jsonschema.Draft7Validator(json_schema.DEFINITION).is_valid(definition))


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from paths(each, (*above, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def changed(path: tuple[Any, ...], value: Any) -> Any:
    """The full definition with another value at one place."""
    definition = copy.deepcopy(FULL)
    at(definition, path[:-1])[path[-1]] = value
    return definition


ELECTION: dict[str, Any] = {
    "name": SERVICE,
    "commands": {"position": {"command": "x"}},
    "service": {
        "daemon": {
            "command": "x",
            "election": {
                "position": f"{SERVICE.rpartition('/')[2]}/position",
                "members": 3,
                "start": ["x"],
                "start_timeout": 5,
                "give_up": 8,
            },
        }
    },
}


@pytest.mark.parametrize("key", parser.ELECTION_KEYS)
def test_both_accept_the_same_elections(key: str) -> None:
    """Which command is the right one for the position is not known to a schema."""
    values = [value for value in VALUES if key != "position" or not isinstance(value, str)]
    definition = copy.deepcopy(ELECTION)
    found = definition["service"]["daemon"]["election"]
    assert parser_accepts(definition)
    assert schema_accepts(definition)
    for value in values:
        found[key] = value
        assert parser_accepts(definition) == schema_accepts(definition), value
    del found[key]
    assert parser_accepts(definition) == schema_accepts(definition)


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema.DEFINITION)


def test_the_names_of_the_keys_are_those_of_the_parser() -> None:
    """Every key of the parser has a meaning."""
    for kind, table in json_schema.OBJECTS.items():
        assert tuple(json_schema.MEANINGS[kind]) == tuple(table)
    assert tuple(parser.FILE_KEYS) == File._fields[1:]
    assert tuple(parser.DEPENDENCY_KEYS) == Dependency._fields
    assert parser_accepts(FULL)
    assert schema_accepts(FULL)


@pytest.mark.parametrize(
    "path", [path for path in paths(FULL) if path], ids=lambda path: ".".join(map(str, path))
)
def test_both_accept_the_same_values(path: tuple[Any, ...]) -> None:
    """Whatever stands in the place of any value of a definition; and of none of them can be left out."""
    differing = [
        value
        for value in VALUES
        if path != ("name",) or not isinstance(value, str)  # Which name is right is not known to a schema.
        if parser_accepts(definition := changed(path, value)) != schema_accepts(definition)
    ]
    assert not differing
    without = copy.deepcopy(FULL)
    del at(without, path[:-1])[path[-1]]
    assert parser_accepts(without) == schema_accepts(without)


@pytest.mark.parametrize(
    "path",
    [path for path in paths(FULL) if isinstance(at(FULL, path), dict)],
    ids=lambda path: ".".join(map(str, path)),
)
def test_both_know_the_same_keys(path: tuple[Any, ...]) -> None:
    for key in ("unknown", "ready", "daemon", "a=b", "a/b", "..", "x"):
        definition = changed(path, {**at(FULL, path), key: {"command": "x"}}) if path else {**FULL, key: "x"}
        assert parser_accepts(definition) == schema_accepts(definition), key


@pytest.mark.parametrize("check", CHECKS)
def test_both_accept_the_same_checks(check: str) -> None:
    for value in VALUES:
        definition = changed(("service", "daemon", "ready"), {check: value})
        assert parser_accepts(definition) == schema_accepts(definition), value
    for other in parser.CHECKS:
        definition = changed(("service", "daemon", "ready"), {**CHECKS, check: 1, other: 1})
        assert not schema_accepts(definition)


def test_templates_may_stand_wherever_the_parser_renders_them() -> None:
    assert schema_accepts(TEMPLATED)


@pytest.mark.parametrize(
    "example", ["keystone", "loadbalancer", "migration", "quickstart", "tripleo", "upgrade"]
)
def test_the_examples_fit(example: str) -> None:
    for service in read(ROOT / "etc" / "examples" / example).services:
        jsonschema.validate(
            json.loads(service.definition), json_schema.DEFINITION, jsonschema.Draft7Validator
        )
