"""The address of the endpoint."""

from __future__ import annotations

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.metrics.endpoint import address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9105", ("127.0.0.1", 9105)),
        ("monitor.example.org:1", ("monitor.example.org", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "9105", ":9105", "h", "h:", "h:0", "h:65536", "h:-1", "h:+1", "h:٣", "::1:9105", "[::1]", "[]:1"],
)
def test_another_address_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(BadUsage, match=r"expected HOST:PORT, such as 127\.0\.0\.1:9105"):
        address(text)
