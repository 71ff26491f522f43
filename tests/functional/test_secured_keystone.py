"""The Keystone example with an acl.yml, on a secured ensemble: MariaDB, memcached and three Keystones.

While it starts the leader dies, and every certificate is replaced. One deployment serves all tests of this
file; the last one stops everything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from kolla_mesos_start.ctl.zk.publisher import Counts
from tests.arrangement import section
from tests.conftest import Deployment, connected
from tests.examples.keystone import API, HOSTS, MARIADB, MEMCACHED, TASKS
from tests.functional.cloud import START_LIMIT, Cloud, stop
from tests.functional.test_keystone import ONCE, Once, runs_of
from tests.integration.test_acl import world
from tests.publishing import write_files
from tests.secured import OPERATOR, Secured
from tests.tool import ctl

# The first test waits for packages, for Keystone's installation and for the start.
pytestmark = pytest.mark.timeout(900)

READERS = {
    "mariadb_root_password": [MARIADB, TASKS],
    "keystone_database_password": [TASKS, API],
    "keystone_admin_password": [API],
}


def name(service: str) -> str:
    """As whom its containers connect."""
    return service.rpartition("/")[2]


class SecuredCloud(Cloud):
    """The containers, each with the certificate of its service alone."""

    def __init__(
        self, directory: Path, programs: Path, zk: KazooClient, secured: Secured, report: list[str]
    ) -> None:
        directory.mkdir(mode=0o755)
        super().__init__(directory, programs, zk, secured.hosts, report, **secured.environment(OPERATOR))
        self.secured = secured
        self._values = super().values
        self.deployment = Deployment(secured.hosts, self.prefix, self.id)
        for container in self.containers:
            container.environ.update(secured.environment(name(container.service)))
            container.environ["KOLLA_ZK_SESSION_TIMEOUT"] = "30"  # No command is given up for an election.

    @property
    def values(self) -> Mapping[str, object]:
        return self._values

    def publish(self) -> Counts:
        """As the operator does; after that there is nothing left to publish."""
        self.source = self._written()
        self.ctl("publish", str(self.source))
        counts = super().publish()
        assert counts.by_change["created"] == counts.by_change["updated"] == 0
        return counts

    def _written(self) -> Path:
        """The example with the values of this machine, and with an acl.yml."""
        root = self.directory / "site"
        shutil.copytree(self.source, root)
        services = (MARIADB, MEMCACHED, TASKS, API)
        acl = {
            "operator": self.secured.identity(OPERATOR),
            "services": {service: self.secured.identity(name(service)) for service in services},
            "variables": READERS,
            "hosts": HOSTS,
        }
        values = yaml.safe_load((root / "variables.yml").read_text())
        values |= {each: str(value) for each, value in self.values.items()}
        write_files(root, acl_yml=json.dumps(acl), variables_yml=yaml.safe_dump(values))
        for container, own in self._own_values.items():
            place = root / "services" / container.service / "variables" / container.host
            place.mkdir(parents=True)
            for each, value in own.items():
                (place / each).write_text(str(value))
        return root

    def await_start(self) -> None:
        """While the database is migrated the leader dies; then everybody has another certificate."""
        self.eventually(self._migrates, "the database is migrated", seconds=START_LIMIT)
        self.secured.leader.kill()
        self.secured.reissue(self.secured.authority)
        self.secured.mend()
        self.secured.restart_each()
        super().await_start()

    def _migrates(self) -> bool:
        return any("db_sync" in run.arguments for run in self.runs())

    def ctl(self, *words: str) -> str:
        """What the tool prints, run by the operator."""
        return ctl(self.deployment, *words, status=0, **self.secured.environment(OPERATOR)).stdout


@pytest.fixture(scope="module")
def cloud(
    shared_secured: Secured, programs: Path, place: Path, pytestconfig: pytest.Config
) -> Iterator[SecuredCloud]:
    """The deployment, published, started all at once, and up."""
    shared_secured.mend()
    report = section(pytestconfig, "start of MariaDB, memcached and three Keystones, secured")
    with contextmanager(connected)(shared_secured, **shared_secured.options()) as zk:
        cloud = SecuredCloud(place / "secured", programs, zk, shared_secured, report)
        with cloud.up():
            yield cloud


def test_each_replica_accepts_the_token_that_another_issued(cloud: SecuredCloud) -> None:
    """It is up, whatever has happened meanwhile; the tool says so too."""
    for issuer, known in zip(HOSTS, (*HOSTS[1:], HOSTS[0])):
        token = cloud.issue_token(issuer)
        assert cloud.validate_token(known, token)["user"]["name"] == "admin"
    assert "keystone-api: 3 of 3 ready" in cloud.ctl("wait", "keystone-api=3", "--timeout", "60")
    assert "ROOT CAUSE" not in cloud.ctl("explain")


@pytest.mark.parametrize("once", ONCE, ids=lambda once: str(once.command))
def test_a_one_time_command_ran_once(cloud: SecuredCloud, once: Once) -> None:
    """Also the one during which the leader died."""
    detail = cloud.detail(once.command, once.scope)
    assert runs_of(cloud, once) == [str(detail["token"])]
    assert cloud.state(once.command, once.scope) == "done"


def test_nothing_can_be_read_that_acl_yml_does_not_plan(cloud: SecuredCloud) -> None:
    """Not by the world, and a password not by the services that do not need it."""
    assert world(cloud.zk, cloud.path) == []
    for service in (MARIADB, MEMCACHED, TASKS, API):
        for client in connected(cloud.secured, **cloud.secured.options(name(service))):
            for variable, readers in READERS.items():
                assert may_read(client, f"{cloud.path}/variables/{variable}") == (service in readers)


def may_read(client: KazooClient, path: str) -> bool:
    try:
        client.get(path)
    except NoAuthError:
        return False
    return True


def test_a_replica_starts_again_with_its_new_certificate(cloud: SecuredCloud) -> None:
    """It finds what is done, and is ready again."""
    replica = cloud.replicas[0]
    assert stop(replica) == 0
    replica.start()
    cloud.eventually(lambda: cloud.is_up, "it is ready again", seconds=120)


def test_everything_stops_and_leaves_nothing(cloud: SecuredCloud) -> None:
    """SIGTERM to each container: clean exits; no instance, no member stays."""
    assert set(cloud.stop().values()) == {0}
    # The server that is asked may be behind the one that has ended the sessions.
    for service in (MARIADB, MEMCACHED, API):
        cloud.eventually(lambda: not cloud.ready(service), f"no instance of {service} stays")  # noqa: B023
        cloud.eventually(lambda: not cloud.members(service), f"no member of {service} stays")  # noqa: B023
