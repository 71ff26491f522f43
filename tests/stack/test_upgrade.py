"""Keystone is upgraded while clients use it: MariaDB, memcached and three replicas behind HAProxy.

One deployment and one upgrade serve all tests of this file, which tell it in its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import LocalContainer
from tests.examples.keystone import API, url
from tests.stack.cloud import health, stop
from tests.stack.upgrade import ADMIN, HAPROXY, NEW, OLD, Clients, Upgrade
from tests.support.arrangement import section
from tests.support.tool import tool
from tests.support.zookeeper import Server

# The first test waits for packages, for Keystone's installation and for the start.
pytestmark = pytest.mark.timeout(900)

RETIRED, STOPPED = 76, 143


@pytest.fixture(scope="module")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests: what the clients have seen."""
    return section(pytestconfig, f"upgrade of Keystone {OLD} to {NEW}")


@pytest.fixture(scope="module")
def cloud(
    shared_zookeeper: Server,
    module_zk: KazooClient,
    releases: Mapping[str, Path],
    place: Path,
    report: list[str],
) -> Iterator[Upgrade]:
    """The deployment, published, and up with the old release."""
    cloud = Upgrade(place / "upgrade", releases, module_zk, shared_zookeeper.hosts, report)
    with cloud.up():
        yield cloud


@pytest.fixture(scope="module")
def clients(cloud: Upgrade) -> Iterator[Clients]:
    """They begin with the first test, and go on during all of them."""
    clients = Clients(url(cloud.port), cloud.secrets.keystone_admin_password)
    clients.start()
    yield clients
    clients.stop()


def replace(cloud: Upgrade, replica: LocalContainer, release: str) -> None:
    """Stop the replica, as a launcher would, and start it with the image of `release`; wait for it."""
    assert stop(replica) in (0, STOPPED)
    cloud.give(replica, release)
    replica.start()
    cloud.eventually(lambda: serves(cloud, replica, release), f"{replica.name} serves", seconds=120)


def serves(cloud: Upgrade, replica: LocalContainer, release: str) -> bool:
    """Whether it is ready with this release, and answers."""
    ready = {each["host"]: each["generation"] for each in cloud.ready(API).values()}
    return ready.get(replica.host) == release and bool(cloud.issue_token(replica.host))


def test_a_migration_that_fails_leaves_the_old_release_serving(cloud: Upgrade, clients: Clients) -> None:
    """The database does not let it; the tool says where it stands."""
    cloud.sql("REVOKE ALTER, CREATE, INDEX ON keystone.* FROM keystone@'%'")
    assert "keystone-api" in tool(cloud.deployment, "set", "keystone_release", NEW)
    cloud.give(cloud.task, NEW)
    cloud.task.start()
    assert cloud.task.wait(120) == 1
    assert cloud.state("keystone_upgrade/expand") == "error"
    said = tool(cloud.deployment, "explain", status=1)
    cloud.report.append(said)
    assert said.startswith(f"ROOT CAUSE  keystone_upgrade/expand failed on {ADMIN}")
    # The old replicas are named after it: they do not run what is published.
    others = [line for line in said.splitlines()[1:] if line.startswith("ROOT CAUSE")]
    assert all(line.startswith("ROOT CAUSE  keystone-api/daemon on ") for line in others)
    assert cloud.releases() == [OLD] * 3


def test_an_old_replica_that_restarts_runs_no_migration(cloud: Upgrade, clients: Clients) -> None:
    """It waits until a new one has."""
    replica, before = cloud.replicas[2], cloud.runs()
    assert stop(replica) == 0
    replica.start()
    waits = f"waits for keystone_upgrade/migrate generation {NEW}"
    cloud.eventually(lambda: waits in health(replica)[1], "it says for what it waits")
    assert cloud.runs() == before
    assert cloud.releases() == [OLD] * 2


def test_the_upgrade_can_be_given_up(cloud: Upgrade, clients: Clients) -> None:
    """With the old release set again an old replica starts as before; then the upgrade is begun again."""
    replica = cloud.replicas[2]
    tool(cloud.deployment, "set", "keystone_release", OLD)
    replace(cloud, replica, OLD)
    assert cloud.releases() == [OLD] * 3
    assert "ROOT CAUSE" not in tool(cloud.deployment, "explain")
    tool(cloud.deployment, "set", "keystone_release", NEW)
    test_an_old_replica_that_restarts_runs_no_migration(cloud, clients)


def test_the_migration_goes_on_once_it_is_let(cloud: Upgrade, clients: Clients) -> None:
    """Another container of the task does what is left; what a new replica has to do is left to that."""
    cloud.sql("GRANT ALL ON keystone.* TO keystone@'%'")
    cloud.task.start()
    cloud.eventually(lambda: cloud.done("keystone_upgrade/migrate", NEW), "it is migrated")
    waits = f"keystone-api/bootstrap waits: keystone-api/bootstrap is for {NEW}, this image is {OLD}"
    cloud.eventually(lambda: waits in health(cloud.replicas[2])[1], "an old one leaves it to a new one")
    assert cloud.releases() == [OLD] * 2


def test_a_replica_can_be_rolled_back_before_contract(cloud: Upgrade, clients: Clients) -> None:
    """An old one serves with the expanded schema; so does the one that has waited."""
    replica = cloud.replicas[0]
    replace(cloud, replica, NEW)
    cloud.eventually(lambda: serves(cloud, cloud.replicas[2], OLD), "the one that has waited serves")
    assert cloud.releases() == [OLD, OLD, NEW]
    waits = "keystone_upgrade/contract waits for keystone-api/daemon: 1 of 3 instances"
    assert f"{waits} of generation {NEW} ready" in tool(cloud.deployment, "explain", status=1)
    replace(cloud, replica, OLD)
    assert cloud.releases() == [OLD] * 3


def test_contract_waits_for_the_last_old_replica(cloud: Upgrade, clients: Clients) -> None:
    """One after the other is replaced, and the upgrade ends by itself."""
    for replica in cloud.replicas:
        assert not cloud.done("keystone_upgrade/contract", NEW)
        assert cloud.task.running
        replace(cloud, replica, NEW)
    assert cloud.task.wait(120) == 0
    assert cloud.done("keystone_upgrade/contract", NEW)


def test_each_step_has_run_once_for_each_release(cloud: Upgrade) -> None:
    """By the task alone; the first attempt of the new expand is the one that the database has refused."""
    steps = [(ADMIN, step) for step in ("--expand", "--migrate", "--contract")]
    assert cloud.migrations() == [*steps, (ADMIN, "--expand"), *steps]


def test_not_one_request_has_failed(cloud: Upgrade, clients: Clients) -> None:
    clients.stop()
    cloud.report.append(clients.told())
    assert not clients.failures
    assert len(clients.answers) > 200


def test_an_old_replica_is_refused_after_contract(cloud: Upgrade) -> None:
    """It ends before its daemon, and says why; the others go on."""
    tool(cloud.deployment, "set", "keystone_release_before", NEW)
    replica = cloud.replicas[0]
    assert stop(replica) == 0
    cloud.give(replica, OLD)
    replica.start()
    assert replica.wait() == RETIRED
    assert OLD in replica.log_end().splitlines()[-1]
    assert cloud.releases() == [NEW] * 2


def test_everything_stops_and_leaves_nothing(cloud: Upgrade) -> None:
    assert set(cloud.stop().values()) == {0}
    for service in (API, HAPROXY):
        assert not cloud.ready(service)
        assert not cloud.members(service)
