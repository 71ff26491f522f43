"""bin/quickstart --keystone, with the programs that the other tests of Keystone use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.operator.progress import Size
from tests import CHECKOUT
from tests.examples.keystone import API, issue_token, url, validate_token
from tests.quickstarts import Quickstart, checkout_in

LANES = (
    *("mariadb@ctl-1", "memcached@ctl-2", "keystone_tasks@ctl-3"),
    *("keystone-api@ctl-1", "keystone-api@ctl-2", "keystone-api@ctl-3"),
)

pytestmark = pytest.mark.timeout(900)


def test_it_shows_a_real_keystone(programs: Path, place: Path, report: list[str]) -> None:
    """The timeline; a token that one replica has issued and another one knows; no process is left."""
    (place / "q").mkdir(mode=0o755)
    checkout = _with_programs(checkout_in(place / "q"))
    quickstart = Quickstart(checkout, "--keystone", terminal=Size(120, 40))
    try:
        quickstart.says("-- up; Ctrl-C ends it")
        said = quickstart.said
        site = checkout / ".quickstart/keystone"
        variables = yaml.safe_load((site / "variables.yml").read_text())
        token = issue_token(variables["keystone_url"], variables["keystone_admin_password"])
        other = (site / "services" / API / "variables/ctl-2/keystone_port").read_text()
        assert validate_token(url(int(other)), token)["user"]["name"] == "admin"
        quickstart.types(b"\x03")
        assert quickstart.ends() == 0, quickstart.said
    finally:
        quickstart.close()
    assert "installing" not in said, "the environment of the other tests is a good one"
    drawn, _, places = said.partition("the timeline of the start")[2].partition("Where things lie")
    for lane in LANES:
        assert re.search(rf"\n  {lane} +\.+[.#+]+=* *\n", drawn), drawn
    assert re.search(r"\n\* mariadb/daemon \(ctl-1\) .*(\n.*)*\n\* keystone-api/db_sync ", drawn), drawn
    for path in re.findall(r"\S+/site/\S+/", places):
        assert (quickstart.checkout / path / "log").is_file()
    assert not quickstart.left()
    report.append(f"bin/quickstart --keystone:{drawn.rpartition(chr(10) + chr(10))[0]}")


def _with_programs(checkout: Path) -> Path:
    """The checkout, in whose directory Keystone's programs are those that were installed for the tests."""
    directory = checkout / ".quickstart"
    directory.mkdir(mode=0o755)
    (directory / "quickstart.lock").touch()
    (directory / "cache").symlink_to(CHECKOUT / ".cache")
    return checkout
