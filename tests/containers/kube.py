"""Pods of etc/kubernetes in podman, which does what a kubelet does with them.

Adds to a manifest what a cluster adds before a node runs it, and replaces what podman does not support."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests import CHECKOUT
from tests.containers.images import Images
from tests.containers.podman import Container, Podman
from tests.support.kubelet import mount_secret

MANIFESTS = CHECKOUT / "etc" / "kubernetes"
# A pod's first container, which keeps its namespaces; podman would make an image from Debian's catatonit.
PAUSE = "localhost/pause"

Document = dict[str, Any]


def manifests(name: str) -> list[Document]:
    """The documents of one file of etc/kubernetes."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def containers(spec: Document) -> Iterator[Document]:
    """A pod's containers, init containers first."""
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


class Pod:
    """One pod: made from the template of a Job or a Deployment, and what became of it."""

    def __init__(self, podman: Podman, document: Document, directory: Path) -> None:
        self.podman, self.document = podman, document
        self.name: str = document["metadata"]["name"]
        self.node: str = document["spec"]["nodeName"]
        self._directory = directory

    def container(self, name: str = "agent") -> Container:
        return Container(self.podman, f"{self.name}-{name}")

    def message(self, name: str = "agent") -> Document:
        """The termination message of a container that has failed."""
        message: Document = json.loads(message_file(self._directory, self.name, name).read_text())
        return message

    def start(self) -> None:
        """Start it; this returns when its init containers have ended well and the others run."""
        self.podman("pod", "start", self.name)

    def stop(self) -> None:
        """As a kubelet does, in the pod's own grace period."""
        grace = self.document["spec"]["terminationGracePeriodSeconds"]
        self.podman("pod", "stop", "--time", str(grace), self.name)


def message_file(directory: Path, pod: str, container: str) -> Path:
    return directory / f"{pod}-{container}.message"


class Cluster:
    """Nodes in name only, all of them this machine; pods are in the machine's network."""

    def __init__(self, directory: Path, images: Images) -> None:
        self.podman = Podman(directory, images.store)
        self._directory, self._images = directory, images

    def create_secret(self, name: str, **values: str) -> Path:
        """As kubectl and the kubelets do; its place on every node."""
        mount_secret(self._secret(name), "one", **values)
        return self._secret(name)

    def _secret(self, name: str) -> Path:
        return self._directory / f"secret-{name}"

    def prepare(self) -> None:
        """Make the volume, and the image that each pod has besides its own."""
        with Path(self.podman.environ["CONTAINERS_CONF"]).open("a") as settings:
            settings.write(f'infra_image = "{PAUSE}"\n')  # The last table of the file is the engine's.
        (claim,) = manifests("volume.yml")
        # podman has no fsGroup. A volume that nobody is root of is the user's who alone writes there.
        user = manifests("deployment.yml")[0]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
        claim["metadata"]["annotations"] = {"volume.podman.io/uid": str(user)}
        self.play(claim)
        made = self.podman("create", self._images.kolla("base"), "sleep", "infinity").stdout.strip()
        self.podman("commit", "--quiet", made, PAUSE)
        self.podman("rm", made)

    def end(self) -> None:
        self.podman.end()

    def make(self, workload: Document, name: str, node: str, site: Mapping[str, str]) -> Pod:
        """A pod of the workload on `node`, not yet started; `site` goes into the ConfigMap `kolla`."""
        pod = Pod(self.podman, self._pod(workload, name, node), self._directory)
        self.create(pod.document, site)
        return pod

    def create(self, document: Document, site: Mapping[str, str]) -> None:
        """Have podman make the pod, which stands behind the ConfigMaps that it names."""
        config = manifests("configmap.yml")
        config[0]["data"].update(site)
        # Init containers stay when they have ended, as in Kubernetes.
        keep = "--annotation=io.podman.annotations.init.container.type=always"
        self.play(*config, document, options=("--start=false", "--network=host", keep))

    def play(self, *documents: Document, options: Sequence[str] = ()) -> None:
        """Have podman make, and start, what these documents say."""
        path = self._directory / f"{documents[-1]['metadata']['name']}.yml"
        path.write_text(yaml.safe_dump_all(documents))
        self.podman("kube", "play", *options, str(path))

    def _pod(self, workload: Document, name: str, node: str) -> Document:
        """What controller, scheduler and kubelet make of the template."""
        template = copy.deepcopy(workload["spec"]["template"])
        template["metadata"]["name"] = name
        spec = template["spec"]
        spec["nodeName"] = node
        if "initContainers" in spec:  # podman restarts all of them by it, a kubelet those that fail.
            spec["restartPolicy"] = "OnFailure"
        for volume in spec["volumes"]:
            if "secret" in volume:  # podman 4.3 gives its values as they are encoded.
                place = self._secret(volume.pop("secret")["secretName"])
                volume["hostPath"] = {"path": str(place), "type": "Directory"}
        for container in containers(spec):
            container["image"] = self._images.agent(container["image"].rpartition("/")[2].partition(":")[0])
            container.pop("ports", None)  # podman would publish them.
            for variable in container["env"]:  # podman 4.3 knows no spec.nodeName.
                if variable.get("valueFrom") == {"fieldRef": {"fieldPath": "spec.nodeName"}}:
                    del variable["valueFrom"]
                    variable["value"] = spec["nodeName"]
            self._give_message(spec, container, name)
        return {"apiVersion": "v1", "kind": "Pod", **template}

    def _give_message(self, spec: Document, container: Document, pod: str) -> None:
        """The file for the termination message, which anybody in the container may write."""
        file = message_file(self._directory, pod, container["name"])
        file.touch()
        file.chmod(0o666)
        volume = f"termination-log-{container['name']}"
        volumes = spec.setdefault("volumes", [])
        volumes.append({"name": volume, "hostPath": {"path": str(file), "type": "File"}})
        mount = {"name": volume, "mountPath": container["terminationMessagePath"]}
        container.setdefault("volumeMounts", []).append(mount)


def decision(job: Document, status: int, condition: str = "") -> str:
    """What the Job's controller does about a pod whose container `agent` has ended so: the first rule's word.

    `condition` is one of the pod's own, DisruptionTarget for instance. A failure without a rule counts.
    """
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if condition in {
            each["type"] for each in rule.get("onPodConditions", ()) if each["status"] == "True"
        }:
            return str(rule["action"])
        codes = rule.get("onExitCodes")
        if codes and codes["containerName"] == "agent":
            assert codes["operator"] == "In"
            if status in codes["values"]:
                return str(rule["action"])
    return "Count"
