"""When a daemon counts as ready: conclusions as tables, checks against real sockets and processes."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolla_mesos_start.daemon import readiness as readiness_module
from kolla_mesos_start.daemon.readiness import (
    CommandCheck,
    Notified,
    Readiness,
    is_ready,
    notified_by,
    pause,
)
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.probes import http, tcp
from kolla_mesos_start.zookeeper import connect as connect_module
from kolla_mesos_start.zookeeper.connect import Task, connect
from tests.support.waiting import eventually
from tests.support.zookeeper import free_port

if TYPE_CHECKING:
    from kolla_mesos_start.zookeeper.connect import Steps

TIMEOUT = 30.0  # seconds that nothing here takes


@pytest.mark.parametrize(
    ("results", "fall", "ready"),
    [
        ("", 3, False),
        ("f", 3, False),
        ("s", 3, True),
        ("ffffs", 3, True),
        ("sff", 3, True),
        ("sfff", 3, False),
        ("sffsff", 3, True),
        ("sffffff", 3, False),
        ("sfffs", 3, True),
        ("sfffsff", 3, True),
        ("sf", 1, False),
    ],
)
def test_one_check_makes_ready_and_several_unmake_it(
    clock: Clock, results: str, fall: int, ready: bool
) -> None:
    """One success (s), and `fall` failures (f) in a row."""
    answers = ["" if result == "s" else "no" for result in results]

    def probe() -> Steps[str]:
        yield from ()
        return answers.pop(0)

    readiness = Readiness(Ready("tcp", 80, 10, 5, fall), probe, 100.0)
    while answers:
        run_at(clock, readiness.deadline, readiness)
    assert readiness.ready is ready


@pytest.mark.parametrize(
    ("datagrams", "expected"),
    [
        ([], Notified()),
        ([b""], Notified()),
        ([b"READY=1"], Notified(speaks=True, ready=True)),
        ([b"READY=1\n"], Notified(speaks=True, ready=True)),
        ([b"MAINPID=7\nREADY=1\nSTATUS=fine"], Notified(speaks=True, ready=True)),
        ([b"READY=0"], Notified()),
        ([b"READY=11"], Notified()),
        ([b"XREADY=1"], Notified()),
        ([b"READY=1", b"STOPPING=1"], Notified(speaks=True, stopping=True)),
        ([b"STOPPING=1"], Notified(speaks=True, stopping=True)),
        ([b"STOPPING=1", b"READY=1"], Notified(speaks=True, ready=True)),
        ([b"READY=1", b"RELOADING=1"], Notified(speaks=True, ready=True, reloading=True)),
        ([b"RELOADING=1", b"READY=1"], Notified(speaks=True, ready=True)),
        ([b"RELOADING=1"], Notified(speaks=True, reloading=True)),
        ([b"STATUS=recovering"], Notified(speaks=True)),
        ([b"EXTEND_TIMEOUT_USEC=9"], Notified(speaks=True)),
        ([b"WATCHDOG=1"], Notified()),
        ([b"\0\xff\n=\nREADY"], Notified()),
    ],
)
def test_notifications(datagrams: Sequence[bytes], expected: Notified) -> None:
    """What a daemon says about itself, and what is none of our business."""
    notified = Notified()
    for datagram in datagrams:
        notified = notified_by(notified, datagram)
    assert notified == expected


SPOKE, READY, STOPPING = Notified(speaks=True), Notified(True, True), Notified(True, False, True)


@pytest.mark.parametrize(
    ("kind", "value", "notified", "checked", "age", "before", "expected"),
    [
        ("notify", None, Notified(), False, 999, False, False),
        ("notify", None, READY, False, 0, False, True),
        ("notify", None, STOPPING, False, 0, True, False),
        ("alive", 5, Notified(), False, 4.9, False, False),
        ("alive", 5, Notified(), False, 5, False, True),
        ("alive", 5, READY, False, 1, False, False),
        ("alive", 5, STOPPING, False, 9, True, False),
        ("default", None, Notified(), False, 19.9, False, False),
        ("default", None, Notified(), False, 20, False, True),
        ("default", None, SPOKE, False, 99, False, False),
        ("default", None, SPOKE, False, 99, True, True),
        ("default", None, READY, False, 1, False, True),
        ("default", 3, Notified(), False, 3, False, True),
        ("tcp", 80, Notified(), True, 0, False, True),
        ("tcp", 80, READY, False, 99, True, False),
        ("tcp", 80, STOPPING, True, 99, True, False),
        ("http", "", Notified(), True, 0, False, True),
        ("command", (), Notified(), False, 99, False, False),
    ],
)
def test_what_makes_ready(
    kind: str, value: Any, notified: Notified, checked: bool, age: float, before: bool, expected: bool
) -> None:
    """Each kind looks at its own evidence; STOPPING=1 counts for all of them."""
    check = Ready(kind, value, 10, 5, 3)
    assert is_ready(check, notified, checked, age, before) is expected


def test_a_daemon_that_was_told_is_confirmed_by_a_check_that_begins_later() -> None:
    """What it answered before says nothing; until it has, it is asked again and again."""
    answers = ["", "not yet", "", "never asked"]

    def probe() -> Steps[str]:
        yield from ()
        return answers.pop(0)

    loop, readiness = Loop(), Readiness(Ready("tcp", 80, 3600.0, 5.0, 3), probe, now())
    loop.add(readiness)
    loop.wait(lambda: readiness.ready)
    assert readiness.confirmed
    told = now()
    readiness.confirm(told + 0.2)
    assert not readiness.confirmed
    loop.wait(lambda: readiness.confirmed)
    assert now() >= told + 0.2
    assert answers == ["never asked"]


@pytest.mark.parametrize(
    ("datagrams", "expected"),
    [([], True), ([b"RELOADING=1"], False), ([b"RELOADING=1", b"READY=1"], True), ([b"STOPPING=1"], False)],
)
def test_a_daemon_that_notifies_is_confirmed_once_it_has_reloaded(
    datagrams: list[bytes], expected: bool
) -> None:
    """One that announces no reload is believed to be ready still."""
    readiness = Readiness(Ready("notify", None, 10, 5, 3), None, now())
    readiness.notify(b"READY=1")
    readiness.run(False)
    readiness.confirm(now())
    for datagram in datagrams:
        readiness.notify(datagram)
    readiness.run(False)
    assert readiness.confirmed is expected


def outcome(attempt: Callable[[], Steps[Any]], timeout: float = 30.0) -> str:
    """Run one check to its end, as the loop does."""
    task, loop = Task(attempt(), now() + timeout), Loop()
    task.run(True)
    loop.add(task)
    loop.wait(lambda: task.ended)
    return str(task.error or task.result)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket that listens on a port of 127.0.0.1 and never accepts."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server


def test_a_port_that_listens(listening: socket.socket) -> None:
    """One of several addresses is enough, as for a daemon that binds its private address only."""
    port = listening.getsockname()[1]
    assert outcome(lambda: tcp(["127.0.0.2", "127.0.0.1"], port)) == ""
    assert outcome(lambda: tcp(["::1", "localhost"], port)) == ""


def test_a_port_that_doesnt() -> None:
    """The reason names the port."""
    port = free_port()
    assert outcome(lambda: tcp(["127.0.0.1"], port)) == "Connection refused"


def test_no_connection_with_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that TCP has connected with itself, as may happen on a local port, is no connection."""
    port = free_port()

    class Bound(socket.socket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.bind(("127.0.0.1", port))

    monkeypatch.setattr(socket, "socket", Bound)
    assert "refused" in outcome(lambda: connect((socket.AF_INET, ("127.0.0.1", port))))


class Answers(BaseHTTPRequestHandler):
    """Answers /503 with 503, and so on."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        self.send_response(int(self.path.partition("?")[0][1:]))
        self.end_headers()
        self.wfile.write(b"x" * 200_000)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[HTTPServer]:
    """A web server, and what it has been asked (`seen`)."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    server.seen = []  # type: ignore[attr-defined]
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/200", ""), ("/204?a=b", ""), ("/302", ""), ("/404", "HTTP status 404"), ("/503", "HTTP status 503")],
)
def test_a_url(web: HTTPServer, path: str, expected: str) -> None:
    """2xx and 3xx will do; credentials in the URL go nowhere."""
    host = f"127.0.0.1:{web.server_port}"
    assert outcome(lambda: http(f"http://user:secret@{host}{path}")) == expected
    assert web.seen == [(path, host)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "http://[::1/", "nonsense", "http://a b/", ""])
