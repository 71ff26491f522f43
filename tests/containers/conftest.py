"""The images and the podman that the container tests share; and what a machine must have for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.containers.images import Images
from tests.containers.podman import Podman
from tests.support.arrangement import say, section

PROGRAMS = ("podman", "buildah", "runc", "conmon", "mmdebstrap")
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_SYS_CHROOT": 18, "CAP_MKNOD": 27}


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests: what the agent costs an image and a container."""
    return section(pytestconfig, "containers")


@pytest.fixture(scope="session")
def able() -> None:
    """This machine can make images and run containers; else it says why not."""
    reasons = list(lacking(CHECKOUT / ".cache"))
    if reasons:
        pytest.fail("containers can't be run here: " + "; ".join(reasons), pytrace=False)


@pytest.fixture(scope="session")
def images(able: None, pytestconfig: pytest.Config) -> Iterator[Images]:
    """The images; they are made where they are missing."""
    images = Images(CHECKOUT / ".cache", partial(say, pytestconfig))
    images.make()
    yield images
    images.release()


@pytest.fixture(scope="session")
def podman(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman, which has these images."""
    podman = Podman(tmp_path_factory.mktemp("podman"), images.store)
    yield podman
    podman.end()


def lacking(cache: Path) -> Iterator[str]:
    """Why containers can't be run here, each reason with what to do."""
    if os.geteuid() != 0:
        yield "the images are made as root: run bin/test as root"
        return
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        yield f"programs are missing, which bin/test installs: {', '.join(missing)}"
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")
    )
    effective = int(line.split()[1], 16)
    without = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if without:
        yield f"root is without {', '.join(without)} here"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        yield "the kernel has no overlay file system: modprobe overlay"
    if not any(Path("/sys/fs/cgroup").iterdir()):
        yield "no cgroups are mounted below /sys/fs/cgroup"
    cache.mkdir(exist_ok=True)
    if _file_system(cache) == "overlay":
        yield f"{cache} is on an overlay file system, on which none can be laid: use another checkout"


def _file_system(path: Path) -> str:
    """The type of the file system that `path` is on."""
    mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    places = {before.split()[4]: after.split()[0] for before, after in mounts}
    return next(places[str(each)] for each in (path, *path.parents) if str(each) in places)
