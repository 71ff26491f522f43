"""What an instance shows of itself."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.tree.presence import with_since


@pytest.mark.parametrize("data", [b"{}", b" { } ", b'{"host": "h"}', b'{"a": {"b": "}"}}\n'])
def test_since(data: bytes) -> None:
    """The time is one more member of the JSON object, in UTC."""
    assert json.loads(with_since(data, 0.9)) == {**json.loads(data), "since": "1970-01-01T00:00:00Z"}
