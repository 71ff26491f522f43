"""Daemons that are one cluster on several hosts: what the import puts into their definitions.

The rows of `clusters` in rules.yml say which daemon needs what. A directory of `cluster_definitions`, or one
of the operator's, has the definition:

    cluster.yml    steps        the one-time steps that the definition replaces, a regular expression
                   same         lines that must be the same on all members
                   lines        lines of config files that are changed
                   definition   keys that are added to the imported definition
    other files    files for its commands, beside the imported ones
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import given_files
from kolla_mesos_start.kolla_ansible.containers import (
    ConfigFile,
    Containers,
    Daemon,
    Step,
    config_directory_of,
)
from kolla_mesos_start.kolla_ansible.rules import Rules

DEFINITIONS = Path(__file__).with_name("cluster_definitions")
FILE = "cluster.yml"
MEMBERS = "{members}"  # in a changed line: how many there are


@dataclass(frozen=True)
class Cluster:
    """A daemon on several hosts, and its definition: a mapping of cluster.yml, and files by name.

    `replaced` are the steps that the definition replaces.
    """

    daemon: Daemon
    content: Mapping[str, Any]
    files: Mapping[str, bytes]
    replaced: Sequence[Step] = ()

    @property
    def environment(self) -> Mapping[str, Any]:
        """What the replaced steps have in their environment, without what makes them a bootstrap."""
        found: dict[str, Any] = {}
        for step in self.replaced:
            found.update(step.tasks[0].args.get("environment") or {})
        found.pop("KOLLA_BOOTSTRAP", None)
        return found


@dataclass(frozen=True)
class Clusters:
    """The clusters by the name of their daemon, the changed lines, and what can't be imported."""

    by_daemon: Mapping[str, Cluster] = field(default_factory=dict)
    changed: Sequence[str] = ()
    issues: Sequence[str] = ()


def adapt(containers: Containers, rules: Rules) -> tuple[Containers, Clusters]:
    """The containers without replaced steps, and with changed lines."""
    found: dict[str, Cluster] = {}
    changed: list[str] = []
    issues: list[str] = []
    files = {host: dict(by_directory) for host, by_directory in containers.files.items()}
    for daemon in containers.daemons.values():
        row = rules.row("clusters", daemon.name) if len(daemon.hosts) > 1 else {}
        if row.get("instead"):
            hosts = ", ".join(daemon.hosts)
            issues.append(
                f"{daemon.name} on {hosts} is a cluster, and can't be imported as one yet: {row['instead']}"
            )
        elif row.get("definition"):
            cluster = _read(daemon, DEFINITIONS / str(row["definition"]), containers)
            found[daemon.name] = cluster
            issues += _differences(cluster, files)
            changes = [_change(cluster, host, files) for host in daemon.hosts]
            changed += changes[0][0]
            issues += (issue for _, missing in changes for issue in missing)
    replaced = [step for cluster in found.values() for step in cluster.replaced]
    steps = [step for step in containers.steps if step not in replaced]
    return replace(containers, steps=steps, files=files), Clusters(found, changed, issues)


def _read(daemon: Daemon, directory: Path, containers: Containers) -> Cluster:
    """Read a directory. Raises BadUsage."""
    if not directory.is_dir():
        known = ", ".join(sorted(path.name for path in DEFINITIONS.iterdir()))
        raise BadUsage(
            f"`clusters`, {daemon.name}: no definition {directory.name}: expected a path, or one of {known}"
        )
    content = given_files.mapping(directory / FILE)
    files = {path.name: given_files.data(path) for path in sorted(directory.iterdir()) if path.name != FILE}
    issues = [*_mistakes(content)]
    if issues:
        raise BadUsage(f"{directory / FILE}: {'; '.join(issues)}")
    pattern = content.get("steps", r"(?!)")
    return Cluster(
        daemon, content, files, [step for step in containers.steps if re.fullmatch(pattern, step.name)]
    )


def _mistakes(content: Mapping[str, Any]) -> Iterator[str]:
    yield from given_files.mistakes_in_row(FILE, content, (), ("steps", "same", "lines", "definition"))
    for key in ("lines", "definition"):
        if not isinstance(content.get(key, {}), dict):
            yield f"{key}: expected a mapping"
            return
    for path, rows in content.get("lines", {}).items():
        for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
            where = f"lines of {path}, row {number}"
            yield from given_files.mistakes_in_row(where, row, ("match", "by", "reason"), ("optional",))


Files = dict[str, dict[str, Sequence[ConfigFile]]]


def _files_of(cluster: Cluster, host: str, files: Files) -> tuple[str, Sequence[ConfigFile]]:
    """The name of the config directory on a host, and the files in it."""
    directory = config_directory_of(cluster.daemon.settings[host])
    return directory, files.get(host, {}).get(directory, ())


def _change(cluster: Cluster, host: str, files: Files) -> tuple[list[str], list[str]]:
    """Change the lines of the files on a host; the new lines, and what is missing."""
    directory, before = _files_of(cluster, host, files)
    changed: list[str] = []
    after: list[ConfigFile] = []
    wanted: Mapping[str, Any] = cluster.content.get("lines") or {}
    present = {file.path for file in before}
    missing = [
        f"{cluster.daemon.name}: {host} has no {path}, in which the cluster needs other lines"
        for path in wanted
        if path not in present
    ]
    for file in before:
        text = file.content.decode(errors="surrogateescape")
        for row in wanted.get(file.path, ()):
            by = str(row["by"]).replace(MEMBERS, str(len(cluster.daemon.hosts)))
            lines = [found.expand(by) for found in re.finditer(row["match"], text, re.MULTILINE)]
            text = re.sub(row["match"], by, text, flags=re.MULTILINE)
            changed += (f"{cluster.daemon.name}: {file.path}: {line} ({row['reason']})" for line in lines)
            if not lines and not row.get("optional"):
                missing.append(
                    f"{cluster.daemon.name}: {file.path} on {host} has no line that matches {row['match']},"
                    " which the cluster needs to change: is it in a file of your own in node_custom_config?"
                )
        after.append(replace(file, content=text.encode(errors="surrogateescape")))
    files[host][directory] = after
    return changed, missing


def _differences(cluster: Cluster, files: Files) -> Iterator[str]:
    """Lines that are not the same on all members."""
    for path, pattern in (cluster.content.get("same") or {}).items():
        found: dict[str, list[str]] = {}
        for host in cluster.daemon.hosts:
            texts = (
                file.content.decode(errors="replace")
                for file in _files_of(cluster, host, files)[1]
                if file.path == path
            )
            lines = [line for text in texts for line in re.findall(pattern, text, re.MULTILINE)]
            found.setdefault("\n".join(lines), []).append(host)
        if len(found) > 1:
            groups = " and ".join(", ".join(hosts) for hosts in found.values())
            yield (
                f"{cluster.daemon.name}: {path} differs between {groups} in what matches {pattern}: these are"
                " several clusters, which can't be imported yet: keep one of them in the inventory"
            )
