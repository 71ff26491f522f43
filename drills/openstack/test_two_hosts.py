"""A controller and compute hosts with addresses of their own; one joins, one is lost and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drills.openstack.deployment import COMPUTE, HOSTS, OpenStack
from drills.openstack.networks import Network
from tests.conftest import connected
from tests.support.zookeeper import Server

ADDRESSES = {"ctl-1": "10.77.0.11", "cmp-1": "10.77.0.21", "cmp-2": "10.77.0.22"}
DISCOVER = "nova-manage nova.conf cell_v2 discover_hosts"
HYPERVISORS = "answer = {each.name: each.state for each in cloud.compute.hypervisors()}"
SESSION = 6.0  # seconds: how long the registrar of a host that is lost stays known

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("kms", ADDRESSES) as network:
        yield network


@pytest.fixture
def cloud(network: Network, shared_zookeeper: Server, programs: Path, place: Path) -> Iterator[OpenStack]:
    """Published, started all at once, and up: a controller, and one compute host."""
    network.relay("ctl-1", shared_zookeeper.port)
    with contextmanager(connected)(shared_zookeeper) as zk:
        cloud = OpenStack(
            place,
            programs,
            zk,
            f"{ADDRESSES['ctl-1']}:{shared_zookeeper.port}",
            environ={"KOLLA_PRIVATE_INTERFACE": "eth0", "KOLLA_PUBLIC_INTERFACE": "eth0"},
            own={
                "front_address": ADDRESSES["ctl-1"],
                "controllers": f"ctl-1={ADDRESSES['ctl-1']}",
                "rabbitmq_epmd_addresses": ADDRESSES["ctl-1"],
            },
            inside=network.inside,
        )
        zk.ensure_path(cloud.path)
        try:
            cloud.publish()
            cloud.start(cloud.seed)
            cloud.await_up()
            yield cloud
        finally:
            cloud.close()


def test_hosts_join_are_lost_and_come_back(cloud: OpenStack, network: Network) -> None:
    """Each host is discovered once, whatever becomes of it, and takes servers whenever it is there."""
    assert cloud.ask(HYPERVISORS) == {"cmp-1": "up"}
    cloud.ask(_prepare())
    assert cloud.ask(_boot("one", "cmp-1")) == ["ACTIVE", "cmp-1"]

    _join(cloud, "cmp-2")
    assert cloud.ask(HYPERVISORS) == {"cmp-1": "up", "cmp-2": "up"}
    assert cloud.ask(_boot("two", "cmp-2")) == ["ACTIVE", "cmp-2"]

    _lose(cloud, network, "cmp-1")
    cloud.eventually(lambda: "cmp-1" not in cloud.ready_hosts(COMPUTE), "it is gone", seconds=5 * SESSION)
    network.plug("cmp-1")
    for container in cloud.containers:
        if container.host == "cmp-1":
            cloud.start_one(container)
    cloud.await_up()
    assert cloud.ask(_boot("three", "cmp-1")) == ["ACTIVE", "cmp-1"]

    runs = cloud.runs()
    assert {host: runs[f"{host}: {DISCOVER}"] for host in ("ctl-1", "cmp-1", "cmp-2")} == {
        "ctl-1": 0,
        "cmp-1": 1,
        "cmp-2": 1,
    }
    assert set(runs.values()) == {1}, runs


def _join(cloud: OpenStack, host: str) -> None:
    """A new host, with a container of each service that every compute host has."""
    joined = [cloud.add_on(service, host) for service in (COMPUTE, HOSTS)]
    cloud.publish()
    for container in joined:
        cloud.start_one(container)
    cloud.await_up()


def _lose(cloud: OpenStack, network: Network, host: str) -> None:
    """The host loses its power: nothing is said to anybody, and all its processes are gone."""
    network.unplug(host)
    for container in cloud.containers:
        if container.host == host:
            cloud.kill(container)


def _prepare() -> str:
    return """
image = cloud.create_image("tiny", data=b"0" * 65536, disk_format="raw", container_format="bare", wait=True)
flavor = cloud.create_flavor("tiny", ram=64, vcpus=1, disk=1)
answer = image.status
"""


def _boot(name: str, host: str) -> str:
    return f"""
server = cloud.compute.create_server(
    name="{name}", image_id=cloud.get_image("tiny").id, flavor_id=cloud.get_flavor("tiny").id,
    networks="none", availability_zone="nova:{host}",
)
server = cloud.compute.wait_for_server(server, wait=120)
answer = [server.status, server.hypervisor_hostname]
"""
