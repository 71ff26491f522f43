"""When a daemon counts as ready: the rules as tables, the checks with real sockets and processes."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolla_mesos_start.daemon.readiness import (
    Check,
    CommandCheck,
    Notified,
    Readiness,
    Results,
    http,
    is_ready,
    notified_by,
    pause,
    tcp,
)
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.connect import Steps, Task, connect
from tests.waiting import eventually
from tests.zookeeper import free_port


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
def test_results(results: str, fall: int, ready: bool) -> None:
    """One success (s): ready. `fall` failures (f) in a row: no longer ready."""
    results_so_far = Results()
    for result in results:
        results_so_far = results_so_far.after(result == "s", fall)
    assert results_so_far.ready is ready


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
        ([b"READY=1", b"RELOADING=1"], Notified(speaks=True, ready=True)),
        ([b"RELOADING=1"], Notified(speaks=True)),
        ([b"STATUS=recovering"], Notified(speaks=True)),
        ([b"EXTEND_TIMEOUT_USEC=9"], Notified(speaks=True)),
        ([b"WATCHDOG=1"], Notified()),
        ([b"\0\xff\n=\nREADY"], Notified()),
    ],
)
def test_notifications(datagrams: Sequence[bytes], expected: Notified) -> None:
    """What a daemon can send; other lines are ignored."""
    notified = Notified()
    for datagram in datagrams:
        notified = notified_by(notified, datagram)
    assert notified == expected


@given(st.lists(st.binary()))
def test_garbage_is_no_notification(datagrams: list[bytes]) -> None:
    """Random bytes raise nothing, and only READY=1 makes ready."""
    notified = Notified()
    for datagram in datagrams:
        notified = notified_by(notified, datagram)
    assert notified.ready is False or any(b"READY=1" in datagram for datagram in datagrams)


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
    """Each kind has its own rule; STOPPING=1 counts for all of them."""
    check = Check(kind, value, 10, 5, 3)
    assert is_ready(check, notified, Results(checked), age, before) is expected


def outcome(attempt: Callable[[], Steps[Any]], timeout: float = 30.0) -> str:
    """Run one check to its end, as the loop does."""
    task = Task(attempt(), now() + timeout)
    task.turn(now(), True)
    while not task.ended:
        assert task.wait
        poller = select.poll()
        poller.register(*task.wait)
        task.turn(now(), bool(poller.poll(max(0.0, (task.deadline - now()) * 1000 + 1))))
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


def test_a_port_that_does_not_listen() -> None:
    """The reason names the port."""
    port = free_port()
    assert outcome(lambda: tcp(["127.0.0.1"], port)) == f"port {port}: Connection refused"


def test_a_socket_that_is_connected_with_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP can do this on a local port."""
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
    """A web server, and the requests that it got (`seen`)."""
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
    """2xx and 3xx pass; credentials in the URL are not sent."""
    host = f"127.0.0.1:{web.server_port}"
    assert outcome(lambda: http(f"http://user:secret@{host}{path}")) == expected
    assert web.seen == [(path, host)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "http://[::1/", "nonsense", "http://a b/", ""])
def test_an_invalid_url(url: str) -> None:
    """An invalid URL is a failed check."""
    assert outcome(lambda: http(url)) != ""


@pytest.mark.parametrize("answer", [b"", b"\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 2\r\n", b"HTTP/1.1 2xx\r\n"])
def test_an_answer_that_is_not_http(listening: socket.socket, answer: bytes) -> None:
    """Another protocol, or an incomplete answer, is a failed check."""

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


def test_a_url_that_never_answers(listening: socket.socket) -> None:
    """The timeout ends the check and its connection."""
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    before = set(os.listdir("/proc/self/fd"))
    assert "timed out" in outcome(lambda: http(url), timeout=0.1)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_url_with_tls(web: HTTPServer, tmp_path: Path) -> None:
    """Any certificate of the daemon is accepted."""
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
        ("kill -9 $$", "killed by signal 9"),
        ('test "$GIVEN" = yes', ""),
        ("test $(ps -o pgid= $$) = $$", ""),
    ],
)
def test_a_command(script: str, expected: str) -> None:
    """Its exit status decides; it has the daemon's environment and a process group of its own."""
    assert outcome(command("sh", "-c", script)) == expected


def test_a_command_that_does_not_exist() -> None:
    """A command that can't be executed is a failed check."""
    assert "No such file" in outcome(command("/no/such/command"))


def test_a_command_of_another_user() -> None:
    """It gets that user's ids and supplementary groups; without root it is a failed check."""
    script = 'test "$(id -u) $(id -g) $(id -G)" = "65534 7 7 8"'
    expected = "Operation not permitted" if os.getuid() else ""
    assert outcome(command("sh", "-c", script, ids=(65534, 7, (7, 8)))) == expected


