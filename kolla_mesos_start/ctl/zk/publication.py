"""Publications: one at a time, and an interrupted one is visible.

    <deployment>/.publication                       the mark: who published last, when, has it finished
    <deployment>/.publication/<id>__lock__<number>  who is publishing, or waits to: ephemeral

This module has the lock, the mark, the changes from what is published to what is wanted, and the writes in
transactions. `publish`, `restore` and `variables` decide what to write. Every transaction checks that the
lock is still ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES, Contents, Deployment
from kolla_mesos_start.ctl.text import operator
from kolla_mesos_start.ctl.zk import acls, connection, event_record, published
from kolla_mesos_start.ctl.zk.connection import (
    TRIES,
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
    log,
)
from kolla_mesos_start.ctl.zk.published import NOTHING, Nodes, Removals
from kolla_mesos_start.errors import AgentError, BadEnvironment, TooLarge
from kolla_mesos_start.log import printable
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.codec import PUBLICATION, PublicationMark, unfinished
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.wire import NoNodeError

LIMIT = 60.0  # seconds to wait for another publication
ATOMIC = 512 * 1024  # bytes of a publication in one transaction: half of a server's default of jute.maxbuffer
# Bytes of each transaction of a larger one. Servers keep the last 500 transactions in memory.
PART = 64 * 1024
HEADER = 9  # bytes that a transaction adds to each operation
MAX_SHOWN = 200  # bytes of what others have written, in a message


class Busy(AgentError):
    """Another publication did not finish within the limit."""

    status = 75
    retriable = True


class LockLost(AgentError):
    """The session has expired, and the lock with it."""

    status = 69
    retriable = True


class ZnodeChange(NamedTuple):
    """The wanted data of the znode at `path`; None: it must not exist. A parent only has to exist."""

    path: str
    data: bytes | None = b""
    is_parent: bool = False

    def is_made(self, found: bytes | None) -> bool:
        """Whether nothing is left to do; `found` is what the znode holds, None if it does not exist."""
        return found is not None if self.is_parent else found == self.data


Write = tuple[ZnodeChange, Any]
"""A change, and the operation that makes it."""


class OpenPublication:
    """The lock of a deployment, which we hold. `contender` is our znode.

    `is_begun`: the mark says that ours has not finished. `interrupted`: an earlier one that has not finished.
    `left`: services of that one that ours does not contain; it stays unfinished for these.
    """

    def __init__(
        self,
        client: OperatorClient,
        mark: str,
        contender: str,
        what: str,
        interrupted: PublicationMark | None,
    ) -> None:
        self.is_begun, self.interrupted = False, interrupted
        self.left: tuple[str, ...] = ()
        self._client, self._mark, self._contender = client, mark, contender
        self._last = PublicationMark(what, operator(), _now(), None)
        self.changes: list[str] = []  # nodes that were created, updated or removed, for the record

    def begin(self, services: Iterable[str] = ()) -> None:
        """Mark the publication of these services as begun. This comes before its first write."""
        if not self.is_begun:
            begun = self._last._replace(services=tuple(sorted({*services, *self.left})))
            self.write([ZnodeChange(self._mark, begun.encoded())], {self._mark: b""})
            self.is_begun = True

    def publish(
        self, changes: Iterable[ZnodeChange], before: Mapping[str, bytes], services: Iterable[str] = ()
    ) -> None:
        """Make the last changes of a publication, and mark it as finished together with the last of them.

        Everything is one transaction if that is small enough, and nothing was written before. `services` are
        those that it changes.
        """
        changes = list(changes)
        if not (changes or self.is_begun or self.interrupted):
            return
        mark = self._last._replace(finished=_now())
        if self.interrupted and self.left:  # The earlier one stays unfinished for these.
            mark = self.interrupted._replace(services=self.left)
        changes = [*changes, ZnodeChange(self._mark, mark.encoded())]
        steps = self._steps(changes, {**before, self._mark: b""})
        if sum(map(_size, steps)) <= ATOMIC and not self.is_begun:
            try:
                self._commit(steps)
                return
            except TooLarge:
                if len(changes) <= 2:  # one, and the mark
                    raise
        self.begin(services)
        for batch in _batches(steps):
            self._commit_or_split(batch)
        self.is_begun = False

    def write(self, changes: Iterable[ZnodeChange], before: Mapping[str, bytes]) -> None:
        """Make these changes in their order, in as few transactions as possible.

        `before` has the data of the znodes that exist.
        """
        for batch in _batches(self._steps(changes, before)):
            self._commit_or_split(batch)

    def _steps(self, changes: Iterable[ZnodeChange], before: Mapping[str, bytes | None]) -> list[Write]:
        """What is left to do."""
        there = dict(before)
        steps = []
        for change in changes:
            path, data, _ = change
            found = there.get(path)
            if change.is_made(found):
                continue
            transaction = Changes(self._client)
            if data is None:
                transaction.delete(path)
            elif found is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data)
            steps.append((change, transaction.operations[0]))
            there[path] = data
        return steps

    def _commit_or_split(self, steps: Sequence[Write]) -> None:
        """Commit a batch; step by step if the servers take only smaller requests."""
        try:
            self._commit(steps)
        except TooLarge:
            if len(steps) == 1:
                raise
            for step in steps:
                self._commit([step])

    def _commit(self, steps: Sequence[Write]) -> None:
        changes = [change for change, _ in steps]
        for last in [False] * TRIES + [True]:
            transaction = Changes(self._client)
            transaction.check(self._contender, -1)
            transaction.operations += [operation for _, operation in steps]
            try:
                connection.commit(transaction, "not published")
                return
            except (ChangedMeanwhile, Unanswered):
                # Somebody has written without the lock; or it was applied, and only the reply was lost.
                there = connection.read(self._client, [self._contender, *(each.path for each in changes)])
                if there[self._contender] is None:
                    raise LockLost(
                        f"the lock {self._contender} is gone: the session has expired, or somebody has"
                        " removed the lock; start this again"
                    ) from None
                steps = self._steps(changes, there)
                if not steps:
                    return
                if last:
                    raise


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _batches(steps: Iterable[Write]) -> list[list[Write]]:
    """The steps in their order, as many at a time as one transaction shall hold."""
    batches: list[list[Write]] = []
    size = PART
    for step in steps:
        if size + _size(step) > PART:
            batches.append([])
            size = 0
        batches[-1].append(step)
        size += _size(step)
    return batches


def _size(step: Write) -> int:
    return len(step[1].serialize()) + HEADER


def interrupted(client: OperatorClient, znodes: Znodes) -> PublicationMark | None:
    """The last publication, if it has not finished."""
    return unfinished(connection.read(client, [znodes.publication])[znodes.publication] or b"")


@contextmanager
def locked(
    client: OperatorClient,
    znodes: Znodes,
    what: str = PUBLICATION,
    limit: float = LIMIT,
    *,
    action: str = "publish",
) -> Iterator[OpenPublication]:
    """Hold the lock of the deployment, which is created if it does not exist.

    At the end the changes that the caller has noted are recorded as `action`, and the lock is given back,
    which is not awaited. Busy if another publication does not finish within `limit` seconds.
    """
    mark = znodes.publication
    connection.create_parents(client, [f"{mark}/contender"])  # The mark itself, below which contenders are.
    queues = Queues(client, operator())
    try:
        contender = connection.acquire(client, queues, mark) or _wait(client, queues, mark, limit)
    except NoNodeError as error:
        raise ChangedMeanwhile(f"{mark} was removed meanwhile; try again") from error
    client.forget_plan()  # Another publication may have changed it while we waited.
    held = OpenPublication(client, mark, contender, what, interrupted(client, znodes))
    try:
        yield held
    except BaseException:
        if held.is_begun:
            log.warning("the %s of %s has not finished: start it again", what, znodes.deployment)
        raise  # The lock goes with the session: to release it would take as long as an outage does.
    if held.changes:
        event_record.append(client, znodes, action, held.changes, services=_services(held.changes))
    queues.give_back(mark)


def _services(nodes: Iterable[str]) -> list[str]:
    """The services that changes concern; none if one is of a variable of the whole deployment."""
    found = published.services_of(nodes)
    return [] if "" in found else sorted(found)


def _wait(client: OperatorClient, queues: Queues, path: str, limit: float) -> str:
    timeout = client.session.timeout
    holder = _holder(client, path)
    log.warning("waiting for %s; if it was killed, its session expires within %g s", holder, timeout)
    contender = connection.acquire(client, queues, path, limit)
    if contender is None:
        raise Busy(f"waited {limit:g} s for {_holder(client, path)}; nothing was changed")
    return contender


def _holder(client: OperatorClient, path: str) -> str:
    """Who is first in the queue, and since when, for a message."""
    znode = connection.holder(client, path)
    if znode is None:
        return "another publication"
    who = printable(znode.data[:MAX_SHOWN].decode(errors="replace"))
    since = time.strftime("%H:%M:%S", time.localtime(znode.stat.ctime / 1000))
    return f"the publication by {who} since {since}"


# -- writing a deployment ---------------------------------------------------------------------------------


def check_chroot(client: OperatorClient, config: Settings) -> None:
    """Refuse a chroot that does not exist. It may be a typo, and no agent would read what is written
    there."""
    if connection.read(client, ["/"])["/"] is None:
        raise BadEnvironment(
            [f"KOLLA_ZK_HOSTS: the chroot {config.chroot} does not exist; create it, or correct it"]
        )


class Counts(dict[str, int]):
    """How many znodes were created, updated, removed, and left unchanged."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {change}" for change, count in self.items())


