"""Manifests: which launchers do something before they stop a daemon with `drain` or `before_stop`.

`golden` has the hooks and the stop signals themselves.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.manifests import compose, kubernetes, marathon, quadlet
from kolla_mesos_start.ctl.manifests.model import Manifests, Model, Site, build
from kolla_mesos_start.definition.strings import SIGNALS
from tests.support.publishing import write_files

KEYS: dict[str, Any] = {"drain": 30, "before_stop": {"command": "true", "timeout": 4}, "stop_grace": 20}
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


def test_a_unit_knows_the_numbers_of_signals() -> None:
    """Which its file must not ask this machine for."""
    assert {name: signal.Signals[f"SIG{name}"] for name in (*SIGNALS, "RTMIN")} == quadlet.NUMBERS
