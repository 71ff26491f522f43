"""The manifests of etc/kubernetes: what is written in them. tests/kubernetes runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kazoo.security import make_digest_acl

from kolla_mesos_start import errors, settings
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.ctl.zk import connection
from tests import CHECKOUT
from tests.examples.keystone import API, TASKS
from tests.examples.openstack import EXAMPLE
from tests.server.test_session import secured
from tests.support.documents import KUBERNETES, blocks
from tests.support.kubelet import mount_secret
from tests.support.zookeeper import HOST

Document = dict[str, Any]

MANIFESTS = CHECKOUT / "etc" / "kubernetes"
# The first with podFailurePolicy for good, and the newest that there are schemas of.
VERSIONS = ("1.31", "1.37")

DEFINITIONS = MANIFESTS / "definitions"
PASSWORDS = MANIFESTS / "passwords"
SECRET = "keystone-passwords"
# As whom the agents of the manifests connect, by the Secret.
IDENTITIES = {"keystone-tasks-zookeeper": TASKS, "keystone-api-zookeeper": API}


def documents(name: str) -> list[Document]:
    """The documents of one file."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def containers(spec: Document) -> Iterator[Document]:
    """A pod's containers, init containers first."""
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


(JOB,) = documents("job.yml")
(DEPLOYMENT,) = documents("deployment.yml")


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


def test_a_client_connects_with_the_files_of_a_certificate(tmp_path: Path) -> None:
    """As the README says, in the Secret that cert-manager makes; the ensemble wants one."""
    secret = tmp_path / "secret"
    (text,) = (each.text for each in blocks(KUBERNETES) if each.text.startswith("KOLLA_ZK_CA: "))
    given = dict(line.split(": ") for line in text.replace("/etc/kolla-zookeeper", str(secret)).splitlines())
    with secured(tmp_path) as ensemble:
        files = {"ca.crt": "ca.pem", "tls.crt": "client.pem", "tls.key": "client.key"}
        contents = {name: (ensemble.directory / file).read_text() for name, file in files.items()}
        mount_secret(secret, "one", **contents)
        hosts = f"{HOST}:{ensemble.port}"
        client = connection.connect(
            settings.parse({**given, "KOLLA_APP_ID": "/a/b", "KOLLA_ZK_HOSTS": hosts})
        )
        assert connection.children(client, ["/"])["/"]
        client.close()
