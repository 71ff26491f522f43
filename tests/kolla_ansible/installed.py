"""Environments with kolla-ansible, ansible-core and the collections, from PyPI: one for each release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests import CHECKOUT
from tests.examples.openstack import INSTALL, PIP, UV, Say, install, kept, python_for_keystone, run

HERE = Path(__file__).parent
CACHE = CHECKOUT / ".cache"
# What each release is made of. `ansible` has the collections, and the ansible-core that the release supports.
RELEASES: Mapping[str, Sequence[str]] = {
    "22": ("kolla-ansible==22.*", "ansible==12.*"),
    "21": ("kolla-ansible==21.*", "ansible==12.*"),
    "20": ("kolla-ansible==20.*", "ansible==11.*"),
}
NEWEST = "22"


def pins(release: str) -> Path:
    """The file with the versions and hashes of all packages of a release; tests/support/pins.py makes it."""
    return HERE / "releases" / f"{release}.txt"


def environment(say: Say, release: str = NEWEST) -> Path:
    """The virtual environment of a release, which is made where it is missing."""
    python = python_for_keystone()
    wanted = (pins(release).read_bytes(), run((python, "-VV")))
    return kept(CACHE, f"kolla-ansible-{release}", wanted, partial(_make, python, release), say).parent


def _make(python: str, release: str, directory: Path) -> None:
    run((python, "-m", "venv", str(directory)))
    own = str(directory / "bin" / "python")
    install((own, *PIP, *INSTALL, UV))
    # Byte code of all collections would take minutes; ansible writes that of what it uses.
    uv = (str(directory / "bin" / "uv"), "pip", "install", "-q", "--no-cache", "--python", own)
    install((*uv, "--require-hashes", "-r", str(pins(release))))
