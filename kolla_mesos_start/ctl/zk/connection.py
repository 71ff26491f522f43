"""The operator's connection to ZooKeeper: the agent's own client, and the requests that the tools make.

A request is sent again after an outage. An answer may take as long as the first connection; a command that
follows the deployment sets another limit. Ctrl-C ends it.
"""

from __future__ import annotations

import json
import logging
import math
import select
import signal
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import FrameType, MappingProxyType
from typing import Any, Callable, NamedTuple, TypeVar

from kazoo.protocol.serialization import write_string

from kolla_mesos_start.ctl.directory.acl import NODE, Acl, Plan, joined, parse
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.errors import (
    DONE,
    NO_ANSWER,
    AccessDenied,
    AgentError,
    BadDefinition,
    NoConnection,
    NoRight,
    Stopped,
    WrongCredential,
)
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.settings import Settings
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.client import Client, Outage, Refused, refusal
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.view import Znode
from kolla_mesos_start.zookeeper.wire import (
    ACL,
    OPEN_ACL_UNSAFE,
    PERMISSIONS,
    BadVersionError,
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren2,
    GetData,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SetACL,
    SetData,
    Sync,
    ZnodeStat,
    int_struct,
    znode_acl,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

QUIET = 2.0  # seconds after which a connection that is not made yet is reported
LEAST = 2.0  # seconds for an answer, however little time a command has left
TRIES = 50  # of a change: each fails only if somebody writes between two requests
# How others changed a znode, so that a transaction was refused.
MEANWHILE = {
    NoNodeError: "was removed",
    NodeExistsError: "was made",
    BadVersionError: "was changed",
    NotEmptyError: "has got a child (of a container that has started?)",
}
RECURSIVE = 1  # the mode of a watch


class Interrupts:
    """A handler of SIGINT, and of SIGTERM where it has a status, that raises KeyboardInterrupt or Stopped
    anywhere but within the steps of a session.

    A session that is interrupted while it reads or writes a frame loses bytes, and can't be closed any more.
    """

    def __init__(self) -> None:
        self._deferred, self._pending = False, 0  # the number of a signal

    def handle(self, signum: int, frame: FrameType | None) -> None:
        self._pending = signum
        self._check()

    def call(self, function: Callable[[], T], *, deferred: bool) -> T:
        """Call `function`, in which interrupts are `deferred` or not."""
        before, self._deferred = self._deferred, deferred
        try:
            self._check()
            return function()
        finally:
            self._deferred = before
            self._check()

    def _check(self) -> None:
        if self._pending and not self._deferred:
            signum, self._pending = self._pending, 0
            if signum == signal.SIGINT:
                raise KeyboardInterrupt
            raise Stopped(signum, signal.Signals(signum).name)


INTERRUPTS = Interrupts()


class InterruptibleLoop(Loop):
    """A loop that SIGINT interrupts only while it waits for the next event."""

    def wait(self, condition: Callable[[], T], deadline: float = math.inf) -> T:
        wait = super().wait
        return INTERRUPTS.call(lambda: wait(condition, deadline), deferred=True)

    def _await_events(self, poller: select.poll, milliseconds: int) -> list[tuple[int, int]]:
        return INTERRUPTS.call(lambda: poller.poll(milliseconds), deferred=False)


class OperatorClient(Client):
    """A client whose znodes have the ACL that `acl.yml` plans, or without one that of KOLLA_ZK_ACL."""

    expected = MappingProxyType({**Client.expected, Delete: (*Client.expected[Delete], NotEmptyError)})

    def __init__(self, settings: Settings, loop: Loop) -> None:
        self.limit = settings.connect_timeout or math.inf  # seconds for which an answer is awaited
        self._answers, self._since = -1, 0.0  # how many there were when we began to wait for the next one
        servers = settings.servers
        servers.source = "--hosts or KOLLA_ZK_HOSTS"
        super().__init__(servers, settings.session_timeout, settings.znode_acl, loop)
        self._deployment = Znodes(settings.prefix, settings.deployment_id, "", "").deployment
        self._plans: list[Plan | None] = []

    def _on_fault(self, error: AgentError) -> None:
        if not self._closing:
            raise error

    def close(self) -> None:
        INTERRUPTS.call(super().close, deferred=True)

    def until(self, condition: Callable[[], object]) -> None:
        """Raises NoConnection after `limit` seconds without an answer to any request.

        A request that is sent again after an outage has no more time; what is asked after the end of the
        limit fails at once.
        """
        session, loop = self.session, self.loop
        while not condition():
            if self._answers != session.answers:
                self._answers, self._since = session.answers, now()
            if not loop.wait(
                lambda: condition() or self._answers != session.answers, self._since + self.limit
            ):
                what = "answer of" if session.id else "connection to"
                raise NoConnection(
                    f"no {what} ZooKeeper at {session.servers} within {self.limit:.3g} s:"
                    f" {session.error or NO_ANSWER}; check {session.servers.advice}"
                )

    def begin_again(self) -> None:
        """Give the next request its full time, although a signal has interrupted the last one."""
        self._answers = -1

    def _send(self, operations: Sequence[Any]) -> list[Any]:
        send = super()._send
        return INTERRUPTS.call(lambda: send(operations), deferred=True)

    def _deny(self, denied: NoRight) -> None:
        """Ignore it: the only ephemerals here are contenders for locks, and they end with the session."""

    def read_plan(self) -> Plan | None:
        """The `acl.yml` of the deployment: the one of `use_plan`, else the one that is recorded."""
        if not self._plans:
            path = f"{self._deployment}/{NODE}"
            data = read(self, [path])[path]
            self._plans.append(recorded(path, data) if data else None)
        return self._plans[-1]

    def use_plan(self, plan: Plan) -> None:
        """Use this plan from now on."""
        self._plans.append(plan)

    def read_restricted(self) -> frozenset[str]:
        """The variables that the plan gives to some services only."""
        plan = self.read_plan()
        return frozenset(plan.variables if plan else ())

    def forget_plan(self) -> None:
        """Forget the plan: it is read again when needed."""
        self._plans.clear()

    def creation(self, path: str, data: bytes, flags: int = 0) -> Create:
        return Create(path, data, self._planned(path), flags)

    def _planned(self, path: str) -> Sequence[ACL]:
        plan = self.read_plan()
        if plan is None and self.acl == OPEN_ACL_UNSAFE:
            return self.acl
        if not f"{path}/".startswith(f"{self._deployment}/"):
            return self._inherited(path)
        return self.acl if plan is None else entries(plan.acl(path[len(self._deployment) + 1 :]))

    def _inherited(self, path: str) -> Sequence[ACL]:
        """The ACL of the closest existing znode above: what deployments share belongs to none of them."""
        above = path
        while above:
            above = above.rpartition("/")[0]
            try:
                found = acls(self, [above or "/"])
            except AccessDenied as error:
                raise WrongCredential(
                    f"{path} would get the ACL of {above or '/'}, and only the owner of that can read it in"
                    f" full: let the owner create {path}, with the right c (create) for"
                    f" {self.session.servers.identity}"
                ) from error
            if found:
                return entries(found[above or "/"].acl)
        return self.acl  # The chroot is missing, and the server will say so.


class Changes:
    """Changes for one transaction (`commit`); a version of -1 stands for any."""

    def __init__(self, client: OperatorClient) -> None:
        self.client = client
        self.operations: list[Any] = []

    def create(self, path: str, data: bytes = b"", acl: Sequence[ACL] = ()) -> None:
        self.operations.append(Create(path, data, acl, 0) if acl else self.client.creation(path, data))

    def set_data(self, path: str, data: bytes, version: int = -1) -> None:
        self.operations.append(SetData(path, data, version))

    def write(self, path: str, data: bytes, found: Znode | None) -> None:
        """Create the znode, or replace the data of the one that was `found`, if it is still that."""
        if found is None:
            self.create(path, data)
        else:
            self.set_data(path, data, found.stat.version)

    def delete(self, path: str, version: int = -1) -> None:
        self.operations.append(Delete(path, version))

    def check(self, path: str, version: int) -> None:
        self.operations.append(CheckVersion(path, version))


def connect(settings: Settings, loop: Loop | None = None) -> OperatorClient:
    """A connected client, which the caller closes.

    Raises NoConnection past KOLLA_ZK_CONNECT_TIMEOUT. Refused credentials are met by the first request.
    """
    client = OperatorClient(settings, loop or InterruptibleLoop())
    client.session.quiet = True  # Only an outage is worth a line.

    def report() -> None:
        if not client.session.id:
            until = f" (gives up after {client.limit:g} s)" if client.limit < math.inf else ""
            log.warning("connecting to ZooKeeper at %s%s%s", settings.hosts, settings.chroot, until)

    if client.limit > QUIET:
        client.loop.call_at(now() + QUIET, report)
    try:
        client.until(lambda: client.connected)
    except BaseException:
        client.close()
        raise
    client.session.quiet = False
    return client


def entries(acl: Acl) -> list[ACL]:
    named = ((*who.partition(":"), letters) for who, letters in acl.items())
    return znode_acl((scheme, identity, letters) for scheme, _, identity, letters in named)


# -- requests -------------------------------------------------------------------------------------


def read(client: Client, paths: Iterable[str]) -> dict[str, bytes | None]:
    """The data of each znode; None if it does not exist."""
    return {path: znode.data if znode else None for path, znode in client.read(paths).items()}


def mzxids(client: Client, paths: Iterable[str]) -> dict[str, int | None]:
    """The zxid of the last change of each znode; None if it does not exist."""
    return {path: stat and stat.mzxid for path, stat in stats(client, paths).items()}


def stats(client: Client, paths: Iterable[str], *, watch: bool = False) -> dict[str, ZnodeStat | None]:
    """The stat of each znode; None if it does not exist."""
    return _results(client, {path: Exists(path, watch) for path in paths})


def sync(client: Client, path: str) -> None:
    """Wait until our server has caught up with the leader."""
    client.request(Sync(path), path)


def children(client: Client, paths: Iterable[str]) -> dict[str, Sequence[str]]:
    """The sorted names of the children of each znode; none if it does not exist."""
    return {path: names or [] for path, names in client.children(paths).items()}


def owners(client: Client, places: Iterable[str]) -> dict[str, int]:
    """The paths below `places`, with the session that owns each; 0: none does, as in a copied tree."""
    names = children(client, places)
    found = stats(client, [f"{place}/{name}" for place in names for name in names[place]])
    return {path: stat.ephemeralOwner for path, stat in found.items() if stat}


def znodes(
    client: Client, paths: Iterable[str], denied: set[str] | None = None, *, watch: bool = False
) -> dict[str, Znode | None]:
    """Each znode; None if it does not exist. With `watch`, the session reports its changes.

    Paths that we have no right to read are added to `denied`, and count as absent; without it they are an
    error.
    """
    found = _results(client, {path: GetData(path, watch) for path in paths}, denied=denied)
    return {path: Znode(*got) if got else None for path, got in found.items()}


def names(
    client: Client, paths: Iterable[str], denied: set[str] | None = None, *, watch: bool = False
) -> dict[str, Sequence[str]]:
    """The sorted names below each znode; see `znodes`."""
    found = _results(client, {path: GetChildren2(path, watch) for path in paths}, denied=denied)
    return {path: tuple(sorted(got[0])) if got else () for path, got in found.items()}


class AddWatch(namedtuple("AddWatch", "path")):
    """The request for a watch on a znode and all below it, which stays (ZooKeeper 3.6 and newer)."""

    type = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(RECURSIVE))

    @classmethod
    def deserialize(cls, frame: bytes, offset: int) -> None:
        """The answer holds nothing."""


