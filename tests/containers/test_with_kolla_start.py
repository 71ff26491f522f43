"""The other two ways into a Kolla image: the agent before Kolla's own kolla_start, and behind it.

Nothing in these images is opened: what the agent can't write, Kolla's sudo rule copies as root.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.obedient import PROGRAM, SERVICE, STRATEGIES, contents, is_ready
from tests.containers.podman import Container, Podman
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, free_port

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

MARIADB = "infra/mariadb/mariadb"
KEYSTONE = "openstack/keystone/keystone"
KEYS_FOR = ("--keystone-user", "keystone", "--keystone-group", "keystone")
FILES = "/var/lib/kolla_mesos_start/files"  # below KOLLA_STATE_DIR
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo"}

MY_CNF = """\
[mariadbd]
bind-address = 127.0.0.1
port = {{ mariadb_port }}
init-file = /etc/mysql/init.sql
skip-name-resolve
"""
INIT_SQL = """\
CREATE DATABASE IF NOT EXISTS keystone;
CREATE USER IF NOT EXISTS 'keystone'@'%' IDENTIFIED BY '{{ keystone_password }}';
GRANT ALL ON keystone.* TO 'keystone'@'%';
"""
KEYSTONE_CONF = """\
[database]
connection = mysql+pymysql://keystone:{{ keystone_password }}@127.0.0.1:{{ mariadb_port }}/keystone
max_retries = 0
"""


class Site:
    """MariaDB and Keystone as one deployment, each behind an agent that runs kolla_start."""

    def __init__(
        self, podman: Podman, images: Images, directory: Path, deployment: Deployment, zk: KazooClient
    ) -> None:
        self.podman, self.images, self.directory = podman, images, directory
        self.deployment, self.zk = deployment, zk
        self.keystone_port = free_port()
        self.variables = {
            "mariadb_port": str(free_port()),
            "mariadb_root_password": "a-root-password",
            "keystone_password": "a-keystone-password",
        }
        self.mariadb = self._mariadb()
        self.keystone = self._keystone()

    def _mariadb(self) -> Container:
        files = {name: {"dest": f"{FILES}/{name}"} for name in ("my.cnf", "init.sql")}
        definition = {
            "commands": {
                "bootstrap": {
                    "run_once": "host",
                    "command": "kolla_start",
                    "env": {"KOLLA_BOOTSTRAP": None, "DB_ROOT_PASSWORD": "{{ mariadb_root_password }}"},
                    "files": files,
                }
            },
            "service": {
                "daemon": {
                    "command": "kolla_start",
                    "files": files,
                    "dependencies": [{"path": "mariadb/bootstrap", "scope": "local"}],
                    "ready": {"notify": True},
                }
            },
        }
        contents = {"my.cnf": MY_CNF, "init.sql": INIT_SQL}
        publish(self.deployment, MARIADB, definition, files=contents, shared=self.variables)
        copied = [copy(name, f"/etc/mysql/{name}", "mysql") for name in files]
        return self._container(MARIADB, "mariadb-server", "mariadbd", config_files=copied)

    def _keystone(self) -> Container:
        files = {"keystone.conf": {"dest": f"{FILES}/keystone.conf"}}
        definition = {
            "commands": {
                "db_sync": {
                    "run_once": True,
                    "command": "kolla_start",
                    "env": {"KOLLA_BOOTSTRAP": None},
                    "dependencies": ["mariadb/daemon"],
                    "files": files,
                },
                # Not Kolla's start script's business, and needs no file.
                "fernet_setup": {
                    "command": ["keystone-manage", "fernet_setup", *KEYS_FOR],
                },
            },
            "service": {
                "daemon": {
                    "command": "kolla_start",
                    "files": files,
                    "dependencies": ["keystone/db_sync", "keystone/fernet_setup"],
                    "ready": {"http": f"http://{HOST}:{self.keystone_port}/v3"},
                }
            },
        }
        publish(self.deployment, KEYSTONE, definition, files={"keystone.conf": KEYSTONE_CONF})
        return self._container(
            KEYSTONE,
            "keystone",
            f"uwsgi --http-socket {HOST}:{self.keystone_port} --module keystone.wsgi.api:application"
            " --master --need-app --die-on-term --uid keystone --gid keystone",
            config_files=[copy("keystone.conf", "/etc/keystone/keystone.conf", "keystone")],
        )

    def _container(self, service: str, image: str, command: str, **config: Any) -> Container:
        volume = kolla_config(self.directory / image, command, **config)
        environ = self.deployment.environ(service, **LOOPBACK)
        return self.podman.create(self.images.closed(image), environ=environ, volumes=volume)

    def state(self, command: str, scope: str = "global") -> str:
        return str(self.zk.get(f"{self.deployment.path}/status/{scope}/{command}")[0], "utf-8")


def copy(name: str, dest: str, owner: str) -> Mapping[str, str]:
    """What Kolla's config.json says to copy one of the agent's files as root."""
    return {"source": f"{FILES}/{name}", "dest": dest, "owner": owner, "perm": "0600"}


def kolla_config(directory: Path, command: str, **config: Any) -> dict[Path, str]:
    """A volume with Kolla's config.json, as kolla_set_configs looks for it; read-only."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"command": command, **config}))
    return {directory: "/var/lib/kolla/config_files:ro"}


