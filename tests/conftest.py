"""The fixtures: a real ZooKeeper server or ensemble, a client, and an empty deployment for each test.

The servers start with the first test that needs them. After each test they are restored.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

from kolla_mesos_start.log import LEVELS, OUTPUT
from tests.support.agents import Containers
from tests.support.arrangement import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.support.arrangement import pytest_configure as pytest_configure
from tests.support.arrangement import pytest_sessionfinish as pytest_sessionfinish
from tests.support.arrangement import pytest_terminal_summary as pytest_terminal_summary
from tests.support.arrangement import pytest_testnodedown as pytest_testnodedown
from tests.support.arrangement import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.support.link import Link
from tests.support.secured import Secured
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble, Server

_numbers = itertools.count(1)


class Deployment(NamedTuple):
    """A deployment in ZooKeeper: `<prefix>/<id>` exists and is empty when the test begins."""

    hosts: str
    prefix: str
    id: str

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.id}"

    def environ(self, service: str, **more: str) -> dict[str, str]:
        """The variables that an agent of `service` needs; `more` are added."""
        return {
            "KOLLA_ZK_HOSTS": self.hosts,
            "KOLLA_SYSTEM_PREFIX": self.prefix,
            "KOLLA_APP_ID": f"/{self.id}/{service}",
            **more,
        }


class LogLine(NamedTuple):
    """A line in the log; `level` is one of `log.LEVELS`."""

    level: str
    logger: str
    message: str


LogLines = Callable[[], list[LogLine]]


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogLines]:
    """The log lines of this test so far, of all levels and of child processes too."""
    fd = os.memfd_create("log")
    for name, value in {"fd": fd, "level": LEVELS.index("debug"), "json_lines": True}.items():
        monkeypatch.setattr(OUTPUT, name, value)

    def read() -> list[LogLine]:
        found = map(json.loads, os.pread(fd, os.fstat(fd).st_size, 0).splitlines())
        return [LogLine(line["level"].lower(), line["logger"], line["message"]) for line in found]

    yield read
    os.close(fd)


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that `zookeeper` gives to every test; take that one."""
    # A session of 40 s survives a restart of the server on a busy machine.
    with Server(tmp_path_factory.mktemp("zookeeper"), settings={"maxSessionTimeout": 40_000}) as server:
        yield server


@pytest.fixture
def zookeeper(shared_zookeeper: Server) -> Iterator[Server]:
    """A running ZooKeeper server (`.hosts`, `.kill()`, `.start()`, `.freeze()`, `.thaw()`, `.mntr()`)."""
    yield shared_zookeeper
    shared_zookeeper.mend()


@pytest.fixture
def link(zookeeper: Server, tmp_path: Path) -> Iterator[Link]:
    """A connection to `zookeeper` that a test can cut (`.hosts`, `.kill()`, `.launch()`)."""
    link = Link(zookeeper, tmp_path / "link.log")
    yield link
    link.kill()


@pytest.fixture(scope="session")
def shared_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """The ensemble that `ensemble` gives to every test; take that one."""
    with Ensemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(shared_ensemble: Ensemble) -> Iterator[Ensemble]:
    """Three running ZooKeeper servers (`.hosts`, `.leader`, `.followers`, `.cut(follower)`, `.heal()`)."""
    yield shared_ensemble
    shared_ensemble.mend()


@pytest.fixture(scope="session")
def shared_secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The ensemble that `secured` gives to every test; take that one."""
    with Secured(tmp_path_factory.mktemp("secured")) as secured:
        yield secured


@pytest.fixture
def secured(shared_secured: Secured) -> Iterator[Secured]:
    """Three running ZooKeeper servers under TLS (`.hosts`, `.environment(name)`, `.identity(name)`, ...)."""
    yield shared_secured
    shared_secured.mend()


def connected(servers: Server | Ensemble, **options: Any) -> Iterator[KazooClient]:
    """A client of these servers, closed afterwards; `options` are more of kazoo's."""
    client = KazooClient(
        hosts=servers.hosts,
        **options,
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0},
        command_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0},
    )
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def module_zk(shared_zookeeper: Server) -> Iterator[KazooClient]:
    """A client of the shared server, for a deployment that outlives a test."""
    shared_zookeeper.mend()
    yield from connected(shared_zookeeper)


@pytest.fixture(scope="module")
def module_deployment(shared_zookeeper: Server, module_zk: KazooClient) -> Iterator[Deployment]:
    """A deployment for all tests of a module."""
    yield from made(shared_zookeeper, module_zk)


@pytest.fixture
def zk(zookeeper: Server) -> Iterator[KazooClient]:
    """A client of `zookeeper` for the test itself."""
    yield from connected(zookeeper)


@pytest.fixture
def ensemble_zk(ensemble: Ensemble) -> Iterator[KazooClient]:
    """A client of `ensemble`."""
    yield from connected(ensemble)


@pytest.fixture
def secured_zk(secured: Secured) -> Iterator[KazooClient]:
    """A client of `secured`, with the certificate of the operator."""
    yield from connected(secured, **secured.options())


@pytest.fixture
def deployment(zookeeper: Server, zk: KazooClient) -> Iterator[Deployment]:
    """A deployment of the test's own on `zookeeper`, removed afterwards."""
    yield from made(zookeeper, zk)


@pytest.fixture
def ensemble_deployment(ensemble: Ensemble, ensemble_zk: KazooClient) -> Iterator[Deployment]:
    """A deployment of the test's own on `ensemble`, removed afterwards."""
    yield from made(ensemble, ensemble_zk)


@pytest.fixture
def secured_deployment(secured: Secured, secured_zk: KazooClient) -> Iterator[Deployment]:
    """A deployment of the test's own on `secured`, removed afterwards."""
    yield from made(secured, secured_zk)


def made(servers: Server | Ensemble, client: KazooClient) -> Iterator[Deployment]:
    """A deployment for one test, below a prefix of its own: a test may read all znodes below that."""
    deployment = Deployment(servers.hosts, f"/kolla-{next(_numbers)}", "site")
    client.ensure_path(deployment.path)
    yield deployment
    # A test may have left the servers frozen or dead: restore them before the client waits for them.
    servers.mend()

    def removed() -> bool:
        with suppress(NotEmptyError):  # The registrar of a killed daemon may still write its exit status.
            client.retry(client.delete, deployment.prefix, recursive=True)
            return True
        return False

    eventually(removed, "nobody writes to the deployment any more")


@pytest.fixture
def containers(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Starts agents of `deployment` (`.start(service, host)`), and ends them before it is removed."""
    # Not below `tmp_path`, which has the test's name: a socket's path must be short.
    containers = Containers(tmp_path_factory.mktemp("c"), deployment.environ)
    yield containers
    containers.end()
