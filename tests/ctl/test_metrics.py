"""`kolla_mesos_ctl metrics` against a real ZooKeeper, real agents and Debian's Prometheus."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from tests import CHECKOUT
from tests.conftest import Deployment
from tests.ctl.trees import definition
from tests.support.counting import Line, Request
from tests.support.instances import INSTANCE_DATA
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tool import TOOL, environ, tool
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, Process, Server, free_port

RULES = CHECKOUT / "etc" / "monitoring" / "alerts.yml"
CONNECTED = "kolla_mesos_zookeeper_connected"
UP = 'kolla_mesos_service_up{service="web"}'
SLEEP = {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0.1}}}}


class Endpoint(Process):
    """The tool, serving the metrics of a deployment."""

    def __init__(self, deployment: Deployment, log: Path, **more: str) -> None:
        self.listen = f"{HOST}:{free_port()}"
        words = (sys.executable, str(TOOL), "metrics", "--listen", self.listen)
        self.log = log
        super().__init__(("env", *(f"{k}={v}" for k, v in environ(deployment, **more).items()), *words), log)
        self.launch()
        eventually(lambda: "serving" in log.read_text(), f"{log} says that it serves")

    def text(self) -> str:
        with urllib.request.urlopen(f"http://{self.listen}/metrics", timeout=30) as reply:
            return str(reply.read().decode())

    def values(self) -> Mapping[str, float]:
        """The value of each series."""
        lines = [line for line in self.text().splitlines() if not line.startswith("#")]
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


@contextmanager
def serving(deployment: Deployment, directory: Path, **more: str) -> Iterator[Endpoint]:
    endpoint = Endpoint(deployment, directory / "metrics.log", **more)
    try:
        yield endpoint
    finally:
        endpoint.kill()


def show_ready(zk: KazooClient, deployment: Deployment) -> None:
    """A ready container of `web`."""
    for parent in ("web/.containers", "status/global/web/daemon/ready"):
        zk.create(f"{deployment.path}/{parent}/x", INSTANCE_DATA, ephemeral=True, makepath=True)


def test_a_change_appears_and_nothing_is_asked_otherwise(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, tmp_path: Path
) -> None:
    """However often it is scraped."""
    publish(deployment, "web", definition())
    with (
        closing(Line(zookeeper)) as line,
        serving(deployment, tmp_path, KOLLA_ZK_HOSTS=line.hosts) as endpoint,
    ):
        show_ready(zk, deployment)
        eventually(lambda: endpoint.values()[UP] == 1, "it is up")
        before = [asked(each) for each in line.connections]
        for _ in range(20):
            endpoint.values()
        assert [asked(each) for each in line.connections] == before


def asked(requests: list[Request]) -> list[Request]:
    return [each for each in requests if each.name != "ping"]


def test_old_numbers_are_not_served_while_the_connection_is_lost(
    deployment: Deployment, zk: KazooClient, link: Link, tmp_path: Path
) -> None:
    publish(deployment, "web", definition())
    with serving(deployment, tmp_path, KOLLA_ZK_HOSTS=link.hosts) as endpoint:
        assert endpoint.values()[UP] == 0
        link.kill()
        eventually(lambda: endpoint.values()[CONNECTED] == 0, "it says that the connection is lost")
        assert not [series for series in endpoint.values() if "service" in series]
        show_ready(zk, deployment)
        link.launch()
        # One reading: on a busy machine the connection may be lost again before another one.
        found = eventually(
            lambda: values if (values := endpoint.values())[CONNECTED] == 1 else None, "it is connected again"
        )
        assert found and found[UP] == 1, "what changed meanwhile is read first"
        assert found["kolla_mesos_zookeeper_connections_total"] >= 2


def test_a_service_that_may_not_be_read_is_named(
    deployment: Deployment, zk: KazooClient, tmp_path: Path
) -> None:
    """All others have their numbers, and its containers are counted, which everybody may see."""
    publish(deployment, "a/web", definition())
    publish(deployment, "a/db", definition())
    zk.create(f"{deployment.path}/a/db/.containers/1", b'{"state": "waiting"}', ephemeral=True, makepath=True)
    zk.set_acls(f"{deployment.path}/a/db", [make_acl("world", "anyone", admin=True)])
    with serving(deployment, tmp_path) as endpoint:
        found = endpoint.values()
        assert found['kolla_mesos_service_readable{service="a/db"}'] == 0
        assert found['kolla_mesos_service_readable{service="a/web"}'] == 1
        assert found['kolla_mesos_containers{service="a/db",state="waiting"}'] == 1
        assert found['kolla_mesos_service_up{service="a/web"}'] == 0
        assert 'kolla_mesos_service_up{service="a/db"}' not in found
        assert found["kolla_mesos_unreadable_znodes"] == 1
    assert 'service_readable{service="a/db"} 0.0' in tool(deployment, "metrics", "--once")
    zk.set_acls(f"{deployment.path}/a/db", OPEN_ACL_UNSAFE)


def test_no_value_and_no_message_is_served(deployment: Deployment, zk: KazooClient) -> None:
    secret = "s3cr3t"
    publish(deployment, "web", definition(), variables={"password": secret}, files={"conf": secret})
    told = {"state": "starting", "reason": secret, "command": secret, "host": secret, "code": secret}
    zk.create(
        f"{deployment.path}/web/.containers/1", json.dumps(told).encode(), ephemeral=True, makepath=True
    )
    text = tool(deployment, "metrics", "--once")
    assert secret not in text
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--listen", "9105"], 64, "--listen 9105: expected HOST:PORT, such as 127.0.0.1:9105"),
        ([], 64, "give either --listen HOST:PORT or --once"),
        (["--once", "--listen", "127.0.0.1:1"], 64, "give either --listen HOST:PORT or --once"),
        (["--listen", "192.0.2.1:9105"], 73, "--listen 192.0.2.1:9105: Cannot assign requested address"),
        (["--listen", "a..b:9105"], 73, "--listen a..b:9105: not the name of a host"),
        (["--once", "--deployment", "sitte"], 66, "there is no deployment at"),
    ],
)
def test_bad_input_is_an_error_that_names_it(
    deployment: Deployment, words: list[str], status: int, says: str
) -> None:
    assert says in tool(deployment, "metrics", *words, status=status)


def test_a_port_that_is_used_is_an_error(deployment: Deployment) -> None:
    with socket.create_server((HOST, 0)) as other:
        address = f"{HOST}:{other.getsockname()[1]}"
        said = tool(deployment, "metrics", "--listen", address, status=73)
    assert f"--listen {address}: Address already in use: give a free port" in said


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(deployment: Deployment, signum: int, status: int) -> None:
    listen = f"{HOST}:{free_port()}"
    words = (sys.executable, TOOL, "metrics", "--listen", listen)
    with subprocess.Popen(words, env=environ(deployment), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert f"serving http://{listen}/metrics" in process.stderr.readline()
        process.send_signal(signum)
        assert process.wait(60) == status
        assert f"stopped by {signal.Signals(signum).name}" in process.stderr.read()


def test_nothing_is_served_and_a_signal_counts_before_the_first_reading(
    zookeeper: Server, deployment: Deployment
) -> None:
    """A scrape must not wait for an answer that does not come."""
    port = free_port()
    words = (sys.executable, TOOL, "metrics", "--listen", f"{HOST}:{port}")
    zookeeper.freeze()
    with subprocess.Popen(words, env=environ(deployment), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "connecting to ZooKeeper at" in process.stderr.readline()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), 10)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert "stopped by SIGTERM" in process.stderr.read()


# -- Prometheus ---------------------------------------------------------------------------------------
