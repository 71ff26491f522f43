"""Reads the deployment that a command line names: a directory, and the values that replace its own.

All commands that take DIR share these arguments and read DIR once. `load` adds the values of the command
line, and generates the secrets that have no value.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import directory, formats, secret_values
from kolla_mesos_start.ctl.directory.directory import (
    MAX_DATA,
    SECRETS,
    VARIABLES,
    Contents,
    Deployment,
    is_znode_name,
)
from kolla_mesos_start.ctl.directory.findings import (
    DataSource,
    Finding,
)
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.definition.strings import is_encrypted
from kolla_mesos_start.errors import BadDefinition, BadUsage
from kolla_mesos_start.render import variables_dir

VARIABLES_DIR = "KOLLA_VARIABLES_DIR"  # variables that containers have besides the published ones
HINT = f"if containers find it in {VARIABLES_DIR}, set that here too"


class Given(NamedTuple):
    """A variable of the command line, which replaces one of the directory, and its origin."""

    value: str
    source: DataSource


class Source(NamedTuple):
    """A deployment as it was read. Every secret has a value.

    `name` is the deployment's name, and `unreadable` says what could not be read. `given` are the variables
    of KOLLA_VARIABLES_DIR. Variables in `hidden` are declared as secret. Of the secrets, `generated` have
    a new value and `kept` a published one; the others are in DIR, in a file or on the command line.
    `undeclared` are variables of the file of --secrets that DIR does not name.
    """

    name: str
    deployment: Deployment
    unreadable: Sequence[Finding] = ()
    given: Mapping[str, str] = MappingProxyType({})
    hidden: frozenset[str] = frozenset()
    generated: Contents = MappingProxyType({})
    kept: Contents = MappingProxyType({})
    undeclared: frozenset[str] = frozenset()

    def with_published(self, nodes: Contents) -> Source:
        """Replace generated secrets by published ones: running services use those."""
        places = {name: f"{VARIABLES}/{name}" for name in self.generated}
        kept = {name: nodes[node] for name, node in places.items() if node in nodes}
        generated = {name: value for name, value in self.generated.items() if name not in kept}
        variables = {**self.deployment.variables, **kept}
        return self._replace(
            deployment=self.deployment._replace(variables=variables), kept=kept, generated=generated
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add DIR, and the options for values that replace those in it."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the deployment's directory")
    parser.add_argument(
        "--variables-from",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a YAML mapping of names to values, which replace the deployment's in DIR; may be repeated",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set one value; replaces those of files. Not for secrets: all users can read a command line",
    )
    parser.add_argument(
        "--secrets",
        metavar="FILE",
        type=Path,
        help="a YAML mapping of names to values, which replace those in DIR. `publish` and `up` create"
        " it, and add the secrets that they generate for DIR's secrets.yml",
    )


def load(options: argparse.Namespace, name: str, given: Mapping[str, str] = MappingProxyType({})) -> Source:
    """Read DIR and the values of the command line for the deployment `name`.

    NotThere if there is no such directory; BadUsage if it may not be read.
    """
    root: Path = options.directory
    if not root.is_dir():
        raise NotThere(f"{root} is not a directory: give the directory of a deployment, which has services/")
    try:
        chosen = _chosen(options)
        deployment, findings = directory.look(root)
    except OSError as error:
        raise BadUsage(f"{error.filename} can't be read: {error.strerror}") from error
    file = str(options.secrets) if options.secrets is not None else None
    of_file = frozenset(variable for variable, each in chosen.items() if each.source.file == file)
    undeclared = of_file - deployment.variables.keys() - deployment.secrets.keys()
    variables = {**deployment.variables, **{name: each.value.encode() for name, each in chosen.items()}}
    generated = secret_values.generate(deployment.secrets, {*variables, *given})
    places = {f"{VARIABLES}/{name}": each.source for name, each in chosen.items()}
    deployment = deployment._replace(
        variables={**variables, **generated}, sources={**deployment.sources, **places}
    )
    hidden = of_file.union(deployment.secrets, given, deployment.acl.variables if deployment.acl else ())
    return Source(name, deployment, findings, given, hidden, generated, undeclared=undeclared)


def _chosen(options: argparse.Namespace) -> dict[str, Given]:
    """The variables of the command line; the last value of a name counts."""
    found: dict[str, Given] = {}
    if options.secrets is not None:
        _check_secrets(options.secrets, options.directory)
        # Publishing creates it.
        found.update(_from_file(options.secrets, nested=True) if os.path.lexists(options.secrets) else ())
    for path in options.variables_from:
        found.update(_from_file(path))
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadUsage(f"--set: expected NAME=VALUE, found no = after {name!r}")
        found[_checked("--set", name, value)] = Given(value, DataSource("--set"))
    return found


def _check_secrets(file: Path, root: Path) -> None:
    """Refuse a part of DIR: kinds would become values, or a value would be in two places."""
    parts = (root / f"{stem}{end}" for stem in (SECRETS, VARIABLES) for end in formats.SUFFIXES)
    if os.path.realpath(file) in map(os.path.realpath, parts):
        raise BadUsage(f"--secrets {file}: it is a part of {root}: give another file")


def _from_file(path: Path, *, nested: bool = False) -> Iterator[tuple[str, Given]]:
    """The values of a file. `nested`: as in kolla-ansible's passwords.yml, a mapping has several of them."""
    if not path.is_file():
        raise NotThere(f"{path} is not a file")
    try:
        values = formats.values(path)
    except BadDefinition as error:
        raise BadUsage(f"{path}: {'; '.join(error.issues)}") from error
    named = {name: (name, value) for name, value in values.items()}
    if nested:
        named = {label: each for (label, _), each in zip(flattened(values, "."), flattened(values))}
    for label, (name, value) in named.items():
        text = formats.text(value)
        if text is None:
            raise BadUsage(f"{path}: {name}: expected a single value, found a list or a mapping")
        yield _checked(str(path), name, text), Given(text, DataSource(str(path), label, path.read_bytes))


def flattened(values: Mapping[str, object], separator: str = "_") -> Iterator[tuple[str, object]]:
    """The values of a mapping and of the mappings in it, whose names are joined."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}{separator}{key}", each) for key, each in flattened(value, separator))
        else:
            yield name, value


def _checked(where: str, name: str, value: str) -> str:
    if not is_znode_name(name):
        raise BadUsage(f"{where}: {name!r} can't be the name of a variable: expected printable characters")
    if len(value.encode()) > MAX_DATA:
        raise BadUsage(f"{where}: {name}: longer than ZooKeeper allows ({MAX_DATA} bytes)")
    if is_encrypted(value.encode()):
        raise BadUsage(f"{where}: {name} is still encrypted by ansible-vault: give the decrypted value")
    return name


# -- the variables of containers ------------------------------------------------------------------


def container_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """KOLLA_VARIABLES_DIR of the tool, for containers on this machine."""
    return {VARIABLES_DIR: str(Path(environ[VARIABLES_DIR]).absolute())} if environ.get(VARIABLES_DIR) else {}


def container_variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The values in it, which are never published. CannotRender for a file that no container could read."""
    return variables_dir.read(environ[VARIABLES_DIR]) if environ.get(VARIABLES_DIR) else {}
