"""When the files of a running daemon are refreshed."""

from __future__ import annotations

import pytest

from kolla_mesos_start.daemon.refresher import QUIET, SHORT_QUIET, quiet_after

READY = "/kolla/site/status/global/api/daemon/ready"
KNOWN = {(READY, True), (f"{READY}/1", False), ("/kolla/site/variables/port", False)}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((READY, True), SHORT_QUIET),
        ((f"{READY}/1", False), SHORT_QUIET),
        (("/kolla/site/variables/port", False), QUIET),
    ],
)
def test_instances_are_followed_sooner_than_a_publication(key: tuple[str, bool], expected: float) -> None:
    """They come and go by themselves, and load balancers should know soon."""
    assert quiet_after(key, KNOWN) == expected
