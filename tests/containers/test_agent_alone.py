"""The first way into a Kolla image: the agent alone starts it, under dumb-init, and nothing else does."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from urllib.error import HTTPError

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.containers.cloud import Cloud
from tests.containers.images import Images
from tests.containers.obedient import SERVICE, STATUS, STRATEGIES, contents, is_ready, publish_obedient
from tests.containers.podman import Podman
from tests.examples.keystone import API, HOSTS, MARIADB, MEMCACHED
from tests.stack.cloud import published
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

# The first test waits for the images and for the start.
pytestmark = pytest.mark.timeout(900)

START_LIMIT = 300.0  # seconds: ten times what it takes on two cores that do nothing else
SESSION_TIMEOUT = 10.0  # the longest that an instance of the dead may stand
ONCE = {
    "mariadb/bootstrap": ("mariadb-install-db", "--skip-test-db"),
    "keystone-api/fernet_setup": ("keystone-manage", "fernet_setup"),
    "keystone-api/db_sync": ("keystone-manage", "db_sync"),
    "keystone-api/bootstrap": ("keystone-manage", "bootstrap"),
}


@pytest.fixture(scope="module")
def cloud(
    shared_zookeeper: Server,
    module_zk: KazooClient,
    podman: Podman,
    images: Images,
    measured: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cloud]:
    """MariaDB, memcached and three Keystones, all started at once, and up."""
    cloud = Cloud(podman, images, tmp_path_factory.mktemp("cloud"), module_zk, shared_zookeeper.hosts)
    with published(cloud, module_zk):
        cloud.start(random.randrange(10**6))
        eventually(lambda: cloud.broken or cloud.is_up, "Keystone is up", seconds=START_LIMIT, every=0.2)
        assert not cloud.broken
        took = time.time() - cloud.started_at
        measured.append(f"MariaDB, memcached, three Keystones, started at once: up after {took:.1f} s")
        yield cloud


# -- a real deployment -------------------------------------------------------------------------------


def test_each_replica_accepts_the_token_that_another_issued(cloud: Cloud) -> None:
    """Same database, same keys."""
    for issuer, other in zip(HOSTS, (*HOSTS[1:], HOSTS[0])):
        assert cloud.validate_token(other, cloud.issue_token(issuer))["user"]["name"] == "admin"


@pytest.mark.parametrize("command", ONCE)
def test_a_one_time_command_ran_once(cloud: Cloud, command: str) -> None:
    """Its own program was called once, in one container, by the attempt that `detail` tells of."""
    detail = cloud.detail(command, HOSTS[0] if command.startswith("mariadb/") else "global")
    assert cloud.runs(*ONCE[command]) == [detail["host"]]
    assert (detail["attempt"], detail["state"]) == (1, "done")


@pytest.mark.parametrize("host", HOSTS)
def test_a_replica_is_nobody_special_and_has_its_files(cloud: Cloud, host: str) -> None:
    """Files, daemon and probe are the image's user's, in a directory that only the snippet has opened."""
    container = cloud.container(API, host).real
    listed = container.exec("sh", "-c", "stat -c '%a %U:%G %n' /etc/keystone/*").stdout.splitlines()
    names = ("keys.conf", "keystone.conf", "uwsgi.ini")
    assert listed == [f"640 keystone:keystone /etc/keystone/{name}" for name in names]
    assert set(container.exec("ps", "--no-headers", "-eo", "user").stdout.split()) == {"keystone"}
    assert container.exec("kolla_mesos_start", "health", "--ready").returncode == 0


def test_a_killed_container_is_a_lost_instance(cloud: Cloud) -> None:
    """podman kill -s KILL: gone from ready within the session timeout; the same container comes back."""
    replica, before = cloud.container(API, HOSTS[2]), cloud.journal.read_text()
    replica.real.kill()
    eventually(lambda: len(cloud.ready(API)) == 2, "its instance is lost", seconds=SESSION_TIMEOUT)
    assert replica.status == 128 + signal.SIGKILL
    replica.start()
    eventually(lambda: len(cloud.ready(API)) == 3, "it is ready again", seconds=120)
    assert cloud.journal.read_text() == before, "what was done is not done again"


def test_a_container_that_is_made_again_has_its_files_and_runs_nothing_twice(cloud: Cloud) -> None:
    """podman rm, and a new one of the same image: it passes through what is done."""
    replica, before = cloud.container(API, HOSTS[0]), cloud.journal.read_text()
    old = replica.real.id
    replica.remove()
    eventually(lambda: len(cloud.ready(API)) == 2, "its instance is lost", seconds=SESSION_TIMEOUT)
    replica.start()
    eventually(lambda: len(cloud.ready(API)) == 3, "it is ready again", seconds=120)
    assert replica.real.id != old
    assert cloud.journal.read_text() == before
    assert cloud.validate_token(replica.host, cloud.issue_token(HOSTS[1]))["user"]["name"] == "admin"


def test_a_database_that_is_made_again_is_the_same_one(cloud: Cloud) -> None:
    """Its data are on a volume: bootstrapped once on this host, whatever container has them."""
    database, before = cloud.container(MARIADB, HOSTS[0]), cloud.journal.read_text()
    database.remove()
    database.start()
    eventually(lambda: database.state[0] == "ready", "it is ready", seconds=120)
    eventually(lambda: accepted(cloud, HOSTS[1]), "Keystone reaches it again")
    assert cloud.journal.read_text() == before


def accepted(cloud: Cloud, host: str) -> bool:
    try:
        return bool(cloud.issue_token(host))
    except HTTPError:
        return False


def test_each_container_stops_cleanly(cloud: Cloud, measured: list[str]) -> None:
    """podman stop: the daemon's own exit status, and no instance stays. After a minute podman would kill it.

    With two cores for them alone it takes 1.2 s for each Keystone, and half of that for the others. The
    difference is uWSGI's own: its master takes 1 s to find that its workers have ended, agent or no agent.
    """
    taken = {}
    for each in (*cloud.replicas, cloud.memcached, cloud.mariadb):
        container = cloud.container(each.service, each.host)
        begun = time.monotonic()
        assert container.stop() == 0, container.log_end()
        taken[container.name] = time.monotonic() - begun
    measured.append("podman stop: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items()))
    eventually(lambda: not any(map(cloud.ready, (API, MARIADB, MEMCACHED))), "no instance stays")


# -- one container -----------------------------------------------------------------------------------

CONFIG = "/etc/mysql/obedient.conf"


def test_a_stopped_container_ends_soon_and_with_the_daemons_own_status(
    podman: Podman, images: Images, deployment: Deployment
) -> None:
    """podman stop: the daemon gets the signal, and podman its exit status. Otherwise podman would kill it."""
    publish_obedient(deployment, "", CONFIG)
    container = podman.run(images.agent("mariadb-server"), environ=deployment.environ(SERVICE))
    eventually(lambda: is_ready(container), "it is ready")
    assert container.stop(60) == STATUS
    container.remove()


@pytest.mark.parametrize(("strategy", "renewed"), STRATEGIES)
def test_a_restarted_container_keeps_its_files_only_if_told_so(
    podman: Podman, images: Images, deployment: Deployment, strategy: str, renewed: str
) -> None:
    """The marker is in the container's own layer: a new container has new files with either strategy."""
    environ = deployment.environ(SERVICE, KOLLA_CONFIG_STRATEGY=strategy)
    first, second = (podman.create(images.agent("mariadb-server"), environ=environ) for _ in range(2))
    assert contents(deployment, first, second, CONFIG, CONFIG) == ["first", renewed, "second"]
