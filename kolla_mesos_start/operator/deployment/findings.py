"""Findings in a deployment's directory, each with its severity, file and line.

Pure, except for reading a file again to find a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, NamedTuple

from kolla_mesos_start.operator.deployment import formats
from kolla_mesos_start.operator.deployment.formats import TextPlace

ERROR, WARNING = "error", "warning"


class Finding(NamedTuple):
    """One mistake. `file` is its path in the directory, `line` is None if no single line is wrong."""

    severity: str
    file: str
    line: int | None
    message: str

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


def from_issue(file: str, issue: str, severity: str = ERROR) -> Finding:
    """The finding for an issue of a parser, which may name the line at its end."""
    match = re.search(r", line ([0-9]+)( column [0-9]+)?$", issue)
    return Finding(severity, file, int(match[1]) if match else None, issue)


def line_in(reason: str) -> int | None:
    """The line of a template that the agent's renderer names."""
    match = re.search(r" line ([0-9]+): ", reason)
    return int(match[1]) if match else None


def first_lines(uses: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The first line of each name, of all the lines on which they are used."""
    found: dict[str, int] = {}
    for name, line in uses:
        found[name] = min(line, found.get(name, line))
    return found


class Findings:
    """Collects findings about znodes, which are named by their path below the deployment.

    Errors in `lenient` services are warnings.
    """

    def __init__(self, sources: Sources, lenient: Iterable[str] = ()) -> None:
        self._found: dict[tuple[str, int | None, str], Finding] = {}
        self._sources = sources
        self._lenient = tuple(f"{service}/" for service in lenient)
        self._places: dict[str, Mapping[str, TextPlace]] = {}

    @property
    def found(self) -> Sequence[Finding]:
        """All findings, in the order in which they were added."""
        return list(self._found.values())

    def knows(self, node: str) -> bool:
        """Whether it is in the directory."""
        return node in self._sources

    def add(
        self,
        severity: str,
        node: str,
        message: str,
        *,
        label: str = "",
        line: int | None = None,
        about: str = "",
    ) -> None:
        """Add a finding about `node`: about its value at `label`, or the given line of its text.

        With both, `line` is relative to the text at the label. Nothing is added about znodes that are not
        in the directory. Of several findings `about` the same on one line, the first is kept, or the first
        error.
        """
        source = self._sources.get(node)
        if source is not None:
            at = self._line(source, label, line) if source.read else line
            self._add(node, Finding(severity, source.file, at, message), about)

    def add_issue(self, severity: str, node: str, issue: str) -> None:
        """Add an issue of the agent's parser, which begins with the label of the wrong value."""
        source = self._sources.get(node)
        if source is not None:
            labels = [label for label in self._places_of(source) if label and _begins(issue, label)]
            at = self._line(source, max(labels, key=len, default=""), None)
            parsed = from_issue(source.file, issue, severity)
            # An alias repeats a mistake in several commands.
            about = re.sub(r"^(commands\.[^.:]+|service\.daemon)\.", "", issue)
            self._add(node, parsed if parsed.line else parsed._replace(line=at), about)

    def _add(self, node: str, finding: Finding, about: str = "") -> None:
        if f"{node}/".startswith(self._lenient):
            finding = finding._replace(severity=WARNING)
        key = (finding.file, finding.line, about or finding.message)
        before = self._found.get(key)
        if before is None or (before.severity, finding.severity) == (WARNING, ERROR):
            self._found[key] = finding

    def _line(self, source: DataSource, label: str, line: int | None) -> int | None:
        places = self._places_of(source)
        full = f"{source.label}.{label}".strip(".")
        # A missing key has no line: take that of the object.
        while full and full not in places:
            full = full[: max(full.rfind("."), full.rfind("["), 0)]
        place = places.get(full)
        if place is None or (not full and not line):
            return line
        return place.line if line is None else place.text + line - 1

    def _places_of(self, source: DataSource) -> Mapping[str, TextPlace]:
        if source.file not in self._places and source.read is not None:
            self._places[source.file] = formats.places(source.read())
        return self._places.get(source.file, {})


def _begins(issue: str, label: str) -> bool:
    return issue.startswith(label) and issue[len(label) : len(label) + 1] in (":", ".", "[")


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By file and line."""
    return sorted(findings, key=lambda each: (each.file, each.line or 0, each.severity, each.message))


def counted(count: int, what: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{count} {what}" + ("" if count == 1 else "s")
