"""A tree that was copied by a generic tool: what should be ephemeral is persistent, and nobody's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.agent.test_election import Cluster, cluster  # noqa: F401 (a fixture)
from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.instances import INSTANCE_DATA, MEMBER_DATA, Site
from tests.support.publishing import publish
from tests.support.tool import run_ctl
from tests.support.waiting import eventually

SERVICE = "infra/web"
DAEMON = {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}}
GARBAGE = [b"", b"[]", b"x" * 200_000, b"[" * 16_000, b'{"host": "h1", "address": 1}', b'{"host": "a\\nb"}']


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient) -> Site:
    return Site(deployment, zk, SERVICE)


def waits_for(*dependencies: Any) -> dict[str, Any]:
    return {"commands": {"go": {"command": "true", "dependencies": [*dependencies]}}}


@pytest.mark.parametrize(
    ("dependency", "above", "data", "unmet"),
    [
        ("mq/daemon", "status/global/mq/daemon/ready", INSTANCE_DATA, "0 of 1 instances ready"),
        ({"members": "infra/mq", "count": 1}, "infra/mq/.party", MEMBER_DATA, "0 of 1 present"),
    ],
)
def test_a_dependency_counts_neither_the_dead_nor_garbage(
    zk: KazooClient,
    deployment: Deployment,
    containers: Containers,
    dependency: Any,
    above: str,
    data: bytes,
    unmet: str,
) -> None:
    """Each is named by one warning; the first that is alive and valid is enough."""
    above = f"{deployment.path}/{above}"
    zk.create(f"{above}/copied", data, makepath=True)
    for number, garbage in enumerate(GARBAGE):
        zk.create(f"{above}/garbage{number}", garbage, ephemeral=True)
    publish(deployment, "infra/task", waits_for(dependency))
    agent = containers.start("infra/task")
    for name in ("copied", *(f"garbage{number}" for number in range(len(GARBAGE)))):
        agent.says(f"WARNING kolla_mesos_start.zookeeper.client: {above}/{name} is left out: ")
    agent.says(unmet)
    zk.delete(f"{above}/garbage0")
    agent.says(f"{above}/copied is left out: no session owns it")
    assert agent.running
    zk.create(f"{above}/one", data, ephemeral=True)
    assert agent.ends() == 0
    assert agent.said.count(f"{above}/copied is left out") == 1


def test_a_template_lists_neither_the_dead_nor_garbage(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Members, instances, groups and hostvars."""
    party, ready = (
        f"{deployment.path}/{path}" for path in ("infra/mq/.party", "status/global/mq/daemon/ready")
    )
    for above, data in ((party, MEMBER_DATA), (ready, INSTANCE_DATA)):
        zk.create(f"{above}/copied", data, makepath=True)
        zk.create(f"{above}/garbage", b"[]", ephemeral=True)
    text = (
        "{{ list_ips_by_service('infra/mq') }}|{{ ready_instances('infra/mq') | length }}|"
        "{{ groups['mq'] | length }}|{{ hostvars | length }}"
    )
    publish(deployment, "infra/task", {"commands": {"go": {"command": ["sh", "-c", "echo $0 >out", text]}}})
    agent = containers.start("infra/task")
    assert agent.ends() == 0
    assert (agent.directory / "out").read_text() == "|0|0|1\n"
    for path in (f"{party}/copied", f"{ready}/copied", f"{party}/garbage", f"{ready}/garbage"):
        assert agent.said.count(f"{path} is left out") == 1


