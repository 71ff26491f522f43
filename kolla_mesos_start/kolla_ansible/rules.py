"""Rules by name: what the configuration does not say. See rules.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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
}


@dataclass(frozen=True)
class Rules:
    """The tables of rules.yml; patterns are for whole names."""

    dropped: Sequence[Mapping[str, Any]]
    rewritten: Sequence[Mapping[str, Any]]
    registered: Sequence[Mapping[str, Any]]
    listeners: Sequence[Mapping[str, Any]]
    addresses: Sequence[Mapping[str, Any]]
    ready: Sequence[Mapping[str, Any]]
    hard: str
    ignored: Sequence[Mapping[str, Any]]
    needs: Sequence[Mapping[str, Any]]
    inside: Sequence[Mapping[str, Any]]
    clusters: Sequence[Mapping[str, Any]]
    unsupported: Sequence[Mapping[str, Any]]
    succeeds: Sequence[Mapping[str, Any]]
    identity: Mapping[str, str]
    common_volumes: str

    def ports(self, daemon: str) -> Sequence[int]:
        """The ports on which a daemon listens."""
        return [
            int(port)
            for row in self.listeners
            if re.fullmatch(row["daemon"], daemon)
            for port in row["ports"]
        ]

    def answering(self, name: str, port: int) -> Sequence[str | None]:
        """The daemon that answers a daemon or a step at a port, as the first rule says; empty without a rule.

        None is something outside of the deployment.
        """
        return [
            row["on"] for row in self.addresses if row["port"] == port and re.fullmatch(row["name"], name)
        ][:1]

    def needs_nothing(self, step: str) -> bool:
        """Whether it is known that a step waits for nothing."""
        return any(row["on"] is None and re.fullmatch(row["name"], step) for row in self.needs)

    def command(self, text: str) -> str:
        """The command without the parts that only a recording has."""
        for row in self.rewritten:
            text = re.sub(row["match"], row["by"], text)
        return text

    def awaited(self, text: str) -> Mapping[str, Any] | None:
        """The rule for a command that has to be repeated until all hosts of a daemon are listed."""
        return next((row for row in self.registered if re.search(row["match"], text)), None)

    def statuses(self, step: str) -> Sequence[int]:
        """The exit statuses with which a step succeeds, as the first rule says; empty without a rule."""
        found = (row["statuses"] for row in self.succeeds if re.fullmatch(row["name"], step))
        return next(found, ())

    def ready_command(self, daemon: str) -> str | None:
        """The command that replaces the healthcheck of a daemon; None for its own."""
        found = (str(row["command"]) for row in self.ready if re.fullmatch(row["daemon"], daemon))
        return next(found, None)

    def cluster(self, daemon: str) -> Mapping[str, Any]:
        """The row of a daemon that is a cluster on several hosts; empty if its members are independent."""
        return next((row for row in self.clusters if re.fullmatch(row["daemon"], daemon)), {})

    def unsupported_settings(self, settings: Mapping[str, object]) -> Sequence[str]:
        """What can't be imported with these settings of globals.yml, and what to do."""
        return [
            str(row["instead"])
            for row in self.unsupported
            if all(re.fullmatch(value, str(settings.get(key, ""))) for key, value in row["settings"].items())
        ]

    def is_ignored(self, daemon: str) -> bool:
        """Whether the addresses in a daemon's configuration are no dependencies."""
        return any(re.fullmatch(row["daemon"], daemon) for row in self.ignored)


def read(overrides: Path | None = None) -> Rules:
    """The rules, and before them those of the operator's file. Raises BadUsage."""
    own, theirs = given_files.mapping(FILE), given_files.mapping(overrides) if overrides else {}
    issues = [*_mistakes(theirs)]
    if issues:
        raise BadUsage(f"--overrides {overrides}: {'; '.join(issues)}")
    made: dict[str, Any] = {
        key: [*theirs.get(key, ()), *own[key]] if key in ROWS else theirs.get(key, own[key]) for key in own
    }
    return Rules(**made)


def _mistakes(content: Mapping[str, Any]) -> Iterator[str]:
    known = [each.name for each in fields(Rules)]
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
