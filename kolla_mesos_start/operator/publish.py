"""`kolla_mesos_ctl publish`: a directory becomes a deployment's tree in ZooKeeper.

    read the directory -> validate -> write variables and files -> write definitions -> remove

What lives here: the writing. What is wrong is found in `validation`.
Nothing is written before everything is right, definitions are written last, and what is unchanged
is not written again: publishing twice is the same as publishing once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Callable

from kazoo.client import KazooClient

from kolla_mesos_start.errors import BadDefinition, BadEnvironment
from kolla_mesos_start.operator import connection, directory, layouts, outdated, published, secrets_file
from kolla_mesos_start.operator.directory import FILES, VARIABLES, Contents, Deployment
from kolla_mesos_start.operator.findings import ERROR, Finding
from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.published import Nodes, Removals
from kolla_mesos_start.operator.validate import shown
from kolla_mesos_start.operator.validation import validate
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.znodes import Znodes


class Refused(BadDefinition):
    """What validation has found; each error with its place."""

    subject = "error"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    layouts.add_arguments(parser)
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove what DIR has no more: variables, files, and whole services, but for those that have"
        " containers",
    )
    parser.add_argument(
        "--no-validate", action="store_true", help="write it though `validate` would find errors in it"
    )


def run(invocation: Invocation) -> int:
    """All stages, in order; what is done, and who has to be restarted, is printed: paths, never values."""
    options, config, znodes = invocation.options, invocation.settings, invocation.znodes
    deployment, unreadable = layouts.read(options, config.deployment_id)
    refuse(unreadable)
    for name in deployment.left_out:
        print(f"left out {options.directory / name}")
    check_chroot(invocation.client, config)
    before = published.nodes(invocation.client, znodes)
    completed = secrets_file.complete(invocation, deployment, before)
    deployment = completed.deployment
    old = plan_removals(invocation, before, deployment) if options.prune else Removals((), ())
    if not options.no_validate:
        check(invocation, deployment, before, old)
    secrets_file.keep(invocation, completed)
    publisher = Publisher(invocation.client, znodes, before)
    publisher.publish(deployment)
    publisher.remove(old)
    print(f"published {options.directory} to {znodes.deployment}: {publisher.counts}")
    # Looked for afterwards: one that has started meanwhile may have read what was there before.
    outdated.show(invocation.out, outdated.outdated(invocation.client, znodes, deployment, publisher.changed))
    return 0


SUBCOMMAND = Subcommand(
    name="publish",
    summary="write a directory of definitions, files and variables to ZooKeeper",
    description="""\
Write a directory of definitions, files and variables to ZooKeeper.

DIR holds variables/<name> or variables.yml, and for each service services/<service>/ with
definition.yml, files/<name>, and variables of its own: variables/<name>, variables/<host>/<name>
or variables.yml. Nothing is written before everything is right, as `validate` finds it; what is
published already counts as there. A definition is written last. At the end the containers are named that
run what is older, until they are started again.

A secret of DIR's secrets.yml that has no value is generated, and added to FILE of --secrets before anything
is published. One that is published already stays as it is, and is added to FILE: to have another
value, give it in FILE.

