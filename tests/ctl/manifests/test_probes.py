"""Manifests: when a launcher restarts a container, and when it sends no requests to it.

Only `health --ready` asks whether the daemon's check succeeds: a database that is down must not end all APIs.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from kolla_mesos_start.ctl.manifests.model import Site, build
from kolla_mesos_start.health import StateFile, health
from tests.support.publishing import write_files

DAEMON = "service: {daemon: {command: sleep 9, ready: {tcp: 80}}}"
TASK = "commands: {make: {command: make}}"
LIMITED = {"start_timeout": 600}


def made(root: Path, form: str, definition: str, **settings: Any) -> str:
    """The manifest of a service."""
    launch = {"zookeeper": "zk-1", "defaults": {"image": "web:1", **settings}}
    write_files(root, launch_yml=json.dumps(launch), services__web__definition_yml=definition)
    found, wrong = build(directory.read(root), Site("site"))
    assert not wrong
    (text,) = FORMATS[form](found).files.values()
    return text


def liveness(form: str, text: str) -> Sequence[str]:
    """What the launcher runs; after three failures it ends the container."""
    if form == "kubernetes":
        return list(container(text)["livenessProbe"]["exec"]["command"])
    if form == "marathon":
        (check,) = json.loads(text)["healthChecks"]
        return shlex.split(check["command"]["value"])
    if form == "compose":
        _, *words = yaml.safe_load(text)["services"]["web"]["healthcheck"]["test"]
        return list(words)
    (line,) = (line for line in text.splitlines() if line.startswith("HealthCmd="))
    return shlex.split(line.partition("=")[2])


def container(text: str) -> dict[str, Any]:
    *_, controller = yaml.safe_load_all(text)
    (found,) = controller["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("settings", [{}, LIMITED])
@pytest.mark.parametrize("form", FORMATS)
def test_no_launcher_ends_a_daemon_whose_check_fails(
    form: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Nor a container that waits; but one whose agent has ended."""
    argv = liveness(form, made(tmp_path / "site", form, DAEMON, **settings))
    program, verb, *options = argv
    assert (program, verb) == ("kolla_mesos_start", "health")
    environ = {"KOLLA_RUN_DIR": str(tmp_path / "run")}
    state = StateFile.take(environ["KOLLA_RUN_DIR"])
    assert health(options, environ) == 0
    state.write("unready", "check tcp port 80: Connection refused")
    assert (health(options, environ), health(["--ready"], environ)) == (0, 1)
    os.close(state.fd)
    assert health(options, environ) == 1


@pytest.mark.parametrize("form", FORMATS)
def test_a_daemon_that_never_becomes_ready_is_ended_where_launch_yml_says_so(
    form: str, tmp_path: Path
) -> None:
    """After that time from its own start, however long its container has waited before."""
    environ = {"KOLLA_RUN_DIR": str(tmp_path / "run")}
    state = StateFile.take(environ["KOLLA_RUN_DIR"])
    state.write("starting", "", time.clock_gettime(time.CLOCK_BOOTTIME) - 601)
    for settings, status in (({}, 0), (LIMITED, 1)):
        _, _, *options = liveness(form, made(tmp_path / "site", form, DAEMON, **settings))
        assert health(options, environ) == status
    os.close(state.fd)
