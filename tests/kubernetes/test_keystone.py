"""Keystone of etc/examples, from generated manifests with a mounted agent; Pod Security is `restricted`.

The tests follow each other: each finds the deployment as the one before has left it.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException

import pytest
from kazoo.client import KazooClient

from tests.examples.keystone import API, MARIADB, MEMCACHED, TASKS, issue_token
from tests.examples.openstack import EXAMPLE
from tests.kubernetes.cluster import Cluster, condition
from tests.kubernetes.conftest import NODES
from tests.kubernetes.site import PASSWORD, Site
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(2400)  # The first test waits for the images and for Kubernetes.

SILENCE, ABSENCE = 60, 75  # seconds without ZooKeeper, without a database
REQUESTS, PAUSE = 5000, 0.005  # seconds between two requests of a client: other tests run too
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "keystone-keys"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}},
}


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster.provide_volumes(2)
    site = Site(cluster, "keystone", EXAMPLE, tmp_path_factory.mktemp("site"))
    definition = site.tree / "services" / API / "definition.yml"
    text = definition.read_text().replace("\nservice:\n", "\nservice:\n  instances: 2\n")
    # A database that comes back has another address.
    text = text.replace("    ready:\n", "    on_change: {restart: true}\n    ready:\n")
    text = text.replace("keystone.conf: &config\n", "keystone.conf: &config\n        keep_last: true\n")
    definition.write_text(text)
    site.launch(hosts={"data": [NODES[0]]})
    for service in (MARIADB, MEMCACHED):
        site.service(service, placement="data")
    site.service(MEMCACHED, read_only=True)
    # Without Dockerfile.snippet, only root could write there.
    for service, path in ((MARIADB, "/etc/mysql"), (TASKS, "/etc/mysql"), (API, "/etc/keystone")):
        site.service(service, volumes={path: "temporary"})
    try:
        site.create(CLAIM)
        yield site
    finally:
        site.end()


def url(site: Site) -> str:
    """Where the Service is, which has no address before its manifest is applied."""
    (service,) = (each for each in site.get("services") if each["metadata"]["name"] == "keystone-api")
    return f"http://{service['spec']['clusterIP']}:5000/v3"


def test_it_comes_up_in_any_order(site: Site) -> None:
    """Everything is applied before its definitions are published."""
    site.apply(*site.manifests())
    eventually(lambda: len(site.pods()) == 5, "five pods")
    site.publish()
    site.await_up()
    assert issue_token(url(site), PASSWORD)
    assert len(site.ready("keystone-api")) == 2  # nodes


@pytest.mark.parametrize(
    "service, user", {"mariadb": 42434, "keystone-api": 42425, "memcached": 42457}.items()
)
def test_it_runs_without_rights(site: Site, service: str, user: int) -> None:
    """No root, no capability; and memcached writes only to volumes."""
    pod, *_ = site.pods(service)
    lines = site.kubectl("exec", pod, "--container=agent", "--", "cat", "/proc/1/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    assert status["Uid"].split() == [str(user)] * 4
    assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_the_host_of_what_keeps_data_is_its_pod(site: Site, zk: KazooClient) -> None:
    """So that it is the same on whichever node the pod is."""
    ready = f"{site.path}/status/global/{{}}/daemon/ready"
    hosts = {
        name: json.loads(zk.get(f"{place}/{instance}")[0])["host"]
        for name in ("mariadb", "memcached")
        for place in [ready.format(name)]
        for instance in zk.get_children(place)
    }
    assert hosts == {"mariadb": "mariadb-0", "memcached": NODES[0]}


def test_neither_zookeeper_nor_the_database_restarts_a_container(site: Site) -> None:
    """ZooKeeper is silent, a third replica begins, and the database goes. All come back."""
    before = site.uids("keystone-api") | site.uids("memcached")
    begun = time.monotonic()
    with site.cluster.silence():
        assert issue_token(url(site), PASSWORD)
        site.kubectl("scale", "deployment/keystone-api", "--replicas=3")
        site.kubectl("scale", "statefulset/mariadb", "--replicas=0")
        gone = time.monotonic()
        passed(begun + SILENCE)
    passed(gone + ABSENCE)
    assert site.pods("mariadb") == {}
    site.kubectl("scale", "statefulset/mariadb", "--replicas=1")
    site.await_up()
    eventually(lambda: has_token(site), "Keystone has its database again")
    assert set(site.restarts().values()) == {0}
    assert before <= site.uids()
    site.kubectl("scale", "deployment/keystone-api", "--replicas=2")
    eventually(lambda: len(site.pods("keystone-api")) == 2, "the third replica has ended")


def passed(moment: float) -> None:
    eventually(lambda: time.monotonic() > moment, "time passes")


def has_token(site: Site) -> bool:
    with suppress(OSError):
        return bool(issue_token(url(site), PASSWORD))
    return False


class Load:
    """Clients with a new connection for each request, until the end of a `with` statement."""

    def __init__(self, url: str, clients: int = 4) -> None:
        self._url = url
        self.served, self.lost = 0, Counter[str]()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._over.wait(PAUSE):
            try:
                with urllib.request.urlopen(self._url, timeout=5) as reply:
                    reply.read()
                    self.served += 1
            except (OSError, HTTPException) as error:
                self.lost[repr(error)] += 1


def test_a_rolling_update_loses_no_request(site: Site, measured: list[str]) -> None:
    before = site.uids("keystone-api")
    with Load(url(site)) as load:
        eventually(lambda: load.served > 100, "the load has begun")
        begun = time.monotonic()
        site.kubectl("rollout", "restart", "deployment/keystone-api")
        site.kubectl("rollout", "status", "deployment/keystone-api")
        took = time.monotonic() - begun
        eventually(lambda: load.served > REQUESTS, f"{REQUESTS} requests")
        eventually(lambda: len(site.pods("keystone-api")) == 2, "the old pods have ended")
    measured.append(f"a rolling update of 2 pods in {took:.0f} s, under {load.served} requests")
    assert not load.lost
    assert not site.uids("keystone-api") & before


def test_an_upgrade_of_one_image_leaves_the_other_pods_alone(site: Site, zk: KazooClient) -> None:
    """With a tag and a migration of its own."""
    others = site.uids() - site.uids("keystone-api")
    before = site.uids("keystone-api")
    site.service(API, tag="30.0.1")
    site.variables({"keystone_release": "30.0.1"})
    site.publish()
    site.apply(*site.manifests())
    site.await_up()
    eventually(lambda: len(site.pods("keystone-api")) == 2, "the old pods have ended")
    assert site.uids() - site.uids("keystone-api") == others
    assert not site.uids("keystone-api") & before
    assert set(site.restarts().values()) == {0}
    detail = json.loads(zk.get(f"{site.path}/status/global/keystone-api/db_sync/detail")[0])
    assert (detail["generation"], detail["state"]) == ("30.0.1", "done")


def test_a_node_is_drained(site: Site) -> None:
    """Its pods come up elsewhere, and no request is lost."""
    (node, *_) = site.ready("keystone-api") - {NODES[0]}
    with Load(url(site)) as load:
        words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        site.cluster.kubectl("drain", node, *words)
        await_two_elsewhere(site, node)
    site.cluster.kubectl("uncordon", node)
    assert load.served and not load.lost
    assert set(site.restarts().values()) == {0}


def await_two_elsewhere(site: Site, node: str) -> None:
    def moved() -> bool:
        ready = [
            pod["spec"]["nodeName"]
            for pod in site.pods("keystone-api").values()
            if condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]
        ]
        return len(ready) == 2 and node not in ready

    eventually(moved, f"two pods are ready, and not on {node}", every=0.5)


def test_a_node_is_cut_off(site: Site, measured: list[str]) -> None:
    """The other replica serves on. When Kubernetes has given up the node, another pod is ready."""
    (node, *_) = site.ready("keystone-api") - {NODES[0]}
    site.cluster.reach_services_by(NODES[0])
    with Load(url(site)) as load:
        begun = time.monotonic()
        site.cluster.cut(node)
        try:
            await_two_elsewhere(site, node)
        finally:
            site.cluster.join(node)
        took = time.monotonic() - begun
    lost = sum(load.lost.values())
    measured.append(
        f"a node cut off: {lost} of {load.served + lost} requests lost, its pod replaced in {took:.0f} s"
    )
    assert load.served > 100
    eventually(lambda: node in site.cluster.ready_nodes, f"{node} is back")
    eventually(lambda: len(site.pods("keystone-api")) == 2, "the old pod has ended")