def watch_all(client: Client, path: str) -> bool:
    """Have the session report all changes at and below a path; False if the server is too old for that."""
    return not isinstance(client.each({path: AddWatch(path)})[path], Exception)


def _results(
    client: Client,
    operations: Mapping[Any, Any],
    *ignored: type[Exception],
    denied: set[str] | None = None,
) -> dict[Any, Any]:
    """The result of each request; None for an error that is `ignored`, by default that of an absent znode."""
    results = client.each(operations)
    if denied is not None:
        refused = [key for key, result in results.items() if isinstance(result, NoAuthError)]
        denied.update(operations[key].path for key in refused)
        results.update(dict.fromkeys(refused))
    _check(operations, results, *(ignored or (NoNodeError,)))
    return {key: None if isinstance(result, Exception) else result for key, result in results.items()}


def _check(operations: Mapping[Any, Any], results: Mapping[Any, Any], *ignored: type[Exception]) -> None:
    """Raise the first error among the results, unless it is `ignored`."""
    for key, operation in operations.items():
        result = results[key]
        if not isinstance(result, Exception) or isinstance(result, ignored):
            continue
        done = DONE.get(type(operation).__name__, "read")
        if isinstance(result, NotEmptyError):
            what = f"{operation.path} can't be {done}: something was made below it meanwhile; try again"
            raise ChangedMeanwhile(what) from result
        raise refusal(operation, f"{operation.path} can't be {done}", result) from result


