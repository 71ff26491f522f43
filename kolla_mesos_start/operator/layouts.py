"""What a command reads from DIR, and the options that say so.

What lives here: the arguments that `validate`, `diff` and `publish` share, and the choice of the layout.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator import directory
from kolla_mesos_start.operator.directory import Deployment
from kolla_mesos_start.operator.findings import Finding
from kolla_mesos_start.operator.invocation import NotThere


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the deployment's directory")


def read(options: argparse.Namespace) -> tuple[Deployment, Sequence[Finding]]:
    """What DIR holds, and what can't be read in it. NotThere if there is none; BadUsage if it is closed."""
    path: Path = options.directory
    if not path.is_dir():
        raise NotThere(f"{path} is not a directory")
    try:
        return directory.look(path)
    except OSError as error:
        raise BadUsage(f"{error.filename} can't be read: {error.strerror}") from error
