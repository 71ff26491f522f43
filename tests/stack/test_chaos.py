"""Nothing runs twice, nothing is lost: two seeds of chaos, of which one has found a bug.

New ones are looked for by hand: `python -m drills.chaos --runs 200`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from drills.chaos.__main__ import run, told
from drills.chaos.run import Ground, ground
from tests.support.zookeeper import Ensemble


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not `tmp_path`, whose name is that of the test: a socket's path must be short."""
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture
def here(ensemble: Ensemble, ensemble_zk: KazooClient, directory: Path) -> Iterator[Ground]:
    with ground(ensemble, ensemble_zk, directory) as here:
        yield here


def test_nothing_runs_twice_and_nothing_is_lost(here: Ground, directory: Path) -> None:
    """Agents, guards, links and servers are killed, stopped and cut off, and the guarantee holds."""
    for seed in (312, 2014):
        verdict = run(seed, here, directory / str(seed))
        print(f"seed {seed}: {told(verdict.counts)}")
        assert not verdict.wrong, f"python -m drills.chaos --seed {seed}: {verdict.wrong}"
