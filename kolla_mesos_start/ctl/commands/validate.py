"""`kolla_mesos_ctl validate`: list everything that is wrong in a directory."""

from __future__ import annotations

import argparse

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.directory.findings import ERROR, counted, in_order, shown
from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    source.add_arguments(parser)
    add_format(parser)


def run(invocation: Invocation) -> int:
    """Needs no ZooKeeper. Status 1 if there is an error."""
    loaded, _ = without_unused_secrets(invocation.load(is_local=True))
    is_empty = invocation.environ.get("KOLLA_MISSING_VARIABLES") == "empty"
    wrong = validate(
        loaded.deployment, deployment_id=loaded.name, missing_is_empty=is_empty, given=loaded.given
    )
    findings = in_order([*loaded.unreadable, *wrong])
    errors = sum(each.severity == ERROR for each in findings)
    services = len(loaded.deployment.services)
    totals = {"services": services, "errors": errors, "warnings": len(findings) - errors}
    if invocation.as_json:
        invocation.print_json({**totals, "findings": [each._asdict() for each in findings]})
    else:
        for each in findings:
            invocation.out.print(shown(each))
        invocation.out.print(", ".join(counted(count, what.rstrip("s")) for what, count in totals.items()))
    return 1 if errors else 0


SUBCOMMAND = Subcommand(
    description="""\
Find everything that is wrong in a deployment's directory, with file and line. Needs no connection.

An error would end an agent or let it wait forever. A warning is a likely mistake. The exit status is 1 if
there is an error. If containers find variables in KOLLA_VARIABLES_DIR instead of ZooKeeper, set it here to a
directory with files of the same names. Variables of secrets.yml count as present, because publishing
generates them.
""",
    example="kolla_mesos_ctl validate etc/examples/keystone",
    add_arguments=_add_arguments,
    run=run,
)
