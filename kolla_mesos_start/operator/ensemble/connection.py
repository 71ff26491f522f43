"""The operator's connection to ZooKeeper: kazoo's own client, its errors translated into AgentError.

What lives here: connecting, and the few requests that the tools make. Nothing of the agent's session:
here threads do no harm. A request waits for as long as an outage lasts.
"""

from __future__ import annotations

import json
import logging
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, NamedTuple, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create, SetData, Transaction
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.security import ACL, Id, Permissions

from kolla_mesos_start.errors import (
    DONE,
    NO_ANSWER,
    AccessDenied,
    AgentError,
    BadDefinition,
    NoConnection,
    NoRight,
    TooLarge,
    cause,
    causes,
    handshake_cause,
)
from kolla_mesos_start.operator.deployment.acl import NODE, Acl, Plan, joined, parse
from kolla_mesos_start.settings import LABELS, Settings
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.identity import ANSWER_TIMEOUT, WhoAmI, names
from kolla_mesos_start.zookeeper.losses import SMALL, SOON, Losses, largest_path, size_of
from kolla_mesos_start.zookeeper.query import Query, Znode
from kolla_mesos_start.zookeeper.tls import explain, make_context

log = logging.getLogger(__name__)

REFUSED = "ZooKeeper refused the credentials of KOLLA_ZK_AUTH_FILE"

QUIET = 2.0  # seconds: whoever waits for longer wants to know for what
CLOSE_TIMEOUT = 1.0  # seconds
T = TypeVar("T")

# kazoo's defaults try once, and then with delays that grow to hours.
RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0}
DENIED = (NoAuthError, AuthFailedError, InvalidACLError)
# What a request meets whose fate is unknown.
LOST = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)
WRITES = (Create, SetData, Transaction)
# What others have done to a znode of a transaction that is refused.
MEANWHILE = {
    NoNodeError: "was removed",
    NodeExistsError: "was made",
    BadVersionError: "was changed",
    NotEmptyError: "has got a child (of a container that has started?)",
}
PERMISSIONS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


