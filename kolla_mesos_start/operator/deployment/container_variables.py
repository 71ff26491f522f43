"""What containers are given besides what is published: the variables of KOLLA_VARIABLES_DIR.

The tool finds them in its own KOLLA_VARIABLES_DIR. They count where a definition is judged or tried out, and
are never published.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kolla_mesos_start.render import variables_dir

NAME = "KOLLA_VARIABLES_DIR"
HINT = f"; if containers find it in {NAME}, set that here too"


def environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable itself, for containers on this machine."""
    return {NAME: str(Path(environ[NAME]).absolute())} if environ.get(NAME) else {}


def variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The values. Raises CannotRender for a file that no container could read."""
    return variables_dir.read(environ[NAME]) if environ.get(NAME) else {}
