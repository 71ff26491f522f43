"""Keystone from what `kolla_mesos_ctl manifests compose` makes, which podman-compose starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.manifests.model import DATA, SECRETS
from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.podman import Container, Podman
from tests.examples.keystone import issue_token
from tests.support.launching import PASSWORD, directory, free_ports
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST

pytestmark = pytest.mark.timeout(900)  # The first test of all waits for the images.

NODE = "node-1"  # no service of the example has a placement
KEYSTONE = 42425  # the user of Kolla's image
PEPPER = "of the host, where ZooKeeper does not have it"


class Project(NamedTuple):
    """What podman-compose has started, and where Keystone answers."""

    podman: Podman
    name: str
    url: str

    def container(self, name: str) -> Container:
        return Container(self.podman, f"{self.name}_{name}")


@pytest.fixture
def project(images: Images, deployment: Deployment, tmp_path: Path) -> Iterator[Project]:
    """All of it; the places on the host are below a directory of the test."""
    ports = free_ports()
    tree = directory(tmp_path / "keystone", images, deployment.hosts, ports, {"variables": "site"})
    words = [str(tree), "--deployment", deployment.id, "--prefix", deployment.prefix]
    cli.run(["publish", *words, "--hosts", deployment.hosts])
    cli.run(["manifests", "compose", *words, "--output", str(tmp_path / "made")])
    (made,) = (tmp_path / "made").iterdir()
    assert made.name == f"{NODE}.yml"
    text = made.read_text()
    for place in (DATA, SECRETS):
        text = text.replace(f"{place}/", f"{tmp_path}{place}/")
    made.write_text(text)
    _do_what_the_notes_say(tmp_path, deployment.id)
    podman = Podman(tmp_path / "podman", images.store)
    found = Project(podman, deployment.id, f"http://{HOST}:{ports['keystone_port']}/v3")
    try:
        compose(podman, made, "up", "--detach")
        yield found
        compose(podman, made, "down")
    finally:
        podman.end()


def _do_what_the_notes_say(root: Path, deployment: str) -> None:
    keys = Path(f"{root}{DATA}/{deployment}/shared/keystone-keys")
    secrets = Path(f"{root}{SECRETS}/site")
    for path in (keys, secrets):
        path.mkdir(parents=True)
    os.chown(keys, KEYSTONE, KEYSTONE)
    (secrets / "pepper").write_text(PEPPER)


def compose(podman: Podman, file: Path, *words: str) -> None:
    argv = [sys.executable, "-m", "podman_compose", "--file", str(file), *words]
    done = subprocess.run(argv, env=podman.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_all_start_as_generated_and_keystone_answers(project: Project) -> None:
    """In no order; the task ends well, the others become ready, and a token is issued."""
    for name in ("mariadb", "memcached", "keystone-api"):
        eventually(lambda: is_ready(project.container(name)), f"{name} is ready", seconds=180, every=0.5)  # noqa: B023
    assert project.container("keystone-tasks").ends() == 0
    assert issue_token(project.url, PASSWORD)
    api = project.container("keystone-api")
    assert api.read("/etc/kolla-variables/pepper") == PEPPER
    inspected = api.inspected
    assert inspected["Config"]["User"] == str(KEYSTONE)
    assert (inspected["EffectiveCaps"] or [], inspected["BoundingCaps"] or []) == ([], [])
    assert "no-new-privileges" in inspected["HostConfig"]["SecurityOpt"]
    memcached = project.container("memcached")
    assert memcached.inspected["HostConfig"]["ReadonlyRootfs"] is True
    assert "can't be written" not in memcached.said
    assert inspected["HostConfig"]["RestartPolicy"]["Name"] == "always"


def is_ready(container: Container) -> bool:
    return container.exec("kolla_mesos_start", "health", "--ready").returncode == 0