@pytest.fixture(scope="module")
def site(
    podman: Podman,
    images: Images,
    module_zk: KazooClient,
    module_deployment: Deployment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """Both containers, started at the same time."""
    site = Site(podman, images, tmp_path_factory.mktemp("config"), module_deployment, module_zk)
    for container in (site.keystone, site.mariadb):
        container.start()
    yield site
    for container in (site.keystone, site.mariadb):
        print(container.said)
        container.remove()


# -- the agent, then kolla_start ---------------------------------------------------------------------


def test_kolla_start_bootstraps_and_becomes_the_daemon(site: Site) -> None:
    """KOLLA_BOOTSTRAP, set and empty, has Kolla's script migrate; then Kolla's command is the daemon."""

    def served() -> bool:
        assert site.mariadb.running, site.mariadb.said
        return is_ready(site.keystone)

    eventually(served, "Keystone is ready", seconds=300, every=0.5)
    assert site.state("mariadb/bootstrap", socket.gethostname()) == "done"
    assert site.state("keystone/db_sync") == "done"
    with urllib.request.urlopen(f"http://{HOST}:{site.keystone_port}/v3", timeout=60) as reply:
        assert json.load(reply)["version"]["status"] == "stable"
    for container, program in ((site.mariadb, "mariadbd"), (site.keystone, "uwsgi")):
        listed = container.exec("ps", "--no-headers", "-eo", "ppid,args").stdout.splitlines()
        children = [line.split(maxsplit=1)[1] for line in listed if line.split()[0] == "1"]
        assert len([line for line in children if program in line]) == 1, listed


def test_kollas_sudo_rule_copies_what_the_agent_may_not_write(site: Site) -> None:
    """The agent is MariaDB's user; root has copied its file, and the directory is as closed as before."""
    listed = site.mariadb.exec(
        "stat", "--format=%a %U:%G", "/etc/mysql", "/etc/mysql/my.cnf", f"{FILES}/my.cnf"
    )
    assert listed.stdout.splitlines() == ["755 root:root", "600 mysql:mysql", "600 mysql:mysql"]
    assert site.mariadb.read("/etc/mysql/my.cnf") == site.mariadb.read(f"{FILES}/my.cnf")
    assert site.mariadb.exec("touch", "/etc/mysql/more").returncode != 0


def test_a_stopped_container_ends_with_the_daemons_own_status(site: Site) -> None:
    """Kolla's script has been replaced by the daemon, as the agent was by the script."""
    assert (site.keystone.stop(120), site.mariadb.stop(120)) == (0, 0)


def test_a_restarted_container_bootstraps_nothing_again(site: Site) -> None:
    """The same container: what is done is passed through, and Kolla's script is asked for the daemon only."""
    site.mariadb.start()
    eventually(lambda: is_ready(site.mariadb), "it is ready")
    assert site.mariadb.said.count("mariadb/bootstrap: starting") == 1
    assert site.mariadb.said.count("mariadb/daemon: exec") == 2


@pytest.mark.parametrize(("strategy", "renewed"), STRATEGIES)
def test_a_restarted_container_keeps_what_kolla_start_has_copied_only_if_told_so(
    podman: Podman, images: Images, deployment: Deployment, tmp_path: Path, strategy: str, renewed: str
) -> None:
    """The agent exports its strategy, so that Kolla's script goes by the same one."""
    program, path = tmp_path / "config" / "obedient.py", "/etc/mysql/obedient.conf"
    copied = {"source": f"{FILES}/obedient.conf", "dest": path, "owner": "mysql", "perm": "0600"}
    command = "python3 /var/lib/kolla/config_files/obedient.py"
    volume = kolla_config(program.parent, command, config_files=[copied])
    program.write_text(PROGRAM)
    environ, image = (
        deployment.environ(SERVICE, KOLLA_CONFIG_STRATEGY=strategy),
        images.closed("mariadb-server"),
    )
    first, second = (podman.create(image, environ=environ, volumes=volume) for _ in range(2))
    found = contents(deployment, first, second, copied["source"], path, command="kolla_start")
    assert found == ["first", renewed, "second"]


@pytest.mark.parametrize(
    ("first", "command", "dest"),
    [
        pytest.param("kolla_mesos_start", "kolla_start", f"{FILES}/keystone.conf", id="kolla_start"),
        # Sourced by the agent as kolla_start sources it: it hides failures from a shell without errexit.
        *(
            pytest.param(first, "kolla_extend_start", "/etc/keystone/keystone.conf", id=id)
            for first, id in (("kolla_mesos_start", "agent-alone"), ("kolla_start", "kolla_start-first"))
        ),
    ],
)
def test_a_failed_migration_is_an_error(
    podman: Podman,
    images: Images,
    deployment: Deployment,
    zk: KazooClient,
    tmp_path: Path,
    first: str,
    command: str,
    dest: str,
) -> None:
    """Kolla's script fails with it, and the agent with the script: never `done`, nothing starts after it."""
    publish(
        deployment,
        KEYSTONE,
        {
            "commands": {
                "db_sync": {
                    "run_once": True,
                    "command": command,
                    "env": {"KOLLA_BOOTSTRAP": None},
                    "files": {"keystone.conf": {"dest": dest, "owner": "keystone"}},
                }
            },
            "service": {"daemon": {"command": "false", "dependencies": ["keystone/db_sync"]}},
        },
        files={"keystone.conf": KEYSTONE_CONF},
        # Nobody listens there.
        variables={"mariadb_port": str(free_port()), "keystone_password": "x"},
    )
    if first == "kolla_start":
        config = kolla_config(tmp_path / "config", "kolla_mesos_start")
        more = {"KOLLA_CONFIG_STRATEGY": "COPY_ALWAYS", "KOLLA_SKIP_EXTEND_START": ""}
        environ = deployment.environ(KEYSTONE, **more)
    else:
        copied = [copy("keystone.conf", "/etc/keystone/keystone.conf", "keystone")]
        config = kolla_config(tmp_path / "config", "false", config_files=copied)
        environ = deployment.environ(KEYSTONE)
    container = podman.run(images.closed("keystone"), first, environ=environ, volumes=config)
    assert container.ends() == 1, container.said
    path = f"{deployment.path}/status/global/keystone/db_sync"
    assert zk.get(path)[0] == b"error"
    assert json.loads(zk.get(f"{path}/detail")[0])["status"] == 1
    assert "Can't connect to MySQL server" in container.said
    assert "keystone/daemon" not in container.said
    container.remove()


# -- kolla_start, then the agent ---------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "renewed"), STRATEGIES)
def test_a_container_keeps_what_kolla_start_has_opened_for_it_only_if_told_so(
    podman: Podman, images: Images, deployment: Deployment, tmp_path: Path, strategy: str, renewed: str
) -> None:
    """config.json's command is the agent, and its directory is opened by Kolla, as root, in the container."""
    place = "/etc/mysql/agent"
    opened = [{"path": place, "owner": "mysql:mysql", "perm": "0750"}]
    volume = kolla_config(tmp_path / "config", "kolla_mesos_start", directories=opened)
    more = {"KOLLA_CONFIG_STRATEGY": strategy, "KOLLA_SKIP_EXTEND_START": ""}
    environ, image = deployment.environ(SERVICE, **more), images.closed("mariadb-server")
    first, second = (podman.create(image, "kolla_start", environ=environ, volumes=volume) for _ in range(2))
    dest = f"{place}/obedient.conf"
    assert contents(deployment, first, second, dest, dest) == ["first", renewed, "second"]
    # It would make the daemon's log directory, before the agent has rendered anything.
    assert ". kolla_extend_start" not in first.said
