"""What a container says of itself is data from a stranger for the operator's tool too."""

from __future__ import annotations

import pytest

from kolla_mesos_start.operator.live.outdated import _container


@pytest.mark.parametrize("data", [None, b"", b"[]", b"{}", b'{"definition": 1}', b'{"a":' * 3000])
def test_a_container_that_says_something_else_is_passed_over(data: bytes | None) -> None:
    """However deep it is."""
    assert _container("infra/web", data) is None
