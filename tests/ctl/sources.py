"""Reads a directory in a test as the commands do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.directory.findings import Finding
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.validate.rules import validate


def load(root: Path, *options: str, given: Mapping[str, str] = MappingProxyType({})) -> Source:
    """Read a directory with these options of the command line."""
    parser = argparse.ArgumentParser()
    source.add_arguments(parser)
    return source.load(parser.parse_args([str(root), *options]), "site", given)


def findings(root: Path) -> Sequence[Finding]:
    """Everything that `validate` finds in a directory."""
    loaded = load(root)
    return [*loaded.unreadable, *validate(loaded.deployment)]