class CurrentAcl(NamedTuple):
    """The current ACL of a znode, and its version."""

    acl: Acl
    version: int


def acls(client: Client, paths: Iterable[str]) -> dict[str, CurrentAcl]:
    """The ACL of each znode that exists."""
    found = _results(client, {path: GetACL(path) for path in paths})
    return {path: CurrentAcl(_acl(path, got[0]), got[1].acl_version) for path, got in found.items() if got}


def _acl(path: str, found: Sequence[ACL]) -> Acl:
    if any(entry.id.scheme == "digest" and entry.id.id.endswith(":x") for entry in found):
        # ZooKeeper shows digests only to identities that may change the ACL.
        raise AccessDenied(f"the ACL of {path} can't be read in full: this takes the operator's credential")
    return joined(
        (
            f"{entry.id.scheme}:{entry.id.id}",
            "".join(letter for letter, bit in PERMISSIONS.items() if entry.perms & bit),
        )
        for entry in found
    )


def set_acls(client: Client, wanted: Mapping[str, CurrentAcl]) -> set[str]:
    """Set ACLs whose versions are still those given; returns the paths of the others."""
    requests = {path: SetACL(path, entries(each.acl), each.version) for path, each in wanted.items()}
    results = client.each(requests)
    refused = {path for path, result in results.items() if isinstance(result, BadVersionError)}
    left = {path: request for path, request in requests.items() if path not in refused}
    _check(left, results, NoNodeError)
    return refused


