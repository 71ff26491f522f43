"""`kolla_mesos_ctl schema`: the JSON Schema of a definition, with which editors complete and check it."""

from __future__ import annotations

import argparse

from kolla_mesos_start.ctl.directory.json_schema import DEFINITION
from kolla_mesos_start.ctl.invocation import Invocation, Subcommand


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """It always prints the same."""


def run(invocation: Invocation) -> int:
    """Print the schema."""
    invocation.print_json(DEFINITION)
    return 0


SUBCOMMAND = Subcommand(
    description="""\
Print the JSON Schema (draft 7) of a definition, with which editors complete and check definition.yml.

For the YAML language server, write this above a definition:

  # yaml-language-server: $schema=/path/to/definition.schema.json
""",
    example="kolla_mesos_ctl schema > definition.schema.json",
    add_arguments=_no_arguments,
    run=run,
)
