"""The agent as a Job, as an init container and in a Deployment: etc/kubernetes, as it stands there.

A pod is what podman 4.3 makes of the manifest's template; `kube.py` names what is changed on the way. What
the commands and daemons do is not Keystone's here, but their order, statuses and probes are the agent's own.
"""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from kolla_mesos_start import errors
from tests.conftest import Deployment, connected, made
from tests.containers.images import Images
from tests.containers.kube import MANIFESTS, PLACES, Cluster, Document, Pod, containers, decision, differences
from tests.containers.kube import manifests as documents
from tests.containers.obedient import PROGRAM, STATUS
from tests.containers.podman import Container
from tests.publishing import publish
from tests.waiting import eventually
from tests.zookeeper import HOST, Server, free_port

# The first test of all waits for the images.
pytestmark = pytest.mark.timeout(900)

(JOB,) = documents("job.yml")
(DEPLOYMENT,) = documents("deployment.yml")
WORKLOADS = [pytest.param(JOB, id="job"), pytest.param(DEPLOYMENT, id="deployment")]
# The first with podFailurePolicy for good, and the newest that there are schemas of.
VERSIONS = ("1.31", "1.37")

TASKS = "openstack/keystone/keystone_tasks"
MIGRATION = "openstack/keystone/keystone_migration"
API = "openstack/keystone/keystone-api"
MARIADB, MEMCACHED = "infra/mariadb/mariadb", "infra/memcached/memcached"
NODES = ("node-1", "node-2")

DAEMON = {"command": ["python3", "-c", PROGRAM], "ready": {"alive": 0.2}}
CLIENT = "/etc/mysql/client.cnf"
# One second is long for somebody who begins the same at the same moment.
CREATED, MIGRATED = "the database is made", "the schema is made"
DEFINITIONS: Mapping[str, dict[str, Any]] = {
    TASKS: {
        "commands": {
            "create_database": {
                "run_once": True,
                "command": f"stat -c '%a %U' {CLIENT}; cat {CLIENT}; sleep 1; echo {CREATED}",
                "dependencies": ["mariadb/daemon"],
                "files": {
                    "client.cnf": {"dest": CLIENT, "perm": "0400", "mounted": "/etc/kolla-files/client.cnf"}
                },
            }
        }
    },
    MIGRATION: {
        "commands": {
            "db_sync": {
                "run_once": True,
                "command": f"sleep 1; echo {MIGRATED}",
                "dependencies": ["keystone_tasks/create_database"],
            }
        }
    },
    API: {"service": {"daemon": {**DAEMON, "dependencies": ["memcached/daemon"]}}},
    MARIADB: {"service": {"daemon": DAEMON}},
    MEMCACHED: {"service": {"daemon": DAEMON}},
}
VARIABLES = {"mariadb_address": HOST, "mariadb_port": "3306", "mariadb_root_password": 'a"\\b'}


# -- what is written in the manifests ----------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yml")), ids=lambda path: path.name)
def test_a_manifest_is_what_kubernetes_takes(path: Path, version: str) -> None:
    """By its own schemas, in which no field may be unknown."""
    argv = [
        sys.executable,
        "-m",
        "kubernetes_validate",
        "--strict",
        "--kubernetes-version",
        version,
        str(path),
    ]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout
    resources = [f"{each['kind'].lower()}/{each['metadata']['name']}" for each in documents(path.name)]
    assert told.splitlines() == [
        f"INFO {path} passed for resource {resource} against version {version}" for resource in resources
    ]


