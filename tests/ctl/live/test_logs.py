"""What may be run of the text in which a container says how to read its log."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.live.logs import LogLocation, locations, no_log, see
from kolla_mesos_start.settings import LOGS_LIMIT
from tests.ctl.trees import Tree, container, definition, deployment, one_time, ready

HERE = {"h1"}
RUN = [
    ("podman logs site_web", ["podman", "logs", "site_web"]),
    ("docker logs mesos-1", ["docker", "logs", "mesos-1"]),
    ("journalctl -u site_web.service", ["journalctl", "-u", "site_web.service"]),
    ("kubectl -n site logs web-0 -c agent", ["kubectl", "-n", "site", "logs", "web-0", "-c", "agent"]),
]
REFUSED = [
    "podman run evil",
    "podman logs --latest",
    "podman --remote --url tcp://evil logs x",
    "podman logs x; rm -rf /",
    "podman logs x\n",
    "podman logs $(id)",
    "kubectl --kubeconfig=/tmp/evil logs x",
    "kubectl -n --kubeconfig=x logs x",
    "/bin/sh -c id",
    "tail /var/log/x.log",
    "/etc/shadow",
    "/var/log/../../etc/shadow",
    "/dev/log/x",
]


@pytest.mark.parametrize(("logs", "argv"), RUN)
def test_a_known_command_is_split_into_words(logs: str, argv: list[str]) -> None:
    location = LogLocation("h1", logs)
    assert location.argv == argv
    assert location.is_readable(HERE)
    assert LogLocation("h2", logs).is_readable(HERE) is (argv[0] == "kubectl")


@pytest.mark.parametrize(
    ("logs", "restart"),
    [
        ("podman logs site_web", "podman restart site_web"),
        ("journalctl --unit site_web", "systemctl restart site_web"),
        ("kubectl -n site logs web-0 -c agent", "kubectl -n site delete pod web-0"),
        ("kubectl logs web-0", "kubectl delete pod web-0"),
        ("/var/log/web.log", ""),
        ("podman run evil", ""),
    ],
)
def test_the_command_of_the_launcher_that_starts_it_again(logs: str, restart: str) -> None:
    assert LogLocation("h1", logs).restart == restart


@pytest.mark.parametrize("logs", REFUSED)
def test_everything_else_is_only_printed(logs: str) -> None:
    """The text comes from a container."""
    location = LogLocation("h1", logs)
    assert not location.argv
    assert not location.is_readable(HERE)


@pytest.mark.parametrize(
    ("host", "path", "is_readable"),
    [
        ("h1", "/var/log/kolla/web.log", True),
        ("h2", "/var/log/kolla/web.log", False),
        ("h2", "/srv/logs/h2/web.log", True),
        ("h2", "/tmp/up/h2/web/log", True),
        ("h2", "/tmp/h2", False),
    ],
)
def test_a_file_is_read_on_its_host_or_below_a_directory_of_that_name(
    host: str, path: str, is_readable: bool
) -> None:
    assert LogLocation(host, path).is_readable(HERE) is is_readable


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


KILLED = {"web": definition(instances=2), "status/h1/web/daemon": "running", "status/h1/web/daemon/ready": ""}
DONE = {
    "web": definition(commands={"sync": one_time()}, daemon=False),
    "status/global/web/sync": "done",
    "status/h1/web/sync": "done",
}
WITH_LAUNCHER = (
    "no container of web is left on h1; its launcher there has the log of the last one: use `podman logs`,"
    " `docker logs` or `journalctl -u` there, or `kubectl logs --previous`"
)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (KILLED, WITH_LAUNCHER),
        ({**KILLED, **ready("web", "1"), "web/.containers/1": container("ready", host="h2")}, WITH_LAUNCHER),
        (DONE, WITH_LAUNCHER),
        (
            {"web": definition()},
            "no container of web exists, and none has ever reached ZooKeeper: its launcher has the log of a"
            " failed start",
        ),
        (
            {"web": definition(), "web/.containers/1": container("ready", host="h1")},
            "the containers of web do not say where their logs are: set KOLLA_LOGS, which `manifests` and"
            " `up` do",
        ),
    ],
)
def test_a_log_that_nothing_in_the_deployment_names(tree: Tree, words: str) -> None:
    """The error says where it is, although the container is gone."""
    assert no_log(deployment(tree).services["web"].on_host("h1")) == words
