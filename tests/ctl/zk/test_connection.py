"""The operator's connection to a real ZooKeeper: what ends it, what it survives, what it is denied."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, TypeVar

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from kolla_mesos_start import settings
from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import INTERRUPTS, OperatorClient
from kolla_mesos_start.errors import AccessDenied, NoConnection
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.client import Outage
from tests.conftest import Deployment, LogLines
from tests.support.link import Link
from tests.support.tool import TOOL, ctl, environ
from tests.support.waiting import LIMIT
from tests.support.zookeeper import Server, free_port

CONNECTED = 41  # bytes, by which a server grants a session

Connect = Callable[..., OperatorClient]
T = TypeVar("T")


def settings_for(hosts: str, **environ: str) -> settings.Settings:
    """Of a tool that reaches ZooKeeper at `hosts`."""
    return settings.parse({"KOLLA_APP_ID": "/site/tool", "KOLLA_ZK_HOSTS": hosts, **environ})


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects (`connect(hosts, **environ)`), and closes what it has connected."""
    clients: list[OperatorClient] = []

    def one(hosts: str, **environ: str) -> OperatorClient:
        clients.append(connection.connect(settings_for(hosts, **environ)))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


def test_without_a_server_the_timeout_ends_it() -> None:
    """With the hosts, and the variable that holds the limit."""
    hosts = f"127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(NoConnection, match=f"at {hosts} within 0.5 s"):
        connection.connect(settings_for(hosts, KOLLA_ZK_CONNECT_TIMEOUT="0.5"))
    assert 0.5 <= time.monotonic() - begun < 20


