"""Manifests of containers into which the agent is mounted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory.container_settings import AGENT
from kolla_mesos_start.ctl.directory.findings import InvalidDirectory
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from tests.support.publishing import write_files

IMAGE, ARCHIVE = "site/agent:1.0.0", "https://site/agent-1.0.0.tar.gz"
AGENTS = {**dict.fromkeys(FORMATS, IMAGE), "marathon": f"{{uri: {ARCHIVE!r}}}"}
HOST = "{host: /srv/agent}"
PROGRAM, RUN, STATE = f"{AGENT}/bin/kolla_mesos_start", "/run/kolla_mesos_start", "/var/lib/kolla_mesos_start"
SERVICE = "{daemon: {command: sleep 9, ready: {alive: 0}, drain: 30}}"


def made(format: str, root: Path, agent: str = "", settings: str = "{placement: all}") -> dict[str, Any]:
    """The only document of the only service."""
    launch = (
        f"agent: {agent or AGENTS[format]}\nzookeeper: zk\nhosts: {{all: [ctl-1]}}\n"
        f"defaults: {{image: 'kolla/web:1'}}\nservices: {{web: {settings}}}\n"
    )
    write_files(root, launch_yml=launch, services__web__definition_yml=f"service: {SERVICE}\n")
    assert cli.run(["manifests", format, str(root), "--output", str(root / "made")]) == 0
    (path,) = (each for each in (root / "made").rglob("*.*") if each.is_file())
    if format == "quadlet":
        return {"lines": path.read_text().splitlines()}
    return dict(yaml.safe_load(path.read_text()))


def test_a_pod_copies_the_agent_from_its_image(tmp_path: Path) -> None:
    """Any version of Kubernetes has init containers."""
    spec = made("kubernetes", tmp_path)["spec"]["template"]["spec"]
    (copy,), (container,) = spec["initContainers"], spec["containers"]
    assert (copy["image"], copy["command"][-1]) == (IMAGE, AGENT)
    assert container["args"] == [PROGRAM]
    assert {container[f"{kind}Probe"]["exec"]["command"][0] for kind in ("liveness", "readiness")} == {
        PROGRAM
    }
    assert container["lifecycle"]["preStop"]["exec"]["command"][:2] == [PROGRAM, "stop"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert set(mounts) == {AGENT, RUN, STATE} and mounts[AGENT]["readOnly"]
    assert copy["volumeMounts"] == [{"name": mounts[AGENT]["name"], "mountPath": AGENT}]
    assert all(each["emptyDir"] == {} for each in spec["volumes"])


def test_a_pod_mounts_the_agent_of_its_node(tmp_path: Path) -> None:
    """If it is not there, the pod does not start, in place of an agent that is empty."""
    spec = made("kubernetes", tmp_path, HOST)["spec"]["template"]["spec"]
    (source,) = (each["hostPath"] for each in spec["volumes"] if "hostPath" in each)
    assert source == {"path": "/srv/agent", "type": "Directory"}
    assert "initContainers" not in spec


@pytest.mark.parametrize(
    "agent, line",
    {
        IMAGE: f"Mount=type=image,source={IMAGE},destination={AGENT}",
        HOST: f"Volume=/srv/agent:{AGENT}:ro",
    }.items(),
)
def test_a_quadlet_mounts_the_agent(agent: str, line: str, tmp_path: Path) -> None:
    lines = made("quadlet", tmp_path, agent)["lines"]
    pulls = [line for line in lines if line.startswith("ExecStartPre=") and f"podman pull {IMAGE}" in line]
    assert bool(pulls) == (agent == IMAGE)
    assert {line, f"Exec={PROGRAM}", f"HealthCmd={PROGRAM} health", f"Tmpfs={RUN}:U"} < set(lines)
    assert any(line.startswith("ExecStop=") and line.endswith(f"{PROGRAM} stop --no-term") for line in lines)


@pytest.mark.parametrize("agent, kind, source", [(IMAGE, "image", IMAGE), (HOST, "bind", "/srv/agent")])
def test_compose_mounts_the_agent(agent: str, kind: str, source: str, tmp_path: Path) -> None:
    service = made("compose", tmp_path, agent)["services"]["web"]
    (volume,) = service["volumes"]
    assert (volume["type"], volume["source"], volume["target"]) == (kind, source, AGENT)
    assert service["tmpfs"] == [f"{RUN}:mode=1777,exec", f"{STATE}:mode=1777,exec"]
    assert service["command"] == [PROGRAM]
    assert service["healthcheck"]["test"][1] == service["pre_stop"][0]["command"][0] == PROGRAM


def test_mesos_fetches_the_agent(tmp_path: Path) -> None:
    """Into its sandbox, which is another path in the container."""
    app = made("marathon", tmp_path)
    program = "/mnt/mesos/sandbox/kolla_mesos_start/bin/kolla_mesos_start"
    assert app["fetch"] == [{"uri": ARCHIVE, "extract": True}]
    assert app["args"] == [program]
    assert app["healthChecks"][0]["command"]["value"] == f"{program} health"
    assert app["container"]["volumes"] == []
    app = made("marathon", tmp_path / "host", HOST)
    assert app["container"]["volumes"] == [{"containerPath": AGENT, "hostPath": "/srv/agent", "mode": "RO"}]
    assert "fetch" not in app and app["args"] == [PROGRAM]


@pytest.mark.parametrize(
    "format, agent, why",
    [
        (
            "marathon",
            IMAGE,
            "agent: expected {host: DIRECTORY} or {uri: ARCHIVE} for marathon, found an image",
        ),
        ("compose", AGENTS["marathon"], "agent: expected an image or {host: DIRECTORY} for compose"),
        ("compose", "No Image", "agent: expected registry/name:tag, without spaces"),
        ("compose", "{host: srv}", "agent.host: expected an absolute path"),
        ("compose", "{host: /srv, uri: 'x://y.tgz'}", "agent: expected an image, {host: DIRECTORY} or"),
        ("compose", "{host: }", "agent: expected an image, {host: DIRECTORY} or {uri: ARCHIVE}"),
        ("compose", "{}", "agent: expected an image, {host: DIRECTORY} or {uri: ARCHIVE}"),
        ("compose", "{hots: /srv}", "agent.hots: unknown key; nearest is 'host'"),
        ("marathon", "{uri: agent.tar.gz}", "agent.uri: expected the URI of an archive"),
        ("compose", "[a]", "agent: expected an image, {host: DIRECTORY} or {uri: ARCHIVE}"),
    ],
)
def test_an_agent_that_cannot_be_mounted_is_named(format: str, agent: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDirectory, match=f"launch.yml:1: {re.escape(why)}"):
        made(format, tmp_path, agent)


@pytest.mark.parametrize(
    "settings, why",
    {
        f"volumes: {{{AGENT}: temporary}}": f"volumes: {AGENT} is in {AGENT}, where the agent is mounted",
        f"volumes: {{{AGENT}/lib: 1Gi}}": f"volumes: {AGENT}/lib is in {AGENT}, where the agent is mounted",
        "env: {KOLLA_RUN_DIR: run}": "env: KOLLA_RUN_DIR of web: expected an absolute path outside of",
        f"env: {{KOLLA_STATE_DIR: {AGENT}/state}}": "env: KOLLA_STATE_DIR of web: expected an absolute path",
    }.items(),
)
def test_nothing_else_is_where_the_agent_is(settings: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDirectory, match=re.escape(why)):
        made("compose", tmp_path, settings=f"{{placement: all, {settings}}}")


@pytest.mark.parametrize("format", ["kubernetes", "compose"])
def test_with_copy_once_the_state_is_where_the_files_are(format: str, tmp_path: Path) -> None:
    """A pod's volume outlives a container and its files; a tmpfs is emptied when a container is restarted."""
    found = made(format, tmp_path, settings="{placement: all, env: {KOLLA_CONFIG_STRATEGY: COPY_ONCE}}")
    assert STATE not in json.dumps(found)
    assert "/tmp/kolla_mesos_start" in json.dumps(found)


def test_the_directories_that_the_agent_writes_are_those_of_its_environment(tmp_path: Path) -> None:
    settings = "{placement: all, env: {KOLLA_RUN_DIR: /run/own}, volumes: {/var/lib: 1Gi}}"
    service = made("compose", tmp_path, settings=settings)["services"]["web"]
    assert service["tmpfs"] == ["/run/own:mode=1777,exec"]
    assert "/var/lib" in json.dumps(service["volumes"])


def test_a_directory_in_another_one_is_not_mounted(tmp_path: Path) -> None:
    """The agent makes it for itself: an emptyDir is open to others."""
    settings = f"{{placement: all, env: {{KOLLA_RUN_DIR: {STATE}/run}}}}"
    service = made("compose", tmp_path, settings=settings)["services"]["web"]
    assert service["tmpfs"] == [f"{STATE}:mode=1777,exec"]
