"""The example for hosts that have all configuration already, as TripleO left them: nothing is templated.

What stands in its `containers.json` is given to podman, as TripleO's own modules did it. What can't be as it
is there: images are the tests' own, the host's directories lie below another one, and the ensemble is the
tests'. What Puppet generated is made here.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from tests import CHECKOUT
from tests.conftest import Deployment
from tests.containers.cloud import UIDS
from tests.containers.images import Images
from tests.containers.podman import Container, Podman
from tests.support.instances import Site
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import HOST, Server, free_port

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

EXAMPLE = CHECKOUT / "etc" / "examples" / "tripleo"
CONTAINERS: Mapping[str, Any] = json.loads((EXAMPLE / "containers.json").read_text())
GENERATED = "var/lib/config-data/puppet-generated"
PREFIX = "/kolla-tripleo"
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}
ONCE = ("mariadb/bootstrap", "keystone/db_sync")

MY_CNF = """\
[mariadbd]
datadir = /var/lib/mysql
bind-address = 127.0.0.1
port = {port}
init-file = /etc/mysql/init.sql
skip-name-resolve
innodb-flush-log-at-trx-commit = 2
"""
INIT_SQL = """\
CREATE DATABASE IF NOT EXISTS keystone;
CREATE USER IF NOT EXISTS 'keystone'@'%' IDENTIFIED BY '{secret}';
GRANT ALL ON keystone.* TO 'keystone'@'%';
"""
# What looks like a template is none of ours.
KEYSTONE_CONF = """\
# {{{{ puppet }}}} {{%
[database]
connection = mysql+pymysql://keystone:{secret}@127.0.0.1:{port}/keystone
"""
UWSGI_INI = """\
[uwsgi]
module = keystone.wsgi.api:application
http-socket = 127.0.0.1:{keystone_port}
master = true
need-app = true
die-on-term = true
"""


class Host:
    """One host: its configuration, its data, and the containers that its runtime starts."""

    def __init__(self, podman: Podman, images: Images, root: Path, hosts: str, zk: KazooClient) -> None:
        self.root, self.secret = root, secrets.token_hex(16)
        self.keystone_port = free_port()
        self.deployment = Deployment(hosts, PREFIX, "cloud")
        self._podman, self._images = podman, images
        self._generate()
        self.containers = {name: self._create(**CONTAINERS[name]) for name in CONTAINERS}
        self.sites = {
            service.name.rsplit("/", 1)[-1]: Site(self.deployment, zk, service.name)
            for service in directory.read(EXAMPLE).services
        }

    def _generate(self) -> None:
        values = {"secret": self.secret, "port": free_port(), "keystone_port": self.keystone_port}
        contents = {
            "mariadb/etc/mysql/my.cnf": MY_CNF,
            "mariadb/etc/mysql/init.sql": INIT_SQL,
            "keystone/etc/keystone/keystone.conf": KEYSTONE_CONF,
            "keystone/etc/keystone/uwsgi.ini": UWSGI_INI,
        }
        data = self.root / "var/lib/mysql"
        data.mkdir(parents=True)
        os.chown(data, UIDS["mysql"], UIDS["mysql"])
        for place, content in contents.items():
            self.write(place, content.format(**values))
        # Without a key Keystone does not start.
        key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        self.write("keystone/etc/keystone/fernet-keys/0", key)
        for name in CONTAINERS:
            config = self.root / f"var/lib/kolla/config_files/{name}.json"
            config.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(EXAMPLE / "config.json", config)

    def write(self, place: str, content: str) -> None:
        """A file that only the service's user may read, in the host's configuration."""
        path = self.root / GENERATED / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)
        uid = UIDS["mysql" if place.startswith("mariadb") else "keystone"]
        for each in (path, path.parent):
            os.chown(each, uid, uid)

    def _create(
        self,
        image: str,
        command: str,
        net: str,
        restart: str,
        stop_grace_period: int,
        healthcheck: Mapping[str, str],
        volumes: list[str],
        environment: Mapping[str, str],
        user: str | None = None,
    ) -> Container:
        """As TripleO's container of these words; any other word is an error."""
        options = [f"--network={net}", f"--restart={restart}", f"--stop-timeout={stop_grace_period}"]
        options += [f"--health-cmd={healthcheck['test']}", "--health-interval=disable"]
        options += [f"--user={user}"] if user else []
        here = {"KOLLA_ZK_HOSTS": self.deployment.hosts, "KOLLA_SYSTEM_PREFIX": PREFIX}
        return self._podman.create(
            self._images.closed(image.rsplit("/", 1)[-1].partition(":")[0]),
            command,
            environ={**environment, **here, **LOOPBACK},
            options=[*options, *(f"--volume={self.root}{volume}" for volume in volumes)],
        )

    def make_again(self, name: str) -> None:
        """Another container in the place of one that has ended."""
        self.containers[name].remove()
        self.containers[name] = self._create(**CONTAINERS[name])

    def healthy(self, name: str) -> bool:
        """What podman concludes of the container's health check."""
        container = self.containers[name]
        assert container.running, container.said
        return container.podman("healthcheck", "run", container.id, check=False).returncode == 0

    def becomes_ready(self, *roles: str) -> None:
        """Wait until others can see that the daemon is, and the runtime that its container is healthy."""
        eventually(
            lambda: all(self.healthy(role) and self.sites[role].instances() for role in roles),
            f"ready: {' '.join(roles)}",
            seconds=300,
            every=0.3,
        )


