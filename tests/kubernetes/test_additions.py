"""What launch.yml adds to pods, an autoscaler's number, and a drain, on a real cluster.

The tests follow each other: each finds the deployment as the one before has left it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import PAUSE, Cluster, condition
from tests.kubernetes.conftest import REGISTRY
from tests.kubernetes.site import Site
from tests.support.publishing import write_files
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(2400)  # The first test waits for the images and for Kubernetes.

RESTRICTED = "{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}"
PART = {"metadata": {"annotations": {"example.org/version": "1"}}}
LAUNCH = f"""
zookeeper: zk
defaults:
  image: {REGISTRY}/memcached:30.0.0
  user: 42457
  kubernetes:
    spec:
      nodeSelector: {{kubernetes.io/hostname: ctl-2}}
      containers: [{{name: agent, livenessProbe: {{periodSeconds: 60}}}}]
      initContainers:
      - {{name: side, image: "{PAUSE}", restartPolicy: Always, securityContext: {RESTRICTED}}}
services:
  web: {{replicas: scaled, kubernetes: {{}}}}
"""


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("additions")
    source = write_files(
        place / "source",
        launch_yml=LAUNCH,
        variables_yml="a: b\n",
        services__web__definition_yml="service: {daemon: {command: sleep infinity, ready: {alive: 0}}}\n",
        services__make__definition_yml="commands: {make: {command: 'true', run_once: true}}\n",
    )
    site = Site(cluster, "additions", source, place)
    try:
        yield site
    finally:
        site.end()


def number(site: Site) -> int:
    (deployment,) = site.get("deployments")
    return int(deployment["spec"]["replicas"])


def test_pods_have_what_was_added(site: Site) -> None:
    """A sidecar does not keep a Job from ending. kustomize reads the files too."""
    site.publish()
    site.manifests()
    site.kubectl("apply", "--kustomize", str(site.made))
    site.await_up()
    assert {each["spec"]["nodeName"] for each in site.pods().values()} == {"ctl-2"}
    (web,) = site.pods("web").values()
    (agent,) = web["spec"]["containers"]
    assert agent["livenessProbe"]["periodSeconds"] == 60
    (side,) = (each for each in web["status"]["initContainerStatuses"] if each["name"] == "side")
    assert side["started"] and condition(web, "Ready")


def test_the_next_apply_leaves_the_number_of_pods(site: Site) -> None:
    """`kubectl scale` does what an autoscaler does."""
    site.kubectl("scale", "deployment/web", "--replicas=2")
    site.service("web", kubernetes={**PART, "spec": {"nodeSelector": None}})
    site.manifests()
    site.kubectl("apply", "--filename", str(site.made))
    site.await_up()
    assert number(site) == 2
    versions = [
        each["metadata"].get("annotations", {}).get("example.org/version")
        for each in site.pods("web").values()
        if "deletionTimestamp" not in each["metadata"]
    ]
    assert versions == ["1", "1"]


def test_a_drain_takes_one_of_them_at_a_time(site: Site) -> None:
    """Pods that wait for ZooKeeper do not block it."""
    (budget,) = site.get("poddisruptionbudgets")
    assert budget["status"]["disruptionsAllowed"] == 1
    nodes = sorted(site.ready("web"))
    with site.cluster.silence():
        site.kubectl("delete", "pods", "--selector=app.kubernetes.io/name=web", "--force", "--grace-period=0")
        eventually(lambda: len(waiting(site)) == 2, "two pods wait")
        for node in nodes:
            drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
            site.cluster.kubectl(*drain, f"--pod-selector=app.kubernetes.io/part-of={site.name}")
            site.cluster.kubectl("uncordon", node)
    eventually(lambda: len(site.ready("web")) >= 1, "they are back")


def waiting(site: Site) -> list[str]:
    """The pods that run, and are not ready."""
    return [
        name
        for name, pod in site.pods("web").items()
        if pod["status"]["phase"] == "Running" and not condition(pod, "Ready")
    ]