def test_a_url_that_isnt_one(url: str) -> None:
    """A URL that can't be asked fails like one that doesn't answer."""
    assert outcome(lambda: http(url)) != ""


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://user:secret@127.0.0.1/secret?secret", "check http port 443: refused"),
        ("http://127.0.0.1:8080/", "check http port 8080: refused"),
        ("http://[::1]", "check http port 80: refused"),
        ("http://user:secret", "check http: refused"),
    ],
)
def test_of_a_url_only_the_port_is_named(clock: Clock, url: str, reason: str) -> None:
    """The rest may hold a credential."""

    def refused() -> Any:
        yield from ()
        return "refused"

    readiness = Readiness(Ready("http", url, 10, 5, 3), refused, 100.0)
    run_at(clock, 100.0, readiness)
    assert readiness.reason == reason


@pytest.mark.parametrize("answer", [b"", b"\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 2\r\n", b"HTTP/1.1 2xx\r\n"])
def test_an_answer_that_isnt_http(listening: socket.socket, answer: bytes) -> None:
    """Another protocol on the port, or half an answer, is a failure."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    assert (
        outcome(lambda: http(f"http://127.0.0.1:{listening.getsockname()[1]}/")) == "the answer is not HTTP"
    )
    thread.join()


def test_a_name_that_is_being_resolved_blocks_nothing(
    web: HTTPServer, loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer, real = tmp_path / "answer", socket.getaddrinfo

    def slow(host: bytes, port: int, **more: Any) -> Any:
        if not more.get("flags"):
            eventually(answer.exists, "the name server answers", seconds=TIMEOUT)
            host = b"127.0.0.1"
        return real(host, port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    url = f"http://web.example:{web.server_port}/200"
    readiness = Readiness(Ready("http", url, 10, TIMEOUT, 3), lambda: http(url), now())
    loop.add(readiness)
    loop.wait(lambda: False, now() + 0.1)
    assert (readiness.ready, readiness.reason) == (False, "")
    answer.touch()
    loop.wait(lambda: readiness.ready, now() + TIMEOUT)
    assert readiness.ready


HEADERS = b"Server: x\r\nConnection: keep-alive\r\n\r\n"
OK, BUSY = b"HTTP/1.1 200 OK\r\n" + HEADERS, b"HTTP/1.1 503 Busy\r\n" + HEADERS


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OK, ""),
        (BUSY, "HTTP status 503"),
        (OK + b"5\r\ndata:", ""),  # a stream
        (b"HTTP/1.1 200 OK\n\n", ""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, ""),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + BUSY, "HTTP status 503"),
    ],
)
@pytest.mark.parametrize("part", [1, 1000])
def test_the_headers_are_the_answer(
    listening: socket.socket, answer: bytes, expected: str, part: int
) -> None:
    """The server keeps the connection open, whatever it was asked; in parts of any size."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):  # The client closes it once it has the headers.
            connection.recv(1000)
            for start in range(0, len(answer), part):
                connection.sendall(answer[start : start + part])
            connection.recv(1000)  # until the client closes

    thread = threading.Thread(target=serve)
    thread.start()
    assert outcome(lambda: http(f"http://127.0.0.1:{listening.getsockname()[1]}/"), timeout=10) == expected
    thread.join()


