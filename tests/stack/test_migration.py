"""The migration example, with a real MariaDB: who wakes up late is refused, and the data shows one migration.

The one case in which two commands can live at the same time: agent, guard and command are stopped
together, past the lease, and thawed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from tests import EXAMPLES
from tests.examples import openstack
from tests.examples.keystone import MARIADB, Users
from tests.stack.cloud import published
from tests.support.local_deployment import LocalDeployment
from tests.support.tool import operator_client
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

# MariaDB may have to be installed first.
pytestmark = pytest.mark.timeout(600)

EXAMPLE = EXAMPLES / "migration"
SHOP = "shop/shop-db"
TIMEOUT = 2  # seconds: of the sessions
REFUSED = "refused: a later attempt has begun"
ORDERS = 1000


class Shop(LocalDeployment):
    """A database, and two replicas of the task that migrates it."""

    once = "shop-db/migrate"

    def __init__(self, directory: Path, zk: KazooClient, hosts: str) -> None:
        environ = {
            "PATH": openstack.SYSTEM_PATH,
            "KOLLA_ZK_HOSTS": hosts,
            "KOLLA_ZK_SESSION_TIMEOUT": f"{TIMEOUT}",
        }
        at = ("/kolla-migration", "shop")
        super().__init__(EXAMPLE, directory, operator_client(zk, *at), environ, *at)
        self.user = Users.here().mariadb
        self.mariadb = self.add(MARIADB, "db-1")
        self.replicas = [self.add(SHOP, host) for host in ("shop-1", "shop-2")]
        for path in ("var/lib/mysql", "run/mysqld"):
            place = self.mariadb.root / path
            place.mkdir(parents=True)
            shutil.chown(place, self.user)

    @property
    def values(self) -> Mapping[str, object]:
        return {
            "mariadb_root_password": "secret",
            "mariadb_user": self.user,
            "mariadb_port": free_port(),
        }

    def query(self, sql: str) -> int:
        """The number that the database answers with; 0 while it does not."""
        socket = self.mariadb.root / "run/mysqld/mysqld.sock"
        done = subprocess.run(
            ("mariadb", f"--socket={socket}", "--skip-column-names", "shop", "-e", sql),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return int(done.stdout or 0)


@pytest.fixture(scope="module")
def shop(shared_zookeeper: Server, module_zk: KazooClient, servers: None, place: Path) -> Iterator[Shop]:
    """The deployment, published, with its database up."""
    shop = Shop(place / "shop", module_zk, shared_zookeeper.hosts)
    with published(shop, module_zk):
        shop.mariadb.start()
        eventually(lambda: shop.ready(MARIADB), "the database is up", seconds=60)
        yield shop


def stop(container: LocalContainer) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Stop agent, guard and command; returns agent and guard, and the processes of the command."""
    agent = psutil.Process(container.pid)
    agent.suspend()
    (guard,) = agent.children()
    guard.suspend()
    # A process that is not stopped yet may still start another one, or end.
    command: list[psutil.Process] = []
    while found := [each for each in guard.children(recursive=True) if each not in command]:
        for each in found:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        command += found
    return [agent, guard], [each for each in command if each.is_running()]


def test_who_is_late_is_refused(shop: Shop) -> None:
    """Stopped in the middle of its migration, taken over from, and thawed: at worst its command first."""
    first, second = shop.replicas
    first.start()
    eventually(lambda: shop.query("SELECT done FROM migration") >= ORDERS / 10, "it is in the middle of it")
    above, command = stop(first)
    done = shop.query("SELECT done FROM migration")
    assert done < ORDERS
    token = shop.query("SELECT token FROM migration")

    second.start()
    assert second.wait() == 0
    assert shop.detail(shop.once)["token"] == shop.query("SELECT token FROM migration") > token
    assert REFUSED not in first.log_end()
    assert all(each.status() == psutil.STATUS_STOPPED for each in above)

    for each in command:
        with suppress(psutil.NoSuchProcess):  # The end of another one has ended it.
            each.resume()
    eventually(lambda: REFUSED in first.log_end(), "its late statement is refused")
    for each in above:
        each.resume()
    assert first.wait() == 0
    assert "waiting for its turn again" in first.log_end()

    assert shop.query("SELECT done FROM migration") == ORDERS
    assert shop.query("SELECT COUNT(*) FROM orders WHERE price = id * 100") == ORDERS
    detail = shop.detail(shop.once)
    assert (detail["attempt"], detail["host"], detail["state"]) == (2, "shop-2", "done")
