"""What a container may do on its host, in each format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.findings import WARNING
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from kolla_mesos_start.ctl.manifests.model import Manifests, Site, build
from tests.publishing import write_files

LAUNCH = """\
zookeeper: zk-1:2181
hosts: {compute: [cmp-1]}
defaults: {image: "site/vswitch:1", placement: compute, network: host, capabilities: [NET_ADMIN], user: 0}
services:
  vswitch:
    privileged: true
    pid: host
    ipc: host
    cgroup: host
    limits: {nofile: 1024:2048}
    security_options: [label=disable]
    devices: ["/dev/tun:/dev/net/tun:rw"]
    volumes:
      /run/netns: {host: /run/netns, propagation: shared}
      /lib/modules: {host: /lib/modules, read_only: yes}
      /var/log: {volume: my_logs, read_only: yes}
  web: {new_privileges: true}
"""
DAEMON = "service: {daemon: {command: sleep 9, ready: {alive: 0}}}\n"


def made(root: Path, format: str, launch: str = LAUNCH) -> Manifests:
    services = {f"services__{name}__definition_yml": DAEMON for name in ("vswitch", "web")}
    model, wrong = build(directory.read(write_files(root, launch_yml=launch, **services)), Site("site"))
    assert not wrong
    return FORMATS[format](model)


def test_a_quadlet_has_options_of_podman(tmp_path: Path) -> None:
    files = made(tmp_path, "quadlet").files
    lines = files["cmp-1/site_vswitch.container"].splitlines()
    assert {
        "PodmanArgs=--privileged",
        "PodmanArgs=--pid=host",
        "PodmanArgs=--ipc=host",
        "PodmanArgs=--cgroupns=host",
        "Ulimit=nofile=1024:2048",
        "PodmanArgs=--security-opt=label=disable",
        "AddDevice=/dev/tun:/dev/net/tun:rw",
        "Volume=/run/netns:/run/netns:shared",
        "Volume=/lib/modules:/lib/modules:ro",
        "Volume=my_logs:/var/log:ro",
    } <= set(lines)
    assert not {"NoNewPrivileges=true", "DropCapability=all"} & set(lines)
    web = files["cmp-1/site_web.container"].splitlines()
    assert "DropCapability=all" in web and "NoNewPrivileges=true" not in web


def test_compose_has_keys_of_its_own(tmp_path: Path) -> None:
    services = yaml.safe_load(made(tmp_path, "compose").files["cmp-1.yml"])["services"]
    wanted: Mapping[str, Any] = {
        "privileged": True,
        "pid": "host",
        "ipc": "host",
        "cgroup": "host",
        "ulimits": {"nofile": {"soft": 1024, "hard": 2048}},
        "security_opt": ["label=disable"],
        "devices": ["/dev/tun:/dev/net/tun:rw"],
    }
    assert wanted.items() <= services["vswitch"].items()
    assert services["vswitch"]["volumes"][0]["bind"] == {"create_host_path": False, "propagation": "shared"}
    assert services["vswitch"]["volumes"][2] == {
        "type": "volume",
        "source": "my_logs",
        "target": "/var/log",
        "read_only": True,
    }
    assert "security_opt" not in services["web"]


@pytest.mark.parametrize("format", ["quadlet", "compose"])
def test_what_the_host_loses_at_each_boot_is_named(tmp_path: Path, format: str) -> None:
    """Podman refuses to start a container with a path that does not exist, and so does Compose here.

    A path without propagation may be a socket.
    """
    socket = "      /run/a.sock: {host: /run/a.sock}\n  web:"
    launch = LAUNCH.replace("  web:", socket)
    (note,) = [note for note in made(tmp_path, format, launch).notes if " /run/" in note]
    assert note.startswith("on cmp-1: create /run/netns at each boot")


def test_marathon_has_parameters_of_docker(tmp_path: Path) -> None:
    app = json.loads(made(tmp_path, "marathon").files["vswitch.json"])["container"]
    assert {(each["key"], each["value"]) for each in app["docker"]["parameters"]} == {
        ("user", "0"),
        ("stop-signal", "SIGTERM"),
        ("privileged", "true"),
        ("pid", "host"),
        ("ipc", "host"),
        ("cgroupns", "host"),
        ("ulimit", "nofile=1024:2048"),
        ("security-opt", "label=disable"),
        ("device", "/dev/tun:/dev/net/tun:rw"),
        ("volume", "/run/netns:/run/netns:rw,shared"),
        ("volume", "my_logs:/var/log:ro"),
    }
    assert [each["mode"] for each in app["volumes"]] == ["RO"]


def test_a_pod_has_what_kubernetes_knows_and_a_note_for_the_rest(tmp_path: Path) -> None:
    found = made(tmp_path, "kubernetes")
    pod = yaml.safe_load(found.files["vswitch.yml"])["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["hostPID"], pod["hostIPC"]) == (True, True)
    assert container["securityContext"] == {"allowPrivilegeEscalation": True, "privileged": True}
    mounts = container["volumeMounts"]
    assert [each.get("mountPropagation") for each in mounts] == ["Bidirectional", None, None]
    assert [each.get("readOnly") for each in mounts] == [None, True, True]
    assert {"path": "/var/lib/kolla/site/volume/my_logs", "type": "DirectoryOrCreate"} in [
        each["hostPath"] for each in pod["volumes"]
    ]
    assert (
        "vswitch: a pod has no `cgroup`, `limits`, `security_options`: set them on its hosts" in found.notes
    )
    assert (
        "vswitch: a pod has no `devices`: give it /dev/tun with a device plugin, or with privileged: true and"
        " {host: /dev/tun}" in found.notes
    )


@pytest.mark.parametrize("path", ["/", "/lib"])
def test_only_the_whole_file_system_of_a_host_is_warned_of(path: str, tmp_path: Path) -> None:
    launch = LAUNCH.replace("{host: /lib/modules, read_only: yes}", f"{{host: {path}}}")
    services = {f"services__{name}__definition_yml": DAEMON for name in ("vswitch", "web")}
    deployment = directory.read(write_files(tmp_path, launch_yml=launch, **services))
    found = build(deployment, Site("site"))[1]
    assert [each.severity for each in found] == [WARNING] * (path == "/")
