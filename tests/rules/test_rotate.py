"""The page about rotation, typed as it is written: the daemons go on, under the new secrets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl_credential

from kolla_mesos_start.ctl.directory import acl
from tests.conftest import Deployment, connected
from tests.support.agents import Containers
from tests.support.documents import blocks
from tests.support.instances import Site
from tests.support.publishing import write_files
from tests.support.secured import Secured
from tests.support.tool import environ
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

PAGE = [block.text for block in blocks("docs/guide/rotate.rst")]
MARIADB, NOVA = "infra/mariadb/mariadb", "openstack/nova/nova-api"
KEYSTONE = "openstack/keystone/keystone-api"
REPLACED = "our credential, certificate or CA was replaced"


class Operator:
    """Somebody in a directory with `site`, `passwords.yml` and `credentials`, and daemons that follow."""

    def __init__(self, place: Path, deployment: Deployment) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.place, self.site, self.credentials = place, place / "site", place / "credentials"
        self.environ = {**environ(deployment), "PATH": path, "HOME": str(place)}
        self.credentials.mkdir()

    def types(self, start: str, **environ: str) -> str:
        """Type the block of the page that begins so; what it prints."""
        (text,) = (each for each in PAGE if each.startswith(start))
        return self.types_text(text, **environ)

    def types_text(self, text: str, **environ: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", text],
            cwd=self.place,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def publish(self) -> None:
        self.types_text("kolla_mesos_ctl publish site")

    def add(self, service: str, **files: str) -> None:
        """A daemon whose files are these."""
        named = {name: {"dest": str(self.place / name)} for name in files}
        daemon = {"command": "sleep 600", "ready": {"alive": 0}, "on_change": {"command": "true"}}
        write_files(
            self.site / "services" / service,
            definition_yml=yaml.safe_dump({"service": {"daemon": {**daemon, "files": named}}}),
            **{f"files__{name}": content for name, content in files.items()},
        )

    def has(self, name: str, text: str) -> None:
        file = self.place / name
        eventually(lambda: file.exists() and file.read_text() == text, f"{file} holds {text!r}")

    def allow(self, operator: Sequence[str], service: Sequence[str]) -> None:
        """Publish that these are the operator, and MARIADB."""
        plan = {"operator": [*operator], "services": {MARIADB: [*service]}, "hosts": ["web1"]}
        (self.site / "acl.yml").write_text(yaml.safe_dump(plan))


@pytest.fixture
def operator(deployment: Deployment, tmp_path: Path) -> Operator:
    return Operator(tmp_path, deployment)


def identity(file: Path) -> str:
    """Of the credential in a file, as acl.yml wants it."""
    scheme, user, password = file.read_text().strip().split(":")
    return f"{scheme}:{make_digest_acl_credential(user, password)}"


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_credential(
    operator: Operator,
    deployment: Deployment,
    zookeeper: Server,
    zk: KazooClient,
    containers: Containers,
    mode: str,
) -> None:
    """Of a service, and the operator's at the same time."""
    own, file = operator.place / "operator.auth", operator.credentials / "mariadb.auth"
    own.write_text("digest:operator:old\n")
    file.write_text("digest:mariadb:old\n")
    for password in ("old", "new"):  # What looks and cleans up sees everything.
        zk.add_auth("digest", f"operator:{password}")
    operator.environ["KOLLA_ZK_AUTH_FILE"] = str(own)
    operator.add(MARIADB, conf="{{ region }}")
    write_files(operator.site, variables_yml="region: one\n")
    old, service = identity(own), identity(file)
    operator.allow([old], [service])
    operator.publish()
    agent = containers.start(MARIADB, KOLLA_ZK_AUTH_FILE=str(file), KOLLA_START_MODE=mode)
    operator.has("conf", "one")
    registered = Site(deployment, zk, MARIADB)
    before = registered.await_instances(1)

    replacement = f"digest:mariadb:{operator.types('umask 077').strip()}"
    assert replacement == identity(operator.place / "mariadb.new")
    (operator.place / "operator.new").write_text("digest:operator:new\n")
    new = identity(operator.place / "operator.new")
    operator.allow([old, new], [service, replacement])
    operator.types("kolla_mesos_ctl publish site\nmv mariadb.new")
    agent.says(REPLACED)
    (operator.place / "operator.new").replace(own)
    operator.allow([new], [replacement])
    operator.publish()
    operator.types_text("kolla_mesos_ctl set region two")
    operator.has("conf", "two")
    assert registered.instances() == before and agent.running
    for leaked in connected(zookeeper):
        leaked.add_auth("digest", "mariadb:old")
        with pytest.raises(NoAuthError):
            leaked.get(f"{deployment.path}/{MARIADB}")


