"""What differs is shown."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.ctl.directory.changes import (
    affected,
    changes,
    not_run_again,
)


def test_only_what_would_be_written_is_a_change() -> None:
    """What is there besides is not: publishing leaves it. An empty znode counts as absent."""
    found = changes({"a": b"1", "b": b"", "c": b"3", "e": b"5"}, {"a": b"2", "b": b"2", "c": b"3", "d": b""})
    assert [(each.node, each.kind) for each in found] == [
        ("a", "updated"),
        ("b", "created"),
        ("d", "created"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"command": "a"}, {"command": "b"}, ["db: sync"]),
        ({"command": "a", "generation": "1"}, {"command": "b", "generation": "1"}, ["db: sync"]),
        ({"command": "a", "generation": "1"}, {"command": "b", "generation": "2"}, []),
        ({"command": "a", "generation": "{{ g }}"}, {"command": "b", "generation": "{{ g }}"}, []),
        ({"command": "a"}, {"command": "a", "retries": 3}, []),
        ({"command": "a"}, {"command": "b", "run_once": False}, []),
    ],
)
def test_a_changed_command_with_the_same_generation_does_not_run_again(
    before: dict[str, object], after: dict[str, object], found: list[str]
) -> None:
    nodes = [
        {"db": json.dumps({"commands": {"sync": {"run_once": True, **each}}})} for each in (before, after)
    ]
    assert list(not_run_again(*({"db": each["db"].encode()} for each in nodes))) == found


def test_a_definition_that_cannot_be_read_has_no_changed_command() -> None:
    assert (
        list(not_run_again({"db": b"[]", "web": b"{"}, {"db": b'{"commands": {"sync": {}}}', "new": b""}))
        == []
    )


def test_a_shared_variable_concerns_the_services_that_name_it() -> None:
    texts = {"a/x": b"{{ port }}", "a/y": b"{{ port_2 }}", "b": b"", "a": b""}
    assert affected(["variables/port"], texts) == {"a/x"}
    assert affected(["b/files/port", "a/x"], texts) == {"b", "a", "a/x"}
