"""The variables of KOLLA_VARIABLES_DIR, which containers have besides the published ones.

The tool reads its own KOLLA_VARIABLES_DIR. Validation and `up` use these variables; they are never published.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kolla_mesos_start.render import variables_dir

NAME = "KOLLA_VARIABLES_DIR"
HINT = f"if containers find it in {NAME}, set that here too"


def environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variable, for containers on this machine."""
    return {NAME: str(Path(environ[NAME]).absolute())} if environ.get(NAME) else {}


def variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The values. Raises CannotRender for a file that no container could read."""
    return variables_dir.read(environ[NAME]) if environ.get(NAME) else {}
