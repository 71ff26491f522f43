"""`kolla_mesos_ctl publish`: a directory becomes a deployment's tree in ZooKeeper.

    read the directory -> check every definition -> write variables and files -> write definitions

What lives here: the checks that need the whole deployment, and the writing.
Nothing is written before everything is right, definitions are written last, and what is unchanged
is not written again: publishing twice is the same as publishing once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

from kazoo.client import KazooClient

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.definition.schema import early_texts
from kolla_mesos_start.errors import BadDefinition, BadEnvironment, BadUsage, CannotRender
from kolla_mesos_start.operator import connection, directory
from kolla_mesos_start.operator.directory import Contents, Deployment, Service
from kolla_mesos_start.operator.invocation import Invocation, NotThere, Subcommand
from kolla_mesos_start.operator.validation import build_graph, check_templates, needed_files
from kolla_mesos_start.render.context import variable_names
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.znodes import Znodes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="the deployment's directory")
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove variables and files that are not in DIR: the deployment's variables, and what"
        " belongs to the services in DIR; other services are left alone",
    )


def run(invocation: Invocation) -> int:
    """All stages, in order; what is done is printed: paths, never values."""
    options, config = invocation.options, invocation.settings
    deployment = read(options.directory)
    for name in deployment.left_out:
        print(f"left out {options.directory / name}")
    check_chroot(invocation.client, config)
    znodes = invocation.znodes
    publisher = Publisher(invocation.client, znodes, missing_is_empty=config.missing_is_empty)
    publisher.publish(deployment)
    if options.prune:
        publisher.prune(deployment)
    print(f"published {options.directory} to {znodes.deployment}: {publisher.counts}")
    return 0


SUBCOMMAND = Subcommand(
    name="publish",
    summary="write a directory of definitions, files and variables to ZooKeeper",
    description="""\
Write a directory of definitions, files and variables to ZooKeeper.

DIR holds variables/<name> or variables.yml, and for each service services/<service>/ with
definition.yml, files/<name>, and variables of its own: variables/<name>, variables/<host>/<name>
or variables.yml. Nothing is written before everything is right; a definition is written last.
""",
    example="kolla_mesos_ctl publish etc/examples/keystone --deployment site --hosts zk1:2181,zk2:2181",
    add_arguments=_add_arguments,
    run=run,
)


# -- the stages -----------------------------------------------------------------------------------


def read(path: Path) -> Deployment:
    """The directory. NotThere if there is none; BadUsage if it can't be read."""
    if not path.is_dir():
        raise NotThere(f"{path} is not a directory")
    try:
        return directory.read(path)
    except OSError as error:
        raise BadUsage(f"{error.filename} can't be read: {error.strerror}") from error


def check_chroot(client: KazooClient, config: Settings) -> None:
    """Refuse a chroot that does not exist: created for a typo, it would be a tree that no agent reads."""
    if connection.read(client, ["/"])["/"] is None:
        raise BadEnvironment(
            [f"KOLLA_ZK_HOSTS: the chroot {config.chroot} does not exist; create it, or correct it"]
        )


class Counts:
    """How many znodes were created, updated, removed, and left unchanged."""

    def __init__(self) -> None:
        self.by_change = {"created": 0, "updated": 0, "removed": 0, "unchanged": 0}

    def __str__(self) -> str:
        return ", ".join(f"{count} {change}" for change, count in self.by_change.items())


