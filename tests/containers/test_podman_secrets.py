"""Secrets of podman: etc/podman, whose lines are typed as they stand there.

Only the names are others: of the ensemble, the image, and the root of all deployments.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory.directory import read
from tests import CHECKOUT
from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.obedient import is_ready
from tests.containers.podman import Container, Podman
from tests.examples.keystone import MARIADB
from tests.support import documents
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import free_port

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

ROOT_PASSWORD = "S3cretOfTheDatabase"
OPERATOR = "operator:S3cretOfTheOperator"
HOST = "node-1"
IMAGE = "registry.example.org/kolla/mariadb-server:2026.1"


class Database(NamedTuple):
    """The container of the document, and the credential that was made for it."""

    container: Container
    credential: str


class Shell:
    """Types the blocks of the document in a copy of the checkout's `etc`."""

    def __init__(self, podman: Podman, directory: Path, names: dict[str, str]) -> None:
        self._podman, self.directory, self._names = podman, directory, names

    def types(self, start: str) -> str:
        """The block that begins so; what it prints."""
        (text,) = (each.text for each in documents.blocks(documents.PODMAN) if each.text.startswith(start))
        for name, ours in self._names.items():
            text = text.replace(name, ours)
        done = subprocess.run(
            ("sh", "-ec", text), cwd=self.directory, env=self._podman.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def database(images: Images, deployment: Deployment, zk: KazooClient, tmp_path: Path) -> Iterator[Database]:
    """The document from its beginning to its end, with secrets of its own."""
    podman = Podman(tmp_path / "podman", images.store)
    shutil.copytree(CHECKOUT / "etc/kubernetes", tmp_path / "etc/kubernetes")
    given = {
        "KOLLA_SYSTEM_PREFIX": deployment.prefix,
        "KOLLA_HOSTNAME": HOST,
        "KOLLA_PRIVATE_INTERFACE": "lo",
    }
    ours = " ".join(f"--env {name}={value}" for name, value in given.items())
    names = {
        "zk1:2181,zk2:2181": deployment.hosts,
        "/site/": f"/{deployment.id}/",
        IMAGE: f"{ours} {images.agent('mariadb-server')}",
    }
    shell = Shell(podman, tmp_path, names)
    (tmp_path / "etc/kubernetes/passwords/mariadb_root_password").write_text(f"{ROOT_PASSWORD}\n")
    shell.types("podman secret create mariadb_root_password")
    digest = shell.types("umask 077").splitlines()[-1]
    publish(deployment, zk, tmp_path, f"digest:mariadb:{digest}")
    container = Container(podman, shell.types("podman run").strip())
    try:
        eventually(lambda: is_ready(container), "MariaDB is ready", every=0.2)
        credential = container.exec("cat", "/run/zookeeper/auth").stdout.strip()
        yield Database(container, credential)
    finally:
        print(container.said)
        podman.end()


def publish(deployment: Deployment, zk: KazooClient, directory: Path, identity: str) -> None:
    """As the operator, whose tool has a directory with the passwords too."""
    definitions = directory / "etc/kubernetes/definitions"
    operator = f"digest:{make_digest_acl(*OPERATOR.split(':')).id.id}"
    others = {service.name: operator for service in read(definitions).services}
    acl = {"operator": operator, "services": {**others, MARIADB: identity}, "hosts": [HOST]}
    (definitions / "acl.yml").write_text(json.dumps(acl))
    port = definitions / "services" / MARIADB / "variables" / "mariadb_port"
    port.parent.mkdir()
    port.write_text(str(free_port()))
    (directory / "operator.auth").write_text(f"digest:{OPERATOR}\n")
    zk.add_auth("digest", OPERATOR)
    words = ["--deployment", deployment.id, "--prefix", deployment.prefix, "--hosts", deployment.hosts]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("KOLLA_VARIABLES_DIR", str(directory / "etc/kubernetes/passwords"))
        environ.setenv("KOLLA_ZK_AUTH_FILE", str(directory / "operator.auth"))
        cli.run(["publish", str(definitions), *words])


def test_secrets_are_where_they_belong_and_nowhere_else(
    database: Database, deployment: Deployment, zk: KazooClient
) -> None:
    """The database has its password, the agent its identity; nobody else has either."""
    container = database.container
    query = ("mariadb", "--protocol=tcp", "--user=root", f"--password={ROOT_PASSWORD}", "-Ne", "SELECT 1")
    port = f"--port={zk.get(f'{deployment.path}/{MARIADB}/variables/mariadb_port')[0].decode()}"
    assert container.exec(*query[:3], port, *query[3:]).stdout == "1\n"
    states = zk.get_acls(f"{deployment.path}/{MARIADB}/.party")[0]
    assert {acl.id.id.partition(":")[0] for acl in states} == {"mariadb", "operator"}
    password = database.credential.rpartition(":")[2]
    assert len(password) == 40
    for secret in (ROOT_PASSWORD, password):
        assert secret not in container.said
        assert secret not in json.dumps(container.inspected)
        assert not [
            path for path, (data, _) in znodes(zk, deployment.path).items() if secret.encode() in data
        ]
    shown = processes(container)
    assert "mariadbd" in shown and ROOT_PASSWORD not in shown and password not in shown


def processes(container: Container) -> str:
    """Arguments and environment of all that runs in the container, as root sees them."""
    script = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '"
    return container.exec("sh", "-c", script, user="root").stdout


def test_nobody_else_in_the_container_can_read_them(database: Database) -> None:
    """They belong to the user of the daemon, and are closed to others."""
    paths = ("/run/secrets/mariadb_root_password", "/run/zookeeper/auth")
    told = database.container.exec("stat", "--format=%a %U", *paths).stdout.splitlines()
    assert told == ["400 mysql"] * 2
    assert database.container.exec("cat", *paths, user="nobody").stdout == ""
