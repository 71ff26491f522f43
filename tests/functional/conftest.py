"""The real thing, started once for all tests here: MariaDB, memcached, and Keystone three times."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests import CHECKOUT
from tests.arrangement import say, section
from tests.examples import openstack
from tests.functional.cloud import Cloud
from tests.functional.upgrade import NEW, OLD
from tests.zookeeper import Server

# Debian's packages, and a program of each, by which it is found.
EDGE_PACKAGES = {"haproxy": "haproxy", "dnsmasq-base": "dnsmasq", "bind9-dnsutils": "dig", "hey": "hey"}


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests: what the start has taken."""
    return section(pytestconfig, "start of MariaDB, memcached and three Keystones")


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> None:
    """Debian's servers; they are installed where they are missing."""
    with _alone():
        openstack.install_packages(partial(say, pytestconfig))


@contextmanager
def _alone() -> Iterator[None]:
    """One process installs for all."""
    cache = CHECKOUT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def edge_servers(pytestconfig: pytest.Config) -> None:
    """HAProxy and dnsmasq, and what asks them; they are installed where they are missing."""
    with _alone():
        openstack.install_packages(partial(say, pytestconfig), EDGE_PACKAGES)


@pytest.fixture(scope="session")
def programs(servers: None, pytestconfig: pytest.Config) -> Path:
    """The directory with Keystone's programs; they are installed where they are missing."""
    return openstack.keystone_environment(CHECKOUT / ".cache", partial(say, pytestconfig))


@pytest.fixture(scope="session")
def whole_programs(pytestconfig: pytest.Config) -> Path:
    """The directory with the programs of a whole OpenStack; they are installed where they are missing."""
    tell = partial(say, pytestconfig)
    with _alone():
        openstack.install_packages(tell, openstack.WHOLE_PACKAGES)
    return openstack.environment(CHECKOUT / ".cache", openstack.WHOLE, tell)


@pytest.fixture(scope="session")
def releases(servers: None, edge_servers: None, pytestconfig: pytest.Config) -> Mapping[str, Path]:
    """The same of the two releases of the upgrade."""
    return {
        release: openstack.release_environment(CHECKOUT / ".cache", release, partial(say, pytestconfig))
        for release in (OLD, NEW)
    }


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory into which the servers' own users can reach, with a name short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="kolla-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cloud(
    shared_zookeeper: Server, module_zk: KazooClient, programs: Path, place: Path, report: list[str]
) -> Iterator[Cloud]:
    """The deployment, published, started all at once, and up."""
    cloud = Cloud(place, programs, module_zk, shared_zookeeper.hosts, report)
    cloud.command_lines.start()
    try:
        with cloud.up():
            yield cloud
    finally:
        cloud.command_lines.stop()
