"""The cluster that all tests of this folder share, with the images that the examples name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from kazoo.client import KazooClient

from tests import CHECKOUT
from tests.conftest import connected
from tests.containers.conftest import able as able
from tests.containers.conftest import images as images
from tests.containers.images import Images
from tests.kubernetes.build import install, programs
from tests.kubernetes.cluster import Cluster, saved
from tests.support.arrangement import say, section

NODES = ("ctl-1", "ctl-2", "ctl-3")
REGISTRY = "registry.example.org/kolla"
# The images by the tags that the examples give them, and one for an upgrade. Those of etc/kubernetes have
# the agent, the others are Kolla's.
KOLLA = {"memcached": ["30.0.0"], "mariadb-server": ["30.0.0", "10.11"], "keystone": ["30.0.0", "30.0.1"]}
WITH_AGENT = {"mariadb-server": ["2026.1"], "keystone": ["2026.1"]}


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests."""
    return section(pytestconfig, "kubernetes")


@pytest.fixture(scope="package")
def cluster(
    images: Images, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three nodes. The tests themselves, and what they start, are in the network of the control plane."""
    tell = partial(say, pytestconfig)
    install(tell)
    place = tmp_path_factory.mktemp("kubernetes")
    named = {
        image(name): [f"{REGISTRY}/{name}:{tag}" for tag in tags]
        for image, wanted in ((images.kolla, KOLLA), (images.agent, WITH_AGENT))
        for name, tags in wanted.items()
    }
    archive = saved(place, images.store, named)
    with Cluster(place / "cluster", programs(CHECKOUT / ".cache", tell), NODES) as cluster:
        cluster.load(archive)
        archive.unlink()
        with cluster.control.network():
            yield cluster


@pytest.fixture(scope="module")
def zk(cluster: Cluster) -> Iterator[KazooClient]:
    """A client of the cluster's ZooKeeper."""
    yield from connected(cluster.zookeeper)
