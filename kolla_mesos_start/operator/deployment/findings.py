"""What is wrong with a deployment's directory: each finding with its severity, file and line.

What lives here: the record, and finding the line on which something stands. Pure, but for reading a file
once more to find a line in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, NamedTuple

from kolla_mesos_start.operator.deployment import formats
from kolla_mesos_start.operator.deployment.formats import TextPlace

ERROR, WARNING = "error", "warning"


class Finding(NamedTuple):
    """One mistake. `file` is its path in the directory, `line` is None where no single line is to blame."""

    severity: str
    file: str
    line: int | None
    message: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class DataSource(NamedTuple):
    """Where a znode's data comes from: a file, as a path in the directory, and a label in it.

    `read` returns the YAML in which the label is, or None for a file that is the data itself.
    """

    file: str
    label: str = ""
    read: Callable[[], bytes] | None = None


Sources = Mapping[str, DataSource]


def from_issue(file: str, issue: str, severity: str = ERROR) -> Finding:
    """The finding for an issue that may name its line at the end, as parsers do."""
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
    """Collects findings. What is wrong is named by the path of its znode below the deployment.

    The mistakes in the `lenient` services are warnings.
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

        With both it is the line of the text at the label. Nothing is added about what is not in the
        directory. Of those on one line that are `about` the same, which correcting it once would end, the
        first is kept, or the first error.
        """
        source = self._sources.get(node)
        if source is not None:
            at = self._line(source, label, line) if source.read else line
            self._add(node, Finding(severity, source.file, at, message), about)

    def add_issue(self, severity: str, node: str, issue: str) -> None:
        """Add an issue of the agent's parser, which begins with the label of what is wrong."""
        source = self._sources.get(node)
        if source is not None:
            labels = [label for label in self._places_of(source) if label and _begins(issue, label)]
            at = self._line(source, max(labels, key=len, default=""), None)
            parsed = from_issue(source.file, issue, severity)
            # By an alias the same mistake is in several commands.
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
        # What is missing has no line: that of what it is missing in.
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
