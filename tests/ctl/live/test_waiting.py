"""When `wait` regards a service as up."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.commands.wait import Goal
from tests.ctl.trees import container, definition, deployment


@pytest.mark.parametrize("count", [None, 1])
@pytest.mark.parametrize(
    ("state", "is_met"),
    [("waiting", False), ("bootstrapping", False), ("starting", True), ("unready", True), ("ready", True)],
)
def test_a_ready_container_that_has_not_written_what_it_read(
    state: str, is_met: bool, count: int | None
) -> None:
    """Until it does, nobody knows whether it runs what is published."""
    tree = {
        "web": definition(),
        "web/.containers/1": container(state),
        "status/global/web/daemon/ready/1": "{}",
    }
    service = deployment(tree).services["web"]
    assert service.is_up
    assert Goal("web", count).is_met(service) == is_met
