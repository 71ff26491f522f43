"""bin/quickstart --keystone, with the programs that the other tests of Keystone use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.quickstarts import Quickstart, checkout_in

LANES = (
    *("mariadb@ctl-1", "memcached@ctl-2", "keystone_tasks@ctl-3"),
    *("keystone-api@ctl-1", "keystone-api@ctl-2", "keystone-api@ctl-3"),
)

pytestmark = pytest.mark.timeout(900)


def test_it_shows_a_real_keystone(programs: Path, place: Path, report: list[str]) -> None:
    """A token that one replica has issued and another one knows, the timeline; no process is left."""
    (place / "q").mkdir(mode=0o755)
    quickstart = Quickstart(_with_programs(checkout_in(place / "q")), "--keystone", "--once")
    try:
        assert quickstart.ends() == 0, quickstart.said
        said = quickstart.said
    finally:
        quickstart.close()
    assert "installing" not in said, "the environment of the other tests is a good one"
    drawn, _, request = said.partition("the timeline of the start")[2].partition("a request and its answer")
    for lane in LANES:
        assert re.search(rf"\n  {lane} +\.+[.#+]+=* *\n", drawn), drawn
    assert re.search(r"\n\* mariadb/daemon \(ctl-1\) .*(\n.*)*\n\* keystone-api/db_sync ", drawn), drawn
    assert re.search(r"auth/tokens, as the administrator\n +a token of \d\d+ characters\n", request)
    assert '"name": "admin"' in request
    for path in re.findall(r"\S+/site/\S+/", request):
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
