"""What differs is shown."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.ctl.directory.changes import (
    affected,
    changes,
    not_run_again,
    run_with_old_values,
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


COMMAND = {"run_once": True, "command": "create", "files": {"a.sql": {"dest": "/a"}}}


@pytest.mark.parametrize(
    ("changed", "command", "is_found"),
    [
        ("variables/pw", {"env": {"PASSWORD": "{{ pw }}"}}, True),
        ("variables/pw", {"command": "create {{ pw_2 }}"}, False),
        ("variables/in_file", {}, True),
        ("infra/db/variables/in_file", {}, True),
        ("infra/db/variables/ctl-1/in_file", {}, True),
        ("infra/dbs/variables/in_file", {}, False),
        ("infra/db/files/a.sql", {}, True),
        ("infra/db/files/b.sql", {}, False),
        ("variables/in_file", {"run_once": False}, False),
        ("variables/in_file", {"generation": "{{ in_file }}"}, False),
        ("variables/in_file", {"generation": "{{ release }}"}, True),
        ("variables/new", {"command": "create {{ new }}"}, False),
    ],
)
def test_a_done_command_that_uses_a_changed_value_is_named(
    changed: str, command: dict[str, object], is_found: bool
) -> None:
    texts = {"infra/db": json.dumps({"commands": {"sync": {**COMMAND, **command}}}).encode()}
    after = {changed: b"new", "infra/db/files/a.sql": b"{{ in_file }}"}
    before = {**texts, **after, changed: b"old"}
    if changed == "variables/new":
        del before[changed]
    if changed.endswith("a.sql"):
        after[changed] = b"{{ other }}"
    assert list(run_with_old_values(before, after, texts)) == (["db/sync"] if is_found else [])


def test_a_shared_variable_concerns_the_services_that_name_it() -> None:
    texts = {"a/x": b"{{ port }}", "a/y": b"{{ port_2 }}", "b": b"", "a": b""}
    assert affected(["variables/port"], texts) == {"a/x"}
    assert affected(["b/files/port", "a/x"], texts) == {"b", "a", "a/x"}
