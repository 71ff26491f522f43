"""The agent as a directory, mounted into Kolla's images as they are: no image has the snippet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from tests import CHECKOUT
from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.obedient import PROGRAM, SERVICE, STATUS, publish_obedient
from tests.containers.podman import Container, Podman
from tests.containers.test_hard_conditions import NO_RIGHTS
from tests.containers.test_with_kolla_start import kolla_config
from tests.support.waiting import eventually

Start = Callable[..., Container]

pytestmark = pytest.mark.timeout(900)

PLACE = "/opt/kolla_mesos_start"
AGENT = f"{PLACE}/bin/kolla_mesos_start"
RUN, STATE = "/run/kolla_mesos_start", "/var/lib/kolla_mesos_start"
# What the obedient daemon's one file may be, without a directory that anybody has opened.
DEST = f"{STATE}/files/obedient.conf"
MOUNTS = [f"--mount=type=tmpfs,dst={place},U=true" for place in (RUN, STATE)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mounted") / "agent"
    subprocess.run([sys.executable, CHECKOUT / "bin" / "agent-directory", place], check=True)
    return place


@pytest.fixture
def start(podman: Podman, images: Images, deployment: Deployment, directory: Path) -> Iterator[Start]:
    made: list[Container] = []

    def run(
        image: str,
        *command: str,
        options: tuple[str, ...] = (),
        volumes: dict[Path, str] | None = None,
        **environ: str,
    ) -> Container:
        container = podman.run(
            images.kolla(image),
            *command,
            environ=deployment.environ(SERVICE, **environ),
            volumes={directory: f"{PLACE}:ro", **(volumes or {})},
            options=[*MOUNTS, *options],
        )
        made.append(container)
        return container

    yield run
    for container in made:
        print(container.said)
        container.remove()


def is_ready(container: Container) -> bool:
    assert container.running, container.said
    return container.exec(AGENT, "health", "--ready").returncode == 0


@pytest.mark.parametrize("image", ["memcached", "mariadb-server", "keystone"])
def test_an_image_as_kolla_publishes_it_starts_with_the_agent(
    start: Start, deployment: Deployment, image: str
) -> None:
    publish_obedient(deployment, "", DEST)
    container = start(image, AGENT)
    eventually(lambda: is_ready(container), "it is ready")
    assert container.stop(30) == STATUS


def test_before_kolla_start(start: Start, deployment: Deployment, tmp_path: Path) -> None:
    """Kolla's sudo rule copies as root what the agent has written into its own mount."""
    publish_obedient(deployment, "", DEST, command="kolla_start")
    program, path = tmp_path / "config" / "obedient.py", "/etc/mysql/obedient.conf"
    copied = {"source": DEST, "dest": path, "owner": "mysql", "perm": "0600"}
    command = "python3 /var/lib/kolla/config_files/obedient.py"
    volume = kolla_config(program.parent, command, config_files=[copied])
    program.write_text(PROGRAM)
    container = start("mariadb-server", AGENT, volumes=volume, KOLLA_CONFIG_STRATEGY="COPY_ALWAYS")
    eventually(lambda: is_ready(container), "it is ready")
    assert container.exec("stat", "--format=%a %U", path).stdout == "600 mysql\n"
    assert container.stop(30) == STATUS


def test_without_any_right_and_with_a_root_that_nobody_writes_to(
    start: Start, deployment: Deployment
) -> None:
    publish_obedient(deployment, "", DEST)
    container = start(
        "memcached",
        AGENT,
        options=(*NO_RIGHTS, "--read-only", "--read-only-tmpfs=false", "--security-opt=label=disable"),
    )
    eventually(lambda: is_ready(container), "it is ready")
    assert container.stop(30) == STATUS
