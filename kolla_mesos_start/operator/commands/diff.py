"""`kolla_mesos_ctl diff`: what publishing a directory would change, and who would still run the old."""

from __future__ import annotations

import argparse

from kolla_mesos_start.operator.deployment import layouts
from kolla_mesos_start.operator.invocation import Subcommand, add_format
from kolla_mesos_start.operator.live.difference import run


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    layouts.add_arguments(parser)
    add_format(parser)


SUBCOMMAND = Subcommand(
    description="""\
Show what publishing a directory would change, and the containers that would still run the old.

Values whose names say that they are secrets are hidden, wherever they stand, and so are those that
secrets.yml or --secrets names. What only
`publish --prune` would remove is listed, and is no difference. The exit status is 1 if anything differs.
Before the first publication everything is new. `publish --dry-run` does the same.
""",
    example="kolla_mesos_ctl diff etc/examples/keystone --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
