"""The manifests of three deployments, as they are in `tests/golden`: users see every change in them.

`kinds` is a small deployment with every kind of service. This writes all files again:

    .venv/bin/python -m tests.ctl.manifests.test_golden_manifests
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from tests import CHECKOUT
from tests.ctl.manifests.test_manifests import LAUNCH, site

ETC, GOLDEN = CHECKOUT / "etc", CHECKOUT / "tests" / "golden"
DEPLOYMENTS = {"keystone": ETC / "examples" / "keystone", "openstack": ETC / "openstack", "kinds": None}
FORMATS = sorted(path.name for path in GOLDEN.iterdir())


# A network of its own, a value that every launcher would expand, and a directory of the host.
KINDS = (
    LAUNCH.replace("a/web: {", "a/web: {network: own, ")
    .replace('"$$(A){{ port }}"', r'"$A $$(A) 5% \"x\n"')
    .replace("/run/db: temporary", "/run/db: temporary, /m: {host: /lib}, /var/log/db: {volume: logs}")
)


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("format", FORMATS)
def test_the_manifests_are_those_of_the_repository(format: str, name: str, tmp_path: Path) -> None:
    """The same files with the same content."""
    write(format, name, tmp_path / "made", tmp_path / "site")
    assert contents(tmp_path / "made") == contents(GOLDEN / format / name)


def write(format: str, name: str, place: Path, scratch: Path) -> None:
    """Write the manifests of a deployment into `place`."""
    root = DEPLOYMENTS[name] or site(scratch, KINDS)
    assert cli.run(["manifests", format, str(root), "--deployment", "site", "--output", str(place)]) == 0


def contents(place: Path) -> dict[str, str]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_text() for path in found}


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_kubernetes_takes_them_and_knows_every_field(name: str, version: str) -> None:
    """By its own schemas."""
    paths = sorted((GOLDEN / "kubernetes" / name).iterdir())
    argv = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]
    done = subprocess.run([*argv, *map(str, paths)], capture_output=True, text=True, timeout=60, check=False)
    count = sum(len(list(yaml.safe_load_all(path.read_text()))) for path in paths)
    assert (done.returncode, done.stdout.count(" passed for ")) == (0, count), done.stdout


def test_fifteen_services_are_few_lines_by_hand() -> None:
    """All that a launcher has to be told of a whole OpenStack."""
    assert len(directory.read(ETC / "openstack").services) == 15
    assert len((ETC / "openstack" / "launch.yml").read_text().splitlines()) <= 80


if __name__ == "__main__":
    for each in FORMATS:
        for name in DEPLOYMENTS:
            shutil.rmtree(GOLDEN / each / name, ignore_errors=True)
            with tempfile.TemporaryDirectory() as scratch:
                write(each, name, GOLDEN / each / name, Path(scratch) / "site")