class Publisher:
    """Writes a deployment into its tree. `znodes` is of no service; `report` gets a line for each change."""

    def __init__(
        self,
        client: KazooClient,
        znodes: Znodes,
        *,
        missing_is_empty: bool = False,
        report: Callable[[str], object] = print,
    ) -> None:
        self.client = client
        self.znodes = znodes
        self.missing_is_empty = missing_is_empty
        self.report = report
        self.counts = Counts()

    def publish(self, deployment: Deployment) -> None:
        """Check everything, then write it. An agent that reads a new definition finds all that it needs."""
        self.check(deployment)
        self.write(self.contents(deployment))
        self.write(self.definitions(deployment))

    # -- paths and their data ---------------------------------------------------------------------

    def contents(self, deployment: Deployment) -> dict[str, bytes]:
        """Every znode but the definitions."""
        nodes = _under(f"{self.znodes.deployment}/variables", deployment.variables)
        for service in deployment.services:
            path = self.znodes.service(service.name)
            nodes.update(_under(f"{path}/variables", service.variables.own))
            for host, values in service.variables.hosts.items():
                nodes.update(_under(f"{path}/variables/{host}", values))
            nodes.update(_under(f"{path}/files", service.files))
        return nodes

    def definitions(self, deployment: Deployment) -> dict[str, bytes]:
        return {self.znodes.service(service.name): service.definition for service in deployment.services}

    # -- checking ---------------------------------------------------------------------------------

    def check(self, deployment: Deployment) -> None:
        """Raise BadDefinition, or CannotRender, with all that would end the agents of a service."""
        issues: list[str] = []
        missing: list[str] = []
        planned = self.contents(deployment)
        for service in deployment.services:
            try:
                self.check_service(service, planned)
            except BadDefinition as error:
                issues += [f"{service.source}: {issue}" for issue in error.issues]
            except CannotRender as error:
                missing.append(f"{service.source}: {error.reason}")
        if issues:
            raise BadDefinition(issues + missing)
        if missing:
            raise CannotRender("; ".join(missing))

    def check_service(self, service: Service, planned: Contents) -> None:
        """Read the definition as its agents will, on every host that has values of its own."""
        document = load(service.definition)
        wanted = variable_names(early_texts(document))
        for host in service.variables.hosts or [""]:
            znodes = self.znodes._replace(service_name=service.name, host=host)
            variables = self.variables(wanted, znodes, planned)
            graph = build_graph(document, znodes, variables, missing_is_empty=self.missing_is_empty)
            if graph is not None:
                check_templates(graph, service.files)
                self.check_files(graph, znodes, planned)

    def variables(self, wanted: Iterable[str], znodes: Znodes, planned: Contents) -> dict[str, str]:
        """The values that an agent will find: those about to be written, and those published before."""
        # Without the name of a host, the path of its value is no path: it holds an empty name.
        places = {name: [path for path in znodes.variable(name) if "//" not in path] for name in wanted}
        paths = {path for candidates in places.values() for path in candidates}
        published = connection.read(self.client, paths - planned.keys())
        values = {**{path: data for path, data in published.items() if data is not None}, **planned}
        return {
            name: _text(path, values[path])
            for name, candidates in places.items()
            for path in candidates[::-1]  # The first that exists wins, so it comes last.
            if path in values
        }

    def check_files(self, graph: Graph, znodes: Znodes, planned: Contents) -> None:
        """Refuse a definition whose files have no content, neither in the directory nor published."""
        needed = dict(needed_files(graph, znodes))
        published = connection.read(self.client, (path for path in needed if path not in planned))
        absent = [path for path, data in published.items() if data is None]
        if absent:
            raise CannotRender(
                ", ".join(
                    f"{needed[path]} has no content, neither in files/ nor at {path}" for path in absent
                )
            )

    # -- writing ----------------------------------------------------------------------------------

    def write(self, nodes: Contents) -> None:
        """Create what is absent, rewrite what differs, leave the rest."""
        before = connection.read(self.client, nodes)
        self.create_parents(path for path in nodes if before[path] is None)
        for path, data in nodes.items():
            if before[path] == data:
                self.note("unchanged", path)
                continue
            connection.write(self.client, path, data)
            # An empty znode counts as absent: that of a definition was first the parent of its variables.
            self.note("updated" if before[path] else "created", path)

    def create_parents(self, paths: Iterable[str]) -> None:
        """Create the znodes above `paths` that are absent."""
        parents = _parents(paths)
        before = connection.read(self.client, parents)
        for path in parents:
            # Existing ones are not tried: on the upper ones an operator may have the right to read only.
            if before[path] is None:
                connection.create(self.client, path)

    def prune(self, deployment: Deployment) -> None:
        """Remove the variables and files that the directory doesn't hold, deepest first."""
        kept = self.contents(deployment)
        stays = {*_parents(kept), *kept}
        roots = [f"{self.znodes.deployment}/variables"]
        for service in deployment.services:
            path = self.znodes.service(service.name)
            roots += [f"{path}/variables", f"{path}/files"]
        for path in connection.below(self.client, roots):
            if path not in stays:
                connection.remove(self.client, path)
                self.note("removed", path)

    def note(self, change: str, path: str) -> None:
        self.counts.by_change[change] += 1
        if change != "unchanged":
            self.report(f"{change} {path}")


def _under(parent: str, contents: Contents) -> dict[str, bytes]:
    return {f"{parent}/{name}": data for name, data in contents.items()}


def _parents(paths: Iterable[str]) -> list[str]:
    """The znodes above `paths`, each one after the one above it."""
    parents: dict[str, None] = {}
    for path in paths:
        names_above = path.split("/")[1:-1]
        for depth in range(1, len(names_above) + 1):
            parents["/" + "/".join(names_above[:depth])] = None
    return list(parents)


def _text(path: str, data: bytes) -> str:
    """The text at `path`; CannotRender if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CannotRender(f"{path} is not UTF-8 text (byte {error.start})") from error
