"""What is said where an example of OpenStack can't be prepared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.errors import BadUsage
from tests.examples import openstack, quickstart
from tests.examples.keystone import API


def test_packages_that_can_not_be_installed_name_the_index() -> None:
    """After the installer's own words, whose last ones are about versions, whatever has happened."""
    with pytest.raises(
        BadUsage, match=r"(?s)no such version.* PIP_INDEX_URL and UV_DEFAULT_INDEX name another"
    ):
        openstack.install((sys.executable, "-c", "import sys; sys.exit('no such version')"))


def test_a_directory_that_can_not_stand_in_config_files_says_what_can() -> None:
    with pytest.raises(BadUsage, match="letters, digits and"):
        quickstart._check_name(Path("/srv/with space"))


def test_what_keystones_quickstart_runs_is_valid(tmp_path: Path) -> None:
    """With the ports, users and passwords of this machine; each replica has a port of its own."""
    quickstart.write(tmp_path / "site", tmp_path / "volumes")
    deployment = directory.read(tmp_path / "site")
    assert not [each for each in validate(deployment, deployment_id="quickstart") if each.severity == "error"]
    (api,) = (each for each in deployment.services if each.name == API)
    assert len({values["keystone_port"] for values in api.variables.hosts.values()}) == 3