class _Attempts(logging.Handler):
    """Hears from kazoo's log why connections failed, which kazoo says nowhere else; `causes` is by server."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(logging.WARNING)
        # A logger without a level would make three records for each request.
        self.logger = logging.Logger(__name__, logging.WARNING)
        self.logger.addHandler(self)
        self.server = ""
        self.causes: dict[str, str] = {}
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error that a line is about."""
        *names, error = record.args if isinstance(record.args, tuple) and record.args else [None]
        if isinstance(error, socket.gaierror):
            self.causes[str(names[0])] = f"the name {names[0]} can't be resolved: {error.strerror}"
        elif isinstance(error, ConnectionDropped):
            self.causes[self.server] = self._explained(error.__context__)
        elif isinstance(error, Exception):
            self.causes[self.server] = cause(error)

    def _explained(self, error: BaseException | None) -> str:
        if not isinstance(error, OSError):
            error = ConnectionResetError()  # kazoo has read the end of the stream.
        if not self._settings.ca:
            return handshake_cause(error)
        return explain(error, has_cert=bool(self._settings.cert), labels=LABELS)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's, with the agent's TLS (kazoo itself would trust the system's CAs too), and faster."""

    def __init__(self, settings: Settings, attempts: _Attempts) -> None:
        super().__init__()
        self._settings, self._attempts = settings, attempts

    def select(
        self,
        readers: Sequence[socket.socket],
        writers: Sequence[socket.socket],
        _: Sequence[socket.socket],
        timeout: float | None = None,
    ) -> tuple[Sequence[socket.socket], Sequence[socket.socket], Sequence[socket.socket]]:
        """The sockets that are ready. kazoo's own makes an epoll object, four times for each request."""
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
        readable, writable = (
            [each for each in some if each.fileno() in ready] for some in (readers, writers)
        )
        return readable, writable, []

    def create_connection(
        self, address: tuple[str, int], timeout: float, hostname: str, **others: object
    ) -> socket.socket:
        """A connection to a server, under TLS where that is wanted."""
        self._attempts.server = f"{hostname}:{address[1]}"
        config = self._settings
        # kazoo's thread can't be ended in here: the tool would wait for it, past its own limit.
        connection = socket.create_connection(address, min(timeout, config.connect_timeout or timeout))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if config.ca is None:
            return connection
        with connection:  # TLS takes it over; or it failed.
            # The files are read for each connection: they may have been renewed.
            context = make_context(config.ca, config.cert, config.key, labels=LABELS)
            return context.wrap_socket(connection, server_hostname=hostname)


class OperatorClient(KazooClient):  # type: ignore[misc]
    """kazoo's. What it creates has the ACL that `acl.yml` plans; without one that of KOLLA_ZK_ACL."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__(**options)
        self._deployment = Znodes(settings.prefix, settings.deployment_id, "", "").deployment
        self._plans: list[Plan | None] = []
        self._default = joined((f"{scheme}:{name}", letters) for scheme, name, letters in settings.acl)
        self._losses = Losses()

    @property
    def plan(self) -> Plan | None:
        """The `acl.yml` of the deployment: the one that was set, else the one that is recorded."""
        if not self._plans:
            path = f"{self._deployment}/{NODE}"
            data = read(self, [path])[path]
            self._plans.append(recorded(path, data) if data else None)
        return self._plans[-1]

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plans.append(plan)

    def forget_plan(self) -> None:
        """Read it again when it is needed."""
        self._plans.clear()

    def planned(self, path: str) -> Sequence[ACL]:
        """The ACL of what is created at `path`."""
        if self.plan is None:
            return entries(self._default)
        is_own = f"{path}/".startswith(f"{self._deployment}/")
        return entries(self.plan.acl(path[len(self._deployment) + 1 :]) if is_own else self.plan.above)

    def create_async(self, path: str, value: bytes = b"", acl: Any = None, *others: Any, **more: Any) -> Any:
        return super().create_async(path, value, acl or self.planned(path), *others, **more)

    def transaction(self) -> TransactionRequest:
        return _Transaction(self)

    def _call(self, request: Any, reply: Any) -> Any:
        if isinstance(request, WRITES) and (size := size_of(request)) > SMALL:
            reply.rawlink(partial(self._count, largest_path(request), size, time.monotonic()))
        return super()._call(request, reply)

    def _count(self, path: str, size: int, sent: float, reply: Any) -> None:
        """A large request has ended. Runs on a thread of kazoo's."""
        if isinstance(reply.exception, ConnectionLoss):
            self._losses.lost(path, size, soon=time.monotonic() - sent < SOON)
        else:
            self._losses.answered(path)

    def check_size(self) -> None:
        """Raise TooLarge if the servers drop the connection because of the size of a request."""
        if found := self._losses.culprit():
            raise TooLarge(*found)


class _Transaction(TransactionRequest):  # type: ignore[misc]
    def create(self, path: str, value: bytes = b"", acl: Any = None, *others: Any) -> None:
        super().create(path, value, acl or self.client.planned(path), *others)


def connect(settings: Settings) -> OperatorClient:
    """A connected client, which the caller closes (`close`).

    Raises NoConnection past KOLLA_ZK_CONNECT_TIMEOUT, and AccessDenied for refused credentials.
    """
    attempts = _Attempts(settings)
    client = _new_client(settings, attempts)
    limit = settings.connect_timeout
    # kazoo's own event is taken back where the credentials are refused, which may be before we look.
    connected = threading.Event()
    client.add_listener(lambda state: connected.set())
    client.start_async()
    is_connected = _await(connected, settings)
    if is_connected and client.client_state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED):
        close(client)
        raise AccessDenied(REFUSED)
    if not is_connected:
        close(client)
        raise NoConnection(
            f"no connection to ZooKeeper at {settings.hosts} within {limit:g} s "
            f"(KOLLA_ZK_CONNECT_TIMEOUT): {causes(attempts.causes) if attempts.causes else NO_ANSWER}; check"
            " --hosts or KOLLA_ZK_HOSTS, and that ZooKeeper runs there"
        )
    client.add_listener(log_outage)
    return client


