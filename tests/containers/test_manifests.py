"""Keystone from the manifests that `kolla_mesos_ctl manifests kubernetes` makes: they start, and it is up.

A pod is what podman makes of a template; what a cluster adds to it, or podman unmet, is done in `pods`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from kazoo.client import KazooClient

from kolla_mesos_start.ctl import cli
from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.kube import Cluster, Document
from tests.containers.podman import Container
from tests.examples.keystone import API, MARIADB, MEMCACHED, TASKS, issue_token
from tests.support.launching import PASSWORD, directory, free_ports
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST

pytestmark = pytest.mark.timeout(900)  # The first test of all waits for the images.

NODE = "node-1"


def pods(workload: Document) -> tuple[list[Document], Document]:
    """What controllers, scheduler and kubelet make of it: the claims of a pod, and the pod."""
    template, name = workload["spec"]["template"], f"{workload['metadata']['name']}-0"
    spec = template["spec"]
    claims = []
    for claim in workload["spec"].get("volumeClaimTemplates", ()):
        own = f"{claim['metadata']['name']}-{name}"
        # podman has no fsGroup.
        metadata = {
            "name": own,
            "annotations": {"volume.podman.io/uid": str(spec["securityContext"]["fsGroup"])},
        }
        claims.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim, "metadata": metadata})
        volume = {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": own}}
        spec.setdefault("volumes", []).append(volume)
    (container,) = spec["containers"]
    container.pop("ports", None)  # podman would publish them; here all share the machine's network.
    unknown_to_podman = {"spec.nodeName": NODE, "metadata.namespace": "default"}
    for variable in container["env"]:
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path in unknown_to_podman:
            del variable["valueFrom"]
            variable["value"] = unknown_to_podman[path]
    metadata = {**template["metadata"], "name": name}
    return claims, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Site(NamedTuple):
    """What has been made, and what runs of it."""

    workloads: Mapping[str, Document]
    containers: Mapping[str, Container]
    url: str
    path: str
    zk: KazooClient

    def host(self, service: str) -> str:
        """That of the only ready instance."""
        ready = f"{self.path}/status/global/{service.rpartition('/')[2]}/daemon/ready"
        (instance,) = self.zk.get_children(ready)
        return str(json.loads(self.zk.get(f"{ready}/{instance}")[0])["host"])

    def probe(self, service: str, kind: str) -> int:
        """The exit status of a probe of the manifest."""
        (container,) = self.workloads[service]["spec"]["template"]["spec"]["containers"]
        return self.containers[service].exec(*container[kind]["exec"]["command"]).returncode


@pytest.fixture(scope="module")
def cluster(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("kube"), images)
    try:
        cluster.prepare()  # With the claim keystone-keys, which the operator has to make.
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def site(
    cluster: Cluster,
    images: Images,
    module_zk: KazooClient,
    module_deployment: Deployment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """All are started. Some wait for others."""
    deployment, place, ports = module_deployment, tmp_path_factory.mktemp("site"), free_ports()
    tree = directory(place / "keystone", images, deployment.hosts, ports)
    words = [str(tree), "--deployment", deployment.id, "--prefix", deployment.prefix]
    cli.run(["publish", *words, "--hosts", deployment.hosts])
    cli.run(["manifests", "kubernetes", *words, "--output", str(place / "made")])
    workloads = dict(_workloads(place / "made"))
    containers = {}
    try:
        for service, workload in workloads.items():
            claims, pod = pods(yaml.safe_load(json.dumps(workload)))
            cluster.play(*claims, pod, options=("--network=host",))
            containers[service] = Container(cluster.podman, f"{pod['metadata']['name']}-agent")
        url = f"http://{HOST}:{ports['keystone_port']}/v3"
        yield Site(workloads, containers, url, deployment.path, module_zk)
    finally:
        for service, container in containers.items():
            print(f"--- {service}: {container.said}")
        cluster.podman("pod", "rm", "--all", "--force", "--time", "0")


def _workloads(place: Path) -> Iterator[tuple[str, Document]]:
    """What makes pods, by the service in it; keystone-api begins first, as it waits longest."""
    for path in sorted(place.iterdir()):
        for document in yaml.safe_load_all(path.read_text()):
            if "template" in document["spec"]:
                yield _service(document), document


def _service(workload: Mapping[str, Any]) -> str:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    (app,) = (each["value"] for each in container["env"] if each["name"] == "KOLLA_APP_ID")
    return str(app).split("/", 2)[2]


def test_all_start_as_generated_and_keystone_answers(site: Site) -> None:
    """In no order; the task ends well, the others become ready, and a token is issued."""
    assert set(site.containers) == {MARIADB, MEMCACHED, TASKS, API}
    assert site.containers[TASKS].ends() == 0
    for service in (MARIADB, MEMCACHED, API):
        eventually(lambda: is_ready(site, service), f"{service} is ready", seconds=120, every=0.5)  # noqa: B023
        assert site.probe(service, "livenessProbe") == 0
    assert issue_token(site.url, PASSWORD)


def is_ready(site: Site, service: str) -> bool:
    assert site.containers[service].running, site.containers[service].said
    return site.probe(service, "readinessProbe") == 0


def test_the_host_of_what_keeps_data_is_its_pod(site: Site) -> None:
    """So that it is the same on whichever node the pod is started with them."""
    assert (site.host(MARIADB), site.host(MEMCACHED)) == ("mariadb-0", NODE)


@pytest.mark.parametrize("service", [MARIADB, API])
def test_it_runs_without_root_and_without_capabilities(service: str, site: Site) -> None:
    """podman has heeded the security context."""
    inspected = site.containers[service].inspected
    assert inspected["Config"]["User"] == {MARIADB: "42434", API: "42425"}[service]
    assert (inspected["EffectiveCaps"] or [], inspected["BoundingCaps"] or []) == ([], [])
    assert "no-new-privileges" in inspected["HostConfig"]["SecurityOpt"]


def test_a_root_that_is_read_only_is_enough(site: Site) -> None:
    """Where launch.yml says so; the agent writes to volumes of its own."""
    inspected = site.containers[MEMCACHED].inspected
    assert inspected["HostConfig"]["ReadonlyRootfs"] is True
    assert site.probe(MEMCACHED, "readinessProbe") == 0