def test_dead_contenders_do_not_hold_the_lock(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Neither one, nor several before and between live ones."""
    lock = f"{deployment.path}/status/global/task/go/lock"
    zk.create(lock, makepath=True)
    for _ in range(5):
        zk.create(f"{lock}/{'0' * 32}__lock__", b"dead", sequence=True)
    live = zk.create(f"{lock}/{'1' * 32}__lock__", b"live", sequence=True, ephemeral=True)
    for _ in range(3):
        zk.create(f"{lock}/{'0' * 32}__lock__", b"dead", sequence=True)
    command = {"command": "true", "run_once": True}
    publish(deployment, "infra/task", {"commands": {"go": command}})
    agent = containers.start("infra/task")
    agent.says("task/go waits: another container is about to run it")
    zk.delete(live)
    assert agent.ends() == 0
    assert zk.get(lock.rpartition("/")[0])[0] == b"done"


def test_a_container_replaces_its_own_dead_znodes(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Its state, its presence and its readiness, also in the middle of its life."""
    publish(deployment, SERVICE, DAEMON)
    agent = containers.start(SERVICE)
    (member,) = site.await_instances(1)
    paths = [f"{above}/{member}" for above in (site.party, site.containers_path, f"{site.daemon()}/ready")]

    def copied() -> None:
        for path in paths:
            transaction = zk.transaction()
            transaction.delete(path)
            transaction.create(path, b"{}")
            transaction.commit()

    copied()
    eventually(lambda: all(map(site.owner, paths)), "its registrar has replaced them")
    agent.signal(15)
    agent.ends()
    eventually(lambda: not agent.registrar and not site.members, "its session is closed")
    for path in paths:
        zk.create(path, b"{}")
    agent.restart()
    eventually(lambda: all(map(site.owner, paths)), "the next run has replaced them")
    assert list(site.instances()) == [member]


def test_a_dead_host_is_no_part_of_an_election(cluster: Cluster) -> None:  # noqa: F811
    """Neither as a candidate, nor as a running or a ready one, also under the name of a living host."""
    cluster.publish()
    cluster.zk.ensure_path(f"{cluster.at}/members")
    records = {
        "candidates": {"group": None, "value": None, "id": "dead"},
        "running": {"epoch": 7, "role": "first", "state": "ready", "id": "dead"},
    }
    for name, record in records.items():
        for host in ("a", "dead"):
            cluster.zk.create(f"{cluster.at}/{name}/{host}", json.dumps(record).encode(), makepath=True)
    ready = f"{cluster.deployment.path}/status/global/db/daemon/ready"
    cluster.zk.create(f"{ready}/dead", INSTANCE_DATA, makepath=True)
    garbage = f"{cluster.at}/candidates/garbage"
    cluster.zk.create(garbage, b"[]", ephemeral=True)
    cluster.start()
    eventually(lambda: cluster.ready == ["a", "b", "c", "h1"], "all are ready", seconds=60)
    assert len(cluster.bootstraps()) == 1
    assert any(f"left out of the election: {garbage}" in agent.said for agent in cluster.agents.values())


def test_the_tool_counts_nothing_of_a_copied_tree(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """`explain` names what is left out, and `reset` removes it; a dead operator holds no lock."""
    once = {"command": "true", "run_once": True}
    publish(deployment, SERVICE, {"commands": {"sync": once}, **DAEMON})
    agent = containers.start(SERVICE)
    site.await_instances(1)
    ((member, facts),) = site.members.items()
    copies = {
        f"{site.party}/{member}": json.dumps(facts).encode(),
        f"{site.containers_path}/{member}": json.dumps({"host": "web1", "state": "ready"}).encode(),
        f"{site.daemon()}/ready/{member}": INSTANCE_DATA,
        f"{site.daemon('web1')}/ready/{member}": INSTANCE_DATA,
        f"{deployment.path}/status/global/web/sync/lock/{'0' * 32}__lock__0000000000": b"web1",
        f"{deployment.path}/.publication/{'0' * 32}__lock__0000000000": b"dead",
    }
    agent.signal(15)
    agent.ends()
    eventually(lambda: not agent.registrar and not site.members, "its session is closed")
    for path, data in copies.items():
        zk.create(path, data)

    def ctl(*words: str) -> tuple[str, int]:
        found = run_ctl(deployment, *words)
        return found.stdout + found.stderr, found.returncode

    said, status = ctl("status")
    assert status == 1
    assert "0 of 1" in said
    said, _ = ctl("explain")
    assert f"{site.daemon()}/ready/{member}: no session owns it" in " ".join(said.split())
    assert "left out" in said
    said, status = ctl("rerun", "web/sync")
    assert status == 0, said
    publish(deployment, SERVICE, DAEMON)  # The lock of publications is free.
    zk.create(f"{site.party}/alive", b"{}", ephemeral=True)
    said, status = ctl("reset", "--yes")
    assert (status, "web has 1 container" in said) == (1, True), said
    zk.delete(f"{site.party}/alive")
    said, status = ctl("reset", "--yes")
    assert status == 0, said
    assert [path for path in copies if zk.exists(path) and ".publication" not in path] == []
    said, status = ctl("remove", SERVICE, "--yes")
    assert status == 0, said
