"""What a daemon says, and what passes between our own processes."""

from __future__ import annotations

import array
import marshal
import os
import socket
from random import Random
from typing import Any

import pytest

from kolla_mesos_start import probes
from kolla_mesos_start.commands import guard
from kolla_mesos_start.daemon.handoff import Handoff, plain
from kolla_mesos_start.daemon.notify_socket import NotifySocket, Senders, bind
from kolla_mesos_start.daemon.readiness import Notified, notified_by
from kolla_mesos_start.probes import http
from kolla_mesos_start.zookeeper.connect import Task
from tests.fuzz.inputs import FAST, ODD, Fuzz, changed, changed_document, seeded
from tests.fuzz.test_wire import connected_to

DATAGRAMS = [
    b"READY=1\nSTATUS=up\nMAINPID=17",
    b"STOPPING=1",
    b"RELOADING=1\nMONOTONIC_USEC=1",
    b"EXTEND_TIMEOUT_USEC=1000000",
    b"FDSTORE=1\nFDNAME=a\nWATCHDOG=1\n",
]
ANSWERS = [
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    b"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n",
]
HANDOFF = {
    "servers": [[["h1", 2181]], "", [], None, None, None],
    "session": [1, b"p" * 16, 7, 4.0],
    "registration": [
        [["/kolla/site/a/.party/1", b"{}"]],
        [],
        [["/kolla", b""]],
        ["a"],
        [[31, "world", "anyone"]],
    ],
    "check": ["http", "http://h/", 1.0, 5.0, 3],
    "check_env": {"PATH": "/bin", "A": "\udcff"},
    "refreshing": ["/turns", 1, "h1", {"a": 5}, {"f": ["a/b"]}, {"PATH": "/bin"}, 17],
}


@seeded
def test_datagrams_of_the_notify_socket(
    fuzz: Fuzz, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They mean something or nothing."""
    path = str(tmp_path_factory.mktemp("n") / "s")
    receiver = NotifySocket(bind(path).detach(), Senders(os.getpid(), ()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.connect(path)

        def attempt(data: bytes) -> None:
            daemon.send(data)
            known = Notified()
            for message in receiver.messages():
                known = notified_by(known, message)
            assert not known.ready or b"READY=1" in data

        fuzz("sd_notify datagrams", seed, lambda random: changed(random, DATAGRAMS), attempt, batch=FAST)
    receiver.close()


def test_a_descriptor_that_a_daemon_sends_is_not_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As with FDSTORE=1: a registrar that kept them would run out of them."""
    path = str(tmp_path_factory.mktemp("n") / "s")
    receiver = NotifySocket(bind(path).detach(), Senders(os.getpid(), ()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.connect(path)
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
            daemon.sendmsg([b"FDSTORE=1"], [rights])
            assert list(receiver.messages()) == [b"FDSTORE=1"]
        assert os.listdir("/proc/self/fd") == before
    receiver.close()


@seeded
def test_the_answers_of_a_daemon_that_is_asked(fuzz: Fuzz, seed: int) -> None:
    """It is ready, or there is a reason."""
    with pytest.MonkeyPatch.context() as monkeypatch:

        def attempt(tried: tuple[bytes, int]) -> None:
            answer, piece = tried
            server, ours = socket.socketpair()
            ours.setblocking(False)
            monkeypatch.setattr(probes, "connect_any", lambda addresses: connected_to(ours))
            check = Task(http("http://127.0.0.1:80/a?b"))
            with server:
                check.run(True)
                assert server.recv(4096).startswith(b"GET /a?b HTTP/1.1\r\n")
                for at in range(0, len(answer), piece):
                    if not check.ended:
                        server.send(answer[at : at + piece])
                        check.run(True)
            if not check.ended:
                check.run(True)
            assert check.ended and check.error is None and check.result.isprintable()
            assert check.result or b"HTTP/" in answer

        fuzz(
            "HTTP answers to readiness checks",
            seed,
            lambda random: (changed(random, ANSWERS), random.choice((1000, 65536))),
            attempt,
            batch=FAST,
        )


@seeded
def test_messages_between_agent_and_guard(fuzz: Fuzz, seed: int) -> None:
    """They arrive as they were sent, wherever the pipe cuts them. Nobody else holds an end of it."""

    def make(random: Random) -> tuple[list[Any], list[int]]:
        spawn = ["spawn", [b"a"], {b"A": b"b"}, None, 1.5, 10.0]
        messages = [changed_document(random, [spawn]) for _ in range(3)]
        return messages, [random.choice((1, 3, 4, 5, 100)) for _ in range(20)]

    def attempt(tried: tuple[list[Any], list[int]]) -> None:
        messages, pieces = tried
        sent = b"".join(map(guard.frame, messages))
        buffer, heard = bytearray(), []
        for piece in (*pieces, len(sent)):
            buffer += sent[:piece]
            sent = sent[piece:]
            heard += guard.unframe(buffer)
        assert repr(heard) == repr(messages) and not buffer

    fuzz("messages of the guard", seed, make, attempt, batch=FAST)


@seeded
def test_what_the_agent_leaves_to_its_registrar(fuzz: Fuzz, seed: int) -> None:
    """It arrives as it was, whatever texts it holds."""

    def attempt(changes: Any) -> None:
        given = dict.fromkeys(Handoff._fields)
        handoff = Handoff(
            **{**given, **(changes if isinstance(changes, dict) and changes.keys() <= given.keys() else {})}
        )
        arrived = Handoff(*marshal.loads(marshal.dumps(plain(handoff))))
        assert repr(plain(arrived)) == repr(plain(handoff))

    fuzz("the handoff", seed, lambda random: changed_document(random, [HANDOFF], ODD), attempt, batch=FAST)
