"""bin/quickstart --openstack, with programs that were installed for the tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.arrangement import section
from tests.support.quickstarts import Quickstart, Size, checkout_in

pytestmark = pytest.mark.timeout(900)


def test_it_boots_a_server_in_a_whole_openstack(
    whole_programs: Path, place: Path, pytestconfig: pytest.Config
) -> None:
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
    section(pytestconfig, "bin/quickstart --openstack").append(drawn.rpartition("\n\n")[0])


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
