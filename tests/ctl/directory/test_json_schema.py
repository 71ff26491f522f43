"""The JSON Schema of a definition has the keys of the agent's parser, and refuses nothing that it accepts."""

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
    "commands": {
        "sync": {**SHARED, "run_once": True, "generation": "g", "succeeds": [0, 1]},
        "position": {"command": "x"},
    },
    "service": {
        "daemon": {
            **SHARED,
            "ready": {"tcp": 80, "interval": 1, "timeout": 1, "fall": 1},
            "generations": ["1", "2"],
            "on_change": {"signal": "HUP"},
            "width": 2,
            "before_stop": {"command": "x", "timeout": 1},
            "election": {
                "position": "web/position",
                "members": 3,
                "start": ["x"],
                "start_timeout": 5,
                "give_up": 8,
            },
        }
    },
    **dict.fromkeys(parser.SCHEDULER_KEYS, "x"),
}
VALUES: list[Any] = [
    *(None, True, 0, 1, 2.5, "", "x", "3", "true", "host", "a/b", "/a/b", "a:1", "http://a:1/", "0640"),
    *([], ["a"], [1], {}, {"x": "1"}, {"dest": "/x"}, {"command": "x"}, {"path": "a/b"}, {"alive": 3}),
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
def test_what_the_parser_accepts_is_valid(path: tuple[Any, ...]) -> None:
    """An editor shows no mistake where there is none. A key that is required is so in both."""
    for value in VALUES:
        definition = changed(path, value)
        assert schema_accepts(definition) or not parser_accepts(definition), value
    without = copy.deepcopy(FULL)
    del at(without, path[:-1])[path[-1]]
    assert schema_accepts(without) or not parser_accepts(without)


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("commands", "sync"),
        ("commands", "sync", "files", "f"),
        ("commands", "sync", "dependencies", 1),
        ("commands", "sync", "dependencies", 4, "external"),
        ("service", "daemon"),
        ("service", "daemon", "ready"),
        ("service", "daemon", "on_change"),
        ("service", "daemon", "election"),
        ("service", "daemon", "before_stop"),
    ],
)
def test_an_unknown_key_and_a_wrong_type_are_shown(path: tuple[Any, ...]) -> None:
    assert not schema_accepts(changed((*path, "unknown"), "x"))
    assert not path or not schema_accepts(changed(path, 3))


@pytest.mark.parametrize(
    "path",
    [
        ("commands", "sync", "command"),
        ("service", "daemon", "command"),
        ("service", "daemon", "election", "start"),
    ],
)
def test_a_required_key_is_missed(path: tuple[Any, ...]) -> None:
    definition = copy.deepcopy(FULL)
    del at(definition, path[:-1])[path[-1]]
    assert not schema_accepts(definition)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("service", "daemon", "on_change"), {}),
        (("service", "daemon", "on_change"), {"signal": "HUP", "restart": True}),
        (("service", "daemon", "on_change", "signal"), "HUPP"),
        (("service", "daemon", "width"), -1),
        (("service", "daemon", "drain"), -0.5),
        (("service", "daemon", "generations"), []),
        (("service", "daemon", "before_stop"), []),
        (("commands", "sync", "command"), []),
        (("commands", "sync", "command"), ["sleep", 5]),
        (("commands", "sync", "succeeds"), []),
        (("commands", "sync", "dependencies", 1, "scope"), "locale"),
        (("commands", "sync", "dependencies", 4, "external"), {}),
        (("commands", "sync", "dependencies", 4, "external"), {"tcp": "db:1", "http": "http://a/"}),
        (("commands", "daemon"), {"command": "x"}),
        (("commands", "election"), {"command": "x"}),
        (("commands", "a/b"), {"command": "x"}),
    ],
)
def test_a_gross_mistake_is_shown(path: tuple[Any, ...], value: Any) -> None:
    """By an editor already, not only by `validate`."""
    assert not parser_accepts(changed(path, value))
    assert not schema_accepts(changed(path, value))


@pytest.mark.parametrize("commands", [None, {}])
def test_something_to_run_is_missed(commands: Any) -> None:
    for service in ({}, {"instances": 1}, None):
        assert not schema_accepts({"commands": commands, "service": service})
    assert not schema_accepts({})
    assert schema_accepts({"commands": commands, "service": {"daemon": {"command": "x"}}})


@pytest.mark.parametrize("name", ["daemons", "ended.x", "...", "a b", "daemon ", "é"])
def test_a_name_that_the_parser_accepts_is_valid(name: str) -> None:
    definition = changed(("commands", name), {"command": "x"})
    assert parser_accepts(definition)
    assert schema_accepts(definition)


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