def test_the_manifests_fit_together() -> None:
    """What no schema sees: what one names, another has."""
    names = {each["metadata"]["name"] for each in documents("configmap.yml")}
    for workload in (JOB, DEPLOYMENT):
        template = workload["spec"]["template"]
        named = {volume["configMap"]["name"] for volume in template["spec"].get("volumes", ())}
        for container in containers(template["spec"]):
            named |= {source["configMapRef"]["name"] for source in container["envFrom"]}
        assert named <= names
        wanted = workload["spec"].get("selector", {}).get("matchLabels", {})
        assert wanted.items() <= template["metadata"]["labels"].items()
    assert JOB["spec"]["podFailurePolicy"]["rules"]
    # Or else Kubernetes refuses the policy.
    assert JOB["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert JOB["spec"]["podReplacementPolicy"] == "Failed"
    for values in statuses(JOB).values():
        assert values == sorted(set(values))


def statuses(job: Document) -> dict[str, list[int]]:
    """The exit statuses of each action of the policy."""
    found: dict[str, list[int]] = {}
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            assert rule["onExitCodes"]["containerName"] == "agent"
            found.setdefault(rule["action"], []).extend(rule["onExitCodes"]["values"])
    return found


def test_the_policy_has_each_status_of_the_agent() -> None:
    """What is not worth retrying fails the Job, what is does not; and nothing else is named."""
    # Whose status is the signal's: who was told to stop was not at fault.
    causes = [each for each in subclasses(errors.AgentError) if each is not errors.Stopped]
    found = statuses(JOB)
    assert found.keys() == {"FailJob", "Ignore", "Count"}
    assert set(found["FailJob"]) == {cause.status for cause in causes if not cause.retriable}
    assert {*found["Ignore"], *found["Count"]} == {cause.status for cause in causes if cause.retriable}


def subclasses(cause: type[errors.AgentError]) -> Iterator[type[errors.AgentError]]:
    """The class itself, and all below it."""
    yield cause
    for each in cause.__subclasses__():
        yield from subclasses(each)


# -- what is run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("kube"), images)
    try:
        cluster.prepare()
        yield cluster
    finally:
        cluster.end()


class Site:
    """Two pods of the Job and two of the Deployment, all started before what they wait for."""

    def __init__(self, cluster: Cluster, images: Images, deployment: Deployment, zk: KazooClient) -> None:
        self.cluster, self.images, self.deployment, self.zk = cluster, images, deployment, zk
        self.pool = ThreadPoolExecutor()
        self.started: dict[Pod, Future[None]] = {}
        self.jobs: list[Pod] = []
        self.replicas: list[Pod] = []

    def publish(self) -> None:
        for service, definition in DEFINITIONS.items():
            publish(self.deployment, service, definition, shared=VARIABLES)

    def make(self, workload: Document, name: str, node: str, prefix: str = "", **site: str) -> Pod:
        """A pod, not yet started; `site` goes into the ConfigMap `kolla`."""
        own = {"KOLLA_ZK_HOSTS": self.deployment.hosts}
        own["KOLLA_SYSTEM_PREFIX"] = prefix or self.deployment.prefix
        return self.cluster.make(workload, name, node, {**own, **site})

    def start(self, *pods: Pod) -> None:
        """Start pods at the same time; a start lasts as long as their init containers."""
        self.started.update({pod: self.pool.submit(pod.start) for pod in pods})

    def begin(self, service: str) -> None:
        """Start a container that others wait for."""
        environ = self.deployment.environ(service)
        self.cluster.podman.run(self.images.agent("mariadb-server"), environ=environ)

    def ended(self, job: Pod) -> int:
        """Wait for the end of a Job's pod; its exit status."""
        self.started[job].result()
        return job.container().ends()

    def detail(self, command: str) -> Document:
        path = f"{self.deployment.path}/status/global/{command}/detail"
        detail: Document = json.loads(self.zk.get(path)[0])
        return detail

    def ready_hosts(self, role: str) -> list[str]:
        """The hosts of the ready instances of a role's daemon."""
        path = f"{self.deployment.path}/status/global/{role}/daemon/ready"
        instances = [self.zk.get(f"{path}/{name}")[0] for name in self.zk.get_children(path)]
        return sorted(json.loads(instance)["host"] for instance in instances)

    def end(self) -> None:
        for pod in (*self.jobs, *self.replicas):
            for each in containers(pod.document["spec"]):
                print(f"--- {pod.name} {each['name']}: {pod.container(each['name']).said}")
        self.cluster.podman("rm", "--all", "--force", "--time", "0")
        self.pool.shutdown()


@pytest.fixture(scope="module")
def site(shared_zookeeper: Server, cluster: Cluster, images: Images) -> Iterator[Site]:
    """All have ended, or wait for memcached."""
    shared_zookeeper.mend()
    with (
        contextmanager(connected)(shared_zookeeper) as zk,
        contextmanager(made)(shared_zookeeper, zk) as place,
    ):
        site = Site(cluster, images, place, zk)
        try:
            site.publish()
            for node in NODES:
                site.jobs.append(site.make(JOB, f"keystone-tasks-{node}", node))
                site.replicas.append(site.make(DEPLOYMENT, f"keystone-api-{node}", node))
            site.start(*site.jobs, *site.replicas)
            for pod in site.jobs:
                waits(pod.container(), "keystone_tasks/create_database waits for mariadb/daemon")
            for pod in site.replicas:
                migration = "keystone_migration/db_sync waits for keystone_tasks/create_database"
                waits(pod.container("migration"), migration)
            site.begin(MARIADB)
            for started in site.started.values():
                started.result()
            yield site
        finally:
            site.end()


def waits(container: Container, text: str) -> None:
    eventually(lambda: text in container.said, text, every=0.2)


# -- what is run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_is_run_is_what_is_written(workload: Document, site: Site) -> None:
    """But for what a cluster adds, the names of images, and what podman lacks."""
    kind: str = workload["metadata"]["name"]
    (pod, _) = (pod for pod in (*site.jobs, *site.replicas) if pod.name.startswith(kind))
    template = workload["spec"]["template"]
    named = {
        place.replace("{}", f"spec.{kind}.{each['name']}", 1).replace("{}", each["name"])
        for kind in ("initContainers", "containers")
        for each in template["spec"].get(kind, ())
        for place in PLACES
        if place.startswith("{}")
    }
    named |= {
        place.replace("{}", each["name"])
        for each in containers(template["spec"])
        for place in PLACES
        if not place.startswith("{}")
    }
    run = {key: value for key, value in pod.document.items() if key not in ("apiVersion", "kind")}
    assert set(differences(template, run)) <= named


@pytest.mark.parametrize("workload", WORKLOADS)
def test_podman_has_heeded_it(workload: Document, site: Site) -> None:
    """An unprivileged user with the image's groups, no capability, no way to new privileges; limits."""
    pod = (site.jobs if workload is JOB else site.replicas)[0]
    for written in containers(workload["spec"]["template"]["spec"]):
        inspected = pod.container(written["name"]).inspected
        host = inspected["HostConfig"]
        assert inspected["Config"]["User"] == str(
            workload["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
        )
        assert (inspected["EffectiveCaps"] or [], inspected["BoundingCaps"] or []) == ([], [])
        assert "no-new-privileges" in host["SecurityOpt"]
        assert host["Memory"] == bytes_of(written["resources"]["limits"]["memory"])
        # The image's ENTRYPOINT stays in front.
        assert [inspected["Path"], *inspected["Args"]][-1:] == written["args"]
        assert inspected["Path"] == "dumb-init"


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]


def test_podman_does_not_know_a_pods_node(site: Site) -> None:
    """All that is missing for NODE_NAME; should podman learn it, `kube.py` may leave that to podman."""
    document = copy.deepcopy(site.jobs[0].document)
    document["metadata"]["name"] = "keystone-tasks-field"
    (container,) = containers(document["spec"])
    container["env"] = JOB["spec"]["template"]["spec"]["containers"][0]["env"]
    with pytest.raises(AssertionError, match=r"fieldPath spec\.nodeName is .* not supported"):
        site.cluster.create(document, {})


# -- the Job -----------------------------------------------------------------------------------------


def test_a_job_started_twice_at_once_runs_its_command_once(site: Site) -> None:
    """Both pods end well; one has run it, on the node that `detail` names."""
    assert [site.ended(job) for job in site.jobs] == [0, 0]
    ran = [job.node for job in site.jobs if job.container().said.count(f"{CREATED}\n")]
    detail = site.detail("keystone_tasks/create_database")
    assert ran == [detail["host"]]
    assert (detail["attempt"], detail["state"]) == (1, "done")


def test_a_job_started_again_passes(site: Site) -> None:
    """What is done is not done again, and there is nothing to wait for."""
    again = site.make(JOB, "keystone-tasks-again", "node-1")
    site.start(again)
    assert site.ended(again) == 0
    assert "keystone_tasks/create_database: already done" in again.container().said
    assert CREATED not in again.container().said
    assert site.detail("keystone_tasks/create_database")["attempt"] == 1


def test_a_file_of_the_configmap_is_rendered(site: Site) -> None:
    """Its text is Kubernetes', its variables are ZooKeeper's; owner and mode are what the definition says."""
    (job,) = (job for job in site.jobs if CREATED in job.container().said)
    assert "400 mysql\n[client]\nprotocol = tcp\n" in job.container().said
    assert 'password = "a\\"\\\\b"' in job.container().said


# -- how a Job fails ---------------------------------------------------------------------------------


class Failure(NamedTuple):
    """A way to fail: the agent's exit status, what the policy makes of it, and how it comes about."""

    status: int
    action: str
    definition: Mapping[str, Any] = DEFINITIONS[TASKS]
    site: Mapping[str, str] = {}


def task(**keys: Any) -> dict[str, Any]:
    return {"commands": {"c": {"command": "true", **keys}}}


def daemon(program: str) -> dict[str, Any]:
    return {"service": {"daemon": {"command": [program], "ready": {"alive": 1}}}}


FAILURES = {
    "command": Failure(1, "Count", task(command="exit 3")),
    "environment": Failure(64, "FailJob", site={"KOLLA_LOG_FORMAT": "xml"}),
    "definition": Failure(65, "FailJob", task(comand="true")),
    "connection": Failure(
        69, "Ignore", site={"KOLLA_ZK_HOSTS": f"{HOST}:{free_port()}", "KOLLA_ZK_CONNECT_TIMEOUT": "1"}
    ),
    "closed directory": Failure(
        73, "FailJob", task(files={"f": {"dest": "/etc/closed/f", "mounted": "/etc/hostname"}})
    ),
    "dependency": Failure(75, "Ignore", task(dependencies=[{"path": "nobody/ever", "timeout": 0.5}])),
    "access": Failure(77, "FailJob", task()),
    "variable": Failure(78, "FailJob", task(env={"A": "{{ missing }}"})),
    "no program": Failure(126, "FailJob", daemon("/etc/passwd")),
    "nowhere": Failure(127, "FailJob", daemon("/nowhere")),
}
WRITE_ONLY = [make_acl("world", "anyone", create=True, delete=True, write=True, admin=True)]


@pytest.fixture(scope="module")
def failed(site: Site) -> Mapping[str, Pod]:
    """A pod of the Job for each failure, all of them at once, in trees of their own."""
    pods = {}
    for number, (name, failure) in enumerate(FAILURES.items()):
        prefix = f"{site.deployment.prefix}/failures/{number}"
        path = f"{prefix}/site/{TASKS}"
        # By hand: the operator's tool would not publish all of them.
        site.zk.create(path, json.dumps({"name": TASKS, **failure.definition}).encode(), makepath=True)
        if failure.status == errors.AccessDenied.status:
            site.zk.set_acls(path, WRITE_ONLY)
        pods[name] = site.make(JOB, f"keystone-tasks-{number}", "node-1", prefix, **failure.site)
    site.start(*pods.values())
    for pod in pods.values():
        site.ended(pod)
    for znode in site.zk.get_children(f"{site.deployment.prefix}/failures"):
        site.zk.set_acls(f"{site.deployment.prefix}/failures/{znode}/site/{TASKS}", OPEN_ACL_UNSAFE)
    return pods


@pytest.mark.parametrize("name", FAILURES)
def test_the_policy_does_with_a_failure_what_the_agent_says(name: str, failed: Mapping[str, Pod]) -> None:
    """Exit status, termination message and the Job's policy agree on whether to try again."""
    expected = FAILURES[name]
    pod = failed[name]
    assert pod.container().status == expected.status, pod.container().said
    message = pod.message()
    assert (message["status"], message["retriable"]) == (expected.status, expected.action != "FailJob")
    assert pod.container().said.splitlines()[-1] == json.dumps(message)
    assert decision(JOB, expected.status) == expected.action


def test_every_status_that_the_policy_names_has_been_seen() -> None:
    """But 70, a defect of the agent, which nobody can bring about."""
    named = {status for values in statuses(JOB).values() for status in values}
    assert named - {errors.AgentError.status} == {failure.status for failure in FAILURES.values()}


def test_a_pod_that_is_told_to_stop_has_not_failed_if_its_node_is_drained(site: Site) -> None:
    """143 counts, unless Kubernetes itself says why; the agent ends at once while it waits."""
    prefix = f"{site.deployment.prefix}/stopped"
    definition = {"name": TASKS, **task(dependencies=["nobody/ever"])}
    site.zk.create(f"{prefix}/site/{TASKS}", json.dumps(definition).encode(), makepath=True)
    pod = site.make(JOB, "keystone-tasks-stopped", "node-1", prefix)
    site.start(pod)
    waits(pod.container(), "c waits for nobody/ever")
    begun = time.monotonic()
    pod.stop()
    assert time.monotonic() - begun < 10
    status = pod.container().status
    assert status == pod.message()["status"] == 128 + signal.SIGTERM
    assert (decision(JOB, status), decision(JOB, status, "DisruptionTarget")) == ("Count", "Ignore")


# -- the Deployment ----------------------------------------------------------------------------------


def test_an_init_container_is_a_task_that_runs_once(site: Site) -> None:
    """In one of the pods; in all of them the daemon's container is started after it has ended well."""
    initial = [replica.container("migration") for replica in site.replicas]
    assert [container.status for container in initial] == [0, 0]
    assert sum(container.said.count(f"{MIGRATED}\n") for container in initial) == 1
    assert site.detail("keystone_migration/db_sync")["host"] in NODES
    for container, replica in zip(initial, site.replicas):
        assert replica.container().running
        assert (
            container.inspected["State"]["FinishedAt"] <= replica.container().inspected["State"]["StartedAt"]
        )


def test_a_pod_that_waits_long_is_alive_and_not_ready(site: Site) -> None:
    """For longer than Kubernetes would bear a liveness probe that fails."""
    (probes,) = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
    borne = probes["livenessProbe"]["periodSeconds"] * probes["livenessProbe"]["failureThreshold"]
    container = site.replicas[0].container()
    started = datetime.fromisoformat(container.inspected["State"]["StartedAt"][:19] + "+00:00")

    def long() -> bool:
        assert liveness(container)
        assert readiness(container).returncode == 1
        return bool(time.time() - started.timestamp() > borne)

    eventually(long, f"it has waited for {borne} s", seconds=5 * borne, every=2)
    assert "keystone-api/daemon waits for memcached/daemon" in readiness(container).stdout


def liveness(container: Container) -> bool:
    """podman runs the manifest's probe as a health check, as often as somebody asks for it."""
    done: subprocess.CompletedProcess[str] = container.podman("healthcheck", "run", container.id, check=False)
    return done.returncode == 0


def readiness(container: Container) -> subprocess.CompletedProcess[str]:
    """podman has no readiness; the manifest's own command."""
    (written,) = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
    return container.exec(*written["readinessProbe"]["exec"]["command"])


def test_the_pods_are_ready_when_their_daemons_are(site: Site) -> None:
    """Both probes are content; the instances in ZooKeeper are those of the nodes."""
    site.begin(MEMCACHED)
    for replica in site.replicas:
        eventually(lambda: readiness(replica.container()).returncode == 0, "ready", every=0.2)  # noqa: B023
        assert liveness(replica.container())
    assert site.ready_hosts("keystone-api") == list(NODES)


def test_a_pod_is_stopped_within_its_grace_period(site: Site) -> None:
    """SIGTERM is the daemon's, and so is the exit status."""
    replica = site.replicas[0]
    begun = time.monotonic()
    replica.stop()
    assert replica.container().status == STATUS
    assert time.monotonic() - begun < 10