class Publisher:
    """Writes a deployment into its tree, which contains `before`. `report` is called with a line for each
    change.

    `lock` is the lock of publications, which we hold.
    """

    def __init__(
        self,
        client: OperatorClient,
        znodes: Znodes,
        before: Nodes,
        lock: OpenPublication,
        report: Callable[[str], object] = print,
    ) -> None:
        self.client, self.znodes, self.lock = client, znodes, lock
        self.root = znodes.deployment
        self.was_published = before
        self.before = {self.root: b"", **self._paths(before)}
        self.report = report
        self.counts = Counts(created=0, updated=0, removed=0, unchanged=0)
        self.changed = lock.changes

    def publish(
        self,
        deployment: Deployment,
        plan: Plan | None = None,
        old: Removals = NOTHING,
        withdraw: Callable[[Removals], Removals] = lambda services: services,
    ) -> None:
        """Write everything and remove `old`, in one transaction if that is large enough.

        Otherwise definitions are written last: an agent that reads a new one finds everything that it needs.
        `withdraw` returns the services that can be removed now.
        """
        texts = directory.definitions(deployment)
        missing, there = acls.missing(self.client, self.znodes, plan, texts) if plan else ({}, {})
        self.before.update(there)
        contents, definitions = map(self._paths, (directory.nodes(deployment), texts))
        values, services = old.apart()
        changes = [
            *self._changes({**contents, **missing}),
            *(ZnodeChange(f"{self.root}/{node}", None) for node in values.removed),
            *self._changes(definitions),
        ]
        names = {service.name for service in deployment.services}
        names &= published.services_of(change.path[len(self.root) + 1 :] for change in changes)
        if services.removed or services.emptied:
            self.lock.begin(names)
            self.lock.write(changes, self.before)
            self.remove(withdraw(services))
            changes = []
        self.lock.publish(changes, self.before, names)
        self._note_written({**contents, **definitions})
        for node in values.removed:
            self.note("removed", f"{self.root}/{node}")

    def write(self, nodes: Contents, *, is_last: bool = False) -> None:
        """Create or update what differs; `is_last`: this ends the publication."""
        wanted = self._paths(nodes)
        write = self.lock.publish if is_last else self.lock.write
        write(self._changes(wanted), self.before)
        self._note_written(wanted)

    def _paths(self, nodes: Contents) -> dict[str, bytes]:
        return {f"{self.root}/{node}": data for node, data in nodes.items()}

    def _changes(self, wanted: Contents) -> Iterator[ZnodeChange]:
        """The changes to make, each after the creation of its missing parents."""
        created: set[str] = set()
        for path, data in wanted.items():
            if self.before.get(path) != data:
                above = [path]
                while (parent := above[-1].rpartition("/")[0]) not in self.before and parent not in created:
                    above.append(parent)
                created.update(above)
                yield from (ZnodeChange(each, is_parent=True) for each in above[:0:-1])
                yield ZnodeChange(path, data)

    def _note_written(self, wanted: Contents) -> None:
        for path, data in wanted.items():
            change = "updated" if self._is_there(path) else "created"
            self.note("unchanged" if self.before.get(path) == data else change, path)
        self.before.update(wanted)

    def _is_there(self, path: str) -> bool:
        """An empty definition counts as absent: its znode was created as the parent of its variables."""
        is_definition = f"/{VARIABLES}/" not in path and f"/{FILES}/" not in path
        return bool(self.before.get(path)) or (path in self.before and not is_definition)

    def remove(self, old: Removals) -> None:
        """Remove these znodes, deepest first."""
        for node in old.removed:
            path = f"{self.root}/{node}"
            for name in connection.children(self.client, [path])[path] if node in old.services else ():
                connection.remove(self.client, f"{path}/{name}")  # An agent created it; it is empty now.
            connection.remove(self.client, path)
            self.note("removed", path)
        for node in old.emptied:
            connection.write(self.client, f"{self.root}/{node}", b"")
            self.note("removed", f"{self.root}/{node}")

    def note(self, change: str, path: str) -> None:
        self.counts[change] += 1
        if change != "unchanged":
            self.changed.append(path[len(self.root) + 1 :])
            self.report(f"{change} {path}")
