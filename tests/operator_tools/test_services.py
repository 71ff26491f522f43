"""What a definition says of itself, whatever it holds."""

from __future__ import annotations

import pytest

from kolla_mesos_start.operator.services import counted_commands, used_variables


def test_the_commands_that_a_dependency_counts() -> None:
    definition = b"""{"commands": {"a": {"dependencies": ["x/y", {"path": "db/init", "count": 3}]}},
        "service": {"daemon": {"dependencies": [{"path": "db/sync"}, {"members": "db", "count": 2}]}}}"""
    assert counted_commands(definition) == {"db/init"}


@pytest.mark.parametrize("definition", [b"", b"\xff", b"[", b"5", b"[" * 100_000, b"[" * 1500 + b"]" * 1500])
def test_garbage_names_nothing(definition: bytes) -> None:
    """Nor is anything too deep: how deep JSON may be depends on the Python."""
    assert counted_commands(definition) == used_variables(definition, {}) == frozenset()
