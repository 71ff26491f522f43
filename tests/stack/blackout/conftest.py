"""MariaDB and what its state transfers need; they are installed where they are missing."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from drills.blackout.members import PACKAGES
from tests import CHECKOUT
from tests.examples.openstack import install_packages
from tests.support.arrangement import say


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> None:
    """Debian's packages."""
    cache = CHECKOUT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_packages(partial(say, pytestconfig), PACKAGES)


@pytest.fixture(scope="module")
def place(servers: None) -> Iterator[Path]:
    """A directory into which the servers' own users can reach, with a name short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="kolla-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)
