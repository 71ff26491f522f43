"""What validation has found, as it is printed, and the end of a command that does not go on with it.

What lives here: how a finding is shown or refused. What is wrong is found in `rules`.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.operator.deployment.findings import ERROR, WARNING, Finding


class InvalidDirectory(BadDefinition):
    """What validation has found; each error with its place."""

    subject = "error"


def refuse(errors: Iterable[Finding]) -> None:
    """Raise InvalidDirectory if there is any."""
    issues = [f"{each.place}: {each.message}" for each in errors]
    if issues:
        raise InvalidDirectory(issues)


COLOURS = {ERROR: "bold red", WARNING: "yellow"}


def shown(finding: Finding) -> Text:
    """As compilers print it, so that editors find the line."""
    colour = COLOURS[finding.severity]
    return Text.assemble(f"{finding.place}: ", (finding.severity, colour), f": {finding.message}")
