"""Manifests: what each launcher does before it stops a daemon with `drain` or `before_stop`, and with which
signal it stops a container."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.manifests import compose, kubernetes, marathon, quadlet
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from kolla_mesos_start.ctl.manifests.model import Manifests, Model, Site, build
from kolla_mesos_start.definition.forms import SIGNALS
from tests.publishing import write_files

STOP = ["kolla_mesos_start", "stop", "--no-term"]
KEYS: dict[str, Any] = {"drain": 30, "before_stop": {"command": "true", "timeout": 4}, "stop_grace": 20}
GRACE = 30 + 4 + 20 + 5  # with the margin of the agent itself
MODE = "KOLLA_START_MODE"
SUPERVISE = {MODE: "supervise"}


def model(root: Path, environ: dict[str, str] | None = None, **keys: Any) -> Model:
    """A deployment with one service, whose daemon has these keys."""
    daemon = {"command": "sleep 9", "ready": {"alive": 0}, **keys}
    launch = {"zookeeper": "zk-1", "defaults": {"image": "site/web:1", "env": environ or {}}}
    write_files(
        root,
        launch_yml=json.dumps(launch),
        services__web__definition_yml=json.dumps({"service": {"daemon": daemon}}),
    )
    found, findings = build(directory.read(root), Site("site"))
    assert not findings
    return found


def text(found: Manifests) -> str:
    (content,) = found.files.values()
    return content


def pod(found: Model) -> dict[str, Any]:
    *_, controller = yaml.safe_load_all(text(kubernetes.manifests(found)))
    spec: dict[str, Any] = controller["spec"]["template"]["spec"]
    return spec


def test_kubernetes_runs_a_hook(tmp_path: Path) -> None:
    """Its grace period includes the hook."""
    spec = pod(model(tmp_path, **KEYS))
    (container,) = spec["containers"]
    assert container["lifecycle"] == {"preStop": {"exec": {"command": STOP}}}
    assert spec["terminationGracePeriodSeconds"] == GRACE


def test_compose_runs_a_hook(tmp_path: Path) -> None:
    found = compose.manifests(model(tmp_path, **KEYS))
    service = yaml.safe_load(text(found))["services"]["web"]
    assert service["pre_stop"] == [{"command": STOP}]
    assert service["stop_grace_period"] == f"{GRACE}s"
    assert any("podman-compose" in note and "web" in note for note in found.notes)


def test_systemd_runs_a_hook_before_podman_stops_the_container(tmp_path: Path) -> None:
    lines = text(quadlet.manifests(model(tmp_path, **KEYS))).splitlines()
    service = lines[lines.index("[Service]") :]
    assert "ExecStop=-/usr/bin/podman exec site_web kolla_mesos_start stop --no-term" in service
    assert f"PodmanArgs=--stop-timeout={GRACE}" in lines
    assert f"TimeoutStopSec={GRACE + quadlet.REMOVE}" in service


def test_marathon_has_no_hook_and_runs_the_agent_as_supervisor(tmp_path: Path) -> None:
    found = marathon.manifests(model(tmp_path, **KEYS))
    app = json.loads(text(found))
    assert app["env"][MODE] == "supervise"
    assert app["taskKillGracePeriodSeconds"] == GRACE
    assert not any("is not drained" in note for note in found.notes)


def test_marathon_in_exec_mode_is_reported(tmp_path: Path) -> None:
    """Only if launch.yml asks for it."""
    found = marathon.manifests(model(tmp_path, {MODE: "exec"}, **KEYS))
    assert json.loads(text(found))["env"][MODE] == "exec"
    assert any(note.startswith("web is not drained: Marathon has no preStop") for note in found.notes)


@pytest.mark.parametrize(("environ", "keys"), [({}, {"stop_grace": 20}), (SUPERVISE, KEYS)])
def test_without_these_keys_or_with_a_supervisor_there_is_no_hook(
    tmp_path: Path, environ: dict[str, str], keys: dict[str, Any]
) -> None:
    """A supervisor drains when it gets SIGTERM."""
    found = model(tmp_path, environ, **keys)
    assert "lifecycle" not in pod(found)["containers"][0]
    assert "pre_stop" not in text(compose.manifests(found))
    assert "ExecStop" not in text(quadlet.manifests(found))
    assert not any("podman-compose" in note for note in compose.manifests(found).notes)


def signals(root: Path, stop_signal: str) -> dict[str, str]:
    """The manifests of each format for this setting of launch.yml; "" for none."""
    own = {"stop_signal": stop_signal} if stop_signal else {}
    write_files(root, launch_yml=json.dumps({"zookeeper": "zk-1", "defaults": {"image": "web:1", **own}}))
    write_files(root, services__web__definition_yml="service: {daemon: {command: sleep 9}}")
    found, findings = build(directory.read(root), Site("site"))
    assert not findings
    return {name: text(make(found)) for name, make in FORMATS.items()}


@pytest.mark.parametrize(
    ("stop_signal", "name", "succeeds"),
    [
        ("", "TERM", "143"),
        ("TERM", "TERM", "143"),
        ("SIGQUIT", "QUIT", "143 131"),
        ("WINCH", "WINCH", "143 156"),
        ("SIGRTMIN+3", "RTMIN+3", "143 165"),
    ],
)
def test_the_stop_signal_is_set_whatever_the_image_says(
    tmp_path: Path, stop_signal: str, name: str, succeeds: str
) -> None:
    """The agent knows it too: TERM is its default. A unit that was stopped by it has not failed."""
    found = signals(tmp_path, stop_signal)
    for form in found:
        assert ("KOLLA_STOP_SIGNAL" in found[form]) == (name != "TERM"), form
    assert yaml.safe_load(found["compose"])["services"]["web"]["stop_signal"] == f"SIG{name}"
    parameters = json.loads(found["marathon"])["container"]["docker"]["parameters"]
    assert {"key": "stop-signal", "value": f"SIG{name}"} in parameters
    lines = found["quadlet"].splitlines()
    assert f"PodmanArgs=--stop-signal=SIG{name}" in lines
    assert f"SuccessExitStatus={succeeds}" in lines[lines.index("[Service]") :]
    if name != "TERM":
        assert f"Environment=KOLLA_STOP_SIGNAL={name}" in lines
    assert "stopSignal" not in found["kubernetes"], "it needs Kubernetes 1.33"


def test_a_unit_knows_the_numbers_of_signals() -> None:
    """Which its file must not ask this machine for."""
    assert {name: signal.Signals[f"SIG{name}"] for name in (*SIGNALS, "RTMIN")} == quadlet.NUMBERS


def test_a_pod_needs_an_image_with_the_stop_signal(tmp_path: Path) -> None:
    """Only if it is another one."""
    write_files(
        tmp_path, launch_yml='{"zookeeper": "z", "defaults": {"image": "w:1", "stop_signal": "QUIT"}}'
    )
    write_files(tmp_path, services__web__definition_yml="service: {daemon: {command: sleep 9}}")
    found, _ = build(directory.read(tmp_path), Site("site"))
    assert "web: its image needs STOPSIGNAL SIGQUIT: a pod can't set it" in kubernetes.manifests(found).notes
    assert not any("STOPSIGNAL" in note for note in kubernetes.manifests(model(tmp_path)).notes)
