"""Jobs: how they fail, what `kubectl` shows, and how soon those begin that wait for one."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from tests.kubernetes.cluster import Cluster, Document, condition
from tests.kubernetes.conftest import REGISTRY
from tests.kubernetes.site import Site
from tests.support.publishing import write_files
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(2400)  # The first test waits for the images and for Kubernetes.

WAITERS = 10
LATEST = 5.0  # seconds; 0.3 s on an idle machine
LAUNCH = {
    "tag": "30.0.0",
    "zookeeper": "zk:2181",
    "defaults": {"image": f"{REGISTRY}/memcached:{{{{ tag }}}}", "user": 42457},
}
CLOCK = "echo clock $(date +%s.%N)"
SERVICES: dict[str, Document] = {
    "malformed": {"commands": {"c": {"run_once": True, "command": "true"}}},
    "unset": {"commands": {"c": {"run_once": True, "command": "echo {{ word }}"}}},
    "fails": {"commands": {"c": {"run_once": True, "command": "false"}}},
    "gate": {"commands": {"c": {"run_once": True, "command": CLOCK}}},
    "waiter": {
        "service": {
            "instances": WAITERS,
            "daemon": {
                "command": f"{CLOCK}; exec sleep infinity",
                "dependencies": ["gate/c"],
                "ready": {"alive": 0},
            },
        }
    },
}


@pytest.fixture(scope="module")
def site(cluster: Cluster, zk: KazooClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everything is applied but the Job of `gate`."""
    place = tmp_path_factory.mktemp("jobs")
    definitions = {
        f"services__demo__{name}__definition_yml": json.dumps({"name": f"demo/{name}", **definition})
        for name, definition in SERVICES.items()
    }
    written = write_files(
        place / "source", launch_yml=json.dumps(LAUNCH), variables_yml='{"word": "x"}', **definitions
    )
    site = Site(cluster, "jobs", written, place)
    try:
        site.publish()
        zk.set(f"{site.path}/demo/malformed", b'{"name": "demo/malformed", "comands": {}}')
        zk.delete(f"{site.path}/variables/word")
        site.apply(*(each for each in site.manifests() if each.name != "gate.yml"))
        yield site
    finally:
        site.end()


@pytest.mark.parametrize("name, status", [("malformed", 65), ("unset", 78)])
def test_what_can_never_succeed_fails_its_job_at_once(site: Site, name: str, status: int) -> None:
    """One pod, whose reason `kubectl describe` shows."""

    def failed() -> bool:
        (job,) = site.get("jobs", f"--selector=app.kubernetes.io/name={name}")
        return condition(job, "Failed")

    eventually(failed, f"the Job of {name} fails")
    ((pod, _),) = site.pods(name).items()
    shown = site.kubectl("describe", "pod", pod)
    assert re.search(rf"Exit Code: +{status}\n", shown)
    (message,) = re.findall(r"Message: +(\{.*\})\n", shown)
    assert json.loads(message)["status"] == status


def test_a_failed_command_is_tried_again(site: Site) -> None:
    eventually(lambda: len(site.pods("fails")) > 1, "a second pod")


def test_those_that_wait_for_a_job_begin_when_it_ends(site: Site, measured: list[str]) -> None:
    """Times are those of the processes themselves."""

    def all_wait() -> bool:
        said = site.kubectl(
            "logs", "--selector=app.kubernetes.io/name=waiter", "--tail=-1", "--max-log-requests=20"
        )
        return said.count("waits for gate/c") == WAITERS

    eventually(all_wait, "all wait")
    site.apply(site.made / "gate.yml")
    site.kubectl("rollout", "status", "deployment/waiter")
    (ended,) = clocks(site, "gate")
    delays = sorted(begun - ended for begun in clocks(site, "waiter"))
    median, last = statistics.median(delays), delays[-1]
    measured.append(
        f"{WAITERS} pods that wait for a Job begin after {median:.2f} s, the last after {last:.2f} s"
    )
    assert len(delays) == WAITERS and delays[0] > 0 and delays[-1] < LATEST


def clocks(site: Site, name: str) -> list[float]:
    said = "".join(site.logs(pod) for pod in site.pods(name))
    return [float(each) for each in re.findall(r"^clock ([0-9.]+)$", said, re.MULTILINE)]
