"""`kolla_mesos_ctl validate`: everything that is wrong in a directory, before anything runs.

What lives here: the command and how it prints. What is wrong is found in `validation`.
"""

from __future__ import annotations

import argparse

from kolla_mesos_start.operator.deployment import layouts
from kolla_mesos_start.operator.deployment.findings import ERROR, counted, in_order
from kolla_mesos_start.operator.invocation import DEPLOYMENT, Invocation, Subcommand, add_format
from kolla_mesos_start.operator.validation.refusal import shown
from kolla_mesos_start.operator.validation.rules import validate


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    layouts.add_arguments(parser)
    add_format(parser)


def run(invocation: Invocation) -> int:
    """Needs no ZooKeeper: 0, or 1 if there is an error."""
    options, environ = invocation.options, invocation.environ
    name = getattr(options, "deployment", None) or environ.get(DEPLOYMENT) or "deployment"
    deployment, unreadable = layouts.read(options, name)
    is_empty = environ.get("KOLLA_MISSING_VARIABLES") == "empty"
    wrong = validate(deployment, deployment_id=name, missing_is_empty=is_empty, given=invocation.given)
    findings = in_order([*unreadable, *wrong])
    errors = sum(each.severity == ERROR for each in findings)
    totals = {"services": len(deployment.services), "errors": errors, "warnings": len(findings) - errors}
    if invocation.as_json:
        invocation.print_json({**totals, "findings": [each._asdict() for each in findings]})
    else:
        for each in findings:
            invocation.out.print(shown(each))
        invocation.out.print(", ".join(counted(count, what.rstrip("s")) for what, count in totals.items()))
    return 1 if errors else 0


SUBCOMMAND = Subcommand(
    description="""\
Find everything that is wrong in a deployment's directory, with file and line. Nothing is connected to.

Errors are what would end an agent, or let it wait for ever. Warnings are what is probably not meant.
The exit status is 1 if there is an error. Variables that containers find in KOLLA_VARIABLES_DIR, and not in
ZooKeeper, are found here if that is set: to a directory with files of the same names. What secrets.yml names
counts as there, since publishing generates it.
""",
    example="kolla_mesos_ctl validate etc/examples/keystone",
    add_arguments=_add_arguments,
    run=run,
)