DIR may also have kolla-mesos's own layout: services/<project>/<service>.yml.j2, config/ and etc/.
""",
    example="kolla_mesos_ctl publish etc/examples/keystone --deployment site --hosts zk1",
    add_arguments=_add_arguments,
    run=run,
)


# -- the stages -----------------------------------------------------------------------------------


def check_chroot(client: KazooClient, config: Settings) -> None:
    """Refuse a chroot that does not exist: created for a typo, it would be a tree that no agent reads."""
    if connection.read(client, ["/"])["/"] is None:
        raise BadEnvironment(
            [f"KOLLA_ZK_HOSTS: the chroot {config.chroot} does not exist; create it, or correct it"]
        )


def plan_removals(invocation: Invocation, before: Nodes, deployment: Deployment) -> Removals:
    """What --prune removes. A service that has containers is named, and stays."""
    gone = published.gone(before, deployment)
    busy = published.with_containers(invocation.client, invocation.znodes, gone)
    for service in sorted(busy):
        invocation.err.print(f"kept {service}: it is not in the directory, but it has containers")
    return published.removals(before, deployment, gone - busy)


def check(invocation: Invocation, deployment: Deployment, before: Nodes, old: Removals) -> None:
    """Refuse what `validate` finds to be an error; warnings are printed."""
    leaves = {*old.removed, *old.emptied}
    around = published.deployment({node: data for node, data in before.items() if node not in leaves})
    config = invocation.settings
    findings = validate(
        published.merged(deployment, around),
        deployment_id=config.deployment_id,
        missing_is_empty=config.missing_is_empty,
        given=invocation.given,
    )
    refuse(each for each in findings if each.severity == ERROR)
    for each in findings:
        invocation.err.print(shown(each))


def refuse(errors: Iterable[Finding]) -> None:
    """Raise Refused if there is any."""
    issues = [f"{each.place}: {each.message}" for each in errors]
    if issues:
        raise Refused(issues)


class Counts:
    """How many znodes were created, updated, removed, and left unchanged."""

    def __init__(self) -> None:
        self.by_change = {"created": 0, "updated": 0, "removed": 0, "unchanged": 0}

    def __str__(self) -> str:
        return ", ".join(f"{count} {change}" for change, count in self.by_change.items())


class Publisher:
    """Writes a deployment into its tree, in which `before` stands. `report` gets a line for each change."""

    def __init__(
        self, client: KazooClient, znodes: Znodes, before: Nodes, report: Callable[[str], object] = print
    ) -> None:
        self.client = client
        self.root = znodes.deployment
        self.before = {f"{self.root}/{node}": data for node, data in before.items()}
        self.report = report
        self.counts = Counts()
        self.changed: list[str] = []  # nodes below the deployment

    def publish(self, deployment: Deployment) -> None:
        """Write everything. An agent that reads a new definition finds all that it needs."""
        self.write(directory.nodes(deployment))
        self.write(directory.definitions(deployment))

    def write(self, nodes: Contents) -> None:
        """Create what is absent, rewrite what differs, leave the rest."""
        wanted = {f"{self.root}/{node}": data for node, data in nodes.items()}
        changed = {path: data for path, data in wanted.items() if self.before.get(path) != data}
        self.create_parents(path for path in changed if path not in self.before)
        connection.write_together(self.client, changed, self.before.keys())
        for path in wanted:
            change = "updated" if self._is_there(path) else "created"
            self.note(change if path in changed else "unchanged", path)
        self.before.update(changed)

    def _is_there(self, path: str) -> bool:
        """An empty definition counts as absent: its znode was first the parent of its variables."""
        is_definition = f"/{VARIABLES}/" not in path and f"/{FILES}/" not in path
        return bool(self.before.get(path)) or (path in self.before and not is_definition)

    def create_parents(self, paths: Iterable[str]) -> None:
        """Create the znodes above `paths` that are absent, those of one depth together."""
        absent = set(_parents(paths)) - self.before.keys()
        above = [path for path in absent if not path.startswith(f"{self.root}/")]
        # Existing ones are not tried: on the upper ones an operator may have the right to read only.
        there = {path for path, data in connection.read(self.client, above).items() if data is not None}
        by_depth: dict[int, dict[str, bytes]] = {}
        for path in absent - there:
            by_depth.setdefault(path.count("/"), {})[path] = b""
        for _, level in sorted(by_depth.items()):
            connection.create_each(self.client, level)
            self.before.update(level)

    def remove(self, old: Removals) -> None:
        """Remove what is in the way of nothing any more, deepest first."""
        for node in old.removed:
            path = f"{self.root}/{node}"
            for name in connection.children(self.client, [path])[path] if node in old.services else ():
                connection.remove(self.client, f"{path}/{name}")  # What agents left there, empty by now.
            connection.remove(self.client, path)
            self.note("removed", path)
        for node in old.emptied:
            connection.write(self.client, f"{self.root}/{node}", b"")
            self.note("removed", f"{self.root}/{node}")

    def note(self, change: str, path: str) -> None:
        self.counts.by_change[change] += 1
        if change != "unchanged":
            self.changed.append(path[len(self.root) + 1 :])
            self.report(f"{change} {path}")


def _parents(paths: Iterable[str]) -> Iterator[str]:
    """The znodes above `paths`."""
    for path in paths:
        while (path := path.rpartition("/")[0]) != "":
            yield path
