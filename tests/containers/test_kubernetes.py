"""The agent as a Job, as an init container and in a Deployment: etc/kubernetes, as it stands there.

A pod is what podman 4.3 makes of the manifest's template; `kube.py` names what is changed on the way. What is
published is what its README says; MariaDB and memcached are containers without a pod.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import Permissions, make_digest_acl

from kolla_mesos_start import errors
from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory, formats
from kolla_mesos_start.ctl.validate.rules import validate
from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.kube import MANIFESTS, Cluster, Document, Pod, containers, decision
from tests.containers.kube import manifests as documents
from tests.containers.podman import Container
from tests.examples.keystone import API, MARIADB, MEMCACHED, TASKS, issue_token, validate_token
from tests.examples.openstack import EXAMPLE
from tests.server.test_session import secured
from tests.support.documents import KUBERNETES, blocks
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, free_port

# The first test of all waits for the images.
pytestmark = pytest.mark.timeout(900)

(JOB,) = documents("job.yml")
(DEPLOYMENT,) = documents("deployment.yml")
# The first with podFailurePolicy for good, and the newest that there are schemas of.
VERSIONS = ("1.31", "1.37")

DEFINITIONS = MANIFESTS / "definitions"
NODES = ("node-1", "node-2")
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}
PASSWORDS = MANIFESTS / "passwords"
SECRET = "keystone-passwords"
# As whom the agents of the manifests connect, by the Secret; and those that have no manifest, by service.
IDENTITIES = {"keystone-tasks-zookeeper": TASKS, "keystone-api-zookeeper": API}
OTHERS = (MARIADB, MEMCACHED)
PASSWORD = "a 'password\" \\ with a bit of %everything"
TASK = "keystone_tasks/create_database"


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
    others = [*documents("configmap.yml"), *documents("volume.yml")]
    names = {SECRET, *IDENTITIES, *(each["metadata"]["name"] for each in others)}
    named = set()
    for workload in (JOB, DEPLOYMENT):
        template = workload["spec"]["template"]
        for volume in template["spec"]["volumes"]:
            (source,) = (source for kind, source in volume.items() if kind != "name")
            named |= {source.get("name") or source.get("claimName") or source["secretName"]}
        for container in containers(template["spec"]):
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {variables_dir(), str(Path(auth_file()).parent)} <= mounted
            named |= {source["configMapRef"]["name"] for source in container["envFrom"]}
        wanted = workload["spec"].get("selector", {}).get("matchLabels", {})
        assert wanted.items() <= template["metadata"]["labels"].items()
    assert named == names
    assert JOB["spec"]["podFailurePolicy"]["rules"]
    # Or else Kubernetes refuses the policy.
    assert JOB["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert JOB["spec"]["podReplacementPolicy"] == "Failed"
    for values in statuses(JOB).values():
        assert values == sorted(set(values))


def variables_dir() -> str:
    return str(documents("configmap.yml")[0]["data"]["KOLLA_VARIABLES_DIR"])


def auth_file() -> str:
    return str(documents("configmap.yml")[0]["data"]["KOLLA_ZK_AUTH_FILE"])


def credential(service: str) -> str:
    """The name and the password of a service, or of the operator."""
    return f"{service.rpartition('/')[2]}:S3cretOfZooKeeper"


def identity(service: str) -> str:
    found: str = make_digest_acl(*credential(service).split(":")).id.id
    return f"digest:{found}"


def passwords() -> dict[str, str]:
    """Those of the example."""
    return {path.name: path.read_text().rstrip("\n") for path in PASSWORDS.iterdir()}


def test_the_files_of_the_task_are_those_of_the_example() -> None:
    """Only where they come from is another place."""
    (_, config) = documents("configmap.yml")
    example = EXAMPLE / "services" / TASKS
    assert config["data"] == {path.name: path.read_text() for path in (example / "files").iterdir()}
    services = {each.name: each for each in directory.read(DEFINITIONS).services}
    definition = json.loads(services[TASKS].definition)
    for command in definition["commands"].values():
        for name, file in command["files"].items():
            assert file.pop("mounted") == f"/etc/kolla-files/{name}"
    as_it_is = {each.name: each for each in directory.read(EXAMPLE).services}
    assert definition == json.loads(as_it_is[TASKS].definition.replace(b"{{ root }}", b""))


def test_the_other_definitions_are_those_of_the_example() -> None:
    """One command publishes them all, and only one value is another."""
    ours, theirs = (directory.read(each) for each in (DEFINITIONS, EXAMPLE))
    services = {each.name: each for each in ours.services}
    assert {each.name for each in theirs.services} == services.keys()
    for each in theirs.services:
        if each.name != TASKS:
            assert (services[each.name].definition, services[each.name].files) == (
                each.definition,
                each.files,
            )
    given = {name: value.encode() for name, value in passwords().items()}
    others = {"keystone_release": b"30.0.0"}
    assert {**ours.variables, **given, **others} == theirs.variables


def test_each_container_says_the_tag_of_its_image() -> None:
    """And the migration is for that one."""
    for workload in (JOB, DEPLOYMENT):
        for container in containers(workload["spec"]["template"]["spec"]):
            (generation,) = (each["value"] for each in container["env"] if each["name"] == "KOLLA_GENERATION")
            assert container["image"].endswith(f":{generation}")
            assert directory.read(DEFINITIONS).variables["keystone_release"] == generation.encode()


def test_nothing_is_wrong_with_the_definitions() -> None:
    """As long as the passwords are known."""
    definitions = directory.read(DEFINITIONS)
    assert {each.severity for each in validate(definitions, given=passwords())} == {"warning"}
    errors = [each.message for each in validate(definitions) if each.severity == "error"]
    assert {re.findall("needs the variable '([a-z_]+)'", each)[0] for each in errors} == passwords().keys()


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
    causes = [
        each
        for each in subclasses(errors.AgentError)
        if each is not errors.Stopped and ".ctl." not in each.__module__
    ]
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
        self.ports = {node: free_port() for node in NODES}

    def publish(self, place: Path) -> None:
        """As the README says, with the values of this machine."""
        tree = place / "keystone"
        shutil.copytree(DEFINITIONS, tree)
        values = {
            **formats.values(DEFINITIONS / "variables.yml"),
            "keystone_workers": 1,
            "mariadb_port": free_port(),
            "memcached_port": free_port(),
        }
        (tree / "variables.yml").write_text(json.dumps(values))
        # All nodes are one machine.
        for node in NODES:
            own = tree / "services" / API / "variables" / node
            own.mkdir(parents=True)
            (own / "keystone_port").write_text(str(self.ports[node]))
        services = {service: identity(service) for service in (*IDENTITIES.values(), *OTHERS)}
        acl = {"operator": identity("operator"), "services": services, "hosts": NODES}
        (tree / "acl.yml").write_text(json.dumps(acl))
        self.secret = self.cluster.create_secret(SECRET, **dict.fromkeys(passwords(), PASSWORD))
        owners = {**IDENTITIES, **{each.rpartition("/")[2]: each for each in ("operator", *OTHERS)}}
        self.identities = {
            service: self.cluster.create_secret(name, auth=f"digest:{credential(service)}\n")
            for name, service in owners.items()
        }
        self.zk.add_auth("digest", credential("operator"))
        words = ["--deployment", self.deployment.id, "--prefix", self.deployment.prefix]
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv("KOLLA_VARIABLES_DIR", str(self.secret))
            environ.setenv("KOLLA_ZK_AUTH_FILE", str(self.identities["operator"] / "auth"))
            cli.run(["publish", str(tree), *words, "--hosts", self.deployment.hosts])

    def url(self, node: str) -> str:
        return f"http://{HOST}:{self.ports[node]}/v3"

    def make(self, workload: Document, name: str, node: str, prefix: str = "", **site: str) -> Pod:
        """A pod, not yet started; `site` goes into the ConfigMap `kolla`."""
        own = {"KOLLA_ZK_HOSTS": self.deployment.hosts}
        own["KOLLA_SYSTEM_PREFIX"] = prefix or self.deployment.prefix
        return self.cluster.make(workload, name, node, {**own, **LOOPBACK, **site})

    def start(self, *pods: Pod) -> None:
        """Start pods at the same time; a start lasts as long as their init containers."""
        self.started.update({pod: self.pool.submit(pod.start) for pod in pods})

    def begin(self, service: str, image: str) -> None:
        """Start a container that others wait for."""
        given = {"KOLLA_VARIABLES_DIR": variables_dir(), "KOLLA_ZK_AUTH_FILE": auth_file()}
        environ = self.deployment.environ(service, KOLLA_HOSTNAME=NODES[0], **given, **LOOPBACK)
        volumes = {self.secret: variables_dir(), self.identities[service]: str(Path(auth_file()).parent)}
        self.cluster.podman.run(self.images.agent(image), environ=environ, volumes=volumes)

    def job_containers(self) -> list[Container]:
        return [pod.container() for pod in self.jobs]

    def init_containers(self) -> list[Container]:
        return [pod.container("tasks") for pod in self.replicas]

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
def site(
    cluster: Cluster,
    images: Images,
    module_zk: KazooClient,
    module_deployment: Deployment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """All have ended, or wait for memcached."""
    site = Site(cluster, images, module_deployment, module_zk)
    try:
        site.publish(tmp_path_factory.mktemp("published"))
        for node in NODES:
            site.jobs.append(site.make(JOB, f"keystone-tasks-{node}", node))
            site.replicas.append(site.make(DEPLOYMENT, f"keystone-api-{node}", node))
        site.start(*site.jobs, *site.replicas)
        for container in (*site.job_containers(), *site.init_containers()):
            waits(container, f"{TASK} waits for mariadb/daemon")
        site.begin(MARIADB, "mariadb-server")
        for started in site.started.values():
            started.result()
        yield site
    finally:
        site.end()


def waits(container: Container, text: str) -> None:
    eventually(lambda: text in container.said, text, every=0.2)


def test_each_pod_has_an_identity_of_its_own(site: Site) -> None:
    """What one has recorded the others may read, and nobody else may read anything."""
    detail = f"{site.deployment.path}/status/global/{TASK}/detail"
    found = {f"{acl.id.scheme}:{acl.id.id}": acl.perms for acl in site.zk.get_acls(detail)[0]}
    assert found.keys() == {identity(each) for each in ("operator", *IDENTITIES.values(), *OTHERS)}
    assert [who for who, perms in found.items() if perms != Permissions.READ] == [
        identity("operator"),
        identity(TASKS),
    ]


def test_a_pod_has_its_identity_from_a_certificate(site: Site, tmp_path: Path) -> None:
    """As its README says, in the files that cert-manager makes; the ensemble wants one."""
    with secured(tmp_path) as ensemble:
        files = {"ca.crt": "ca.pem", "tls.crt": "client.pem", "tls.key": "client.key"}
        contents = {name: (ensemble.directory / file).read_text() for name, file in files.items()}
        site.cluster.create_secret("keystone-tasks-zookeeper", **contents)
        (text,) = (each.text for each in blocks(KUBERNETES) if each.text.startswith("KOLLA_ZK_CA: "))
        given = dict(line.split(": ") for line in text.splitlines())
        pod = site.make(
            JOB, "keystone-tasks-tls", "node-1", KOLLA_ZK_HOSTS=f"{HOST}:{ensemble.port}", **given
        )
        site.start(pod)
        health = ("kolla_mesos_start", "health")
        connected = f"the deployment {site.deployment.path} is not there"
        eventually(lambda: connected in pod.container().exec(*health).stdout, connected, every=0.2)
        pod.stop()


# -- the Job -----------------------------------------------------------------------------------------


def test_a_task_started_four_times_at_once_runs_its_commands_once(site: Site) -> None:
    """Two pods of the Job, two init containers: all end well, and each command has one attempt behind it."""
    tasks = [*site.job_containers(), *site.init_containers()]
    assert [task.ends() for task in tasks] == [0] * 4
    for command in (TASK, "keystone_tasks/create_user"):
        assert sum(task.said.count(f"{command}: starting") for task in tasks) == 1
        detail = site.detail(command)
        assert (detail["attempt"], detail["state"]) == (1, "done")
        assert detail["host"] in NODES


def test_a_job_started_again_passes(site: Site) -> None:
    """What is done is not done again, and there is nothing to wait for."""
    again = site.make(JOB, "keystone-tasks-again", "node-1")
    site.start(again)
    assert site.ended(again) == 0
    assert f"{TASK}: already done" in again.container().said
    assert site.detail(TASK)["attempt"] == 1


# -- how a Job fails ---------------------------------------------------------------------------------


def task(**keys: Any) -> dict[str, Any]:
    return {"commands": {"c": {"command": "true", **keys}}}


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


def test_the_daemon_is_started_after_its_init_container(site: Site) -> None:
    for initial, replica in zip(site.init_containers(), site.replicas):
        assert replica.container().running
        ended, started = initial.inspected["State"], replica.container().inspected["State"]
        assert ended["FinishedAt"] <= started["StartedAt"]


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
    assert "keystone-api/db_sync waits for memcached/daemon" in readiness(container).stdout


def liveness(container: Container) -> bool:
    """podman runs the manifest's probe as a health check, as often as somebody asks for it."""
    done: subprocess.CompletedProcess[str] = container.podman("healthcheck", "run", container.id, check=False)
    return done.returncode == 0


def readiness(container: Container) -> subprocess.CompletedProcess[str]:
    """podman has no readiness; the manifest's own command."""
    (written,) = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
    return container.exec(*written["readinessProbe"]["exec"]["command"])


def test_the_replicas_are_ready_and_have_their_keys_in_common(site: Site) -> None:
    """Both probes are content, and a replica reads the token that another one has issued."""
    site.begin(MEMCACHED, "memcached")
    for replica in site.replicas:
        eventually(lambda: is_ready(replica.container()), "ready", seconds=120, every=0.2)  # noqa: B023
        assert liveness(replica.container())
    assert site.ready_hosts("keystone-api") == list(NODES)
    token = issue_token(site.url(NODES[0]), PASSWORD)
    assert validate_token(site.url(NODES[1]), token)["user"]["name"] == "admin"


def is_ready(container: Container) -> bool:
    assert container.running, container.said
    return readiness(container).returncode == 0


def test_a_pod_is_stopped_within_its_grace_period(site: Site) -> None:
    """SIGTERM is the daemon's, and so is the exit status."""
    replica = site.replicas[0]
    begun = time.monotonic()
    replica.stop()
    assert replica.container().status == 0
    assert time.monotonic() - begun < 15
