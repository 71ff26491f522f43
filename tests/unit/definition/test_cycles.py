"""Cycles between the commands of one definition, and what only looks like one."""

from __future__ import annotations

import pytest

from tests.unit.definition.examples import ANY, built, issues_of, with_command, with_daemon


def commands_with(edges: dict[str, list[str]]) -> dict[str, ANY]:
    return {
        "commands": {
            name: {"command": "true", "dependencies": [f"keystone-api/{to}" for to in targets]}
            for name, targets in edges.items()
        }
    }


CYCLES: list[tuple[dict[str, list[str]], list[str]]] = [
    ({"a": ["b"], "b": ["a"]}, ["a -> b -> a"]),
    ({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a -> b -> c -> a"]),
    ({"x": ["a"], "a": ["b"], "b": ["a"]}, ["a -> b -> a"]),
    ({"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]}, ["a -> b -> a", "c -> d -> c"]),
    ({"a": ["b", "c"], "b": ["a"], "c": ["a"]}, ["a -> b -> a", "a -> c -> a"]),
]


@pytest.mark.parametrize(("edges", "paths"), CYCLES)
def test_a_cycle_is_reported_as_a_path(edges: dict[str, list[str]], paths: list[str]) -> None:
    """It holds only the commands of the cycle, and each cycle is reported."""
    assert issues_of(commands_with(edges)) == [f"commands: a cycle: {path}" for path in paths]


def test_a_graph_without_a_cycle_is_accepted() -> None:
    """Diamonds, long chains, and the commands of other roles."""
    built(commands_with({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}))
    built(with_command(dependencies=["mariadb/db_sync", "mariadb/daemon", "keystone-api/first"]))
    built({**with_command(), **with_daemon(dependencies=["keystone-api/db_sync"])})
    chain = {f"c{index}": [f"c{index + 1}"] for index in range(3000)}
    built(commands_with({**chain, "c3000": []}))
    assert issues_of(commands_with({**chain, "c3000": ["c0"]}))[0].endswith("c2999 -> c3000 -> c0")
