"""The lock and the mark of a publication: one at a time, and an interrupted one is visible.

    <deployment>/.publication                       the mark: who published last, when, has it finished
    <deployment>/.publication/<id>__lock__<number>  who is publishing, or waits to: ephemeral

This module has the lock, the mark, and the writes in transactions. `publish`, `restore` and `variables`
decide what to write. Every transaction checks that the lock is still ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.text import operator
from kolla_mesos_start.ctl.zk import connection, event_record, published
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
    log,
)
from kolla_mesos_start.errors import AgentError, TooLarge
from kolla_mesos_start.tree.codec import PUBLICATION, PublicationMark, unfinished
from kolla_mesos_start.tree.states import printable
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.wire import NoNodeError

LIMIT = 60.0  # seconds to wait for another publication
ATOMIC = 512 * 1024  # bytes of a publication in one transaction: half of a server's default of jute.maxbuffer
# Bytes of each transaction of a larger one. Servers keep the last 500 transactions in memory.
PART = 64 * 1024
HEADER = 9  # bytes that a transaction adds to each operation
TRIES = 50  # Each is refused only where somebody without the lock has written between two requests.
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


Step = tuple[ZnodeChange, Any]
"""A change, and the operation that makes it."""


class Held:
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
        self.changes: list[str] = []  # what was created, updated or removed, for the record

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
        finished = self._last._replace(finished=_now())
        if self.interrupted and self.left:
            finished = self.interrupted._replace(services=self.left)
        changes = [*changes, ZnodeChange(self._mark, finished.encoded())]
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

    def _steps(self, changes: Iterable[ZnodeChange], before: Mapping[str, bytes | None]) -> list[Step]:
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

    def _commit_or_split(self, steps: Sequence[Step]) -> None:
        """Commit a batch; step by step if the servers take only smaller requests."""
        try:
            self._commit(steps)
        except TooLarge:
            if len(steps) == 1:
                raise
            for step in steps:
                self._commit([step])

    def _commit(self, steps: Sequence[Step]) -> None:
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


def _batches(steps: Iterable[Step]) -> list[list[Step]]:
    """The steps in their order, as many at a time as one transaction shall hold."""
    batches: list[list[Step]] = []
    size = PART
    for step in steps:
        if size + _size(step) > PART:
            batches.append([])
            size = 0
        batches[-1].append(step)
        size += _size(step)
    return batches


def _size(step: Step) -> int:
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
) -> Iterator[Held]:
    """Hold the lock of the deployment, which is created if it does not exist.

    At the end the changes that the caller has noted are recorded as `action`. Busy if another publication
    does not finish within `limit` seconds.
    """
    mark = znodes.publication
    connection.create_parents(client, [f"{mark}/lock"])
    queues = Queues(client, operator())
    try:
        contender = connection.acquire(client, queues, mark) or _wait(client, queues, mark, limit)
    except NoNodeError as error:
        raise ChangedMeanwhile(f"{mark} was removed meanwhile; try again") from error
    client.forget_plan()  # Another publication may have changed it while we waited.
    held = Held(client, mark, contender, what, interrupted(client, znodes))
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
    live = [each for each, session in connection.owners(client, [path]).items() if session]
    first = min(live, key=lambda each: each[-10:], default="")
    znode = client.read([first])[first] if first else None
    if znode is None:
        return "another publication"
    who = printable(znode.data[:MAX_SHOWN].decode(errors="replace"))
    since = time.strftime("%H:%M:%S", time.localtime(znode.stat.ctime / 1000))
    return f"the publication by {who} since {since}"
