"""`kolla_mesos_ctl validate`, `schema`, `diff` and `publish`: from a directory to ZooKeeper."""

from __future__ import annotations

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.directory.findings import ERROR, counted, in_order, refuse, shown
from kolla_mesos_start.ctl.directory.json_schema import DEFINITION
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live import difference
from kolla_mesos_start.ctl.live.publishing import Publishing
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand
from kolla_mesos_start.ctl.validate import rules
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets


@subcommand(
    "kolla_mesos_ctl validate etc/examples/keystone",
    source.add_arguments,
    FORMAT,
)
def validate(invocation: Invocation) -> int:
    """Find everything that is wrong in a deployment's directory, with file and line. Needs no connection.

    An error would end an agent or let it wait forever. A warning is a likely mistake. The exit status is 1 if
    there is an error. If containers find variables in KOLLA_VARIABLES_DIR instead of ZooKeeper, set it here
    to a directory with files of the same names. Variables of secrets.yml count as present, because publishing
    generates them.
    """
    loaded, _ = without_unused_secrets(invocation.load(is_local=True))
    is_empty = invocation.environ.get("KOLLA_MISSING_VARIABLES") == "empty"
    wrong = rules.validate(
        loaded.deployment, deployment_id=loaded.name, missing_is_empty=is_empty, given=loaded.given
    )
    findings = in_order([*loaded.unreadable, *wrong])
    errors = sum(each.severity == ERROR for each in findings)
    services = len(loaded.deployment.services)
    totals = {"services": services, "errors": errors, "warnings": len(findings) - errors}
    if invocation.as_json:
        invocation.print_json({**totals, "findings": [each._asdict() for each in findings]})
    else:
        for each in findings:
            invocation.out.print(shown(each))
        invocation.out.print(", ".join(counted(count, what.rstrip("s")) for what, count in totals.items()))
    return 1 if errors else 0


@subcommand("kolla_mesos_ctl schema > definition.schema.json")
def schema(invocation: Invocation) -> int:
    """Print the JSON Schema (draft 7) of a definition, with which editors complete and check definition.yml.

    For the YAML language server, write this above a definition:

      # yaml-language-server: $schema=/path/to/definition.schema.json
    """
    invocation.print_json(DEFINITION)
    return 0


@subcommand(
    "kolla_mesos_ctl diff etc/examples/keystone --deployment site",
    source.add_arguments,
    FORMAT,
)
def diff(invocation: Invocation) -> int:
    """Show what publishing a directory would change, and which containers would still run with the old state.

    Values are hidden if their name looks like a secret, if secrets.yml or --secrets names them, or if acl.yml
    restricts them. Znodes that only `publish --prune` would remove are listed, but do not count as
    differences. The exit status is 1 if anything differs. Before the first publication everything is new.
    `publish --dry-run` does the same.
    """
    loaded, _ = without_unused_secrets(invocation.load())
    return difference.run(invocation, loaded)


@subcommand(
    "kolla_mesos_ctl publish etc/examples/keystone --deployment site --hosts zk1",
    source.add_arguments,
    argument(
        "--prune",
        action="store_true",
        help="remove variables, files and whole services that are no longer in DIR, except services that have"
        " containers",
    ),
    argument("--no-validate", action="store_true", help="publish even if `validate` finds errors"),
    argument(
        "--dry-run",
        action="store_true",
        help="write nothing; show what would change, as `diff` does, and with --prune what would be removed",
    ),
)
def publish(invocation: Invocation) -> int:
    """Write a directory of definitions, files and variables to ZooKeeper.

    DIR holds variables/<name> or variables.yml, and for each service services/<service>/ with definition.yml,
    files/<name>, and variables of its own: variables/<name>, variables/<host>/<name> or variables.yml.
    Nothing is written while `validate` finds an error; what is already published counts for that. Only one
    publication of a deployment runs at a time: a second one waits for up to 60 s (then status 75). A
    publication of up to 512 KiB takes effect at one moment. In a larger one definitions are written last, and
    until then `status` and `explain` report that it has not finished. At the end the containers that need a
    restart are listed.

    A secret of DIR's secrets.yml that has no value is generated, and added to FILE of --secrets before
    anything is published. A secret that is already published keeps its value, which is added to FILE: to
    change it, give another value in FILE. Of FILE, only values that DIR uses are published.

    acl.yml in DIR names the identity of each service. Every znode then gets the rights that are needed, and
    no wider ones. Later publications without an acl.yml, and `set`, use it too.
    """
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
    old = difference.outdated(
        invocation.client, invocation.znodes, loaded.deployment, publisher.published, publisher.changed
    )
    difference.show_outdated(invocation.out, old)
    return 0
