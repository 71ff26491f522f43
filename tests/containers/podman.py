"""Real containers: podman with a storage of its own, and a container that can be asked and ended.

What lives here: the settings with which podman and buildah run on nearly any machine, as one in a
container of its own is, and the few commands that the tests use. All containers end with the tests,
even if those are killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import CHECKOUT

# No limit is raised, which needs CAP_SYS_RESOURCE; and crun refuses hybrid cgroups, but runc takes them.
SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
log_driver = "k8s-file"
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
# The storage is not mounted onto itself: where several podmans end at once that may stay, for ever.
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{graph}"
runroot = "{run}"
[storage.options]
additionalimagestores = [{images}]
[storage.options.overlay]
skip_mount_home = "true"
"""
MOUNTED = "localhost/agent:mounted"
# Its standard input ends with whoever holds the other end, however that ends.
ENDS_WITH_US = 'read -r nothing; podman rm --all --force --time 0 >/dev/null; rm -rf "$1"'


def settings(
    directory: Path, graph: Path, images: Sequence[Path] = (), run: Path | None = None
) -> dict[str, str]:
    """The environment for podman and buildah: storage in `graph`, more images from `images`."""
    directory.mkdir(parents=True, exist_ok=True)
    containers, storage = directory / "containers.conf", directory / "storage.conf"
    containers.write_text(SETTINGS)
    stores = ", ".join(f'"{each}"' for each in images)
    storage.write_text(STORAGE.format(graph=graph, run=run or directory / "run", images=stores))
    return {
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_CONF": str(containers),
        "CONTAINERS_STORAGE_CONF": str(storage),
    }


class Podman:
    """Podman with containers in `directory`, of the images in the storage `images`."""

    def __init__(self, directory: Path, images: Path) -> None:
        # Of more than 50 characters podman has conmon's own call refused: it then waits 20 s for each end.
        run = Path(tempfile.mkdtemp(prefix="podman-"))
        self.environ = {**os.environ, **settings(directory, directory / "graph", [images], run)}
        self._ending = subprocess.Popen(
            ("sh", "-c", ENDS_WITH_US, "sh", str(run)),
            stdin=subprocess.PIPE,
            env=self.environ,
            start_new_session=True,
        )

    def make_mounted(self) -> str:
        """Make the image that mounts the agent; podman can't mount one of another storage."""
        argv = (sys.executable, str(CHECKOUT / "bin" / "agent-directory"))
        with tempfile.TemporaryDirectory() as place:
            subprocess.run((*argv, f"{place}/agent", "--image", MOUNTED), env=self.environ, check=True)
        return MOUNTED

    def end(self) -> None:
        """End and remove all containers."""
        self._ending.communicate()

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a podman command; what it prints comes back."""
        done = subprocess.run(
            ("podman", *words),
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            raise AssertionError(f"podman {' '.join(words)}: status {done.returncode}: {done.stderr}")
        return done

    def run(self, image: str, *command: str, **more: Any) -> Container:
        """Start a container in the background; see `create`."""
        container = self.create(image, *command, **more)
        container.start()
        return container

    def create(
        self,
        image: str,
        *command: str,
        environ: Mapping[str, str] | None = None,
        volumes: Mapping[Path, str] | None = None,
        options: Sequence[str] = (),
    ) -> Container:
        """Make a container and leave it to be started; `volumes` are directories and where they appear.

        Without `command`, it runs the image's CMD.
        """
        given = [f"--env={name}={value}" for name, value in (environ or {}).items()]
        mounted = [f"--volume={path}:{place}" for path, place in (volumes or {}).items()]
        made = self("create", *given, *mounted, *options, image, *command)
        return Container(self, made.stdout.strip())

    def output(self, image: str, *command: str, options: Sequence[str] = ()) -> str:
        """What a command prints in a container of the image, which is gone afterwards."""
        return self("run", "--rm", *options, image, *command).stdout

    def config(self, image: str) -> dict[str, Any]:
        """What the image says of how it is to be run: Entrypoint, Cmd, User, Env."""
        config: dict[str, Any] = json.loads(self("image", "inspect", image).stdout)[0]["Config"]
        return config


class Container:
    """One container, whatever state it is in."""

    def __init__(self, podman: Podman, id: str) -> None:
        self.podman = podman
        self.id = id

    @property
    def inspected(self) -> dict[str, Any]:
        inspected: dict[str, Any] = json.loads(self.podman("container", "inspect", self.id).stdout)[0]
        return inspected

    @property
    def pid(self) -> int:
        """The process id, on the machine, of the container's process 1; 0 where it does not run."""
        return int(self.inspected["State"]["Pid"])

    @property
    def running(self) -> bool:
        return bool(self.inspected["State"]["Running"])

    @property
    def status(self) -> int:
        """The exit status of a container that has ended."""
        state = self.inspected["State"]
        assert not state["Running"], f"{self.id} still runs: {self.said}"
        return int(state["ExitCode"])

    @property
    def said(self) -> str:
        """What it has written to standard output and error, in this order for each."""
        logs = self.podman("logs", self.id)
        return logs.stdout + logs.stderr

    def start(self) -> None:
        self.podman("start", self.id)

    def stop(self, seconds: int = 10) -> int:
        """As a launcher does: SIGTERM to process 1, after `seconds` SIGKILL; the exit status."""
        self.podman("stop", "--time", str(seconds), self.id)
        return self.status

    def kill(self) -> None:
        """SIGKILL to process 1: the kernel ends all others with it."""
        self.podman("kill", "--signal", "KILL", self.id)
        self.podman("wait", self.id)

    def ends(self) -> int:
        """Wait for its end; the exit status."""
        return int(self.podman("wait", self.id).stdout)

    def exec(self, *command: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its own user or another."""
        return self.podman("exec", *(("--user", user) if user else ()), self.id, *command, check=False)

    def read(self, path: str) -> str:
        """A file in it, while it runs; empty where there is none."""
        try:
            return Path(f"/proc/{self.pid}/root{path}").read_text()
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        self.podman("rm", "--force", "--time", "0", self.id)