@pytest.mark.parametrize(
    ("family", "address", "netloc", "host"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1:{}", "127.0.0.1:{}"),
        (socket.AF_INET6, "::1", "user:secret@[::1]:{}", "[::1]:{}"),
        (socket.AF_INET, "127.0.0.1", "LOCALHOST:{}", "localhost:{}"),
    ],
)
def test_a_url_is_asked_with_http_1_1(
    family: socket.AddressFamily, address: str, netloc: str, host: str
) -> None:
    """Some servers (Envoy) refuse HTTP/1.0, and HTTP/1.1 without a Host that they can parse."""
    asked: list[str] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            asked.extend(connection.recv(1000).decode().split("\r\n"))
            is_right = asked[0] == "GET /a?b HTTP/1.1" and "Connection: close" in asked
            connection.sendall(b"HTTP/1.1 %d x\r\n\r\n" % (200 if is_right else 426))

    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        assert outcome(lambda: http(f"http://{netloc.format(port)}/a?b"), timeout=10) == ""
        thread.join()
    assert f"Host: {host.format(port)}" in asked


def test_a_url_that_never_answers(listening: socket.socket) -> None:
    """The time limit ends it, and its connection."""
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    before = set(os.listdir("/proc/self/fd"))
    assert "no answer in time" in outcome(lambda: http(url), timeout=0.1)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_url_with_tls(web: HTTPServer, tmp_path: Path) -> None:
    """Under TLS whatever certificate the daemon has is taken."""
    key, cert = str(tmp_path / "key"), str(tmp_path / "cert")
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=elsewhere"
    subprocess.run(
        ["openssl", *request.split(), "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    web.socket = context.wrap_socket(web.socket, server_side=True)
    assert outcome(lambda: http(f"https://127.0.0.1:{web.server_port}/200")) == ""
    assert outcome(lambda: http(f"https://127.0.0.1:{web.server_port}/500")) == "HTTP status 500"


def command(*argv: str, ids: tuple[int, int, Sequence[int]] | None = None) -> CommandCheck:
    return CommandCheck(argv, {**os.environ, "GIVEN": "yes"}, ids)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", ""),
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "killed by SIGKILL"),
        ('test "$GIVEN" = yes', ""),
        ("test $(ps -o pgid= $$) = $$", ""),
    ],
)
def test_a_command(script: str, expected: str) -> None:
    """Its exit status decides; it has the daemon's environment and a process group of its own."""
    assert outcome(command("sh", "-c", script)) == expected


