"""Who the agent runs as in these tests, and where it writes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.files.children import IDENTITIES, Mount, own, write


@pytest.fixture(params=IDENTITIES)
def uid(request: pytest.FixtureRequest) -> int:
    """The user that the agent runs as."""
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def root() -> None:
    """For what only root can set up: other users' files, mounts."""
    assert os.geteuid() == 0, "this test needs root: it makes files of other users, or mounts"


@pytest.fixture
def home(uid: int) -> Iterator[Path]:
    """A directory of that user's. (The parents of tmp_path let nobody but their owner in.)"""
    path = Path(tempfile.mkdtemp(prefix="files-")).resolve()
    own(path, uid)
    path.chmod(0o755)
    yield path
    # rm, for shutil.rmtree recurses as deep as the directories do.
    subprocess.run(["rm", "-rf", "--", str(path)], check=True)


@pytest.fixture
def mounted(root: None, home: Path, uid: int) -> tuple[Path, Path, list[Mount]]:
    """A file of the user's outside, the dest that it is mounted at, and the mounts that do it."""
    outside = Path(home / "outside")
    outside.mkdir()
    source = write(own(outside, uid) / "source", b"old", uid)
    inside = home / "etc"
    inside.mkdir()
    dest = own(inside, uid) / "app.conf"
    dest.touch()
    return source, dest, [("--bind", str(source), str(dest))]
