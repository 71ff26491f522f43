"""A short drill: the first start of three members with agents, and one blackout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from drills.blackout.cluster import Cluster
from drills.blackout.drill import Drill
from tests.support.zookeeper import Ensemble

# Packages may have to be installed first.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def ensemble_zk(ensemble: Ensemble) -> Iterator[KazooClient]:
    client = KazooClient(hosts=ensemble.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def test_a_cluster_recovers_from_a_blackout(
    place: Path, ensemble: Ensemble, ensemble_zk: KazooClient
) -> None:
    """All are killed while two clients write; no acknowledged row is lost, and all tables are the same."""
    with Cluster(place / "c", ensemble_zk, ensemble, exec_hosts=["ctl-1"]) as cluster:
        drill = Drill(cluster, ensemble, 1)
        drill.form()
        assert drill.round("in_some_order").rows > 0
