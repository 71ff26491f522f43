"""What is said where an example of OpenStack can't be prepared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kolla_mesos_start.errors import BadUsage
from tests.examples import openstack, quickstart


def test_packages_that_can_not_be_installed_name_the_index() -> None:
    """After the installer's own words, whose last ones are about versions, whatever has happened."""
    with pytest.raises(
        BadUsage, match=r"(?s)no such version.* PIP_INDEX_URL and UV_DEFAULT_INDEX name another"
    ):
        openstack.install((sys.executable, "-c", "import sys; sys.exit('no such version')"))


def test_a_directory_that_can_not_stand_in_config_files_says_what_can() -> None:
    with pytest.raises(BadUsage, match="letters, digits and"):
        quickstart._check_name(Path("/srv/with space"))
