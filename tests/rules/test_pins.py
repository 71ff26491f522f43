"""The files that pin what is installed are what setup.py asks for, with a hash for everything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import CHECKOUT
from tests.kolla_ansible import installed
from tests.rules.test_house import NEEDED
from tests.support import pins

FILES = list(pins.EXTRAS)
PYTHONS = [f"3.{minor}" for minor in range(9, 14)]


def versions(file: Path, python: str) -> dict[str, str]:
    """What is installed with this Python; one version of each package."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    found = [
        (canonicalize_name(pin.name), pin.version)
        for pin in pins.read(file)
        if pin.requirement.marker is None or pin.requirement.marker.evaluate(environment)
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize(
    "file", [*FILES, *map(installed.pins, installed.RELEASES)], ids=lambda file: file.name
)
def test_everything_has_a_hash(file: Path) -> None:
    """And nothing says from which host it comes: that is the machine's business."""
    for pin in pins.read(file):
        assert pin.hashes and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in pin.hashes)
    assert "://" not in file.read_text() and "/" not in re.sub("# .*", "", file.read_text())


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_pinned_versions_are_what_setup_py_asks_for(file: Path, python: str) -> None:
    """Each requirement has a version that it allows, and every file the same one."""
    pinned, tested = versions(file, python), versions(pins.TESTS, python)
    assert pinned.items() <= tested.items()
    for text in (pins.BUILDS, *required(pins.EXTRAS[file])):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_the_extra_for_imports_has_the_tool_and_allows_the_tested_release() -> None:
    found = {each.name: each for each in map(Requirement, required(["import"]))}
    assert {each.name for each in map(Requirement, required(["operator"]))} <= found.keys()
    tested = (CHECKOUT / "tests" / "kolla_ansible" / "releases" / "22.txt").read_text()
    for name in ("kolla-ansible", "ansible"):
        version = re.search(rf"^{name}==(\S+)", tested, re.MULTILINE)
        assert version and found[name].specifier.contains(version[1])
        assert not found[name].specifier.contains("99")


def required(extras: Iterable[str]) -> list[str]:
    """The lines of setup.py for the package with these extras."""
    text = (CHECKOUT / "setup.py").read_text()
    keys = ("install_requires", *(f'"{extra}"' for extra in extras))
    lists = [re.search(rf"^ *{key}[=:] ?\[(.*?)\]", text, re.DOTALL | re.MULTILINE) for key in keys]
    return [line for found in lists if found for line in re.findall(r'"([a-zA-Z][^"]*)"', found[1])]


def test_a_container_gets_nothing_else() -> None:
    """But for what one of the five needs itself, and what builds the agent, which doesn't stay."""
    for python in PYTHONS:
        assert versions(pins.AGENT, python).keys() == {*NEEDED, "markupsafe", pins.BUILDS}
