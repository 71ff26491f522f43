"""What the tests of real programs need: the programs, and a place."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.examples import openstack
from tests.stack.upgrade import NEW, OLD
from tests.support.arrangement import say

# Debian's packages, and a program of each, by which it is found.
EDGE_PACKAGES = {"haproxy": "haproxy", "dnsmasq-base": "dnsmasq", "bind9-dnsutils": "dig", "hey": "hey"}


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> None:
    """Debian's servers; they are installed where they are missing."""
    with alone():
        openstack.install_packages(partial(say, pytestconfig))


@contextmanager
def alone() -> Iterator[None]:
    """One process installs for all."""
    cache = CHECKOUT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def edge_servers(pytestconfig: pytest.Config) -> None:
    """HAProxy and dnsmasq, and what asks them; they are installed where they are missing."""
    with alone():
        openstack.install_packages(partial(say, pytestconfig), EDGE_PACKAGES)


@pytest.fixture(scope="session")
def programs(servers: None, pytestconfig: pytest.Config) -> Path:
    """The directory with Keystone's programs; they are installed where they are missing."""
    return openstack.keystone_environment(CHECKOUT / ".cache", partial(say, pytestconfig))


@pytest.fixture(scope="session")
def whole_programs(pytestconfig: pytest.Config) -> Path:
    """The directory with the programs of a whole OpenStack; they are installed where they are missing."""
    tell = partial(say, pytestconfig)
    with alone():
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