def test_a_server_that_comes_late_is_found(
    zookeeper: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a second of its start, however long it was away; whoever waits is told for what."""
    zookeeper.kill()
    starter = threading.Timer(connection.QUIET + 0.5, zookeeper.start)
    starter.start()
    try:
        client = connect(f"{zookeeper.hosts}/zookeeper", KOLLA_ZK_CONNECT_TIMEOUT="30")
        assert connection.read(client, ["/"]) == {"/": b""}
    finally:
        starter.join()
    assert caplog.messages == [
        f"connecting to ZooKeeper at {zookeeper.hosts}/zookeeper (gives up after 30 s)"
    ]


@contextmanager
def slow_proxy(server: Server, at_once: int = 0) -> Iterator[tuple[str, threading.Event]]:
    """Passes on a byte a second of what the server sends, the first ones of each connection `at_once`.

    Its host and port, and what is set when the first byte has been held back.
    """
    has_begun, has_ended = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        left = at_once
        with suppress(OSError), connection, socket.create_connection(("127.0.0.1", server.port)) as plain:
            while data := connection.recv(65536):
                plain.sendall(data)
                reply = plain.recv(65536)
                connection.sendall(reply[:left])
                for byte in reply[left:]:
                    has_begun.set()
                    if has_ended.wait(1.0):
                        return
                    connection.sendall(bytes([byte]))
                left = max(0, left - len(reply))

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", has_begun
        has_ended.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_the_timeout_ends_a_connection_that_comes_byte_by_byte(zookeeper: Server) -> None:
    """What has come so far does not extend it."""
    begun = time.monotonic()
    with slow_proxy(zookeeper) as (hosts, _), pytest.raises(NoConnection, match=f"at {hosts} within 3 s"):
        connection.connect(settings_for(hosts, KOLLA_ZK_CONNECT_TIMEOUT="3"))
    assert 3 <= time.monotonic() - begun < CONNECTED / 2


class InterruptedSocket:
    """A connection where Ctrl-C comes with the first part of what is received, or sent (`name`)."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection, self._name = connection, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def recv(self, size: int) -> bytes:
        return self._interrupt("recv", self._connection.recv, 5 if self._name == "recv" else size)

    def send(self, data: bytes) -> int:
        return self._interrupt("send", self._connection.send, data[:5] if self._name == "send" else data)

    def _interrupt(self, name: str, function: Callable[[Any], T], argument: Any) -> T:
        done = function(argument)
        if self._name == name:
            self._name = ""
            signal.raise_signal(signal.SIGINT)
        return done


@pytest.mark.parametrize("name", ["recv", "send"])
def test_ctrl_c_in_the_middle_of_a_frame_breaks_no_connection(
    name: str, zookeeper: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session can be closed after it, and its locks are free at once."""
    client = connect(zookeeper.hosts)
    lost: list[Exception] = []
    assert client.session._socket
    monkeypatch.setattr(client.session, "_socket", InterruptedSocket(client.session._socket, name))
    monkeypatch.setattr(client.session, "_lose", lost.append)
    before = signal.signal(signal.SIGINT, INTERRUPTS.handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            connection.read(client, ["/zookeeper"] * 20)
        client.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (lost, client.session.closed) == ([], True)


@pytest.mark.parametrize("at_once", [0, CONNECTED])
def test_ctrl_c_ends_what_a_slow_server_holds(
    zookeeper: Server, deployment: Deployment, at_once: int
) -> None:
    """While it connects, and while it asks."""
    with slow_proxy(zookeeper, at_once) as (hosts, is_held):
        there = deployment._replace(hosts=hosts)
        words = [sys.executable, str(TOOL), "status"]
        with subprocess.Popen(words, env=environ(there), stderr=subprocess.PIPE, text=True) as process:
            assert is_held.wait(LIMIT)
            begun = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.communicate()[1].splitlines()[-1:] == ["kolla_mesos_ctl: stopped by SIGINT"]
    assert process.returncode == 130
    assert time.monotonic() - begun < 20


def test_a_credential_that_all_can_read_is_named(deployment: Deployment) -> None:
    """Once, by the option or the variable that names it; the credential itself is not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        auth = Path(name) / "auth"
        auth.write_text("digest:operator:s3cret\n")
        for mode, warned in ((0o644, True), (0o640, False)):
            auth.chmod(mode)
            as_option = ctl(deployment, "get", "a", "--auth-file", str(auth), status=1)
            as_variable = ctl(deployment, "get", "a", status=1, KOLLA_ZK_AUTH_FILE=str(auth))
            for done, given in ((as_option, "--auth-file"), (as_variable, "KOLLA_ZK_AUTH_FILE")):
                what = f"warning: {given}: every user of this host can read {auth} (mode 0644)"
                assert done.stderr.count(what) == done.stderr.count(f"chmod 600 {auth}\n") == warned
                assert "s3cret" not in done.stderr


def test_a_request_outlives_an_outage(
    link: Link, deployment: Deployment, connect: Connect, log_lines: LogLines
) -> None:
    """It is sent again until a reply comes; the log says what it waits for, and why."""
    client = connect(link.hosts)
    link.kill()
    assert client.loop.wait(lambda: not client.connected, now() + LIMIT)
    back = threading.Timer(1.0, link.launch)
    back.start()
    try:
        connection.write(client, f"{deployment.path}/a", b"1")
        assert connection.read(client, [f"{deployment.path}/a"]) == {f"{deployment.path}/a": b"1"}
    finally:
        back.join()
    lost, again = (line.message for line in log_lines() if line.level == "warning")
    assert re.fullmatch(rf"lost the connection to ZooKeeper at {link.hosts} \(.+\); retrying", lost)
    assert again.startswith("connected to ZooKeeper again after ")


def test_requests_may_be_repeated(deployment: Deployment, connect: Connect) -> None:
    """A retry finds what the first try has done, and that is no error."""
    client, path = connect(deployment.hosts), f"{deployment.path}/a"
    for data in (b"1", b"2"):
        connection.write(client, path, data)
    connection.create_parents(client, [f"{path}/b"])
    assert connection.read(client, [path, f"{path}/no"]) == {path: b"2", f"{path}/no": None}
    assert connection.children(client, [deployment.path, f"{path}/no"]) == {
        deployment.path: ["a"],
        f"{path}/no": [],
    }
    for _ in range(2):
        connection.remove(client, path)
    assert connection.read(client, [path]) == {path: None}


def test_parents_may_have_acls_that_fill_many_requests(deployment: Deployment, connect: Connect) -> None:
    """Those of `acl.yml` name every service, whatever KOLLA_ZK_ACL says."""
    own = {"KOLLA_APP_ID": f"/{deployment.id}/tool", "KOLLA_SYSTEM_PREFIX": deployment.prefix}
    client, status = connect(deployment.hosts, **own), f"{deployment.path}/status"
    client.use_plan(Plan("world:anyone", {f"a/{number}": f"digest:a:{number:060}" for number in range(90)}))
    paths = [f"{status}/host{number}/x" for number in range(220)]
    made = connection.create_parents(client, paths)
    assert len(made) == 221
    assert len(connection.children(client, [status])[status]) == 220


def test_parents_that_were_absent_are_returned_after_an_outage_too(
    deployment: Deployment, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are created, and only the reply is lost."""
    client, path = connect(deployment.hosts), f"{deployment.path}/a/b"
    transaction = client.transaction

    def lose_the_reply(*given: Any) -> None:
        monkeypatch.undo()
        transaction(*given)
        raise Outage("lost")

    monkeypatch.setattr(client, "transaction", lose_the_reply)
    assert connection.create_parents(client, [f"{path}/c"]) == [f"{deployment.path}/a", path]
    assert connection.create_parents(client, [f"{path}/c"]) == []


def test_a_missing_parent_is_named(deployment: Deployment, connect: Connect) -> None:
    """And a missing chroot: trying again is no help."""
    client, path = connect(deployment.hosts), f"{deployment.path}/a"
    with pytest.raises(NotThere, match=f"^{path}/b can't be created: {path} does not exist$"):
        connection.create_together(client, {f"{path}/b": b""})
    with pytest.raises(NotThere, match=r"^/a can't be created: the chroot /typo does not exist$"):
        connection.create_parents(connect(f"{deployment.hosts}/typo"), ["/a/b"])


def test_what_is_denied_is_named_by_its_path(
    zk: KazooClient, deployment: Deployment, connect: Connect
) -> None:
    """Reading, writing, creating and removing alike, with the error's own name."""
    zk.add_auth("digest", "operator:password")
    client, closed = connect(deployment.hosts), f"{deployment.path}/closed"
    zk.create(closed, acl=[make_digest_acl("operator", "password", all=True)])
    zk.create(f"{closed}/a")
    attempts: list[tuple[str, Callable[[], object]]] = [
        (f"{closed} can't be read", lambda: connection.read(client, [closed])),
        (f"{closed} can't be read", lambda: connection.children(client, [closed])),
        (f"{closed} can't be written", lambda: connection.write(client, closed, b"")),
        (f"{closed}/b can't be created", lambda: connection.create(client, f"{closed}/b")),
        (f"{closed}/a can't be deleted", lambda: connection.remove(client, f"{closed}/a")),
    ]
    for message, attempt in attempts:
        with pytest.raises(AccessDenied, match=f"{message}: NoAuthError"):
            attempt()


def test_who_names_no_deployment_is_told_which_there_are(zk: KazooClient, deployment: Deployment) -> None:
    """None is guessed, not even the only one; without ZooKeeper the question comes alone, and soon."""
    question = "kolla_mesos_ctl: give --deployment, or set KOLLA_DEPLOYMENT: the first part of KOLLA_APP_ID"
    unnamed = {"KOLLA_DEPLOYMENT": ""}
    where = f"; below {deployment.prefix} of ZooKeeper at {deployment.hosts} there"
    done = ctl(deployment, "status", status=64, **unnamed)
    assert done.stderr == f"{question}{where} are: {deployment.id}\n"
    zk.create(f"{deployment.prefix}/shop")
    done = ctl(deployment, "status", status=64, **unnamed)
    assert done.stderr == f"{question}{where} are: {', '.join(sorted([deployment.id, 'shop']))}\n"
    done = ctl(deployment, "status", "--prefix", "/no", status=64, **unnamed)
    assert done.stderr == f"{question}; below /no of ZooKeeper at {deployment.hosts} there is none\n"
    done = ctl(deployment, "status", "--hosts", f"127.0.0.1:{free_port()}", status=64, **unnamed)
    assert done.stderr == f"{question}\n"


def test_a_missing_chroot_is_named(deployment: Deployment) -> None:
    """Not the deployment below it."""
    hosts = f"{deployment.hosts}/typo"
    said = ctl(deployment, "status", status=66, KOLLA_ZK_HOSTS=hosts).stderr
    assert said == "kolla_mesos_ctl: the chroot /typo does not exist: correct --hosts or KOLLA_ZK_HOSTS\n"


def test_a_deployment_that_is_missing_is_looked_for_below_the_chroot(deployment: Deployment) -> None:
    """Which is shown: with another one it may be there."""
    within = deployment._replace(hosts=f"{deployment.hosts}{deployment.prefix}", prefix="/")
    assert ctl(within, "status", "--deployment", "nothing", status=66).stderr == (
        f"kolla_mesos_ctl: there is no deployment at /nothing, below the chroot {deployment.prefix}"
        f" (there are: {deployment.id})\n"
    )


def test_an_acl_that_somebody_else_has_changed_is_not_replaced(
    zk: KazooClient, deployment: Deployment, connect: Connect
) -> None:
    """The caller reads it again; a znode that is gone needs none."""
    client, path = connect(deployment.hosts), f"{deployment.path}/a"
    zk.create(path)
    (before,) = connection.acls(client, [path, f"{path}/gone"]).values()
    assert before.acl == {"world:anyone": "cdrwa"}
    mine = before._replace(acl={"world:anyone": "ra"})
    assert connection.set_acls(client, {path: mine, f"{path}/gone": mine}) == set()
    assert connection.set_acls(client, {path: before}) == {path}
    assert connection.acls(client, [path])[path] == mine._replace(version=before.version + 1)


def test_an_acl_that_is_shown_in_part_only_is_not_taken_for_whole(
    zk: KazooClient, deployment: Deployment, connect: Connect
) -> None:
    """ZooKeeper hides digests from who may not change them."""
    path = f"{deployment.path}/a"
    zk.add_auth("digest", "operator:password")
    operator = make_digest_acl("operator", "password", all=True)
    zk.create(path, acl=[operator, make_acl("world", "anyone", read=True)])
    with pytest.raises(AccessDenied, match=f"the ACL of {path} can't be read in full"):
        connection.acls(connect(deployment.hosts), [path])


@pytest.mark.parametrize("data", [b"", b"[", b"null", b"[1]", b"[{}]", b'{"services": 1}', b"[" * 3000])
def test_a_recorded_acl_yml_that_is_none_is_named(data: bytes) -> None:
    """Whatever it holds."""
    with pytest.raises(connection.BadPlan, match=r"/kolla/site/\.acl: "):
        connection.recorded("/kolla/site/.acl", data)