def test_a_command_that_isnt_there() -> None:
    """A command that can't be run is a failed check."""
    assert outcome(command("/no/such/command")).startswith("its program was not found: ")
    said = outcome(CommandCheck(["no-such"], {"PATH": "/bin"}, None, "no-such"))
    assert said.startswith("program 'no-such' was not found in PATH: correct")
    assert outcome(command("/etc/passwd")).startswith("its program is not executable (mode 0644)")


def test_a_command_of_another_user() -> None:
    """It has that user's rights, supplementary groups included; who may not give them is told so."""
    script = 'test "$(id -u) $(id -g) $(id -G)" = "65534 7 7 8"'
    expected = "its user can't be changed: Operation not permitted" if os.getuid() else ""
    assert outcome(command("sh", "-c", script, ids=(65534, 7, (7, 8)))) == expected


def test_a_command_that_hangs(tmp_path: Path) -> None:
    """At its time limit it is killed with all of its group."""
    pids = tmp_path / "pids"
    hangs = command(
        "sh", "-c", f"trap '' TERM; sleep 300 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    )
    task = Task(hangs())
    task.run(True)
    eventually(pids.exists, "it runs")
    task.close()
    eventually(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), "both have ended")
    assert hangs.child and hangs.child.status is not None


def test_a_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """What it has started and not waited for ends with it."""
    pid = tmp_path / "pid"
    assert outcome(command("sh", "-c", f"sleep 300 & echo $! > {pid}")) == ""
    eventually(lambda: not alive(int(pid.read_text())), "it has ended")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def loop() -> Loop:
    return Loop()