def test_a_command_that_hangs(tmp_path: Path) -> None:
    """At its timeout its whole group is killed."""
    pids = tmp_path / "pids"
    hangs = command(
        "sh", "-c", f"trap '' TERM; sleep 300 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    )
    task = Task(hangs())
    task.turn(now(), True)
    eventually(pids.exists, "it runs")
    task.close()
    eventually(lambda: not any(runs(int(pid)) for pid in pids.read_text().split()), "both have ended")
    hangs._last.wait(30)


def test_a_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """Processes that it has started end with it."""
    pid = tmp_path / "pid"
    assert outcome(command("sh", "-c", f"sleep 300 & echo $! > {pid}")) == ""
    eventually(lambda: not runs(int(pid.read_text())), "it has ended")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def followed(readiness: Readiness, seconds: float) -> list[bool]:
    """The values of `ready` within so many seconds, one for each change."""
    end, history = now() + seconds, [readiness.ready]
    while now() < end or readiness.wait:
        poller = select.poll()
        if readiness.wait:
            poller.register(*readiness.wait)
        ready = bool(
            poller.poll(max(0.0, (min(readiness.deadline, max(end, now() + 0.1)) - now()) * 1000 + 1))
        )
        readiness.turn(now(), ready)
        if readiness.ready != history[-1]:
            history.append(readiness.ready)
    return history


def test_checks_are_repeated(tmp_path: Path) -> None:
    """A check that succeeds makes ready; enough failures in a row end that."""
    flag = tmp_path / "flag"
    readiness = Readiness(Check("command", (), 0.05, 5, 2), command("test", "-e", str(flag)), now())
    assert followed(readiness, 0.3) == [False]
    assert readiness.reason == "exit status 1"
    flag.touch()
    assert followed(readiness, 1.0)[-1] is True and readiness.reason == ""
    flag.unlink()
    assert followed(readiness, 1.0)[-1] is False


@pytest.mark.parametrize(
    ("kind", "interval", "ready", "age", "expected"),
    [
        # A daemon that has just started is checked again soon; by a command, a bit later.
        ("tcp", 10, False, 0.0, 0.02),
        ("http", 10, False, 0.0, 0.02),
        ("command", 10, False, 0.0, 0.1),
        # The interval grows with the age of a daemon that is not ready.
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
        # At most twenty checks a second, whatever the definition says.
        ("tcp", 0.001, False, 600.0, 0.05),
        ("tcp", 0.001, True, 600.0, 0.05),
    ],
)
def test_when_the_next_check_is(kind: str, interval: float, ready: bool, age: float, expected: float) -> None:
    """Soon while the daemon is starting, later at the interval of its definition."""
    assert pause(Check(kind, None, interval, 5, 3), ready, age) == pytest.approx(expected)


@given(st.sampled_from(["tcp", "command"]), st.floats(0, 900))
def test_a_daemon_that_becomes_ready_is_found_soon(kind: str, up_at: float) -> None:
    """After a share of its start time, at most 1 s; and with few checks."""
    runs: list[float] = []
    moment = 0.0

    def attempt() -> Any:
        runs.append(moment)
        return "" if moment >= up_at else "no"
        yield

    readiness = Readiness(Check(kind, (), 100, 5, 3), attempt, 0.0)
    while not readiness.ready:
        moment = readiness.deadline
        readiness.turn(moment, False)
    first, share = {"tcp": (0.02, 0.25), "command": (0.1, 0.5)}[kind]
    assert moment - up_at <= max(first, min(1.0, share * up_at)) + 1e-9
    assert len(runs) <= 30 + up_at
    assert readiness.deadline == moment + 100


def test_a_daemon_that_never_notifies() -> None:
    """By default it is ready at a certain age; the loop wakes up for that."""
    readiness = Readiness(Check("default", None, 10, 5, 3), None, 100.0)
    assert readiness.deadline == 120.0
    readiness.turn(119.0, False)
    assert not readiness.ready and readiness.reason == "the daemon has run for less than 20 s"
    readiness.turn(120.0, False)
    assert readiness.ready


@pytest.mark.parametrize(
    ("kind", "datagram"),
    [("default", b"STATUS=recovering"), ("default", b"STOPPING=1"), ("alive", b"STOPPING=1")],
)
def test_a_daemon_that_is_old_enough_but_not_ready(kind: str, datagram: bytes) -> None:
    """The loop does not wake up for the age again, only for notifications."""
    readiness = Readiness(Check(kind, 20, 10, 5, 3), None, 100.0)
    readiness.notify(datagram)
    readiness.turn(119.0, False)
    assert readiness.deadline == 120.0
    readiness.turn(120.0, False)
    assert not readiness.ready and readiness.deadline == math.inf
    readiness.notify(b"READY=1")
    readiness.turn(121.0, False)
    assert readiness.ready


def test_a_real_notifier_is_understood(tmp_path: Path) -> None:
    """The notifications of another implementation of sd_notify are understood."""
    notifier = (
        "import os, socket\n"
        "with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:\n"
        "    ours.connect(os.environ['NOTIFY_SOCKET'])\n"
        "    ours.sendall(b'STATUS=Ready to serve\\nMAINPID=%d\\nREADY=1\\n' % os.getpid())\n"
    )
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(path)
        subprocess.run(
            [sys.executable, "-c", notifier], env={**os.environ, "NOTIFY_SOCKET": path}, check=True
        )
        readiness = Readiness(Check("notify", None, 10, 5, 3), None, now())
        readiness.notify(ours.recv(4096))
    readiness.turn(now(), False)
    assert readiness.ready


def test_signals_reach_commands_by_default() -> None:
    """A command starts with default signals, although its caller handles some."""
    real = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        assert outcome(command("sh", "-c", "kill -TERM $$; sleep 5")) == "killed by signal 15"
    finally:
        signal.signal(signal.SIGTERM, real)
