"""Manifests: when a launcher ends a container, and what it does before it stops a daemon.

`golden` has the probes, the hooks and the stop signals themselves.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.container_settings import Port
from kolla_mesos_start.ctl.manifests import compose, kubernetes, marathon, quadlet
from kolla_mesos_start.ctl.manifests.model import Manifests, Model, Site, build
from kolla_mesos_start.definition.strings import SIGNALS
from kolla_mesos_start.health import StateFile, health
from tests.support.publishing import write_files

KEYS: dict[str, Any] = {"drain": 30, "before_stop": {"command": "true", "timeout": 4}, "stop_grace": 20}
MODE = "KOLLA_START_MODE"
SUPERVISE = {MODE: "supervise"}


def model(
    root: Path, environ: dict[str, str] | None = None, start_timeout: int | None = None, **keys: Any
) -> Model:
    """A deployment with one service, whose daemon has these keys."""
    daemon = {"command": "sleep 9", "ready": {"alive": 0}, **keys}
    settings = {"image": "site/web:1", "env": environ or {}, "start_timeout": start_timeout}
    launch = {"zookeeper": "zk-1", "defaults": {key: each for key, each in settings.items() if each}}
    write_files(
        root,
        launch_yml=json.dumps(launch),
        services__web__definition_yml=json.dumps({"service": {"daemon": daemon}}),
    )
    found, findings = build(directory.read(root), Site("site"))
    assert not findings
    return found


def text(found: Manifests) -> str:
    content, *_ = found.files.values()
    return content


@pytest.mark.parametrize("start_timeout", [None, 600])
def test_no_launcher_ends_a_daemon_whose_check_fails(start_timeout: int | None, tmp_path: Path) -> None:
    """A database that is down must not end all APIs. But one whose agent has ended."""
    (workload,) = model(tmp_path / "site", start_timeout=start_timeout).workloads
    program, verb, *options = workload.liveness
    assert (program, verb) == ("kolla_mesos_start", "health")
    environ = {"KOLLA_RUN_DIR": str(tmp_path / "run")}
    state = StateFile.take(environ["KOLLA_RUN_DIR"])
    assert health(options, environ) == 0
    state.write("unready", "check tcp port 80: Connection refused")
    assert (health(options, environ), health(["--ready"], environ)) == (0, 1)
    os.close(state.fd)
    assert health(options, environ) == 1


@pytest.mark.parametrize(("start_timeout", "status"), [(None, 0), (600, 1)])
def test_a_daemon_that_never_becomes_ready_is_ended_where_launch_yml_says_so(
    start_timeout: int | None, status: int, tmp_path: Path
) -> None:
    """After that time from its own start, however long its container has waited before."""
    environ = {"KOLLA_RUN_DIR": str(tmp_path / "run")}
    state = StateFile.take(environ["KOLLA_RUN_DIR"])
    state.write("starting", "", time.clock_gettime(time.CLOCK_BOOTTIME) - 601)
    (workload,) = model(tmp_path / "site", start_timeout=start_timeout).workloads
    assert health(workload.liveness[2:], environ) == status
    os.close(state.fd)


def test_compose_says_that_podman_runs_no_hook(tmp_path: Path) -> None:
    found = compose.manifests(model(tmp_path, **KEYS))
    assert any("podman-compose" in note and "web" in note for note in found.notes)


def test_marathon_in_exec_mode_is_reported(tmp_path: Path) -> None:
    """Only if launch.yml asks for it; without it the agent is a supervisor."""
    found = marathon.manifests(model(tmp_path, {MODE: "exec"}, **KEYS))
    assert json.loads(text(found))["env"][MODE] == "exec"
    assert any(note.startswith("web is not drained: Marathon has no preStop") for note in found.notes)
    found = marathon.manifests(model(tmp_path, **KEYS))
    assert json.loads(text(found))["env"][MODE] == "supervise"
    assert not any("is not drained" in note for note in found.notes)


@pytest.mark.parametrize(("environ", "keys"), [({}, {"stop_grace": 20}), (SUPERVISE, KEYS)])
def test_without_these_keys_or_with_a_supervisor_there_is_no_hook(
    tmp_path: Path, environ: dict[str, str], keys: dict[str, Any]
) -> None:
    """A supervisor drains when it gets SIGTERM."""
    found = model(tmp_path, environ, **keys)
    assert "lifecycle" not in text(kubernetes.manifests(found))
    assert "pre_stop" not in text(compose.manifests(found))
    assert "ExecStop" not in text(quadlet.manifests(found))
    assert not any("podman-compose" in note for note in compose.manifests(found).notes)


HOOK = ["kolla_mesos_start", "stop", "--no-term"]


@pytest.mark.parametrize(
    ("keys", "environ", "hook", "grace"),
    [
        ({}, {}, {"sleep": {"seconds": 5}}, 20 + 5 + 5),
        ({"drain": 30}, {}, {"exec": {"command": HOOK}}, 30 + 20 + 5),
        (
            {"drain": 2},
            {},
            {"exec": {"command": ["sh", "-c", 'sleep 5; exec "$0" "$@"', *HOOK]}},
            2 + 20 + 5 + 5,
        ),
        ({"drain": 30}, SUPERVISE, None, 30 + 20 + 5),
        ({"drain": 2}, SUPERVISE, {"sleep": {"seconds": 5}}, 2 + 20 + 5 + 5),
    ],
)
def test_a_pod_leaves_its_service_before_it_is_stopped(
    tmp_path: Path, keys: dict[str, Any], environ: dict[str, str], hook: object, grace: int
) -> None:
    """The nodes forward requests to it for a moment longer; without a port none come."""
    keys = {"stop_grace": 20, **keys}
    for ports in (["80"], []):
        (workload,) = model(tmp_path / str(len(ports)), environ, **keys).workloads
        workload = workload._replace(ports=[Port(int(port)) for port in ports])
        *_, controller = yaml.safe_load_all(text(kubernetes.manifests(Model("site", [workload]))))
        spec = controller["spec"]["template"]["spec"]
        if not ports:
            assert "sleep" not in str(spec["containers"][0].get("lifecycle"))
            continue
        assert spec["terminationGracePeriodSeconds"] == grace
        assert spec["containers"][0].get("lifecycle", {}).get("preStop") == hook


def test_a_unit_knows_the_numbers_of_signals() -> None:
    """Which its file must not ask this machine for."""
    assert {name: signal.Signals[f"SIG{name}"] for name in (*SIGNALS, "RTMIN")} == quadlet.NUMBERS
