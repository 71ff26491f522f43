"""A deployment in a namespace of its own, from the manifests that kolla_mesos_ctl makes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import formats
from tests.containers.podman import MOUNTED
from tests.kubernetes.cluster import Cluster, Document, condition
from tests.support.waiting import eventually

PREFIX = "/tests"
PASSWORD = "a 'password\" \\ with a bit of %everything"
ENFORCED = "pod-security.kubernetes.io/enforce"


class Site:
    """One deployment; its directory is a copy of `source`, with passwords and this ZooKeeper.

    The images have no agent: it is mounted.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        source: Path,
        place: Path,
        *,
        security: str = "restricted",
        prefix: str = PREFIX,
    ) -> None:
        self.cluster, self.name, self.prefix, self.path = cluster, name, prefix, f"{prefix}/{name}"
        self.tree, self.made = place / name, place / f"{name}-made"
        shutil.copytree(source, self.tree)
        values = formats.values(source / "variables.yml")
        self.variables({each: PASSWORD for each in values if "password" in each})
        self.launch(zookeeper=cluster.zookeeper.hosts, agent=MOUNTED)
        cluster.kubectl("create", "namespace", name)
        cluster.kubectl("label", "namespace", name, f"{ENFORCED}={security}")

    # -- its directory --------------------------------------------------------------------------------

    def variables(self, values: Mapping[str, str]) -> None:
        """Set variables in variables.yml."""
        self._update("variables.yml", values)

    def launch(self, **settings: object) -> None:
        """Set settings in launch.yml."""
        self._update("launch.yml", settings)

    def service(self, name: str, **settings: Any) -> None:
        """Set settings of a service in launch.yml; `volumes` are added."""
        services = yaml.safe_load((self.tree / "launch.yml").read_text())["services"]
        volumes = {**services[name].get("volumes", {}), **settings.pop("volumes", {})}
        services[name].update(settings, volumes=volumes)
        self.launch(services=services)

    def _update(self, file: str, values: Mapping[str, object]) -> None:
        path = self.tree / file
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))

    # -- what an operator does ------------------------------------------------------------------------

    def publish(self) -> None:
        self._ctl("publish", "--hosts", self.cluster.zookeeper.hosts)

    def manifests(self) -> list[Path]:
        """The files of generated manifests, in a random order."""
        shutil.rmtree(self.made, ignore_errors=True)
        self._ctl("manifests", "kubernetes", "--output", str(self.made))
        files = sorted(self.made.glob("*.yml"))
        return random.sample(files, len(files))

    def _ctl(self, command: str, *words: str) -> None:
        cli.run([command, *words, str(self.tree), "--deployment", self.name, "--prefix", self.prefix])

    def apply(self, *files: Path) -> None:
        for file in files:
            self.kubectl("apply", "--filename", str(file))

    def create(self, *documents: Document) -> None:
        self.kubectl("apply", "--filename", "-", given=yaml.safe_dump_all(documents))

    def kubectl(self, *words: str, given: str = "") -> str:
        return self.cluster.kubectl("--namespace", self.name, *words, given=given)

    # -- what it sees ---------------------------------------------------------------------------------

    def get(self, *words: str) -> list[Document]:
        return self.cluster.get("--namespace", self.name, *words)

    def pods(self, name: str = "") -> dict[str, Document]:
        """The pods by their names: all, or those of one service."""
        wanted = [f"--selector=app.kubernetes.io/name={name}"] if name else []
        return {each["metadata"]["name"]: each for each in self.get("pods", *wanted)}

    def uids(self, name: str = "") -> set[str]:
        return {each["metadata"]["uid"] for each in self.pods(name).values()}

    def ready(self, name: str) -> set[str]:
        """The nodes of the service's pods that are ready, and are not about to end."""
        return {
            each["spec"]["nodeName"]
            for each in self.pods(name).values()
            if "deletionTimestamp" not in each["metadata"] and condition(each, "Ready")
        }

    def await_up(self, seconds: float = 240) -> None:
        """All Jobs are complete, and all pods of all services are ready."""
        for kind in ("deployment", "statefulset"):
            for each in self.get(kind):
                name = f"{kind}/{each['metadata']['name']}"
                self.kubectl("rollout", "status", name, f"--timeout={seconds:.0f}s")
        eventually(
            lambda: all(condition(each, "Complete") for each in self.get("jobs")),
            f"the Jobs of {self.name} are complete",
            every=0.5,
        )

    def restarts(self) -> dict[str, int]:
        """How often the containers of each pod were restarted."""
        return {
            name: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
            for name, pod in self.pods().items()
        }

    def logs(self, pod: str) -> str:
        return self.kubectl("logs", pod)

    def end(self) -> None:
        """Remove it all; what it has said is shown if a test has failed."""
        print(self.kubectl("get", "pods", "--output=wide"), self.kubectl("get", "events"))
        for pod in self.pods():
            with suppress(AssertionError):  # It may not have begun.
                print(self.kubectl("logs", pod, "--prefix", "--tail=40"))
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")
