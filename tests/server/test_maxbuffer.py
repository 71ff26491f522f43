"""Requests larger than the server's jute.maxbuffer end with a message; outages do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment, connected, made
from tests.support.agents import Containers
from tests.support.link import Link
from tests.support.publishing import publish, write_files
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

LIMIT = 20_000  # bytes


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that accepts only small requests."""
    with Server(tmp_path_factory.mktemp("narrow"), java=[f"-Djute.maxbuffer={LIMIT}"]) as server:
        yield server


@pytest.fixture
def narrow_zk(narrow: Server) -> Iterator[KazooClient]:
    yield from connected(narrow)


@pytest.fixture
def narrow_deployment(narrow: Server, narrow_zk: KazooClient) -> Iterator[Deployment]:
    yield from made(narrow, narrow_zk)


def test_a_value_that_is_too_large_is_named(narrow_deployment: Deployment) -> None:
    done = ctl(narrow_deployment, "set", "big", "-", given="x" * 30_000, status=69)
    assert f"{narrow_deployment.path}/variables/big can't be written: " in done.stderr
    assert "jute.maxbuffer" in done.stderr and "bytes" in done.stderr


def test_a_publication_is_split_until_it_fits(
    narrow_deployment: Deployment, narrow_zk: KazooClient, tmp_path: Path
) -> None:
    """A file that is too large by itself is named; the publication is marked as unfinished."""
    root = write_files(tmp_path / "site", **{f"variables__v{n}": "x" * 5000 for n in range(10)})
    ctl(narrow_deployment, "publish", str(root))
    assert len(narrow_zk.get_children(f"{narrow_deployment.path}/variables")) == 10
    assert json.loads(narrow_zk.get(f"{narrow_deployment.path}/.publication")[0])["finished"]
    write_files(root, variables__v3="y" * 5000, variables__large="x" * 30_000)
    done = ctl(narrow_deployment, "publish", str(root), status=69)
    assert f"{narrow_deployment.path}/variables/large can't be written" in done.stderr


def test_an_agent_names_the_znode_that_is_too_large(
    narrow_deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For example, the states of very many commands."""
    commands = {f"command-{'x' * 40}-{n}": {"command": "true"} for n in range(100)}
    publish(narrow_deployment, "svc", {"commands": commands})
    containers = Containers(tmp_path_factory.mktemp("c"), narrow_deployment.environ)
    agent = containers.start("svc")
    try:
        assert agent.ends() == 69
        assert "jute.maxbuffer" in agent.ending["reason"]
        assert f"{narrow_deployment.path}/status/" in agent.ending["reason"]
    finally:
        containers.end()


def test_repeated_outages_are_not_taken_for_large_requests(
    link: Link, deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commands = {f"command-{'x' * 40}-{n}": {"command": "true"} for n in range(100)}
    publish(deployment, "svc", {"commands": commands})
    containers = Containers(tmp_path_factory.mktemp("c"), deployment._replace(hosts=link.hosts).environ)
    agent = containers.start("svc")
    try:
        for _ in range(8):
            begun = agent.said.count(": starting")
            link.kill()
            link.launch()
            eventually(
                lambda begun=begun: agent.said.count(": starting") > begun or not agent.running,  # type: ignore[misc]
                "it has begun another command, or is through",
            )
        assert agent.ends() == 0
    finally:
        containers.end()
