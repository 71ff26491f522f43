"""A whole OpenStack in images of Kolla's: all containers at the same moment, and again with their data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drills.openstack.containers.deployment import InContainers
from drills.openstack.containers.images import OpenStackImages
from drills.openstack.networks import Network
from tests.conftest import connected
from tests.containers.podman import Podman
from tests.support.zookeeper import Server

ADDRESSES = {"ctl-1": "10.78.0.11", "cmp-1": "10.78.0.21"}
ETH0 = {"KOLLA_PRIVATE_INTERFACE": "eth0", "KOLLA_PUBLIC_INTERFACE": "eth0"}
SERVERS = "answer = {each.name: each.status for each in cloud.compute.servers()}"
START = 600.0  # seconds
KILLED = 137

# The images are made first, and most of that is OpenStack's installation.
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("kmc", ADDRESSES) as network:
        yield network


@pytest.fixture
def cloud(
    network: Network, shared_zookeeper: Server, podman: Podman, images: OpenStackImages, place: Path
) -> Iterator[InContainers]:
    """Published, not started."""
    network.relay("ctl-1", shared_zookeeper.port)
    hosts = f"{ADDRESSES['ctl-1']}:{shared_zookeeper.port}"
    own = {"front_address": ADDRESSES["ctl-1"], "controllers": f"ctl-1={ADDRESSES['ctl-1']}"}
    with contextmanager(connected)(shared_zookeeper) as zk:
        cloud = InContainers(podman, images, place, zk, hosts, environ=ETH0, own=own, inside=network.inside)
        zk.ensure_path(cloud.path)
        try:
            cloud.publish()
            yield cloud
        finally:
            cloud.close()


def test_it_comes_up_and_boots_a_server_and_comes_up_again(cloud: InContainers, measured: list[str]) -> None:
    """No one-time command runs twice, and the server is still there."""
    cloud.start(cloud.seed)
    cloud.await_up(START)
    assert cloud.ask(SERVERS) == {"first": "ACTIVE"}
    assert "root" not in cloud.users
    once = cloud.runs()
    assert set(once.values()) == {1}, once
    measured.append(
        f"{len(cloud.containers)} containers: all ready after {cloud.all_ready_at:.1f} s, "
        f"a server ACTIVE after {cloud.server_active_at:.1f} s"
    )

    ended = cloud.stop()
    assert KILLED not in ended.values(), ended
    cloud.end()
    cloud.start(cloud.seed)
    cloud.await_up(START)
    assert cloud.ask(SERVERS) == {"first": "ACTIVE"}
    assert cloud.runs() == once
    measured.append(f"made anew with their data: all ready after {cloud.all_ready_at:.1f} s")