def test_the_identities_of_the_page_are_a_list() -> None:
    (text,) = (each for each in PAGE if each.startswith("services:"))
    plan, issues = acl.parse({"operator": "x509:CN=operator", **yaml.safe_load(text)})
    assert not issues and len(plan.services[MARIADB]) == 2


def test_a_certificate(
    secured: Secured, secured_zk: KazooClient, secured_deployment: Deployment, tmp_path: Path
) -> None:
    """With a key of its own; then a file with a second CA. Each time a new connection goes on with it."""
    operator = Operator(tmp_path, secured_deployment)
    operator.environ.update(secured.environment("operator"))
    operator.add(MARIADB, conf="{{ region }}")
    write_files(operator.site, variables_yml="region: one\n")
    operator.allow([secured.identity("operator")], [secured.identity("mariadb")])
    operator.publish()
    files = secured.environment("mariadb")
    own = {role: shutil.copy(file, str(operator.credentials)) for role, file in files.items()}
    containers = Containers(tmp_path / "c", secured_deployment.environ)
    agent = containers.start(MARIADB, **own)
    try:
        operator.has("conf", "one")
        registered = Site(secured_deployment, secured_zk, MARIADB)
        before = registered.await_instances(1)
        secured.authority.issue("mariadb")
        for suffix in ("key", "pem"):
            shutil.copy(secured.directory / f"mariadb.{suffix}", tmp_path / f"mariadb.{suffix}.new")
        operator.types("mv mariadb.key.new")
        agent.says(REPLACED)
        with Path(own["KOLLA_ZK_CA"]).open("a") as cas:
            cas.write((secured.quorum.directory / f"{secured.quorum.name}.pem").read_text())
        eventually(lambda: agent.said.count(REPLACED) == 2, "it connects again")
        operator.types_text("kolla_mesos_ctl set region two")
        operator.has("conf", "two")
        assert registered.instances() == before and agent.running
    finally:
        containers.end()


def test_values_of_a_file(
    operator: Operator, deployment: Deployment, zk: KazooClient, containers: Containers
) -> None:
    """A password and Fernet keys, of which the next one becomes the primary one."""
    keys = ("previous", "primary", "next")
    operator.add(NOVA, password="{{ nova_database_password }}")
    operator.add(KEYSTONE, **{name: f"{{{{ keystone_fernet_{name} }}}}" for name in keys})
    kinds = {"nova_database_password": "password", **{f"keystone_fernet_{name}": "fernet" for name in keys}}
    write_files(operator.site, secrets_yml=yaml.safe_dump(kinds))
    operator.types_text("kolla_mesos_ctl publish site --secrets passwords.yml")
    agents = [containers.start(service) for service in (NOVA, KEYSTONE)]
    before = [Site(deployment, zk, service).await_instances(1) for service in (NOVA, KEYSTONE)]
    old = {file.name: file.read_text() for file in map(operator.place.joinpath, (*keys, "password"))}

    operator.types("sed -i '/^nova_database_password")
    assert len((operator.place / "password").read_text()) == 32
    assert (operator.place / "password").read_text() != old["password"]
    operator.types("sed -i -e '/^keystone_fernet_previous")
    operator.types_text("kolla_mesos_ctl wait --timeout 60")
    new = [(operator.place / name).read_text() for name in keys]
    assert new[:2] == [old["primary"], old["next"]] and new[2] not in old.values()
    assert [Site(deployment, zk, service).instances() for service in (NOVA, KEYSTONE)] == before
    assert all(agent.running for agent in agents)


def test_a_value_of_the_container(operator: Operator, containers: Containers) -> None:
    """In KOLLA_VARIABLES_DIR, and a file that is mounted."""
    operator.add(NOVA, password="{{ nova_password }}")
    definition = operator.site / "services" / NOVA / "definition.yml"
    document = yaml.safe_load(definition.read_text())
    mounted = {"dest": str(operator.place / "key"), "mounted": str(operator.credentials / "key")}
    document["service"]["daemon"]["files"]["key"] = mounted
    definition.write_text(yaml.safe_dump(document))
    write_files(operator.credentials, own__nova_password="old", key="old")
    own = {"KOLLA_VARIABLES_DIR": str(operator.credentials / "own")}
    operator.types_text("kolla_mesos_ctl publish site", **own)
    agent = containers.start(NOVA, **own)
    operator.has("key", "old")
    agent.says("ready")
    write_files(operator.credentials, own__nova_password="new", key="new")
    operator.types("kolla_mesos_start refresh", **{**agent.environ, "PATH": operator.environ["PATH"]})
    assert [(operator.place / name).read_text() for name in ("password", "key")] == ["new", "new"]
    assert agent.running
