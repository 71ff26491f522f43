"""An environment with kolla-ansible, ansible-core and the collections, from PyPI."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests import CHECKOUT
from tests.examples.openstack import INSTALL, PIP, UV, Say, install, kept, python_for_keystone, run

HERE = Path(__file__).parent
FILES = (HERE / "requirements.txt", HERE / "constraints.txt")
CACHE = CHECKOUT / ".cache"


def environment(say: Say) -> Path:
    """The virtual environment, which is made where it is missing."""
    python = python_for_keystone()
    wanted = (*(file.read_bytes() for file in FILES), run((python, "-VV")))
    return kept(CACHE, "kolla-ansible", wanted, partial(_make, python), say).parent


def _make(python: str, directory: Path) -> None:
    requirements, constraints = map(str, FILES)
    run((python, "-m", "venv", str(directory)))
    own = str(directory / "bin" / "python")
    install((own, *PIP, *INSTALL, UV))
    # Byte code of all collections would take minutes; ansible writes that of what it uses.
    uv = (str(directory / "bin" / "uv"), "pip", "install", "-q", "--no-cache", "--python", own)
    install((*uv, "-c", constraints, "-r", requirements))
