"""The text in which a container says how to read its log."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.live.logs import LogLocation, locations, see
from kolla_mesos_start.settings import LOGS_LIMIT
from tests.ctl.trees import container, definition, deployment


@pytest.mark.parametrize(
    ("logs", "restart"),
    [
        ("podman logs site_web", "podman restart site_web"),
        ("journalctl --unit site_web", "systemctl restart site_web"),
        ("kubectl -n site logs web-0 -c agent", "kubectl -n site delete pod web-0"),
        ("kubectl logs web-0", "kubectl delete pod web-0"),
        ("/var/log/web.log", ""),
        *((each, "") for each in ("podman run x", "podman logs x; rm x", "podman logs $(id)")),
    ],
)
def test_the_command_of_the_launcher_that_starts_it_again(logs: str, restart: str) -> None:
    assert LogLocation("h1", logs).restart == restart


def test_a_text_that_is_too_long_or_no_text_is_ignored() -> None:
    tree = {
        "web": definition(),
        "web/.containers/1": container("ready", logs="/" + "x" * LOGS_LIMIT),
        "web/.containers/2": container("ready", logs=["x"]),
        "web/.containers/3": container("ready", logs="docker logs\x1b[2Jx"),
    }
    (found,) = locations(deployment(tree).services["web"])
    assert found.logs == "docker logs\N{REPLACEMENT CHARACTER}[2Jx"


def test_a_failed_start_says_it_where_no_container_does() -> None:
    tree = {
        "web": definition(),
        "web/.containers/1": container("ready", logs="docker logs new"),
        "web/.containers/2": container("ready", host="a1", logs="docker logs a"),
        "status/web1/web/ended": {"stage": "render", "logs": "docker logs old"},
        "status/h2/web/ended": {"stage": "render", "logs": "/var/log/web.log"},
    }
    service = deployment(tree).services["web"]
    assert list(locations(service)) == [
        ("a1", "docker logs a"),
        ("web1", "docker logs new"),
        ("h2", "/var/log/web.log"),
    ]
    assert see(service, "web1") == "see `docker logs new` on web1"
    assert see(service, "h2") == "see /var/log/web.log on h2"
    assert see(service, "h3") == "see its log"
