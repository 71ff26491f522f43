"""`status` and `explain` name the command that shows the log of a container, with real agents."""

from __future__ import annotations

from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import tool_says

DAEMONS = {
    "web": {"command": "sleep 600", "ready": {"command": "false", "interval": 0.1}},
    "job": {"command": "false"},
}


def test_the_command_that_shows_the_log_is_named(deployment: Deployment, containers: Containers) -> None:
    """Of a container that is not ready, and of a start that has failed."""
    for role, daemon in DAEMONS.items():
        publish(deployment, f"a/{role}", {"service": {"daemon": daemon}})
        containers.start(f"a/{role}", "h1", KOLLA_LOGS=f"podman logs site_{role}")
    for role in DAEMONS:
        for command in ("status", "explain"):
            tool_says(deployment, f"see `podman logs site_{role}` on h1", command, status=1)
