"""The user that the agent runs as in these tests, and the directory where it writes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.files.children import IDENTITIES, Mount, own, write


@pytest.fixture(params=IDENTITIES)
def uid(request: pytest.FixtureRequest) -> int:
    """The user that the agent runs as."""
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def root() -> None:
    """For tests that need root: files of other users, or mounts."""
    assert os.geteuid() == 0, "this test needs root: it makes files of other users, or mounts"


@pytest.fixture
def home(uid: int) -> Iterator[Path]:
    """A directory of that user. (Only their owner may enter the parents of tmp_path.)"""
    path = Path(tempfile.mkdtemp(prefix="files-")).resolve()
    own(path, uid)
    path.chmod(0o755)
    yield path
    # Not shutil.rmtree, whose recursion is as deep as the directories.
    subprocess.run(["rm", "-rf", "--", str(path)], check=True)


@pytest.fixture
def mounted(root: None, home: Path, uid: int) -> tuple[Path, Path, list[Mount]]:
    """A file of the user outside of the container, the dest where it is mounted, and the mounts."""
    outside = Path(home / "outside")
    outside.mkdir()
    source = write(own(outside, uid) / "source", b"old", uid)
    inside = home / "etc"
    inside.mkdir()
    dest = own(inside, uid) / "app.conf"
    dest.touch()
    return source, dest, [("--bind", str(source), str(dest))]
