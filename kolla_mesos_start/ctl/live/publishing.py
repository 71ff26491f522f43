"""Publishes a directory: compares it with what is published, refuses errors, and writes under the lock.

What belongs here: the order of these steps. Errors are found in `validate`; `zk` writes to ZooKeeper.
Nothing is written before everything is valid, and unchanged znodes are not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import acl, directory, secret_values
from kolla_mesos_start.ctl.directory.acl import Acl, Plan
from kolla_mesos_start.ctl.directory.changes import not_run_again
from kolla_mesos_start.ctl.directory.findings import counted, refuse
from kolla_mesos_start.ctl.directory.secrecy import is_secret, is_variable
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.validate.rules import validate
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
from kolla_mesos_start.tree.codec import RESTORE, PublicationMark

SHOWN = 5  # names, in a message
MANY = 40  # znodes of a first publication: more are only counted


class UnfinishedRestore(AgentError):
    """A restore has not finished: the records of completed commands are missing."""

    status = 1


class PreparedPublication(NamedTuple):
    """A publication over the nodes `before`: `source` is written, `old` is removed, and `plan` has the ACLs.

    `left` is neither in the directory nor removed.
    """

    before: Nodes
    source: Source
    old: Removals
    left: Sequence[str]
    plan: Plan | None


class Publishing:
    """One publication of a directory. Paths and names are printed, never values."""

    def __init__(self, invocation: Invocation, source: Source) -> None:
        self._invocation, self._source, self._options = invocation, source, invocation.options
        self._client, self._znodes = invocation.client, invocation.znodes
        self._note = invocation.err.print

    def publish(self) -> Publisher:
        """Write and remove everything; returns the publisher with what it has changed."""
        client, znodes, plan = self._client, self._znodes, self._source.deployment.acl
        check_chroot(client, self._invocation.settings)
        exists = connection.read(client, [znodes.deployment])[znodes.deployment] is not None
        # Taking the lock creates the deployment, which must not happen for a directory with errors.
        prepared = None if exists else self._prepare({})
        if plan:
            acls.require_operator(client, znodes, plan)
            client.plan = plan
        with publication.locked(client, znodes) as lock:
            if lock.interrupted:
                _require_restored(lock.interrupted)
                self._note(f"note: an earlier {lock.interrupted}")
            before = published.nodes(client, znodes)
            if before or prepared is None:
                prepared = self._prepare(before)
            lock.left = _left_over(lock.interrupted, prepared)
            wanted = directory.nodes(prepared.source.deployment)
            is_long = not before and len(wanted) > MANY
            report = (lambda change: None) if is_long else print
            publisher = Publisher(client, znodes, before, lock, report)
            self._write(publisher, prepared)
        if is_long:
            variables = sum(map(is_variable, publisher.changed))
            services = prepared.source.deployment.services
            print(
                f"created {counted(len(services), 'service')} with {counted(variables, 'variable')} and"
                f" {counted(sum(len(each.files) for each in services), 'file')}"
            )
        for command in not_run_again(prepared.before, directory.definitions(prepared.source.deployment)):
            self._note(
                f"note: {command} has changed, but not its generation: where it is done, it does not run"
                " again; publish another generation, or use `kolla_mesos_ctl rerun`"
            )
        if prepared.left:
            left = f"{self._options.directory}: {_first(prepared.left)}"
            self._note(f"note: still published, but not in {left}; --prune would remove them")
        return publisher

    def _prepare(self, before: Nodes) -> PreparedPublication:
        """Compare the directory with what is published, and refuse errors."""
        source = self._source.with_published(before)
        if source.generated and self._options.secrets is None:
            raise BadUsage(
                f"no value for {listed(source.generated)}: give --secrets FILE;"
                " generated values are added to it"
            )
        unused, busy = published.prunable(self._client, self._znodes, before, source.deployment)
        old, left = unused, []
        if self._options.prune:
            for service in busy:
                self._note(f"kept {service}: it is not in the directory, but it has containers")
        else:
            old, left = NOTHING, [*unused.written(before), *busy]
        if not self._options.no_validate:
            findings = validate(
                published.after(before, source.deployment, old),
                deployment_id=source.name,
                missing_is_empty=self._invocation.settings.missing_is_empty,
                given=source.given,
            )
            refuse(findings, self._invocation.err)
        # Without an acl.yml the last one stays in force.
        plan = source.deployment.acl or self._client.plan
        services = published.defined(before).union(directory.definitions(source.deployment))
        plan = plan and plan.only(services.difference(old.services))
        return PreparedPublication(before, source, old, left, plan)

    def _write(self, publisher: Publisher, prepared: PreparedPublication) -> None:
        source, plan = prepared.source, prepared.plan
        secret_values.keep(self._options.secrets, source.kept, source.generated, self._invocation.err)
        if plan:
            self._secure(publisher, plan)
        else:
            self._warn_of_readable_secrets(source)
        publisher.publish(source.deployment, plan, prepared.old, self._withdrawn)

    def _withdrawn(self, old: Removals) -> Removals:
        """Withdraw services; one that a container has joined meanwhile stays, and is named."""
        client, busy = self._client, set()
        owners = status_records.roles(client, self._znodes)
        for service in old.services:
            roles = [path for path, owner in owners.items() if owner == service]
            try:
                removal.withdraw(client, self._znodes._replace(service_name=service), roles)
            except (removal.InUse, connection.ChangedMeanwhile) as error:
                busy.add(service)
                self._note(f"kept {service}: it is not in the directory, but {error}")
        return old.without(busy)

    # -- who can read values ----------------------------------------------------------------------

    def _secure(self, publisher: Publisher, plan: Plan) -> None:
        """Correct existing ACLs before anything is written."""
        changed = acls.secure(self._client, self._znodes, plan)
        publisher.counts["secured"] = len(changed)
        for path in sorted(changed):
            publisher.report(f"secured {path}")
        readable = [path for path, old in changed.items() if is_variable(path) and _by_all(old)]
        if readable:
            self._note(f"warning: every client could read {_named(readable)} until now: replace secret ones")

    def _warn_of_readable_secrets(self, source: Source) -> None:
        """Without a plan, warn of secrets that every client can read."""
        deployment = source.deployment
        variables = filter(is_variable, directory.nodes(deployment))
        secrets = {node for node in variables if is_secret(node, source.hidden)}
        rights = acl.joined((":".join(who), letters) for *who, letters in self._invocation.settings.acl)
        if secrets and _by_all(rights):
            self._note(f"warning: every client can read {_named(secrets)}: restrict access with acl.yml")


def _require_restored(interrupted: PublicationMark) -> None:
    if interrupted.what == RESTORE:
        raise UnfinishedRestore(
            f"{interrupted}, so one-time commands that are done may run again: restore again, or, without the"
            " snapshot, `kolla_mesos_ctl reset` and publish; nothing was changed"
        )


def _left_over(interrupted: PublicationMark | None, prepared: PreparedPublication) -> tuple[str, ...]:
    """The published services of an interrupted publication that this one neither writes nor removes."""
    if interrupted is None:
        return ()
    left = published.services_of(prepared.before).difference(prepared.old.services)
    left -= {service.name for service in prepared.source.deployment.services}
    return tuple(name for name in interrupted.services if name in left)


def _by_all(rights: Acl) -> bool:
    return acl.READ in rights.get(acl.WORLD, "")


def _named(paths: Iterable[str]) -> str:
    """The number of variables, and some of their names."""
    names = sorted({path.rpartition("/")[2] for path in paths})
    return f"{counted(len(names), 'variable')} ({_first(names)})"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