class BadPlan(BadDefinition):
    """A recorded `acl.yml` has errors."""

    subject = "acl"


def recorded(path: str, data: bytes) -> Plan:
    """The `acl.yml` that is recorded at `path`."""
    try:
        plan, issues = parse(json.loads(data))
    except (ValueError, TypeError, AttributeError, RecursionError):
        issues = [("", "not as `publish` records it")]
    if issues:
        wrong = "; ".join(f"{label}: {issue}".lstrip(": ") for label, issue in issues)
        raise BadPlan([f"{path}: {wrong}: publish a directory with an acl.yml"])
    return plan


def write(client: OperatorClient, path: str, data: bytes) -> None:
    """Create a znode or replace its data; its parent must exist."""
    # It is set first: the right to write here does not include the right to create beside it.
    write_together(client, {path: data}, {path})


def create(client: OperatorClient, path: str, data: bytes = b"") -> None:
    """Create a znode. Raises NodeExistsError if it exists; the request is sent only once."""
    try:
        client.attempt(client.creation(path, data), path)
    except Outage as lost:
        raise Unanswered(f"{path} can't be created: the connection to ZooKeeper was lost") from lost


def create_parents(client: OperatorClient, paths: Iterable[str]) -> list[str]:
    """Create the absent ancestors of `paths`, and return them.

    Only absent ones are written: operators may only have the right to read the upper ones.
    """
    found = read(client, sorted(set(parents(paths))))
    # Not what is created: after an outage ours look as if they had been there before.
    absent = [path for path, data in found.items() if data is None]
    if absent:
        create_together(client, dict.fromkeys(found, b""))
    return absent


def parents(paths: Iterable[str]) -> Iterator[str]:
    """The ancestors of `paths`, without the root."""
    for path in paths:
        while (path := path.rpartition("/")[0]) != "":
            yield path


