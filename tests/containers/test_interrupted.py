"""Whoever makes images or runs containers may be killed: nothing of it goes on, and the next run works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests import CHECKOUT
from tests.containers.images import Images
from tests.containers.podman import settings
from tests.support.waiting import LIMIT, eventually

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

BUILD = """
import sys
from pathlib import Path
from tests.containers.images import Images

images = Images(Path(sys.argv[1]), print)
with images.alone():
    images.build(Path(sys.argv[2]), "localhost/made:1")
    images.build(Path(sys.argv[3]), "localhost/interrupted:1")
"""
RUN = """
import sys, time
from pathlib import Path
from tests.containers.podman import Podman

podman = Podman(Path(sys.argv[1]), Path(sys.argv[2]))
podman.run(sys.argv[3], "sleep", "infinity")
print("started", flush=True)
time.sleep(600)
"""
# A shell, and a FIFO that nobody writes to.
DOCKERFILE = """\
FROM scratch
ADD shell.tar /
"""
NEVER_MADE = "RUN read nothing </never\n"


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_build_is_cleared_away(tmp_path: Path, signum: int) -> None:
    """No process of it goes on and no mount stays; what it has left in the storage goes with the next."""
    cache = tmp_path / "cache"
    made, never = context(tmp_path / "made", DOCKERFILE), context(tmp_path / "never", DOCKERFILE + NEVER_MADE)
    with started(BUILD, cache, made, never) as building:
        processes = eventually(lambda: with_a_shell(building.pid), "the build runs its shell")
        building.send_signal(signum)
        building.wait()
        assert psutil.wait_procs(processes, timeout=LIMIT)[1] == []
    assert mounts(cache) == []
    assert asked(cache, "containers", "--quiet") != ""
    images = Images(cache, print)
    with images.alone():
        images.build(made, "localhost/made:1")
    images.release()
    assert asked(cache, "containers", "--quiet") == ""
    assert asked(cache, "images", "--all", "--format={{.Name}}:{{.Tag}}") == "localhost/made:1\n"
    assert list((cache / "images.tmp").iterdir()) == []


def test_containers_end_with_whoever_has_started_them(tmp_path: Path, images: Images) -> None:
    """However that has ended; of podman there is neither a process left, nor a mount."""
    with started(RUN, tmp_path / "podman", images.store, images.kolla("base")) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"started\n"
        assert mounts(tmp_path) != []
        running.kill()
        eventually(lambda: not mounts(tmp_path), "no mount is left")
        eventually(lambda: not of(tmp_path), "no process is left")


def context(directory: Path, dockerfile: str) -> Path:
    """A build's directory: all that a shell needs, from this machine."""
    directory.mkdir()
    (directory / "Dockerfile").write_text(dockerfile)
    libraries = re.findall(r"/\S+", subprocess.check_output(("ldd", "/bin/sh"), text=True))
    with tarfile.open(directory / "shell.tar", "w", dereference=True) as archive:
        for name in ("/bin/sh", *libraries):
            archive.add(name)
        fifo = tarfile.TarInfo("never")
        fifo.type = tarfile.FIFOTYPE
        archive.addfile(fifo)
    return directory


@contextmanager
def started(program: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program, which is killed in the end."""
    argv = (sys.executable, "-c", program, *map(str, words))
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=pipe, stderr=nothing) as process:
        try:
            yield process
        finally:
            process.kill()


def with_a_shell(pid: int) -> list[psutil.Process]:
    """All that this process has started, once there is a shell among them."""
    started: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    with suppress(psutil.NoSuchProcess):
        if "sh" in {process.name() for process in started}:
            return started
    return []


def of(directory: Path) -> list[list[str]]:
    """The command lines of all processes that have to do with the directory."""
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if any(str(directory) in word for word in line)]


def mounts(directory: Path) -> list[str]:
    """Where something is mounted in the directory."""
    places = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [place for place in places if place.startswith(f"{directory}/")]


def asked(cache: Path, *words: str) -> str:
    """What buildah says of the images in there."""
    environ = {**os.environ, **settings(cache / "asking", cache / "images")}
    return subprocess.check_output(("buildah", *words), env=environ, text=True)
