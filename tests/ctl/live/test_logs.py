"""The text in which a container says how to read its log."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.live.logs import restart, see
from kolla_mesos_start.settings import LOGS_LIMIT
from tests.ctl.trees import container, definition, deployment


@pytest.mark.parametrize(
    ("logs", "command"),
    [
        ("podman logs site_web", " on h1: podman restart site_web"),
        ("journalctl --unit site_web", " on h1: systemctl restart site_web"),
        ("kubectl -n site logs web-0 -c agent", ": kubectl -n site delete pod web-0"),
        ("kubectl logs web-0", ": kubectl delete pod web-0"),
        ("/var/log/web.log", ""),
        *((each, "") for each in ("podman run x", "podman logs x; rm x", "podman logs $(id)")),
    ],
)
def test_the_command_of_the_launcher_that_starts_it_again(logs: str, command: str) -> None:
    assert restart("h1", logs) == f"restart its container{command}"


def test_how_to_read_a_log_is_what_its_container_or_a_failed_start_says() -> None:
    """A text that is too long, or no text, is ignored."""
    tree = {
        "web": definition(),
        "web/.containers/1": container("ready", logs="docker logs new"),
        "web/.containers/2": container("ready", host="a1", logs="docker logs\x1b[2Ja"),
        "web/.containers/3": container("ready", host="a2", logs="/" + "x" * LOGS_LIMIT),
        "web/.containers/4": container("ready", host="a3", logs=["x"]),
        "web/.containers/5": container("ready", host="a4", logs="kubectl logs web-0"),
        "status/web1/web/ended": {"stage": "render", "logs": "docker logs old"},
        "status/h2/web/ended": {"stage": "render", "logs": "/var/log/web.log"},
    }
    service = deployment(tree).services["web"]
    said = {host: see(service, host) for host in ("web1", "a1", "a2", "a3", "a4", "h2", "h3")}
    assert said == {
        "web1": "see `docker logs new` on web1",
        "a1": "see `docker logs\N{REPLACEMENT CHARACTER}[2Ja` on a1",
        "a4": "see `kubectl logs web-0`",
        "h2": "see /var/log/web.log on h2",
        **dict.fromkeys(("a2", "a3", "h3"), "see its log"),
    }
