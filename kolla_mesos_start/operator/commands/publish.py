"""`kolla_mesos_ctl publish`: a directory becomes a deployment's tree in ZooKeeper.

    read the directory -> take the lock -> validate -> write and remove

What lives here: the stages. What is wrong is found in `validation`; how it is written is in `ensemble`.
Nothing is written before everything is right, and what is unchanged is not written again: publishing
twice is the same as publishing once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from kolla_mesos_start.errors import AccessDenied, AgentError, BadUsage
from kolla_mesos_start.operator.deployment import acl, directory, layouts, secrets_file
from kolla_mesos_start.operator.deployment.acl import Plan
from kolla_mesos_start.operator.deployment.changes import is_secret, is_variable
from kolla_mesos_start.operator.deployment.directory import VARIABLES, Deployment
from kolla_mesos_start.operator.deployment.findings import ERROR, counted
from kolla_mesos_start.operator.deployment.secret_values import Completed
from kolla_mesos_start.operator.ensemble import (
    acls,
    connection,
    containers,
    publication,
    published,
    removal,
    status_records,
)
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.operator.ensemble.published import NOTHING, Nodes, Removals
from kolla_mesos_start.operator.ensemble.publisher import Publisher, check_chroot
from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.live import difference, outdated
from kolla_mesos_start.operator.validation.refusal import refuse, shown
from kolla_mesos_start.operator.validation.rules import validate
from kolla_mesos_start.tree.publication import RESTORE, Mark

SHOWN = 5  # variables, in a message


class Half(AgentError):
    """A restore has not finished: what is done is not recorded yet."""

    status = 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    layouts.add_arguments(parser)
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove variables, files and whole services that are no longer in DIR, except services that have"
        " containers",
    )
    parser.add_argument("--no-validate", action="store_true", help="publish even if `validate` finds errors")
    without_writing = parser.add_mutually_exclusive_group()
    without_writing.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; show what would change, as `diff` does, and with --prune what would be removed",
    )
    without_writing.add_argument(
        "--check-acl",
        action="store_true",
        help="only name the znodes where somebody may do more than acl.yml plans; status 77 if there are any",
    )


def run(invocation: Invocation) -> int:
    """All stages, in order; what is done, and who has to be restarted, is printed: paths, never values."""
    if invocation.options.dry_run:
        return difference.run(invocation)
    options, config, znodes = invocation.options, invocation.settings, invocation.znodes
    deployment, unreadable = layouts.read(options, config.deployment_id)
    refuse(unreadable)
    for name in deployment.left_out:
        print(f"left out {options.directory / name}")
    client = invocation.client
    check_chroot(client, config)
    if options.check_acl:
        return check_acl(invocation, deployment)
    work = prepare_new(invocation, deployment)
    if deployment.acl:
        acls.require_operator(client, znodes, deployment.acl)
        client.plan = deployment.acl
    with publication.locked(client, znodes) as lock:
        if lock.interrupted:
            _require_restored(lock.interrupted)
            invocation.err.print(f"note: an earlier {lock.interrupted}", markup=False)
        before = published.nodes(client, znodes)
        if before or work is None:
            work = prepare(invocation, deployment, before)
        lock.left = left_over(lock.interrupted, before, work)
        publisher = Publisher(client, znodes, before, lock)
        write(invocation, publisher, work)
    print(f"published {options.directory} to {znodes.deployment}: {publisher.counts}")
    if lock.interrupted and lock.left:
        warning = lock.interrupted._replace(services=lock.left).problem
        invocation.err.print(f"warning: the earlier {warning}", markup=False)
    # Looked for afterwards: one that has started meanwhile may have read what was there before.
    deployment = work.completed.deployment
    outdated.show(invocation.out, outdated.outdated(client, znodes, deployment, publisher.changed))
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
another value in FILE.

acl.yml in DIR names the identity of each service. Every znode then gets the rights that are needed, and no
wider ones. Later publications without an acl.yml, and `set`, use it too.

DIR may also have kolla-mesos's own layout: services/<project>/<service>.yml.j2, config/ and etc/.
""",
    example="kolla_mesos_ctl publish etc/examples/keystone --deployment site --hosts zk1",
    add_arguments=_add_arguments,
    run=run,
)


# -- the stages -----------------------------------------------------------------------------------


class Work(NamedTuple):
    """What is to be done: `completed` is written, `old` removed, and `plan` says who may do what."""

    completed: Completed
    old: Removals
    plan: Plan | None


def prepare_new(invocation: Invocation, deployment: Deployment) -> Work | None:
    """Prepare the first publication; None if the deployment exists.

    It must not be created, not even for the lock, where the directory has errors.
    """
    client, znodes = invocation.client, invocation.znodes
    if connection.read(client, [znodes.deployment])[znodes.deployment] is not None:
        return None
    return prepare(invocation, deployment, {})


def prepare(invocation: Invocation, deployment: Deployment, before: Nodes) -> Work:
    """Find out what is to be done, and refuse what is wrong."""
    options = invocation.options
    completed = secrets_file.complete(deployment, invocation.given, before, options.secrets)
    deployment = completed.deployment
    old = plan_removals(invocation, before, deployment) if options.prune else NOTHING
    if not options.no_validate:
        check(invocation, deployment, before, old)
    return Work(completed, old, planned(invocation.client, deployment, before, old))


