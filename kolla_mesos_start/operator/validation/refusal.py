"""Shows findings, and ends a command that cannot continue with them. They are found in `rules`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.operator.deployment.findings import ERROR, WARNING, Finding

COLOURS = {ERROR: "bold red", WARNING: "yellow"}


class InvalidDirectory(BadDefinition):
    """The errors of validation, each with its place."""

    subject = "error"


def refuse(findings: Iterable[Finding], console: Console | None = None) -> None:
    """Raise InvalidDirectory if a finding is an error; otherwise print all on the console."""
    findings = list(findings)
    issues = [f"{each.place}: {each.message}" for each in findings if each.severity == ERROR]
    if issues:
        raise InvalidDirectory(issues)
    if console:
        for each in findings:
            console.print(shown(each))


def shown(finding: Finding) -> Text:
    """The format of compilers, so that editors find the line."""
    colour = COLOURS[finding.severity]
    return Text.assemble(f"{finding.place}: ", (finding.severity, colour), f": {finding.message}")
