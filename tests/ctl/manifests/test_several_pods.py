"""Manifests for Kubernetes: services of several pods, and where their data are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from tests.ctl.manifests.test_manifests import DAEMON, LAUNCH, made, pod, site

COMMANDS = "commands: {position: {command: echo 1}}\n"
ELECTION = ", election: {position: db/position, members: 3, start: sleep 8}"
MEMBERS = COMMANDS + DAEMON % (ELECTION, 3)
HOSTNAME = "kubernetes.io/hostname"


def kinds(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in documents}


def test_only_services_of_several_pods_have_a_disruption_budget(tmp_path: Path) -> None:
    """A drain removes one pod at a time, and any that is not ready: it only waits."""
    found = {name: kinds(documents) for name, documents in made(site(tmp_path)).items()}
    assert [name for name, each in found.items() if "PodDisruptionBudget" in each] == ["web.yml"]
    budget, deployment = found["web.yml"]["PodDisruptionBudget"], found["web.yml"]["Deployment"]
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": deployment["spec"]["selector"],
    }


@pytest.mark.parametrize("volumes", ["", "volumes: {/var/lib/db: 1Gi}"])
def test_members_of_an_election_are_on_different_nodes(volumes: str, tmp_path: Path) -> None:
    """Also while they are updated: no other node may be left for an additional one."""
    launch = LAUNCH.replace("[ctl-1, ctl-2]", "[ctl-1, ctl-2, ctl-3]").partition("  db:")[0]
    root = site(
        tmp_path, f"{launch}  db: {{network: own, {volumes}}}\n", services__db__definition_yml=MEMBERS
    )
    found = kinds(made(root)["db.yml"])
    assert ("StatefulSet" in found, "PodDisruptionBudget" in found) == (bool(volumes), True)
    controller = found["StatefulSet" if volumes else "Deployment"]
    (term,) = pod(controller)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {"topologyKey": HOSTNAME, "labelSelector": controller["spec"]["selector"]}
    assert "topologySpreadConstraints" not in pod(controller)
    update = controller["spec"].get("strategy", {}).get("rollingUpdate", {})
    assert update.get("maxSurge", 0) == 0


def test_an_autoscaler_may_determine_the_number_of_pods(tmp_path: Path) -> None:
    """`kubectl apply` would set the number of the manifest again. Jobs have none."""
    launch = LAUNCH.replace("defaults: {", "defaults: {replicas: scaled, ")
    found = made(site(tmp_path, launch))
    for name, kind in {"web.yml": "Deployment", "db.yml": "StatefulSet"}.items():
        objects = kinds(found[name])
        assert "PodDisruptionBudget" in objects and "replicas" not in objects[kind]["spec"]
        assert pod(objects[kind])["topologySpreadConstraints"]
    (job,) = found["make.yml"]
    assert "topologySpreadConstraints" not in pod(job)


@pytest.mark.parametrize("form", ["compose", "quadlet", "marathon"])
def test_other_launchers_have_no_autoscaler(form: str, tmp_path: Path) -> None:
    """They start the number of the definition, and have no storage classes."""
    texts = []
    for number, (old, new) in enumerate({"10Gi": "{size: 10Gi, storage_class: fast}", "": ""}.items()):
        launch = LAUNCH.replace(old, new)
        launch = launch.replace("a/web: {", "a/web: {replicas: scaled, ") if new else launch
        place = tmp_path / f"made{number}"
        words = ["manifests", form, str(site(tmp_path / f"site{number}", launch)), "--deployment", "site"]
        assert cli.run([*words, "--output", str(place)]) == 0
        texts.append({path.name: path.read_text() for path in place.rglob("*.*") if path.is_file()})
    assert texts[0] == texts[1]


def test_a_storage_class_is_that_of_the_claim(tmp_path: Path) -> None:
    launch = LAUNCH.replace("10Gi", "{size: 10Gi, storage_class: fast}")
    (claim,) = kinds(made(site(tmp_path, launch))["db.yml"])["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "10240Mi"}}


def test_the_kustomization_lists_what_was_made_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a service that is gone, nor files of others; it is not part of the standard output."""
    root, place = site(tmp_path / "site"), tmp_path / "made"
    place.mkdir()
    (place / "ingress.yml").write_text("kind: Ingress\n")
    (place / "README").write_text("mine\n")
    words = ["manifests", "kubernetes", str(root)]
    assert cli.run([*words, "--output", str(place)]) == 0
    assert "make.yml" in yaml.safe_load((place / "Kustomization").read_text())["resources"]
    for path in root.glob("services/make/*"):
        path.unlink()
    (root / "services/make").rmdir()
    capsys.readouterr()
    assert cli.run([*words, "--output", str(place)]) == 0
    listed = yaml.safe_load((place / "Kustomization").read_text())["resources"]
    assert listed == ["agent.yml", "db.yml", "look-up.yml", "web.yml"]
    left = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left ")]
    assert [line.partition(",")[0] for line in left] == [
        f"left {place}/{name}" for name in ("ingress.yml", "make.yml")
    ]
    assert cli.run(words) == 0
    kinds_ = {each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert "Job" in kinds_ and "Kustomization" not in kinds_