def end(readiness: Readiness, check: CommandCheck) -> None:
    """Close it; the command of its last check must end by that."""
    readiness.close()
    assert check.child and check.child.status is not None


def test_a_check_ends_with_its_readiness() -> None:
    """The command must not outlive the daemon that it looks at."""
    check = command("sleep", "300")
    readiness = Readiness(Ready("command", (), 10, 100, 3), check, now())
    readiness.run(False)
    assert check.child
    pid = check.child.pid
    assert pid is not None and readiness.interest is not None
    end(readiness, check)
    assert readiness.interest is None
    assert not alive(pid)


def test_a_daemon_that_is_stopped_is_not_ready(loop: Loop) -> None:
    """At once, whatever its checks say, until it says itself that it is ready."""
    check = command("true")
    readiness = Readiness(Ready("command", (), 0.05, 5, 3), check, now())
    loop.add(readiness)
    assert loop.wait(lambda: readiness.ready, now() + TIMEOUT)
    readiness.stop()
    assert not readiness.ready and readiness.reason == "it is being stopped"
    assert readiness.stopped
    loop.wait(lambda: readiness.ready, now() + 0.2)
    assert not readiness.ready
    readiness.notify(b"READY=1")
    assert loop.wait(lambda: readiness.ready, now() + TIMEOUT)
    assert not readiness.stopped, "what it is not ready for from here on was not asked for"
    end(readiness, check)


@pytest.mark.parametrize(
    ("kind", "interval", "ready", "age", "expected"),
    [
        # A daemon just started is looked at again at once; what costs a process, not quite so soon.
        ("tcp", 10, False, 0.0, 0.02),
        ("http", 10, False, 0.0, 0.02),
        ("command", 10, False, 0.0, 0.1),
        # The older it is without being ready, the less a moment matters.
        ("tcp", 10, False, 0.4, 0.1),
        ("http", 10, False, 2.0, 0.5),
        ("command", 10, False, 0.4, 0.2),
        # Never longer than the interval, nor than a second.
        ("tcp", 10, False, 4.0, 1.0),
        ("command", 10, False, 600.0, 1.0),
        ("http", 0.5, False, 600.0, 0.5),
        ("command", 0.06, False, 0.0, 0.06),
        # Once it is ready only the interval counts, however young it is.
        ("tcp", 10, True, 0.0, 10),
        ("command", 100, True, 600.0, 100),
        # Nobody gets more than twenty checks a second in the long run, whatever he has asked for.
        ("tcp", 0.001, False, 600.0, 0.05),
        ("tcp", 0.001, True, 600.0, 0.05),
    ],
)
def test_when_the_next_check_is(kind: str, interval: float, ready: bool, age: float, expected: float) -> None:
    """Soon while the daemon may come up at any moment, then as its definition says."""
    assert pause(Ready(kind, None, interval, 5, 3), ready, age) == pytest.approx(expected)


