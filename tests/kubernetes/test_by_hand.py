"""The manifests of etc/kubernetes, as they are but for the address of ZooKeeper; the images have the agent.

MariaDB and memcached, of which they say nothing, are generated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.security import Permissions

from tests.examples.keystone import MARIADB, MEMCACHED, TASKS, issue_token, validate_token
from tests.kubernetes.cluster import Cluster, condition
from tests.kubernetes.conftest import NODES, REGISTRY
from tests.kubernetes.site import Site
from tests.rules.test_kubernetes import (
    DEFINITIONS,
    IDENTITIES,
    MANIFESTS,
    SECRET,
    credential,
    identity,
    passwords,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(2400)  # The first test waits for the images and for Kubernetes.

# The others have no manifests.
OWNERS = {**IDENTITIES, "mariadb-zookeeper": MARIADB, "memcached-zookeeper": MEMCACHED}
GENERATED = {
    MARIADB: {
        "image": f"{REGISTRY}/mariadb-server:30.0.0",
        "user": 42434,
        "ports": [3306],
        "volumes": {"/var/lib/mysql": "10Gi", "/etc/mysql": "temporary"},
        "credential": "mariadb-zookeeper",
        "variables": SECRET,
    },
    MEMCACHED: {
        "image": f"{REGISTRY}/memcached:30.0.0",
        "user": 42457,
        "ports": [11211],
        "credential": "memcached-zookeeper",
    },
}


@pytest.fixture(scope="module")
def site(cluster: Cluster, zk: KazooClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everything is applied before MariaDB and memcached are."""
    place = tmp_path_factory.mktemp("by-hand")
    source = shutil.copytree(DEFINITIONS, place / "definitions")
    launch = {"zookeeper": "zk:2181", "defaults": {"image": "none"}, "services": GENERATED}
    (source / "launch.yml").write_text(yaml.safe_dump(launch))
    acl = {"services": {each: identity(each) for each in OWNERS.values()}, "operator": identity("operator")}
    (source / "acl.yml").write_text(json.dumps({**acl, "hosts": [*NODES, "mariadb-0"]}))
    cluster.provide_volumes(2)
    site = Site(cluster, "site", source, place, prefix="/kolla")
    try:
        create_secrets(site, place)
        zk.add_auth("digest", credential("operator"))
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv("KOLLA_VARIABLES_DIR", str(MANIFESTS / "passwords"))
            environ.setenv("KOLLA_ZK_AUTH_FILE", str(place / "operator"))
            site.publish()
            generated = {each.name: each for each in site.manifests()}
        for path in MANIFESTS.glob("*.yml"):
            documents = list(yaml.safe_load_all(path.read_text()))
            for data in (each["data"] for each in documents if "KOLLA_ZK_HOSTS" in each.get("data", {})):
                data["KOLLA_ZK_HOSTS"] = cluster.zookeeper.hosts
            site.create(*documents)
        eventually(lambda: len(site.pods()) == 4, "the Job and three replicas")
        site.apply(generated["mariadb.yml"], generated["memcached.yml"])
        site.await_up()
        yield site
    finally:
        site.end()


def create_secrets(site: Site, place: Path) -> None:
    """As the README says."""
    create = ("create", "secret", "generic")
    site.kubectl(*create, SECRET, f"--from-file={MANIFESTS}/passwords")
    for name, service in {**OWNERS, "operator": "operator"}.items():
        (place / name).write_text(f"digest:{credential(service)}\n")
        site.kubectl(*create, name, f"--from-file=auth={place / name}")


def test_all_replicas_are_ready_and_have_their_keys_in_common(site: Site) -> None:
    """A replica reads the token that another one has issued."""
    first, *others = (
        f"http://{pod['status']['podIP']}:5000/v3" for pod in site.pods("keystone-api").values()
    )
    token = issue_token(first, passwords()["keystone_admin_password"])
    assert [validate_token(url, token)["user"]["name"] for url in others] == ["admin"] * 2


@pytest.mark.parametrize("command", ["create_database", "create_user"])
def test_a_task_started_four_times_at_once_runs_its_commands_once(
    site: Site, zk: KazooClient, command: str
) -> None:
    """One Job and three init containers: one attempt, and the others find it done."""
    said = [site.logs(pod) for pod in site.pods("keystone-tasks")]
    said += [site.kubectl("logs", pod, "--container=tasks") for pod in site.pods("keystone-api")]
    assert len(said) == 4
    assert sum(each.count(f"keystone_tasks/{command}: starting") for each in said) == 1
    detail = json.loads(zk.get(f"{site.path}/status/global/keystone_tasks/{command}/detail")[0])
    assert (detail["attempt"], detail["state"]) == (1, "done")
    assert detail["host"] in NODES


def test_each_pod_has_an_identity_of_its_own(site: Site, zk: KazooClient) -> None:
    """The others may read what one has recorded, and nobody else may read anything."""
    detail = f"{site.path}/status/global/keystone_tasks/create_database/detail"
    found = {f"{acl.id.scheme}:{acl.id.id}": acl.perms for acl in zk.get_acls(detail)[0]}
    assert found.keys() == {identity(each) for each in ("operator", *OWNERS.values())}
    writers = {who for who, perms in found.items() if perms != Permissions.READ}
    assert writers == {identity("operator"), identity(TASKS)}


def test_a_job_started_again_passes(site: Site) -> None:
    """Its commands are done, and there is nothing to wait for."""
    site.kubectl("delete", "job", "keystone-tasks")
    site.kubectl("apply", "--filename", str(MANIFESTS / "job.yml"))

    def complete() -> bool:
        return all(condition(each, "Complete") for each in site.get("jobs"))

    eventually(complete, "the Job is complete")
    (pod,) = site.pods("keystone-tasks")
    assert "keystone_tasks/create_database: already done" in site.logs(pod)
