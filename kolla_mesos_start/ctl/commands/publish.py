"""`kolla_mesos_ctl validate`, `schema`, `diff` and `publish`: from a directory to ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import acl, directory, secret_values, source
from kolla_mesos_start.ctl.directory.acl import Acl, Plan
from kolla_mesos_start.ctl.directory.changes import not_run_again, run_with_old_values
from kolla_mesos_start.ctl.directory.findings import ERROR, counted, in_order, refuse, shown
from kolla_mesos_start.ctl.directory.json_schema import DEFINITION
from kolla_mesos_start.ctl.directory.secrecy import is_secret, is_variable
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live import difference
from kolla_mesos_start.ctl.manifests.formats import check_pods
from kolla_mesos_start.ctl.manifests.model import Site, build
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand
from kolla_mesos_start.ctl.text import few
from kolla_mesos_start.ctl.validate import rules
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets
from kolla_mesos_start.ctl.zk import (
    acls,
    connection,
    publication,
    published,
    removal,
    status_records,
)
from kolla_mesos_start.ctl.zk.publication import Publisher, check_chroot
from kolla_mesos_start.ctl.zk.published import NOTHING, Nodes, Removals
from kolla_mesos_start.errors import AgentError, BadUsage, listed
from kolla_mesos_start.tree.codec import RESTORE

SHOWN = 5  # names, in a message
MANY = 40  # znodes of a first publication: more are only counted


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
        loaded.deployment,
        deployment_id=loaded.name,
        missing_is_empty=is_empty,
        given=loaded.given,
        declared=loaded.hidden,
    )
    wrong = [*loaded.unreadable, *wrong]
    launch = loaded.deployment.launch
    # Only valid definitions have a model.
    if launch.adds_to_pods and all(each.severity != ERROR for each in wrong):
        model, _ = build(loaded.deployment, Site(loaded.name, given=loaded.given))
        wrong += check_pods(launch, model)
    findings = in_order(wrong)
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

    Values are hidden if they or their name look like a secret, if secrets.yml or --secrets names them, or if
    acl.yml restricts them. Znodes that only `publish --prune` would remove are listed, but do not count as
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
    publisher = _publish(invocation, loaded)
    print(f"published {options.directory} to {publisher.root}: {publisher.counts}")
    earlier = publisher.lock.interrupted
    if earlier and publisher.lock.left:
        warning = earlier._replace(services=publisher.lock.left).problem
        invocation.err.print(f"warning: the earlier {warning}")
    # Read afterwards: a container that started meanwhile may have read the old values.
    old = difference.outdated(
        invocation.client, invocation.znodes, loaded.deployment, publisher.was_published, publisher.changed
    )
    difference.show_outdated(invocation.out, old)
    return 0


# -- publishing: paths and names are printed, never values ----------------------------------------


class UnfinishedRestore(AgentError):
    """A restore has not finished: the records of completed commands are missing."""

    status = 1


class Prepared(NamedTuple):
    """A publication over what is published: `source` is written, `old` is removed, and `plan` has the ACLs.

    `left` is neither in the directory nor removed.
    """

    source: Source
    old: Removals
    left: Sequence[str]
    plan: Plan | None


def _publish(invocation: Invocation, source: Source) -> Publisher:
    """Write and remove everything; returns the publisher with what it has changed."""
    client, znodes, note = invocation.client, invocation.znodes, invocation.err.print
    plan = source.deployment.acl
    check_chroot(client, invocation.settings)
    exists = connection.read(client, [znodes.deployment])[znodes.deployment] is not None
    # Taking the lock creates the deployment, which must not happen for a directory with errors.
    prepared = None if exists else _prepare(invocation, source, {})
    if plan:
        acls.require_operator(client, znodes, plan)
        client.use_plan(plan)
    with publication.locked(client, znodes) as lock:
        if lock.interrupted:
            if lock.interrupted.what == RESTORE:
                raise UnfinishedRestore(
                    f"{lock.interrupted}, so one-time commands that are done may run again: restore again,"
                    " or, without the snapshot, `kolla_mesos_ctl reset` and publish; nothing was changed"
                )
            note(f"note: an earlier {lock.interrupted}")
        before = published.nodes(client, znodes)
        if before or prepared is None:
            prepared = _prepare(invocation, source, before)
        deployment = prepared.source.deployment
        texts = directory.definitions(deployment)
        if lock.interrupted:  # It stays unfinished for what this one neither writes nor removes.
            names = {each.name for each in deployment.services}.union(prepared.old.services)
            left = published.services_of(before) - names
            lock.left = tuple(name for name in lock.interrupted.services if name in left)
        is_long = not before and len(directory.nodes(deployment)) > MANY
        publisher = Publisher(client, znodes, before, lock, (lambda change: None) if is_long else print)
        made = prepared.source
        secret_values.keep(invocation.options.secrets, made.kept, made.generated, invocation.err)
        if prepared.plan:
            _secure(invocation, publisher, prepared.plan)
        else:
            _warn_of_readable_secrets(invocation, prepared.source)
        publisher.publish(deployment, prepared.plan, prepared.old, partial(_withdrawn, invocation))
    if is_long:
        files = sum(len(each.files) for each in deployment.services)
        variables = sum(map(is_variable, publisher.changed))
        what = f"{counted(len(deployment.services), 'service')} with {counted(variables, 'variable')}"
        print(f"created {what} and {counted(files, 'file')}")
    for command in not_run_again(before, texts):
        note(
            f"note: {command} has changed, but not its generation: where it is done, it does not run"
            " again; publish another generation, or use `kolla_mesos_ctl rerun`"
        )
    if old_values := list(run_with_old_values(before, directory.nodes(deployment), texts)):
        note(
            "note: where they are done, these one-time commands do not run again, although what they use has"
            f" changed: {few(old_values, SHOWN)}; if one has written it into a database, such as a password,"
            " use `kolla_mesos_ctl rerun`"
        )
    if prepared.left:
        where = f"{invocation.options.directory}: {few(prepared.left, SHOWN)}"
        note(f"note: still published, but not in {where}; --prune would remove them")
    return publisher


def _prepare(invocation: Invocation, source: Source, before: Nodes) -> Prepared:
    """Compare the directory with what is published, and refuse errors."""
    client, options = invocation.client, invocation.options
    source = source.with_published(before)
    if source.generated and options.secrets is None:
        raise BadUsage(
            f"no value for {listed(source.generated)}: give --secrets FILE; generated values are added to it"
        )
    unused, busy = published.prunable(client, invocation.znodes, before, source.deployment)
    old, left = (unused, []) if options.prune else (NOTHING, [*unused.written(before), *busy])
    for service in busy if options.prune else ():
        invocation.err.print(f"kept {service}: it is not in the directory, but it has containers")
    if not options.no_validate:
        findings = rules.validate(
            published.after(before, source.deployment, old),
            deployment_id=source.name,
            missing_is_empty=invocation.settings.missing_is_empty,
            given=source.given,
            declared=source.hidden,
        )
        refuse(findings, invocation.err)
    # Without an acl.yml the last one stays in force.
    plan = source.deployment.acl or client.read_plan()
    services = published.defined(before).union(directory.definitions(source.deployment))
    return Prepared(source, old, left, plan and plan.only(services.difference(old.services)))


def _withdrawn(invocation: Invocation, old: Removals) -> Removals:
    """Withdraw services; one that a container has joined meanwhile stays, and is named."""
    client, znodes, busy = invocation.client, invocation.znodes, set()
    owners = status_records.roles(client, znodes)
    for service in old.services:
        roles = {path: owner for path, owner in owners.items() if owner == service}
        try:
            removal.withdraw(client, znodes._replace(service_name=service), roles)
        except (removal.InUse, connection.ChangedMeanwhile) as error:
            busy.add(service)
            invocation.err.print(f"kept {service}: it is not in the directory, but {error}")
    return old.without(busy)


def _secure(invocation: Invocation, publisher: Publisher, plan: Plan) -> None:
    """Correct existing ACLs before anything is written."""
    changed = acls.secure(invocation.client, invocation.znodes, plan)
    publisher.counts["secured"] = len(changed)
    for path in sorted(changed):
        publisher.report(f"secured {path}")
    readable = [path for path, old in changed.items() if is_variable(path) and _by_all(old)]
    if readable:
        text = f"every client could read {_named(readable)} until now: replace secret ones"
        invocation.err.print(f"warning: {text}")


def _warn_of_readable_secrets(invocation: Invocation, source: Source) -> None:
    """Without a plan, warn of secrets that every client can read."""
    variables = filter(is_variable, directory.nodes(source.deployment))
    secrets = {node for node in variables if is_secret(node, source.hidden)}
    rights = acl.joined((":".join(who), letters) for *who, letters in invocation.settings.acl)
    if secrets and _by_all(rights):
        text = f"every client can read {_named(secrets)}: restrict access with acl.yml"
        invocation.err.print(f"warning: {text}")


def _by_all(rights: Acl) -> bool:
    return acl.READ in rights.get(acl.WORLD, "")


def _named(paths: Iterable[str]) -> str:
    """The number of variables, and some of their names."""
    names = sorted({path.rpartition("/")[2] for path in paths})
    return f"{counted(len(names), 'variable')} ({few(names, SHOWN)})"