def _await(connected: threading.Event, settings: Settings) -> bool:
    """Whether the event comes in time. What takes long says so."""
    limit = math.inf if settings.connect_timeout is None else settings.connect_timeout
    if connected.wait(min(limit, QUIET)):
        return True
    if limit <= QUIET:
        return False
    until = f" (gives up after {limit:g} s)" if limit < math.inf else ""
    log.warning("connecting to ZooKeeper at %s%s%s", settings.hosts, settings.chroot, until)
    return connected.wait(limit - QUIET if limit < math.inf else None)


def close(client: KazooClient) -> None:
    """End the session; where the server is too slow for that, it expires."""

    def end() -> None:
        client.stop()
        client.close()

    client.remove_listener(log_outage)
    with suppress(TimeoutError):
        # kazoo's thread can't be ended while it reads: each byte gives the server some time more.
        in_thread(end).result(CLOSE_TIMEOUT)


def in_thread(work: Callable[[], T]) -> Future[T]:
    """The result of `work`, once a thread has it; the end of the process does not wait for the thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _new_client(settings: Settings, attempts: _Attempts) -> OperatorClient:
    return OperatorClient(
        settings,
        hosts=settings.hosts + settings.chroot,
        timeout=settings.session_timeout,
        connection_retry=RETRY,
        command_retry=RETRY,
        auth_data=list(settings.auth),
        handler=_Handler(settings, attempts),
        logger=attempts.logger,
    )


def known_as(client: KazooClient) -> str:
    """Who the server takes us for; empty where it does not say it soon."""
    answer = client.handler.async_result()
    client._call(WhoAmI(), answer)
    try:
        return names(answer.get(timeout=ANSWER_TIMEOUT), LABELS)
    except (KazooException, client.handler.timeout_exception):
        return ""


def entries(acl: Acl) -> list[ACL]:
    return [
        ACL(sum(PERMISSIONS[letter] for letter in letters), Id(*who.split(":", 1)))
        for who, letters in acl.items()
    ]


def log_outage(state: str) -> None:
    """Say that the connection was lost, and that it is back. Runs on kazoo's thread."""
    if state == KazooState.SUSPENDED:
        log.warning("lost the connection to ZooKeeper; retrying")
    elif state == KazooState.CONNECTED:
        log.warning("connected to ZooKeeper again")


# -- requests. Each may be sent a second time, when an outage has hidden the reply to the first. ------


def read(client: KazooClient, paths: Iterable[str]) -> dict[str, bytes | None]:
    """The data at each of `paths`; None where no znode is."""
    found = _read_together(client, client.get_async, paths)
    return {path: _data(result) for path, result in found.items()}


def znodes(client: KazooClient, paths: Iterable[str]) -> dict[str, Znode | None]:
    """What stands at each of `paths`, with its versions; None where no znode is."""
    found = _read_together(client, client.get_async, paths)
    return {path: _znode(result) for path, result in found.items()}


def mzxids(client: KazooClient, paths: Iterable[str]) -> dict[str, int | None]:
    """The zxid of the last change at each of `paths`; None where no znode is."""
    return {path: stat and stat.mzxid for path, stat in stats(client, paths).items()}


def stats(client: KazooClient, paths: Iterable[str]) -> dict[str, ZnodeStat | None]:
    """The stat of each of `paths`; None where no znode is."""
    return _read_together(client, client.exists_async, paths)


def sync(client: KazooClient, path: str) -> None:
    """Have our server catch up with the leader."""
    _send(client, lambda: client.sync(path))


def children(client: KazooClient, paths: Iterable[str]) -> dict[str, Sequence[str]]:
    """The sorted names below each of `paths`; none where no znode is."""
    found = _read_together(client, client.get_children_async, paths)
    return {path: sorted(names or ()) for path, names in found.items()}