def write(invocation: Invocation, publisher: Publisher, work: Work) -> None:
    """Do it."""
    secrets_file.keep(invocation.options.secrets, work.completed, invocation.err)
    if work.plan:
        secure(invocation, publisher, work.plan)
    else:
        warn_of_secrets(invocation, work.completed.deployment)
    publisher.publish(work.completed.deployment, work.plan, work.old, partial(withdrawn, invocation))


def left_over(interrupted: Mark | None, before: Nodes, work: Work) -> tuple[str, ...]:
    """The services of an interrupted publication that are still published, and not in this one."""
    there = {service.name for service in published.deployment(before).services}
    there -= {service.name for service in work.completed.deployment.services} | set(work.old.services)
    return tuple(name for name in interrupted.services if name in there) if interrupted else ()


def _require_restored(interrupted: Mark) -> None:
    """Half, unless what has not finished is a publication."""
    if interrupted.what == RESTORE:
        raise Half(
            f"{interrupted}, so one-time commands that are done may run again: restore again, or, without the"
            " snapshot, `kolla_mesos_ctl reset` and publish; nothing was changed"
        )


def plan_removals(invocation: Invocation, before: Nodes, deployment: Deployment) -> Removals:
    """What --prune removes. A service that has containers is named, and stays."""
    gone = published.gone(before, deployment)
    busy = containers.read(invocation.client, invocation.znodes, gone).keys()
    for service in sorted(busy):
        invocation.err.print(f"kept {service}: it is not in the directory, but it has containers")
    return published.removals(before, deployment, gone - busy)


def withdrawn(invocation: Invocation, old: Removals) -> Removals:
    """What --prune removes, once its services are withdrawn. A service whose container has started is named,
    and kept."""
    client, znodes, busy = invocation.client, invocation.znodes, set()
    owners = status_records.roles(client, znodes)
    for service in old.services:
        roles = [path for path, owner in owners.items() if owner == service]
        try:
            removal.withdraw(client, znodes._replace(service_name=service), roles)
        except (removal.InUse, connection.ChangedMeanwhile) as error:
            busy.add(service)
            invocation.err.print(f"kept {service}: it is not in the directory, but {error}", markup=False)
    return old.without(busy)


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


# -- acl.yml --------------------------------------------------------------------------------------


def planned(client: OperatorClient, deployment: Deployment, before: Nodes, old: Removals) -> Plan | None:
    """The directory's acl.yml, or else the last one, for the services that will be there."""
    plan = deployment.acl or client.plan
    there = {service.name for service in directory.enabled(deployment)}
    there |= {each.name for each in published.deployment(before).services if each.definition}
    return plan and plan.only(there - set(old.services))


def check_acl(invocation: Invocation, deployment: Deployment) -> int:
    """Name what is wider than planned; 77 if anything is."""
    if deployment.acl is None:
        raise BadUsage(
            f"--check-acl: {invocation.options.directory} has no acl.yml, so that no ACL is planned"
        )
    before = published.nodes(invocation.client, invocation.znodes)
    plan = prepare(invocation, deployment, before).plan or deployment.acl
    found = acls.wider(invocation.client, invocation.require_deployment(), plan)
    for path, more in found.items():
        print(f"{path}: {acl.shown(more)}, which acl.yml does not plan")
    print(f"{counted(len(found), 'znode')} wider than planned")
    return AccessDenied.status if found else 0


def secure(invocation: Invocation, publisher: Publisher, plan: Plan) -> None:
    """Correct existing ACLs before anything is written; warn of values that every client could read."""
    changed = acls.secure(invocation.client, publisher.znodes, plan)
    publisher.counts.by_change["secured"] = len(changed)
    for path in sorted(changed):
        publisher.report(f"secured {path}")
    could = [path for path in changed if is_variable(path) and acl.READ in changed[path].get(acl.WORLD, "")]
    if could:
        invocation.err.print(
            f"warning: every client could read {_named(could)} until now: replace what is secret",
            markup=False,
        )


def warn_of_secrets(invocation: Invocation, deployment: Deployment) -> None:
    """There is no plan: warn of what is named like a secret, if it is published for the world."""
    named = [node for node in directory.nodes(deployment) if is_variable(node) and is_secret(node)]
    secrets = {*named, *(f"{VARIABLES}/{name}" for name in deployment.variables.keys() & deployment.secrets)}
    world = [rights for *who, rights in invocation.settings.acl if ":".join(who) == acl.WORLD]
    if secrets and acl.READ in "".join(world):
        invocation.err.print(
            f"warning: every client can read {_named(secrets)}: say in acl.yml who may", markup=False
        )


def _named(paths: Iterable[str]) -> str:
    """So many variables, and some of their names."""
    names = sorted({path.rpartition("/")[2] for path in paths})
    more = ", ..." if len(names) > SHOWN else ""
    return f"{counted(len(names), 'variable')} ({', '.join(names[:SHOWN])}{more})"
