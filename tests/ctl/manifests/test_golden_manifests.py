"""The manifests of a deployment with every kind of service, as they are in `tests/golden`: users see every
change in them.

This writes all files again:

    .venv/bin/python -m tests.ctl.manifests.test_golden_manifests
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from tests import CHECKOUT
from tests.ctl.manifests.test_manifests import DAEMON, LAUNCH, site
from tests.ctl.manifests.test_mounted_agent import AGENTS
from tests.support.marathon import wrong

ETC, GOLDEN = CHECKOUT / "etc", CHECKOUT / "tests" / "golden"
EXAMPLES = {
    "keystone": ETC / "examples" / "keystone",
    "galera": ETC / "examples" / "galera",
    "openstack": ETC / "openstack",
    "kinds": None,
    "mounted": None,
}
# Everything that a container may do on its host; a daemon that is drained.
HOST = """\
  vswitch:
    network: host
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
  sudo: {new_privileges: true, stop_signal: QUIT, start_timeout: 600}
"""
DRAINED = ", drain: 30, before_stop: {command: 'true', timeout: 4}, stop_grace: 20"
# A network of its own, a value that every launcher would expand, and a directory of the host.
KINDS = (
    LAUNCH.replace("a/web: {", "a/web: {network: own, ")
    .replace("10Gi", "{size: 10Gi, storage_class: fast}")
    .replace('"$$(A){{ port }}"', r'"$A $$(A) 5% \"x\n"')
    .replace("/run/db: temporary", "/run/db: temporary, /m: {host: /lib}, /var/log/db: {volume: logs}")
) + HOST


@pytest.mark.parametrize("format", FORMATS)
def test_the_manifests_are_those_of_the_repository(format: str, tmp_path: Path) -> None:
    """The same files with the same content."""
    assert contents(written(format, "kinds", tmp_path)) == contents(GOLDEN / format)


def written(format: str, name: str, scratch: Path, place: Path | None = None) -> Path:
    """The directory with the manifests of an example."""
    place = place or scratch / "made"
    kinds = {
        "services__vswitch__definition_yml": DAEMON % ("", 1),
        "services__sudo__definition_yml": DAEMON % (DRAINED, 1),
    }
    launch = f"agent: {AGENTS[format]}\n{LAUNCH}" if name == "mounted" else KINDS
    root = EXAMPLES[name] or site(scratch / "site", launch, **({} if name == "mounted" else kinds))
    assert cli.run(["manifests", format, str(root), "--deployment", "site", "--output", str(place)]) == 0
    return place


def contents(place: Path) -> dict[str, str]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_text() for path in found}


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_takes_them_and_knows_every_field(name: str, version: str, tmp_path: Path) -> None:
    """By its own schemas."""
    paths = sorted(written("kubernetes", name, tmp_path).glob("*.yml"))
    argv = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]
    done = subprocess.run([*argv, *map(str, paths)], capture_output=True, text=True, timeout=60, check=False)
    count = sum(len(list(yaml.safe_load_all(path.read_text()))) for path in paths)
    assert (done.returncode, done.stdout.count(" passed for ")) == (0, count), done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_marathon_knows_every_field(name: str, tmp_path: Path) -> None:
    """Every field is one that it documents, each of its kind."""
    for path in written("marathon", name, tmp_path).iterdir():
        assert wrong(json.loads(path.read_text())) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_composes_own_schema_takes_it(name: str, tmp_path: Path) -> None:
    """That of the specification, which check-jsonschema brings."""
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    paths = sorted(written("compose", name, tmp_path).iterdir())
    subprocess.run([*argv, *map(str, paths)], timeout=60, check=True)


# Keys of a container's quadlet that the generator of podman 4.9.4 has. Later ones are options in PodmanArgs.
KEYS = frozenset(
    """
    AddCapability AddDevice ContainerName DropCapability Environment Exec HealthCmd HealthInterval
    HealthOnFailure HealthRetries HealthTimeout Image Mount Network NoNewPrivileges PodmanArgs PublishPort
    ReadOnly ReadOnlyTmpfs Tmpfs Ulimit User Volume
    """.split()  # noqa: SIM905
)


@pytest.mark.parametrize("name", ["kinds", "mounted"])
def test_podman_4_9_has_every_key_of_a_quadlet(name: str, tmp_path: Path) -> None:
    """It refuses a whole file for one key that it does not have."""
    found = set()
    for path in written("quadlet", name, tmp_path).rglob("*.container"):
        lines = path.read_text().partition("[Container]\n")[2].partition("\n[Service]")[0].splitlines()
        found |= {line.partition("=")[0] for line in lines if line}
    assert "Image" in found and found <= KEYS


if __name__ == "__main__":
    for each in FORMATS:
        shutil.rmtree(GOLDEN / each, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            written(each, "kinds", Path(scratch), GOLDEN / each)