def read_with_children(
    client: KazooClient, paths: Iterable[str]
) -> dict[str, tuple[bytes | None, Sequence[str]]]:
    """The data at each of `paths`, None where no znode is, and the sorted names below it."""
    found = _read_together(client, client.get_async, paths)
    parents = [path for path, result in found.items() if result and result[1].numChildren]
    names = children(client, parents)
    return {path: (_data(result), names.get(path, ())) for path, result in found.items()}


def answers(
    client: KazooClient, queries: Iterable[Query], watch: Callable[[Query], object] | None = None
) -> dict[Query, Any]:
    """What each query asks for; `watch` is called once with each whose answer changes later."""
    wanted = tuple(queries)

    def start(query: Query) -> Any:
        ask = client.get_children_async if query.children else client.get_async
        ask = client.exists_async if query.stat else ask
        return ask(query.path, _watcher(watch, query))

    def read_all() -> dict[Query, Any]:
        replies = [(query, start(query)) for query in wanted]
        return {query: _result(query.path, reply) for query, reply in replies}

    found = _send(client, read_all)
    absent = [query for query, result in found.items() if result is None and not query.stat]
    if watch:
        _await_creation(client, absent, watch)
    for query, result in found.items():
        if not query.stat:
            found[query] = tuple(sorted(result or ())) if query.children else _znode(result)
    return dict(found)


def _data(result: tuple[bytes | None, Any] | None) -> bytes | None:
    """The data of a znode, None where there is none; one that was made without data is empty."""
    return None if result is None else result[0] or b""


def _znode(result: tuple[bytes | None, Any] | None) -> Znode | None:
    return None if result is None else Znode(result[0] or b"", result[1])


def _await_creation(client: KazooClient, absent: Sequence[Query], watch: Callable[[Query], object]) -> None:
    """Watch what is not there: reading it has set no watch."""

    def look() -> dict[Query, Any]:
        replies = [(query, client.exists_async(query.path, _watcher(watch, query))) for query in absent]
        return {query: _result(query.path, reply) for query, reply in replies}

    for query, stat in _send(client, look).items():
        if stat is not None:  # It has been created since.
            watch(query)


def _watcher(watch: Callable[[Query], object] | None, query: Query) -> Callable[[object], object] | None:
    return None if watch is None else lambda event: watch(query)


def _read_together(client: KazooClient, start: Callable[[str], Any], paths: Iterable[str]) -> dict[str, Any]:
    """The result for each path, all requests being sent before the first reply is awaited."""
    wanted = tuple(dict.fromkeys(paths))

    def read_all() -> dict[str, Any]:
        replies = [(path, start(path)) for path in wanted]
        return {path: _result(path, reply) for path, reply in replies}

    result: dict[str, Any] = _send(client, read_all)
    return result


def _send(client: KazooClient, request: Callable[[], Any]) -> Any:
    def attempt() -> Any:
        _check_size(client)
        return request()

    with interruptible(client):
        return client.retry(attempt)


def _check_size(client: KazooClient) -> None:
    if isinstance(client, OperatorClient):
        client.check_size()


@contextmanager
def interruptible(client: KazooClient) -> Iterator[None]:
    """Requests that Ctrl-C may end, or ZooKeeper because the credentials are refused."""
    try:
        yield
    except ConnectionClosedError as error:
        # kazoo has closed a connection whose credentials were refused. It makes the same error of any
        # exception that meets it while it wakes its thread.
        if client.client_state == KeeperState.CLOSED:
            raise AccessDenied(REFUSED) from error
        raise KeyboardInterrupt from error


def _result(path: str, reply: Any) -> Any:
    try:
        return _reply(path, "read", reply)
    except NoNodeError:
        return None
    except (struct.error, ValueError) as error:
        raise NoConnection(f"{path}: the answer can't be read: is this a ZooKeeper server?") from error


def _reply(path: str, done: str, reply: Any) -> Any:
    """What a request got that would have `done` this to the znode at `path`: see NoRight."""
    try:
        return reply.get()
    except DENIED as error:
        raise NoRight(path, done, error) from error