class Clock:
    """`loop.now`, as the tests have it."""

    def __init__(self, instant: float = 0.0) -> None:
        self.instant = instant

    def now(self) -> float:
        return self.instant

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (readiness_module, connect_module):
            monkeypatch.setattr(module, "now", self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of readiness and of its checks; it stands at 100 s."""
    clock = Clock(100.0)
    clock.install(monkeypatch)
    return clock


def run_at(clock: Clock, instant: float, readiness: Readiness) -> bool:
    clock.instant = instant
    readiness.run(False)
    return readiness.ready


@given(st.sampled_from(["tcp", "command"]), st.floats(0, 900))
def test_a_daemon_is_found_soon_after_it_has_come_up(kind: str, up_at: float) -> None:
    """Within a part of the time that it took, a second at most; and looked for seldom all the same."""
    clock, checks = Clock(), 0

    def attempt() -> Any:
        nonlocal checks
        checks += 1
        return "" if clock.instant >= up_at else "no"
        yield

    with pytest.MonkeyPatch.context() as monkeypatch:
        clock.install(monkeypatch)
        readiness = Readiness(Ready(kind, (), 100, 5, 3), attempt, 0.0)
        while not run_at(clock, readiness.deadline, readiness):
            pass
    first, share = {"tcp": (0.02, 0.25), "command": (0.1, 0.5)}[kind]
    assert clock.instant - up_at <= max(first, min(1.0, share * up_at)) + 1e-9
    assert checks <= 30 + up_at
    assert readiness.deadline == clock.instant + 100


def test_nothing_is_checked_before_its_time(clock: Clock) -> None:
    """It runs whenever anything happens in the loop, which may be often."""
    checks = []

    def attempt() -> Any:
        checks.append(clock.instant)
        return "no"
        yield

    readiness = Readiness(Ready("tcp", 1, 10, 5, 3), attempt, 100.0)
    for instant in (100.0, 100.001, 100.019, 100.021, 100.022):
        run_at(clock, instant, readiness)
    assert checks == [100.0, 100.021]


def test_a_check_is_given_up_at_its_timeout(clock: Clock) -> None:
    """`deadline` is the check's own while one is under way; then that of the next."""
    closed = []

    def attempt() -> Any:
        try:
            yield 0, select.POLLIN
        finally:
            closed.append(clock.instant)

    readiness = Readiness(Ready("tcp", 1, 10, 5, 3), attempt, 100.0)
    run_at(clock, 100.0, readiness)
    assert (readiness.interest, readiness.deadline) == ((0, select.POLLIN), 105.0)
    run_at(clock, 104.9, readiness)
    assert closed == []
    run_at(clock, 105.0, readiness)
    assert closed == [105.0] and readiness.interest is None
    assert readiness.reason == "check tcp port 1: no answer within 5 s"
    assert readiness.deadline == 105.0 + 1.0


def test_a_daemon_that_says_nothing(clock: Clock) -> None:
    """By default one that never notifies is ready at its age; the loop is woken for it."""
    readiness = Readiness(Ready("default", None, 10, 5, 3), None, 100.0)
    assert readiness.interest is None and readiness.deadline == 120.0
    assert not run_at(clock, 119.0, readiness)
    assert readiness.reason == "the daemon has run for less than 20 s"
    assert run_at(clock, 120.0, readiness)
    assert readiness.deadline == math.inf


@pytest.mark.parametrize(
    ("kind", "datagram"),
    [("default", b"STATUS=recovering"), ("default", b"STOPPING=1"), ("alive", b"STOPPING=1")],
)
def test_a_daemon_that_is_old_enough_but_not_ready(clock: Clock, kind: str, datagram: bytes) -> None:
    """The loop is not woken for its age any more, again and again; only for what it says."""
    readiness = Readiness(Ready(kind, 20, 10, 5, 3), None, 100.0)
    readiness.notify(datagram)
    run_at(clock, 119.0, readiness)
    assert readiness.deadline == 120.0
    assert not run_at(clock, 120.0, readiness) and readiness.deadline == math.inf
    readiness.notify(b"READY=1")
    assert run_at(clock, 121.0, readiness)


def test_signals_reach_commands_by_default() -> None:
    """A command isn't born deaf to the signals that its caller handles."""
    real = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        assert outcome(command("sh", "-c", "kill -TERM $$; sleep 5")) == "killed by SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, real)