def write_together(client: OperatorClient, nodes: Mapping[str, bytes], existing: Set[str]) -> None:
    """Create or replace znodes, all together. `existing` have been found; the parents of the others exist."""
    left, there = set(nodes), set(existing)
    for last in [False] * TRIES + [True]:
        requests = {
            path: SetData(path, nodes[path], -1) if path in there else client.creation(path, nodes[path])
            for path in nodes
            if path in left
        }
        results = client.each(requests)
        # Others removed or created these meanwhile, or our first attempt was applied before an outage.
        left = {p for p, result in results.items() if isinstance(result, (NoNodeError, NodeExistsError))}
        _check(requests, results, *(() if last else (NoNodeError, NodeExistsError)))
        if not left:
            return
        there ^= left


def remove(client: Client, path: str) -> None:
    """Remove a znode, if it exists."""
    _results(client, {path: Delete(path, -1)})


class ChangedMeanwhile(AgentError):
    """A transaction was refused: the znodes have changed since they were read. Nothing was applied."""

    status = 1


class Unanswered(AgentError):
    """The connection was lost during a transaction: it is unknown whether it was applied."""

    status = 69


def commit(changes: Changes, what: str) -> None:
    """Apply all changes or none. They are sent once: after Unanswered, the caller looks up the result."""
    try:
        changes.client.transaction(changes.operations, what)
    except Outage as lost:
        raise Unanswered(f"{what}: the connection to ZooKeeper was lost") from lost
    except Refused as refused:
        how = MEANWHILE[type(refused.cause)]
        raise ChangedMeanwhile(f"{what}: {refused.path} {how} meanwhile; try again") from refused


def apply(plan: Callable[[], Changes | None], what: str) -> None:
    """Commit the changes that `plan` returns (None: nothing is left to do), and plan again if something has
    changed meanwhile."""
    for last in [False] * TRIES + [True]:
        changes = plan()
        if changes is None:
            return
        try:
            commit(changes, what)
            return
        except (ChangedMeanwhile, Unanswered):
            if last:
                raise


@contextmanager
def unfinished(what: str) -> Iterator[None]:
    """Log `what` if the block is interrupted, for example by Ctrl-C; not for ChangedMeanwhile."""
    try:
        yield
    except ChangedMeanwhile:
        raise
    except BaseException:
        log.warning("not finished: %s", what)
        raise


def create_together(client: OperatorClient, nodes: Mapping[str, bytes]) -> None:
    """Create the absent ones of `nodes` in their order (parents first); all or none if one request can hold
    them. Raises NotThere if the parent of one is missing.
    """
    try:
        client.ensure(nodes)
    except Refused as refused:
        above = refused.path.rpartition("/")[0] or f"the chroot {client.session.servers.chroot}"
        raise NotThere(f"{refused.path} can't be created: {above} does not exist") from refused


def remove_all(client: Client, paths: Sequence[str], versions: Mapping[str, int]) -> None:
    """Remove znodes in their order (children first). Raises ChangedMeanwhile if one has a new child.

    A znode whose version is no longer that in `versions` is kept.
    """
    deletions = {path: Delete(path, versions.get(path, -1)) for path in paths}
    _results(client, deletions, NoNodeError, BadVersionError)


def below(client: OperatorClient, roots: Sequence[str]) -> list[str]:
    """All descendants of `roots`, children before their parents."""
    found: list[str] = []
    level = list(roots)
    while level:
        names = children(client, level)
        level = [f"{path}/{name}" for path in level for name in names[path]]
        found += level
    return found[::-1]


def acquire(client: Client, queues: Queues, lock: str, limit: float = 0.0) -> str | None:
    """The path of our contender once it is first in the queue for `lock`; None after `limit` seconds."""
    deadline, watches = now() + limit, client.watches
    while (contender := queues.turn(lock)) is None:
        if not all(map(watches.is_known, queues.queries(lock))):
            watches.watch(queues.queries(lock))
            client.until(watches.fresh)  # The contender before us may be dead.
            continue
        seen = watches.changes
        if not client.loop.wait(lambda seen=seen: watches.changes > seen, deadline):  # type: ignore[misc]
            return None
    return contender


def holder(client: Client, lock: str) -> Znode | None:
    """The first contender in the queue for a lock that a session owns."""
    live = [each for each, session in owners(client, [lock]).items() if session]
    first = min(live, key=lambda each: each[-10:], default="")
    return client.read([first])[first] if first else None