class CurrentAcl(NamedTuple):
    """The ACL of a znode as it stands, and its version."""

    acl: Acl
    version: int


def acls(client: KazooClient, paths: Iterable[str]) -> dict[str, CurrentAcl]:
    """The ACL of each of `paths` where there is a znode."""
    found = {path: got for path, got in _read_together(client, client.get_acls_async, paths).items() if got}
    return {path: CurrentAcl(_acl(path, acl), stat.acl_version) for path, (acl, stat) in found.items()}


def _acl(path: str, found: Sequence[ACL]) -> Acl:
    if any(entry.id.scheme == "digest" and entry.id.id.endswith(":x") for entry in found):
        # ZooKeeper shows digests only to who may change the ACL.
        raise AccessDenied(f"the ACL of {path} can't be read in full: this takes the operator's credential")
    return joined(
        (
            f"{entry.id.scheme}:{entry.id.id}",
            "".join(letter for letter, bit in PERMISSIONS.items() if entry.perms & bit),
        )
        for entry in found
    )


def set_acls(client: KazooClient, wanted: Mapping[str, CurrentAcl]) -> set[str]:
    """Give each path its ACL, if the one that stands has that version; the paths where it has another."""
    refused: set[str] = set()

    def start(path: str, each: CurrentAcl) -> Any:
        return client.set_acls_async(path, entries(each.acl), each.version)

    def set_all() -> None:
        refused.clear()
        for path, reply in [(path, start(path, each)) for path, each in wanted.items()]:
            try:
                _reply(path, "given another ACL", reply)
            except BadVersionError:  # By somebody else, or by ourselves before an outage.
                refused.add(path)
            except NoNodeError:
                pass

    _retry(client, set_all, "the ACLs can't be changed")
    return refused


class BadPlan(BadDefinition):
    """A recorded `acl.yml` that is none."""

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


def write(client: KazooClient, path: str, data: bytes) -> None:
    """Have `data` at `path`, created or replaced; the znode above must exist."""

    def set_or_create() -> None:
        # In this order: the right to write here does not include the right to create beside it.
        try:
            _reply(path, "written", client.set_async(path, data))
        except NoNodeError:
            create(client, path, data)

    _retry(client, set_or_create, f"{path} can't be written")


def create(client: KazooClient, path: str, data: bytes = b"") -> None:
    """Create a znode, once: NodeExistsError where somebody else has."""
    _reply(path, "created", client.create_async(path, data))


def create_each(client: KazooClient, nodes: Mapping[str, bytes]) -> None:
    """Create those that are absent, all requests being sent together; the znodes above must exist."""

    def create_all() -> None:
        replies = [(path, client.create_async(path, data)) for path, data in nodes.items()]
        for path, reply in replies:
            with suppress(NodeExistsError):  # By a first try, or by another publisher.
                _reply(path, "created", reply)

    _retry(client, create_all, "the deployment can't be written")


def create_parents(client: KazooClient, paths: Iterable[str], existing: Set[str] = frozenset()) -> list[str]:
    """Create the znodes above `paths` that are absent, those of one depth together; returns them.

    `existing` are some that are there. None is tried that is there: on the upper ones an operator may have
    the right to read only.
    """
    found = read(client, set(_parents(paths)) - existing)
    absent = [path for path, data in found.items() if data is None]
    for depth in sorted({path.count("/") for path in absent}):
        create_each(client, {path: b"" for path in absent if path.count("/") == depth})
    return absent


def _parents(paths: Iterable[str]) -> Iterator[str]:
    """The znodes above `paths`."""
    for path in paths:
        while (path := path.rpartition("/")[0]) != "":
            yield path


def write_together(client: KazooClient, nodes: Mapping[str, bytes], existing: Set[str]) -> None:
    """Have its data at each path, all requests being sent before the first reply is awaited.

    `existing` are the paths that were there a moment ago; the znodes above all others must exist.
    """

    def start(path: str) -> tuple[str, str, Any]:
        if path in existing:
            return path, "written", client.set_async(path, nodes[path])
        return path, "created", client.create_async(path, nodes[path])

    def write_all() -> None:
        for path, done, reply in [start(path) for path in nodes]:
            try:
                _reply(path, done, reply)
            except (NoNodeError, NodeExistsError):  # Somebody else removed or created it meanwhile.
                write(client, path, nodes[path])

    _retry(client, write_all, "the deployment can't be written")


