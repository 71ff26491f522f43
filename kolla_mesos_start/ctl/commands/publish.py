"""`kolla_mesos_ctl publish`: write a directory to the deployment's tree in ZooKeeper."""

from __future__ import annotations

import argparse

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.directory.findings import counted, refuse
from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.live import difference, outdated
from kolla_mesos_start.ctl.live.publishing import Publishing
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    source.add_arguments(parser)
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove variables, files and whole services that are no longer in DIR, except services that have"
        " containers",
    )
    parser.add_argument("--no-validate", action="store_true", help="publish even if `validate` finds errors")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; show what would change, as `diff` does, and with --prune what would be removed",
    )


def run(invocation: Invocation) -> int:
    """Publish, or show what would change."""
    options = invocation.options
    loaded, unused = without_unused_secrets(invocation.load())
    refuse(loaded.unreadable)
    if options.dry_run:
        return difference.run(invocation, loaded)
    for name in loaded.deployment.left_out:
        print(f"left out {options.directory / name}")
    if unused:
        print(f"left out {counted(len(unused), 'value')} of {options.secrets} that nothing uses")
    publisher = Publishing(invocation, loaded).publish()
    print(f"published {options.directory} to {publisher.root}: {publisher.counts}")
    earlier = publisher.lock.interrupted
    if earlier and publisher.lock.left:
        warning = earlier._replace(services=publisher.lock.left).problem
        invocation.err.print(f"warning: the earlier {warning}")
    # Read afterwards: a container that started meanwhile may have read the old values.
    outdated.show(
        invocation.out,
        outdated.outdated(
            invocation.client, invocation.znodes, loaded.deployment, publisher.published, publisher.changed
        ),
    )
    return 0


SUBCOMMAND = Subcommand(
    description="""\
Write a directory of definitions, files and variables to ZooKeeper.

DIR holds variables/<name> or variables.yml, and for each service services/<service>/ with
definition.yml, files/<name>, and variables of its own: variables/<name>, variables/<host>/<name>
or variables.yml. Nothing is written while `validate` finds an error; what is already published counts for
that. Only one publication of a deployment runs at a time: a second one waits for up to 60 s (then status
75). A publication of up to 512 KiB takes effect at one moment. In a larger one definitions are written last,
and until then `status` and `explain` report that it has not finished. At the end the containers that need a
restart are listed.

A secret of DIR's secrets.yml that has no value is generated, and added to FILE of --secrets before anything
is published. A secret that is already published keeps its value, which is added to FILE: to change it, give
another value in FILE. Of FILE, only values that DIR uses are published.

acl.yml in DIR names the identity of each service. Every znode then gets the rights that are needed, and no
wider ones. Later publications without an acl.yml, and `set`, use it too.
""",
    example="kolla_mesos_ctl publish etc/examples/keystone --deployment site --hosts zk1",
    add_arguments=_add_arguments,
    run=run,
)
