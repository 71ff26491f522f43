"""The manifests of two deployments, as they stand in `tests/golden`: what changes there, users see.

They are written anew by the command itself; the same for `etc/examples/keystone`, and for the other formats:

    golden=tests/golden/kubernetes
    kolla_mesos_ctl manifests kubernetes etc/openstack --deployment site --output $golden/openstack
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.operator import cli
from kolla_mesos_start.operator.deployment import directory
from tests import CHECKOUT

ETC, GOLDEN = CHECKOUT / "etc", CHECKOUT / "tests" / "golden"
DEPLOYMENTS = {"keystone": ETC / "examples" / "keystone", "openstack": ETC / "openstack"}
FORMATS = sorted(path.name for path in GOLDEN.iterdir())


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("format", FORMATS)
def test_the_files_are_those_that_are_kept(format: str, name: str, tmp_path: Path) -> None:
    """All of them, and no others."""
    words = [str(DEPLOYMENTS[name]), "--deployment", "site", "--output", str(tmp_path)]
    assert cli.run(["manifests", format, *words]) == 0
    assert contents(tmp_path) == contents(GOLDEN / format / name)


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
    assert len(directory.read(DEPLOYMENTS["openstack"]).services) == 15
    assert len((DEPLOYMENTS["openstack"] / "launch.yml").read_text().splitlines()) <= 80
