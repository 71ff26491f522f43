"""What a command reads from DIR, and the options that say so.

What lives here: the arguments that `validate`, `diff` and `publish` share, and the choice of the layout.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from kolla_mesos_start.errors import BadDefinition, BadUsage
from kolla_mesos_start.operator.deployment import acl, directory, formats, kolla_mesos
from kolla_mesos_start.operator.deployment.directory import (
    MAX_DATA,
    SECRETS,
    VARIABLES,
    Deployment,
    Given,
    is_znode_name,
)
from kolla_mesos_start.operator.deployment.findings import ERROR, DataSource, Finding, Findings, from_issue
from kolla_mesos_start.operator.terminal.suggestions import NotThere


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR, and the variables that win over those in it."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the deployment's directory")
    parser.add_argument(
        "--variables-from",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a YAML mapping of names to values, which win over the deployment's in DIR; may be repeated",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one such value; wins over those of files. Not for secrets: a command line can be read by all",
    )
    parser.add_argument(
        "--secrets",
        metavar="FILE",
        type=Path,
        help="a YAML mapping of names to values, which win over those in DIR. `publish` and `up` create"
        " it, and add what DIR's secrets.yml wants generated",
    )


def read(options: argparse.Namespace, deployment_id: str) -> tuple[Deployment, Sequence[Finding]]:
    """What DIR holds, and what can't be read in it. NotThere if there is none; BadUsage if it is closed."""
    path: Path = options.directory
    if not path.is_dir():
        raise NotThere(f"{path} is not a directory")
    try:
        given = _given(options)
        if kolla_mesos.is_one(path):
            return _with_acl(path, *kolla_mesos.look(path, given, deployment_id))
        deployment, findings = _with_acl(path, *directory.look(path))
    except OSError as error:
        raise BadUsage(f"{error.filename} can't be read: {error.strerror}") from error
    values = {name: each.value.encode() for name, each in given.items()}
    sources = {f"{VARIABLES}/{name}": each.source for name, each in given.items()}
    return deployment._replace(
        variables={**deployment.variables, **values}, sources={**deployment.sources, **sources}
    ), findings


def _with_acl(
    root: Path, deployment: Deployment, findings: Sequence[Finding]
) -> tuple[Deployment, Sequence[Finding]]:
    """With what acl.yml says, if there is one, and with what is wrong in it."""
    found = [path for path in sorted(root.iterdir()) if directory.is_acl(path)]
    if len(found) > 1:
        wrong = Finding(ERROR, found[1].name, None, f"{found[0].name} says who may do what too: remove one")
        return deployment, [*findings, wrong]
    for path in found:
        directory.check_link(path, root)
        try:
            plan, issues = acl.parse(formats.values(path))
        except BadDefinition as error:
            return deployment, [*findings, *(from_issue(path.name, issue) for issue in error.issues)]
        source = DataSource(path.name, read=path.read_bytes)
        wrong_in_it = Findings({acl.NODE: source})
        for label, issue in issues:
            wrong_in_it.add(ERROR, acl.NODE, f"{label}: {issue}", label=label)
        deployment = deployment._replace(acl=plan, sources={**deployment.sources, acl.NODE: source})
        findings = [*findings, *wrong_in_it.found]
    return deployment, findings


def _given(options: argparse.Namespace) -> dict[str, Given]:
    found: dict[str, Given] = {}
    if options.secrets is not None:
        _check_secrets(options.secrets, options.directory)
        # It is created when something is published.
        found.update(_from_file(options.secrets) if os.path.lexists(options.secrets) else {})
    for path in options.variables_from:
        found.update(_from_file(path))
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadUsage(f"--set: expected NAME=VALUE, found no = after {name!r}")
        found[_checked("--set", name, value)] = Given(value, DataSource("--set"))
    return found


def hidden(options: argparse.Namespace, deployment: Deployment) -> frozenset[str]:
    """The names of variables that are secrets, whatever they are called."""
    file = str(options.secrets) if options.secrets is not None else None
    of_file = {node for node, source in deployment.sources.items() if source.file == file}
    return frozenset({*deployment.secrets, *(node.rpartition("/")[2] for node in of_file)})


def _check_secrets(file: Path, root: Path) -> None:
    """Refuse a file that is a part of DIR: kinds would become values, or values be in two places."""
    names = [
        os.path.realpath(root / f"{stem}{end}") for stem in (SECRETS, VARIABLES) for end in formats.SUFFIXES
    ]
    if os.path.realpath(file) in names:
        raise BadUsage(f"--secrets {file}: it is a part of {root}: give a file of your own, for values alone")


def _from_file(path: Path) -> dict[str, Given]:
    if not path.is_file():
        raise NotThere(f"{path} is not a file")
    try:
        values = formats.values(path)
    except BadDefinition as error:
        raise BadUsage(f"{path}: {'; '.join(error.issues)}") from error
    found = {}
    for name, value in values.items():
        text = formats.text(value)
        if text is None:
            raise BadUsage(f"{path}: {name}: expected a single value, found a list or a mapping")
        found[_checked(str(path), name, text)] = Given(text, DataSource(str(path), name, path.read_bytes))
    return found


def _checked(where: str, name: str, value: str) -> str:
    if not is_znode_name(name):
        raise BadUsage(f"{where}: {name!r} can't be the name of a variable: expected printable characters")
    if len(value.encode()) > MAX_DATA:
        raise BadUsage(f"{where}: {name}: more than ZooKeeper takes ({MAX_DATA} bytes)")
    return name
