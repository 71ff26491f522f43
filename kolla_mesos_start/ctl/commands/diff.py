"""`kolla_mesos_ctl diff`: what publishing a directory would change."""

from __future__ import annotations

import argparse

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.ctl.live import difference
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    source.add_arguments(parser)
    add_format(parser)


def run(invocation: Invocation) -> int:
    """Status 1 if anything differs."""
    loaded, _ = without_unused_secrets(invocation.load())
    return difference.run(invocation, loaded)


SUBCOMMAND = Subcommand(
    description="""\
Show what publishing a directory would change, and which containers would still run with the old state.

Values are hidden if their name looks like a secret, if secrets.yml or --secrets names them, or if acl.yml
restricts them. Znodes that only `publish --prune` would remove are listed, but do not count as differences.
The exit status is 1 if anything differs. Before the first publication everything is new.
`publish --dry-run` does the same.
""",
    example="kolla_mesos_ctl diff etc/examples/keystone --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
