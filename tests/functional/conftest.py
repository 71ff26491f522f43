"""The real thing, started once for all tests here: MariaDB, memcached, and Keystone three times."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kolla_mesos_start.operator import openstack
from kolla_mesos_start.operator.containers import CHECKOUT
from tests.conftest import connected
from tests.functional.cloud import Cloud
from tests.zookeeper import Server

REPORT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What the start has taken, whether the tests have passed or not."""
    if config.stash[REPORT]:
        terminalreporter.section("start of MariaDB, memcached and three Keystones")
        for text in config.stash[REPORT]:
            terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests."""
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> Path:
    """The directory with Keystone's programs; they and the servers are installed where they are missing."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n-- {text}", flush=True)

    openstack.install_packages(say)
    return openstack.keystone_environment(CHECKOUT / ".cache", say)


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory into which the servers' own users can reach, with a name short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="kolla-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cloud(shared_zookeeper: Server, programs: Path, place: Path, report: list[str]) -> Iterator[Cloud]:
    """The deployment, published, started all at once, and up."""
    shared_zookeeper.mend()
    with contextmanager(connected)(shared_zookeeper) as zk:
        cloud = Cloud(place, programs, zk, shared_zookeeper.hosts, report)
        zk.ensure_path(cloud.path)
        report.append(f"order of the start: KOLLA_TEST_SEED={cloud.seed}")
        try:
            cloud.command_lines.start()
            cloud.publish()
            cloud.start(cloud.seed)
            cloud.await_start()
            yield cloud
            cloud.stop()
        finally:
            cloud.end()
            cloud.command_lines.stop()
            zk.delete(cloud.prefix, recursive=True)
