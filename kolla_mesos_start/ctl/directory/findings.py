"""Findings in a deployment's directory: each with its severity, file and line.

What belongs here: locating and showing them, and ending a command that cannot continue with them. Pure,
except for reading a file again to find a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Callable, NamedTuple

from rich.console import Console
from rich.text import Text

from kolla_mesos_start import errors
from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.ctl.directory.formats import TextPlace
from kolla_mesos_start.errors import BadDefinition

ERROR, WARNING = "error", "warning"
COLOURS = {ERROR: "bold red", WARNING: "yellow"}


class Finding(NamedTuple):
    """One mistake. `file` is its path in the directory, `line` is None if no single line is wrong, `label`
    the value in the file that it is about."""

    severity: str
    file: str
    line: int | None
    message: str
    label: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class DataSource(NamedTuple):
    """The origin of a znode's data: a file, as a path in the directory, and a label in it.

    `read` returns the YAML with the label; it is None if the whole file is the data.
    """

    file: str
    label: str = ""
    read: Callable[[], bytes] | None = None


Sources = Mapping[str, DataSource]


def from_parser(file: str, issue: errors.Issue) -> Finding:
    """The finding for an issue of the parser of `file`."""
    return Finding(ERROR, file, issue.line, issue)


def first_lines(uses: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The first line of each name, of all the lines on which they are used."""
    found: dict[str, int] = {}
    for name, line in uses:
        found[name] = min(line, found.get(name, line))
    return found


class Issue(NamedTuple):
    """A mistake in the znode `node`, a path below the deployment; `located` turns it into a Finding.

    It is in the value at `label`, or on a `line` of the text. With both, `line` is relative to the text at
    the label. Of several issues `about` the same on one line, the first is kept, or the first error.
    """

    severity: str
    node: str
    message: str
    label: str = ""
    line: int | None = None
    about: str = ""


def located(issues: Iterable[Issue], sources: Sources) -> list[Finding]:
    """The findings for issues, in the same order: each with its file and line.

    Issues of znodes that are not in the directory are left out.
    """
    places: dict[str, Mapping[str, TextPlace]] = {}
    found: dict[tuple[str, int | None, str], Finding] = {}
    for issue in issues:
        source = sources.get(issue.node)
        if source is None:
            continue
        if source.file not in places:
            places[source.file] = formats.places(source.read()) if source.read else {}
        line = _line(source.label, issue.label, issue.line, places[source.file])
        finding = Finding(issue.severity, source.file, line, issue.message, issue.label)
        key = (finding.file, finding.line, issue.about or finding.message)
        before = found.get(key)
        if before is None or (before.severity, finding.severity) == (WARNING, ERROR):
            found[key] = finding
    return list(found.values())


def _line(outer: str, label: str, line: int | None, places: Mapping[str, TextPlace]) -> int | None:
    full = f"{outer}.{label}".strip(".")
    # A missing key has no line: take that of the object.
    while full and full not in places:
        full = full[: max(full.rfind("."), full.rfind("["), 0)]
    place = places.get(full)
    if place is None or (not full and not line):
        return line
    return place.line if line is None else place.text + line - 1


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


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By file and line."""
    return sorted(findings, key=lambda each: (each.file, each.line or 0, each.severity, each.message))


def counted(count: int, what: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{count} {what}" + ("" if count == 1 else "s")
