"""The programs of a whole OpenStack, a directory for it, and hosts with networks of their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.examples import openstack
from tests.support.arrangement import say


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> Path:
    """The directory with OpenStack's programs; what is missing is installed."""
    tell = partial(say, pytestconfig)
    openstack.install_packages(tell, openstack.WHOLE_PACKAGES)
    return openstack.environment(CHECKOUT / ".cache", openstack.WHOLE, tell)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=3, help="so many starts in which a container is killed")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that MariaDB's user can enter, with a name that is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="kolla-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
