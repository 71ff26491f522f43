"""Lives of one daemon, with stops and changes at the worst instants: seeds that have found a defect.

New ones are looked for by hand: `python -m drills.lives --runs 1000`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from drills.lives.__main__ import Ground
from tests.support.zookeeper import Server

# A stop was lost in a restart, or in its election; the second daemon wrote elsewhere; a stop signal was sent
# twice; the interpreter vanished at the last instant.
SEEDS = (5095, 5127, 5157, 5169, 5182, 5196, 5198, 5201, 5399)


@pytest.fixture
def ground(zookeeper: Server, zk: KazooClient, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Not `tmp_path`, whose name is that of the test: a socket's path must be short."""
    return Ground(tmp_path_factory.mktemp("lives"), zookeeper, zk)


def test_every_stop_and_every_change_counts(ground: Ground) -> None:
    with ThreadPoolExecutor(2) as pool:
        wrong = {seed: sentences for seed, sentences, _ in pool.map(ground.live, SEEDS) if sentences}
    ground.close()
    assert not wrong, "python -m drills.lives --show --runs 1 --seed N"
