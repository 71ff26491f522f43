"""bin/quickstart --keystone, with the programs that the other tests of Keystone use."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import CHECKOUT
from tests.examples.keystone import API, issue_token, url, validate_token
from tests.quickstarts import Quickstart, Size, checkout_in

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
    drawn, _, places = said.partition("the timeline of the start")[2].partition("Where to find things")
    for lane in LANES:
        assert re.search(rf"\n  {lane} +\.+[.#+]+=* *\n", drawn), drawn
    assert re.search(r"\n\* mariadb/daemon \(ctl-1\) .*(\n.*)*\n\* keystone-api/db_sync ", drawn), drawn
    for path in re.findall(r"\S+/site/\S+/", places):
        assert (quickstart.checkout / path / "log").is_file()
    assert not quickstart.left()
    report.append(f"bin/quickstart --keystone:{drawn.rpartition(chr(10) + chr(10))[0]}")


def test_it_boots_a_server_in_a_whole_openstack(whole_programs: Path, place: Path, report: list[str]) -> None:
    """What it suggests works in another terminal: the server is there. No process is left."""
    (place / "w").mkdir(mode=0o755)
    checkout = _with_programs(checkout_in(place / "w"))
    quickstart = Quickstart(checkout, "--openstack", terminal=Size(120, 40))
    try:
        quickstart.says("-- up; Ctrl-C ends it")
        said = quickstart.said
        assert "secrets into " in said and (checkout / ".quickstart/secrets.yml").exists()
        load, *_, openrc, listing, _services, _status, _help = suggested(said)
        shown = subprocess.run(
            ["sh", "-c", f"{load}; {openrc}; {listing} --format value --column Name --column Status"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert shown.stdout == "first ACTIVE\n"
        quickstart.types(b"\x03")
        assert quickstart.ends() == 0, quickstart.said
    finally:
        quickstart.close()
    drawn = said.partition("the timeline of the start")[2].partition("Where to find things")[0]
    assert re.search(r"\n\* mariadb/daemon (.*\n)*\* nova_hosts/discover .*\n\* first_server/boot ", drawn), (
        drawn
    )
    assert not quickstart.left()
    report.append(f"bin/quickstart --openstack:{drawn.rpartition(chr(10) + chr(10))[0]}")


def suggested(said: str) -> list[str]:
    """The commands that are suggested once all are up."""
    lines = said.partition("What to try next")[2].partition("\n\n")[0].splitlines()[1:]
    return [line.strip() for line in lines]


def _with_programs(checkout: Path) -> Path:
    """The checkout, in whose directory Keystone's programs are those that were installed for the tests."""
    directory = checkout / ".quickstart"
    directory.mkdir(mode=0o755)
    (directory / "quickstart.lock").touch()
    (directory / "cache").symlink_to(CHECKOUT / ".cache")
    return checkout
