"""How far a service has followed a publication, and when `wait` regards it as up."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.commands.wait import Goal
from kolla_mesos_start.ctl.live import rollouts
from tests.ctl.trees import NOW, container, definition, deployment, ready


def test_the_state_of_a_rollout_names_the_instances_and_since_when() -> None:
    """Every znode here was written at NOW."""
    tree = {
        "web": definition(instances=6),
        **ready("web", *"12345"),
        "web/.containers/1": container("ready", host="h1"),
        "web/.containers/2": container("ready", "its check", host="h2", code="refresh-settling"),
        "web/.containers/3": container("ready", "failed", host="h3", code="refresh-failed"),
        "web/.containers/4": container("ready", host="h4"),
        "web/.containers/5": container("ready", host="h5", definition="3e7"),
    }
    service = deployment(tree).services["web"]
    state = rollouts.state(service)
    others = "refreshing: h2 for 1 min; refresh failed: h3 for 1 min; restart needed: h5 for 1 min"
    words = f"2 of 5 current ({others})"
    assert state.words(NOW + 60) == words
    assert state.data()["others"][0] == {"kind": "refreshing", "host": "h2", "id": "2", "since": NOW}
    assert Goal("web", None).progress(service, NOW + 60) == f"web: 5 of 6 ready, {words}"


def test_a_service_whose_containers_are_all_current_has_no_rollout() -> None:
    service = deployment({"web": definition(), **ready("web", "1")}).services["web"]
    assert rollouts.state(service).is_over
    assert Goal("web", None).progress(service, NOW) == "web: 1 of 1 ready"


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
