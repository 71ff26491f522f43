"""Rules by name: what the configuration does not say. See rules.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import given_files

FILE = Path(__file__).with_name("rules.yml")
# The keys of a row of each table: those that it must have, and others.
ROWS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "dropped": (("match",), ("reason",)),
    "rewritten": (("match", "by"), ("reason",)),
    "registered": (("match", "daemon", "lists"), ("reason",)),
    "listeners": (("daemon", "ports"), ("reason",)),
    "addresses": (("name", "port", "on"), ("reason",)),
    "ready": (("daemon", "command"), ("reason",)),
    "ignored": (("daemon",), ("reason",)),
    "needs": (("name", "on", "reason"), ("module", "local", "all")),
    "inside": (("match",), ("reason",)),
    "clusters": (("daemon",), ("definition", "instead")),
    "unsupported": (("settings", "instead"), ()),
    "succeeds": (("name", "statuses"), ("reason",)),
    "users": (("image", "user"), ("reason",)),
}
Row = Mapping[str, Any]


class Rules(dict[str, Any]):
    """The tables of rules.yml, and the patterns `hard` and `common_volumes`."""

    def rows(self, table: str, name: str) -> Sequence[Row]:
        """The rows of a table for a daemon or a step, whose whole name their pattern matches."""
        key = ROWS[table][0][0]
        return [row for row in self[table] if re.fullmatch(row[key], name)]

    def row(self, table: str, name: str) -> Row:
        """The first of these rows; empty if there is none."""
        return next(iter(self.rows(table, name)), {})

    def matches(self, table: str) -> re.Pattern[str]:
        """A pattern for what the `match` of any row finds."""
        return re.compile("|".join(f"(?:{row['match']})" for row in self[table]) or r"(?!)")

    def command(self, text: str) -> str:
        """The command without the parts that only a recording has."""
        for row in self["rewritten"]:
            text = re.sub(row["match"], row["by"], text)
        return text

    def unsupported_settings(self, settings: Mapping[str, object]) -> Sequence[str]:
        """What can't be imported with these settings of globals.yml, and what to do."""
        return [
            str(row["instead"])
            for row in self["unsupported"]
            if all(re.fullmatch(value, str(settings.get(key, ""))) for key, value in row["settings"].items())
        ]


def read(overrides: Path | None = None) -> Rules:
    """The rules, and before them those of the operator's file. Raises BadUsage."""
    own, theirs = given_files.mapping(FILE), given_files.mapping(overrides) if overrides else {}
    issues = [*_mistakes(theirs, list(own))]
    if issues:
        raise BadUsage(f"--overrides {overrides}: {'; '.join(issues)}")
    return Rules(
        {key: [*theirs.get(key, ()), *own[key]] if key in ROWS else theirs.get(key, own[key]) for key in own}
    )


def _mistakes(content: Mapping[str, Any], known: Sequence[str]) -> Iterator[str]:
    for key, value in content.items():
        if key not in known:
            yield f"unknown key {key}{nearest(key, known)}"
        elif key == "identity":
            yield from given_files.mistakes_in_row(key, value, ("daemon", "step"), ())
        elif key not in ROWS:
            yield from given_files.mistakes_in_value(key, key, value)
        elif not isinstance(value, list):
            yield f"{key}: expected a list of mappings"
        else:
            for number, row in enumerate(value, start=1):
                yield from given_files.mistakes_in_row(f"{key}, row {number}", row, *ROWS[key])
