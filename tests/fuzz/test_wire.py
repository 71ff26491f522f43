"""What a server sends: a session's answers, changed; and one that sends them slowly, or without end."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper import session as session_module
from kolla_mesos_start.zookeeper.session import Servers, Session
from kolla_mesos_start.zookeeper.wire import (
    OPEN_ACL_UNSAFE,
    CheckVersion,
    ConnectionLoss,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    KazooException,
    SetData,
    Transaction,
)
from tests.fuzz.inputs import FAST, Fuzz, changed, seeded
from tests.support.replies import CONNECTED, END, NAMES, STAT, framed, result, text

NUMBERS = [
    struct.pack("!i", number) for number in (0, 1, 2, 5, -1, -2, -4, -101, -110, -115, -999, 99, 2**31 - 1)
]
WORDS = [
    *NUMBERS,
    *(struct.pack("!q", number) for number in (0, -1, 2**63 - 1)),
    STAT,
    b"",
    b"\xff",
    b"\xc3(",
    b"/",
]


CREATE = Create("/root/a", b"", OPEN_ACL_UNSAFE, 0)
# Each request that is made, and what a server answers.
REQUESTS: Sequence[tuple[Any, bytes]] = (
    (GetData("/a", True), text(b"data") + STAT),
    (GetData("/a", False), struct.pack("!i", -1) + STAT),
    (GetChildren("/a", True), NAMES),
    (GetChildren2("/a", False), NAMES + STAT),
    (Exists("/a", True), STAT),
    (CREATE, text(b"/root/a")),
    (SetData("/a", b"", -1), STAT),
    (Delete("/a", -1), b""),
    (
        Transaction([CREATE, SetData("/a", b"", -1), Delete("/a", -1), CheckVersion("/a", -1)]),
        result(1, text(b"/root/a")) + result(5, STAT) + result(2) + result(13) + END,
    ),
    (
        Transaction([Delete("/a", -1), CheckVersion("/a", -1)]),
        result(-1, struct.pack("!i", -101), -101) + result(-1, struct.pack("!i", -2), -2) + END,
    ),
)
WATCH = struct.pack("!iqi", -1, -1, 0) + struct.pack("!ii", 3, 3) + text(b"/root/a")
PING = struct.pack("!iqi", -2, 7, 0)


Heard = Callable[[Any], Session]


class Conversation(NamedTuple):
    """The answer to Connect, then all that the server sends; in `pieces` of so many bytes."""

    welcome: bytes
    sent: bytes
    piece: int


def conversation(random: Random) -> Conversation:
    """Most frames are as long as they say: what is in them is to be read."""
    replies = [struct.pack("!iqi", xid, xid, 0) + body for xid, (_, body) in enumerate(REQUESTS, 1)]
    welcome = framed(changed(random, [CONNECTED], WORDS)) if random.random() < 0.2 else framed(CONNECTED)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(replies))
        replies[at] = changed(random, [replies[at], WATCH, PING], WORDS)
    if random.random() < 0.2:
        replies.insert(random.randrange(len(replies)), random.choice((WATCH, PING)))
    sent = b"".join(map(framed, replies))
    if random.random() < 0.2:
        sent = changed(random, [sent], WORDS)
    return Conversation(welcome, sent, random.choice((7, 64, 65536, 65536)))


def fits(operation: Any, value: Any) -> bool:
    """Whether a value is one that callers can use."""
    if isinstance(operation, GetData):
        return isinstance(value[0], bytes) and isinstance(value[1], ZnodeStat)
    if isinstance(operation, GetChildren):
        return all(type(name) is str for name in value)
    if isinstance(operation, GetChildren2):
        return all(type(name) is str for name in value[0]) and isinstance(value[1], ZnodeStat)
    if isinstance(operation, Create):
        return isinstance(value, str)
    if isinstance(operation, SetData):
        return isinstance(value, ZnodeStat)
    if isinstance(operation, Exists):
        return value is None or isinstance(value, ZnodeStat)
    if isinstance(operation, Transaction):
        return len(value) == len(operation.operations) and all(
            isinstance(each, KazooException) or fits(one, each)
            for one, each in zip(operation.operations, value)
        )
    return True  # Nobody looks at what a deletion or a check was answered.


def talk(tried: Conversation, server: socket.socket) -> None:
    """Have a session make its requests of such a server; each gets one answer, or the connection is lost."""
    session = Session(Servers([("127.0.0.1", 2181)], "/root"), 10.0)
    paths: list[str] = []
    session.on_watch(paths.append)
    server.send(tried.welcome)
    session.run(True)
    replies: list[tuple[Any, Any, Any]] = []
    for operation, _ in REQUESTS:
        session.request(operation, partial(note_reply, replies, operation))
    for at in range(0, len(tried.sent), tried.piece):
        if session.connected:
            server.send(tried.sent[at : at + tried.piece])
            session.run(True)
    session.abandon()
    session.run(False)
    assert [made for made, _, _ in replies] == [operation for operation, _ in REQUESTS]
    for operation, value, error in replies:
        assert isinstance(error, KazooException) or fits(operation, value), (operation, value)
    assert all(type(path) is str for path in paths)


def note_reply(replies: list[tuple[Any, Any, Any]], operation: Any, value: Any, error: Any) -> None:
    replies.append((operation, value, error))


@seeded
def test_answers(fuzz: Fuzz, seed: int) -> None:
    """Whatever is sent, it is an answer that fits the request, an error, or the connection is lost."""
    with pytest.MonkeyPatch.context() as monkeypatch:

        def attempt(tried: Conversation) -> None:
            server, ours = socket.socketpair()
            ours.setblocking(False)
            monkeypatch.setattr(session_module, "connect_any", lambda addresses: connected_to(ours))
            with server:
                talk(tried, server)

        fuzz("the session's wire", seed, conversation, attempt, batch=FAST)


# -- what was found ---------------------------------------------------------------------------------------


@pytest.fixture
def heard_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """Makes a session (`heard_by(connection)`) whose server is at the other end of the connection."""
    sessions: list[Session] = []

    def make(connection: Any) -> Session:
        monkeypatch.setattr(session_module, "connect_any", lambda addresses: connected_to(connection))
        sessions.append(Session(Servers([("127.0.0.1", 2181)]), 10.0))
        sessions[-1].run(True)
        return sessions[-1]

    yield make
    for session in sessions:
        session.abandon()


def connected_to(connection: Any) -> Generator[tuple[int, int], None, Any]:
    """As `connect_any`, which here uses up no port."""
    yield from ()
    return connection


class Endless:
    """A server that is there, and sends without end what belongs to one frame."""

    MOST = 2000  # as much as that is read by no one who looks at what it has read

    def __init__(self) -> None:
        self._socket, self._other = socket.socketpair()
        self.sent = [framed(CONNECTED) + struct.pack("!i", session_module.LARGEST_FRAME)]
        self.read = 0
        self.send, self.fileno = self._socket.send, self._socket.fileno

    def recv(self, size: int) -> bytes:
        self.read += 1
        assert self.read < self.MOST, "it is read for ever"
        return self.sent.pop() if self.sent else bytes(size)

    def close(self) -> None:
        self._socket.close()
        self._other.close()


def test_a_server_that_never_stops_sending_leaves_the_others_their_turn(heard_by: Heard) -> None:
    """Nor does it get more memory than a frame may take."""
    session = heard_by(Endless())
    session.run(True)
    assert session.connected
    while session.connected:  # Until the frame is whole, which is no reply.
        session.run(True)
    assert "a reply to no request" in session.error


def test_a_server_that_sends_a_frame_byte_by_byte_is_left(
    heard_by: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard all the time, and never answers: the session would be over before the answer is whole."""
    server, ours = socket.socketpair()
    ours.setblocking(False)
    instant = [now()]
    monkeypatch.setattr(session_module, "now", lambda: instant[0])
    server.send(framed(CONNECTED) + struct.pack("!i", 1000))
    session = heard_by(ours)
    errors: list[object] = []
    session.request(GetData("/a", False), lambda value, error: errors.append(error))
    with server:
        for _ in range(20):
            instant[0] += 1.0
            server.send(b"\0")
            session.run(True)
            if not session.connected:
                break
    assert "a ping was left unanswered for 1" in session.error
    session.run(False)
    assert len(errors) == 1


def test_a_request_whose_answer_can_not_be_read_fails(heard_by: Heard) -> None:
    """It was taken for answered, and waited for without end."""
    server, ours = socket.socketpair()
    ours.setblocking(False)
    with server:
        server.send(framed(CONNECTED))
        session = heard_by(ours)
        errors: list[object] = []
        session.request(GetData("/a", False), lambda value, error: errors.append(error))
        server.send(framed(struct.pack("!iqi", 1, 1, 0) + b"\0"))
        session.run(True)
    assert len(errors) == 1 and isinstance(errors[0], ConnectionLoss)
    assert session.error == "it has sent what can't be read: not a ZooKeeper server?"
