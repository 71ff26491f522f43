"""How long after a Job's end the pods that wait for it start their commands, in a real Kubernetes.

    .venv/bin/python -m drills.benchmarks.pods [ROUNDS]

In each round, ten pods on one node wait for a Job: once with agents, and once with an init container that
asks the Kubernetes API every two seconds. It stands for kubernetes-entrypoint, which does the same and can't
be downloaded as a package. The image, the commands and the cluster are the same.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Callable

import yaml

from kolla_mesos_start.ctl import cli
from tests import CHECKOUT
from tests.containers.images import Images
from tests.containers.podman import MOUNTED
from tests.kubernetes.build import install, programs
from tests.kubernetes.cluster import Cluster, Document, saved
from tests.support.publishing import write_files

PODS, ROUNDS, INTERVAL = 10, 3, 2
IMAGE, USER = "registry.example.org/kolla/memcached:1", 42457
# The Job takes long enough for all pods to wait for it.
JOB = ["sh", "-c", "sleep 20; date +%s.%N"]
POD = ["sh", "-c", "date +%s.%N; exec sleep 1000"]
POLL = f"""\
import json, os, ssl, time, urllib.request
secrets = "/var/run/secrets/kubernetes.io/serviceaccount/"
namespace, token = (open(secrets + name).read() for name in ("namespace", "token"))
url = f"https://{{os.environ['KUBERNETES_SERVICE_HOST']}}/apis/batch/v1/namespaces/{{namespace}}/jobs/first"
call = urllib.request.Request(url, headers={{"Authorization": "Bearer " + token}})
unverified = ssl._create_unverified_context()
while not json.load(urllib.request.urlopen(call, context=unverified))["status"].get("succeeded"):
    time.sleep({INTERVAL})
"""


def main(rounds: int) -> None:
    """Print the delays of each round, and then of all."""
    found: dict[str, list[float]] = {}
    with one_node() as cluster:
        for number in range(rounds):
            for kind, deploy in (("agents", with_agents), ("polling", with_polling)):
                name = f"{kind}-{number}"
                cluster.kubectl("create", "namespace", name)
                deploy(cluster, name)
                late = delays(partial(cluster.kubectl, "--namespace", name))
                found.setdefault(kind, []).extend(late)
                show(name, late)
                cluster.kubectl("delete", "namespace", name, "--wait=false")
                cluster.kubectl("--namespace", name, "delete", "pods", "--all", "--force", "--grace-period=0")
    for kind, late in found.items():
        show(f"all {kind}", late)


def show(name: str, late: Sequence[float]) -> None:
    print(
        f"{name:12} {len(late)} pods: median {statistics.median(late):5.2f} s, the last {max(late):5.2f} s",
        flush=True,
    )


@contextmanager
def one_node() -> Iterator[Cluster]:
    """A cluster that has the image."""
    images = Images(CHECKOUT / ".cache", print)
    images.make()
    install(print)
    with tempfile.TemporaryDirectory(prefix="pods-") as name:
        place = Path(name)
        archive = saved(place, images.store, {images.kolla("memcached"): [IMAGE]})
        images.release()
        with Cluster(place / "cluster", programs(CHECKOUT / ".cache", print), ["node-1"]) as cluster:
            cluster.load(archive)
            with cluster.control.network():
                yield cluster


def with_agents(cluster: Cluster, name: str) -> None:
    """The Job and the pods as kolla_mesos_ctl makes them."""
    service = {
        "instances": PODS,
        "daemon": {"command": POD, "dependencies": ["first/go"], "ready": {"alive": 0}},
    }
    launch = {
        "zookeeper": cluster.zookeeper.hosts,
        "agent": MOUNTED,
        "defaults": {"image": IMAGE, "user": USER},
    }
    with tempfile.TemporaryDirectory() as directory:
        tree = write_files(
            Path(directory) / "tree",
            launch_yml=yaml.safe_dump(launch),
            services__first__definition_yml=yaml.safe_dump(
                {"commands": {"go": {"command": JOB, "run_once": True}}}
            ),
            services__web__definition_yml=yaml.safe_dump({"service": service}),
        )
        made = Path(directory) / "made"
        cli.run(["publish", str(tree), "--deployment", name, "--hosts", cluster.zookeeper.hosts])
        cli.run(["manifests", "kubernetes", str(tree), "--deployment", name, "--output", str(made)])
        cluster.kubectl("apply", "--namespace", name, "--filename", str(made))


def with_polling(cluster: Cluster, name: str) -> None:
    """The same with an init container."""
    waits = {"name": "wait", "image": IMAGE, "command": ["python3", "-c", POLL]}
    labels = {"app.kubernetes.io/name": "web"}
    template = {"metadata": {"labels": labels}, "spec": {**pod(POD), "initContainers": [waits]}}
    rights = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]}
    reads = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"}
    objects: list[Document] = [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [rights], **named("reads")},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "roleRef": reads,
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": name}],
            **named("reads"),
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {"template": {"spec": {**pod(JOB), "restartPolicy": "Never"}}},
            **named("first"),
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "spec": {"replicas": PODS, "selector": {"matchLabels": labels}, "template": template},
            **named("web"),
        },
    ]
    cluster.kubectl("apply", "--namespace", name, "--filename", "-", given=yaml.safe_dump_all(objects))


def named(name: str) -> Mapping[str, Any]:
    return {"metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}}}


def pod(command: Sequence[str]) -> Mapping[str, Any]:
    return {"containers": [{"name": "agent", "image": IMAGE, "command": command}]}


def delays(kubectl: Callable[..., str]) -> list[float]:
    """Seconds between the end of the Job's command and the start of each pod's."""
    (job,) = kubectl("get", "jobs", "--output=name").split()
    kubectl("wait", job, "--for=condition=complete", "--timeout=300s")
    kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    (ended,) = moments(kubectl("logs", job, "--container=agent"))
    pods = "--selector=app.kubernetes.io/name=web"
    started = moments(kubectl("logs", pods, "--container=agent", f"--max-log-requests={PODS}"))
    assert len(started) == PODS
    return [each - ended for each in started]


def moments(log: str) -> list[float]:
    """What `date` has printed; the agents' log has other lines."""
    return [float(line) for line in log.splitlines() if line.replace(".", "").isdigit()]


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
