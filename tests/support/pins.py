"""What is installed from PyPI: the version of every package, with the hashes of its files.

    .venv/bin/python -m tests.support.pins    writes the files, with the newest versions that setup.py allows

There is one file for each environment, for every Python from 3.9 to 3.13 and every processor; kolla-ansible
needs 3.11. Pip and uv take nothing else (--require-hashes).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tests import CHECKOUT
from tests.examples.openstack import INSTALL, PIP, UV
from tests.kolla_ansible import installed

AGENT = CHECKOUT / "etc" / "requirements" / "kolla_mesos_start.txt"
OPERATOR = CHECKOUT / "etc" / "requirements" / "kolla_mesos_ctl.txt"
TESTS = CHECKOUT / "tests" / "requirements.txt"
DOCS = CHECKOUT / "docs" / "requirements.txt"
RELEASE = CHECKOUT / "bin" / "requirements.txt"
LOWEST = CHECKOUT / "tests" / "lowest.txt"
# The extras of setup.py in each. The versions of the first are also those of the others.
EXTRAS = {
    TESTS: ("operator", "release", "test"),
    OPERATOR: ("operator",),
    AGENT: (),
    DOCS: ("operator", "docs"),
    RELEASE: ("release",),
}
BUILDS = "setuptools"  # what builds the package itself
# What the agent's tests need besides the agent's own packages, in the lowest versions of those.
NEEDED = ("hypothesis", "pytest", "pytest-timeout", "PyYAML", "rich", "shtab")


class Pin(NamedTuple):
    """One version of a package, and the SHA-256 digests of its files."""

    requirement: Requirement
    hashes: Sequence[str]

    @property
    def name(self) -> str:
        return self.requirement.name

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        return specifier.version

    @property
    def is_for_this_python(self) -> bool:
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def read(file: Path) -> list[Pin]:
    """All that a file pins; a package may have one version for old Pythons and another for new ones."""
    lines = file.read_text().replace("\\\n", " ").splitlines()
    return [_pin(line) for line in lines if line and not line.startswith("#")]


def _pin(line: str) -> Pin:
    requirement, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
    return Pin(Requirement(requirement), hashes)


def lowest() -> list[str]:
    """setup.py's lower bounds, each as the one version that it allows."""
    text = (CHECKOUT / "setup.py").read_text()
    wanted = re.search(r"install_requires=\[(.*?)\]", text, re.DOTALL)
    assert wanted is not None
    bounds: list[str] = re.findall(r'^\s*"([^"]+)",', wanted[1], re.MULTILINE)
    assert bounds and all(bound.count(">=") == 1 for bound in bounds), bounds
    return [bound.replace(">=", "==") for bound in bounds]


# -- making the files -----------------------------------------------------------------------------------


def make() -> None:
    """Make all files anew."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run((sys.executable, "-m", "venv", place), check=True)
        subprocess.run((f"{place}/bin/python", *PIP, *INSTALL, UV), check=True)
        uv, tested = f"{place}/bin/uv", Path(place, "tested.txt")
        tested.write_text("")
        for file, extras in EXTRAS.items():
            options = ("setup.py", *(f"--extra={extra}" for extra in extras))
            _compile(uv, file, [BUILDS], f"--constraints={tested}", *options)
            tested.write_text(versions(TESTS))
        own = {Requirement(each).name for each in lowest()}
        tested.write_text(versions(TESTS, but=own))
        _compile(uv, LOWEST, [*lowest(), *NEEDED], f"--constraints={tested}")
        for release, wanted in installed.RELEASES.items():
            _compile(uv, installed.pins(release), wanted, python="3.11")


def versions(file: Path, but: Collection[str] = ()) -> str:
    """The versions without the hashes, for those of other files."""
    return "".join(f"{pin.requirement}\n" for pin in read(file) if pin.name not in but)


def _compile(uv: str, file: Path, wanted: Sequence[str], *more: str, python: str = "3.9") -> None:
    """Write the newest versions of what is `wanted`, and of all that it needs, into the file."""
    print(f"making {file.relative_to(CHECKOUT)}", flush=True)
    options = ("--universal", f"--python-version={python}", "--generate-hashes", "--upgrade", "--no-annotate")
    says = "--custom-compile-command=.venv/bin/python -m tests.support.pins"
    argv = (uv, "pip", "compile", "--quiet", *options, says, f"--output-file={file}", *more, "-")
    subprocess.run(argv, cwd=CHECKOUT, input="\n".join(wanted), text=True, check=True)


if __name__ == "__main__":
    make()