@pytest.fixture(scope="module")
def host(
    podman: Podman,
    images: Images,
    module_zk: KazooClient,
    shared_zookeeper: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """The example published as it is, and all containers started at once."""
    words = [str(EXAMPLE), "--deployment", "cloud", "--prefix", PREFIX, "--hosts", shared_zookeeper.hosts]
    cli.run(["publish", *words])
    host = Host(podman, images, tmp_path_factory.mktemp("host"), shared_zookeeper.hosts, module_zk)
    for name in ("keystone", "mariadb"):
        host.containers[name].start()
    yield host
    for container in host.containers.values():
        print(container.said)
        container.remove()
    module_zk.delete(PREFIX, recursive=True)


def test_what_took_steps_starts_at_once(host: Host) -> None:
    """Nobody has to try again, and Keystone finds in its database that it does not know a user."""
    host.becomes_ready("mariadb", "keystone")
    assert [container.inspected["RestartCount"] for container in host.containers.values()] == [0, 0]
    user = {"name": "nobody", "domain": {"id": "default"}, "password": "x"}
    wanted = {"identity": {"methods": ["password"], "password": {"user": user}}}
    request = urllib.request.Request(
        f"http://{HOST}:{host.keystone_port}/v3/auth/tokens",
        data=json.dumps({"auth": wanted}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with pytest.raises(HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    assert caught.value.code == 401
    caught.value.close()


@pytest.mark.parametrize("command", ONCE)
def test_what_had_a_container_of_its_own_is_a_command(
    host: Host, module_zk: KazooClient, command: str
) -> None:
    """It is done, by the first attempt."""
    told = detail(host, module_zk, command)
    assert (told["state"], told["attempt"]) == ("done", 1)


def test_the_order_is_the_definitions(host: Host, module_zk: KazooClient) -> None:
    """Each begins after what it waits for, though all were started at once."""
    made, migrated = (detail(host, module_zk, command) for command in ONCE)
    database, keystone = (ready_at(host, module_zk, role) for role in ("mariadb", "keystone"))
    order = [made["finished"], database, migrated["started"], migrated["finished"], keystone]
    assert order == sorted(order)


def ready_at(host: Host, zk: KazooClient, role: str) -> float:
    """Since when its one instance is ready (seconds since the epoch)."""
    site = host.sites[role]
    (instance,) = site.instances()
    return float(zk.get(f"{site.daemon()}/ready/{instance}")[1].ctime / 1000)


def detail(host: Host, zk: KazooClient, command: str) -> dict[str, Any]:
    scope = socket.gethostname() if command.startswith("mariadb/") else "global"
    decoded: dict[str, Any] = json.loads(zk.get(f"{host.deployment.path}/status/{scope}/{command}/detail")[0])
    return decoded


def test_configuration_is_the_hosts_and_nobody_elses(host: Host, module_zk: KazooClient) -> None:
    """Byte for byte, whatever it looks like; nothing of it has come to ZooKeeper, the password least."""
    for name, etc in (("mariadb", "etc/mysql"), ("keystone", "etc/keystone")):
        for path in (host.root / GENERATED / name / etc).iterdir():
            if path.is_file():
                assert host.containers[name].read(f"/{etc}/{path.name}") == path.read_text()
    left = znodes(module_zk, PREFIX)
    assert {"variables", "files"}.isdisjoint(name for path in left for name in path.split("/"))
    assert not [path for path, (data, _) in left.items() if host.secret.encode() in data]


@pytest.mark.parametrize(("made_again", "limit"), [(False, "77\n"), (True, "78\n")])
def test_a_change_on_the_host_is_taken_by_a_restart(
    host: Host, module_zk: KazooClient, made_again: bool, limit: str
) -> None:
    """Kolla copies it again, into the same container or a new one, and what is done is not done again."""
    before = [detail(host, module_zk, command) for command in ONCE]
    path = host.root / GENERATED / "mariadb/etc/mysql/my.cnf"
    path.write_text(f"{path.read_text()}max-connections = {limit}")
    assert host.containers["mariadb"].stop(CONTAINERS["mariadb"]["stop_grace_period"]) == 0
    if made_again:
        host.make_again("mariadb")
    database = host.containers["mariadb"]
    database.start()
    host.becomes_ready("mariadb")
    asked = database.exec("mariadb", "-Ne", "SELECT @@max_connections", user="root")
    assert asked.stdout == limit
    assert [detail(host, module_zk, command) for command in ONCE] == before
