"""Each error that a server can send, at each kind of request: what it is to the sender, and how often it is
asked again.

`wire.ERRORS` is the table; a proxy before a real server answers with each of its codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from kazoo.exceptions import EXCEPTIONS, KazooException

from kolla_mesos_start.errors import AccessDenied, AgentError, RefusedByServer
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.client import Client, Outage, Refused
from kolla_mesos_start.zookeeper.session import LATER, Servers, Session
from tests.support import false_replies
from tests.support.false_replies import FalseReplies, Lie
from tests.support.waiting import LIMIT
from tests.support.zookeeper import HOST, Server

PATH = "/kolla"
UNKNOWN = -998  # no error of today's servers
CODES = [*(code for code in EXCEPTIONS if code), UNKNOWN]
OPEN = wire.OPEN_ACL_UNSAFE
REQUESTS: dict[str, tuple[int, Any]] = {
    "exists": (false_replies.EXISTS, wire.Exists(PATH, False)),
    "getData": (false_replies.GET_DATA, wire.GetData(PATH, True)),
    "getChildren": (false_replies.GET_CHILDREN, wire.GetChildren(PATH, True)),
    "getChildren2": (false_replies.GET_CHILDREN2, wire.GetChildren2(PATH, False)),
    "getACL": (false_replies.GET_ACL, wire.GetACL(PATH)),
    "sync": (false_replies.SYNC, wire.Sync(PATH)),
    "create": (false_replies.CREATE, wire.Create(PATH, b"", OPEN, 0)),
    "setData": (false_replies.SET_DATA, wire.SetData(PATH, b"", -1)),
    "setACL": (false_replies.SET_ACL, wire.SetACL(PATH, OPEN, -1)),
    "delete": (false_replies.DELETE, wire.Delete(PATH, -1)),
}
OPERATIONS = [
    wire.Create(PATH, b"", OPEN, 0),
    wire.SetData(PATH, b"", 7),
    wire.CheckVersion(PATH, 7),
    wire.Delete(PATH, -1),
]
WINDOW = 1.0  # seconds in which requests are counted
# How often each of them may be sent in it: nearly a thousand times a second without a pause.
MOST, MOST_FOR_ABSENT = 20, 80


class Clients:
    """Clients of the server, each behind a proxy of its own, which share a loop."""

    def __init__(self, server: Server) -> None:
        self._server, self._stack = server, ExitStack()
        self.loop = Loop()

    def add(self, lie: Lie | None = None, **more: Any) -> tuple[Client, FalseReplies]:
        proxy = self._stack.enter_context(FalseReplies(self._server.port))
        proxy.lie = lie
        return self.again(proxy, **more), proxy

    def again(self, proxy: FalseReplies, **more: Any) -> Client:
        """One more behind the same proxy."""
        client = Client(Servers([(HOST, proxy.port)], **more), 30.0, OPEN, self.loop)
        self._stack.callback(client.session.abandon)
        return client

    def end(self) -> None:
        self._stack.close()


@pytest.fixture
def clients(zookeeper: Server) -> Iterator[Clients]:
    clients = Clients(zookeeper)
    yield clients
    clients.end()


def outcome(client: Client, operation: Any) -> Exception:
    """The error that a sender gets."""
    try:
        if isinstance(operation, list):
            client.transaction(operation, PATH)
        else:
            client.attempt(operation, PATH)
    except (AgentError, KazooException, Outage, Refused) as error:
        return error
    raise AssertionError("it has no error")


def check(client: Client, code: int, operation: Any, error: Exception) -> None:
    """The error says what the table says of it."""
    sent = wire.error_of(code)
    kind, words = wire.meaning(sent)
    if kind in (wire.LOST, wire.LATER):
        assert isinstance(error, Outage)
    elif kind == wire.UNKNOWN_IDENTITY:
        assert isinstance(error, AccessDenied) and words in error.reason and error.status == 77
    elif kind == wire.DENIED_BY_ACL:
        assert isinstance(error, AccessDenied) and error.status == 77
        assert code == -102 or words in error.reason
    elif isinstance(sent, client.expected.get(type(operation), ())):
        cause = error.cause if isinstance(error, Refused) else error
        assert type(cause) is type(sent)
    else:
        name = "" if code == UNKNOWN else f" ({type(sent).__name__})"
        assert isinstance(error, RefusedByServer) and f"{words}{name}" in error.reason
        assert error.status == 69


def test_the_table_has_all_errors_of_kazoo() -> None:
    assert set(EXCEPTIONS.values()) == set(wire.ERRORS) and all(each.words for each in wire.ERRORS.values())


@pytest.mark.parametrize("code", CODES)
def test_what_each_request_gets(clients: Clients, code: int) -> None:
    """The next request has its answer again, in the same session, or in a new one if nobody could go on."""
    client, proxy = clients.add()
    kind_of_error = wire.meaning(wire.error_of(code)).kind
    for kind, operation in REQUESTS.values():
        proxy.lie, begun = Lie(kind, code), now()
        check(client, code, operation, outcome(client, operation))
        if kind_of_error == wire.LATER:
            assert now() - begun >= LATER * 0.8  # the jitter
        proxy.lie = None
        if kind_of_error == wire.UNKNOWN_IDENTITY:
            client.session.abandon()
            client = clients.again(proxy)
        client.request(wire.Exists("/", False), "/")


@pytest.mark.parametrize("inner", [False, True], ids=["whole", "inner"])
@pytest.mark.parametrize("code", CODES)
def test_what_a_transaction_gets(clients: Clients, code: int, inner: bool) -> None:
    """Whether the code is that of the whole, or of one of its operations."""
    client, proxy = clients.add(Lie(false_replies.MULTI, code, inner))
    for operation in OPERATIONS:
        check(client, code, operation if inner else None, outcome(client, [operation, *OPERATIONS]))
        client.session.abandon()
        client = clients.again(proxy)


@pytest.mark.parametrize("code", CODES)
def test_a_session_that_can_not_be_closed_is_left(clients: Clients, code: int) -> None:
    client, proxy = clients.add()
    client.request(wire.Exists("/", False), "/")
    proxy.lie, begun = Lie(false_replies.CLOSE, code), now()
    client.close()
    assert client.session.closed and now() - begun < LIMIT and proxy.requests[false_replies.CLOSE] < MOST


@pytest.mark.parametrize("code", CODES)
def test_credentials_that_get_an_error_are_refused(clients: Clients, code: int) -> None:
    client, _ = clients.add(Lie(false_replies.AUTH, code), auth=[("digest", "web:secret")])
    error = outcome(client, wire.Exists("/", False))
    assert isinstance(error, AccessDenied) and "KOLLA_ZK_AUTH_FILE" in error.reason


def ask_greedily(session: Session, operation: Any) -> None:
    """Send a request, and again at once whenever it has failed."""

    def ask_again(value: object, error: KazooException | None) -> None:
        if session.connected:  # Otherwise it begins again with the next connection.
            ask_greedily(session, operation)

    session.request(operation, ask_again)


@pytest.mark.parametrize("code", CODES)
def test_no_request_is_repeated_without_a_pause(clients: Clients, code: int) -> None:
    """However greedy its sender is."""
    kinds = {**REQUESTS, "multi": (false_replies.MULTI, wire.Transaction(OPERATIONS))}
    proxies: dict[str, FalseReplies] = {}
    for name, (kind, operation) in kinds.items():
        client, proxies[name] = clients.add(Lie(kind, code, inner=True))
        client.session.quiet = True
        client.ignore()
        client.session.on_connected(partial(ask_greedily, client.session, operation))
    clients.loop.sleep(WINDOW)
    sent = {name: sum(proxy.requests.values()) for name, proxy in proxies.items()}
    assert min(sent.values()) > 0
    for name, times in sent.items():
        is_absent = code == -101 and name in ("exists", "getData", "getChildren", "getChildren2")
        assert times < (MOST_FOR_ABSENT if is_absent else MOST), name