def remove(client: KazooClient, path: str) -> None:
    """Remove the znode at `path`; it is no error that none is there."""

    def delete() -> None:
        with suppress(NoNodeError):
            _reply(path, "deleted", client.delete_async(path))

    _retry(client, delete, f"{path} can't be removed")


class ChangedMeanwhile(AgentError):
    """A transaction was refused, and nothing of it applied: what it was made from has changed."""

    status = 1


class Unanswered(AgentError):
    """The connection was lost under a transaction: whether it was applied is unknown."""

    status = 69


def commit(transaction: TransactionRequest, what: str) -> None:
    """Apply all of a transaction, or nothing. It is sent once: Unanswered where that must be looked up."""
    try:
        with interruptible(transaction.client):
            results = transaction.commit()
    except LOST as lost:
        _check_size(transaction.client)
        raise Unanswered(f"{what}: the connection to ZooKeeper was lost") from lost
    # An operation that was fine is answered with one of these, since another one was not.
    followers = (RolledBackError, RuntimeInconsistency)
    for operation, error in zip(transaction.operations, results):
        if isinstance(error, DENIED):
            raise NoRight(operation.path, DONE.get(type(operation).__name__, "read"), error)
        if isinstance(error, Exception) and not isinstance(error, followers):
            how = MEANWHILE.get(type(error), type(error).__name__)
            raise ChangedMeanwhile(f"{what}: {operation.path} {how} meanwhile; try again")


@contextmanager
def unfinished(what: str) -> Iterator[None]:
    """Say how far it got where this is interrupted, by Ctrl-C or so. ChangedMeanwhile says it itself."""
    try:
        yield
    except ChangedMeanwhile:
        raise
    except BaseException:
        log.warning("not finished: %s", what)
        raise


def create_together(client: KazooClient, nodes: Mapping[str, bytes]) -> None:
    """Create those of `nodes` that are absent, parents first as given, all or none of them.

    ChangedMeanwhile where the parent of all is missing.
    """
    before: list[str] = []
    while absent := [path for path, data in read(client, nodes).items() if data is None]:
        transaction = client.transaction()
        for path in absent:
            transaction.create(path, nodes[path])
        try:
            commit(transaction, f"{absent[0]} can't be created")
        except (ChangedMeanwhile, Unanswered):
            # Somebody else has made a part of them; or it was applied, and only the reply was lost.
            if absent == before:
                raise
        before = absent


def remove_all(client: KazooClient, paths: Sequence[str], versions: Mapping[str, int]) -> None:
    """Remove the znodes at `paths`, children first as given; ChangedMeanwhile where one has got a child.

    A znode of `versions` that has another version by now stays, and so does its parent.
    """

    def delete() -> None:
        # All are sent before the first reply is awaited; the server keeps their order.
        for path, reply in [(path, client.delete_async(path, versions.get(path, -1))) for path in paths]:
            with suppress(NoNodeError, BadVersionError):
                _reply(path, "deleted", reply)

    _retry(client, delete, "not all can be removed")


def below(client: KazooClient, roots: Sequence[str]) -> list[str]:
    """Every znode below `roots`, children before their parents."""
    found: list[str] = []
    level = list(roots)
    while level:
        names = children(client, level)
        level = [f"{path}/{name}" for path in level for name in names[path]]
        found += level
    return found[::-1]


def _retry(client: KazooClient, request: Callable[[], None], what: str) -> None:
    """Send the request until it gets a reply; AgentError where that is an error."""
    try:
        _send(client, request)
    except NotEmptyError as error:
        raise ChangedMeanwhile(f"{what}: something was made below it meanwhile; try again") from error
    except KazooException as error:
        raise AgentError(f"{what}: {type(error).__name__}") from error
