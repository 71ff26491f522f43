"""The operator's connection to a real ZooKeeper: what ends it, what it survives, what it is denied."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from kolla_mesos_start import settings
from kolla_mesos_start.errors import AccessDenied, BadEnvironment, NoConnection
from kolla_mesos_start.operator import connection
from tests import CHECKOUT
from tests.conftest import Deployment
from tests.link import Link
from tests.publishing import write_files
from tests.waiting import eventually
from tests.zookeeper import Server, free_port

TOOL = CHECKOUT / "bin" / "kolla_mesos_publish"
Connect = Callable[..., KazooClient]


def settings_for(hosts: str, **environ: str) -> settings.Settings:
    """Of a tool that reaches ZooKeeper at `hosts`."""
    return settings.parse({"KOLLA_APP_ID": "/site/tool", "KOLLA_ZK_HOSTS": hosts, **environ})


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects (`connect(hosts, **environ)`), and closes what it has connected."""
    clients: list[KazooClient] = []

    def one(hosts: str, **environ: str) -> KazooClient:
        clients.append(connection.connect(settings_for(hosts, **environ)))
        return clients[-1]

    yield one
    for client in clients:
        connection.close(client)


def test_without_a_server_the_timeout_ends_it() -> None:
    """With the hosts, and the variable that holds the limit; no thread stays."""
    before = threading.active_count()
    hosts = f"127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(NoConnection, match=f"at {hosts} within 0.5 s"):
        connection.connect(settings_for(hosts, KOLLA_ZK_CONNECT_TIMEOUT="0.5"))
    assert 0.5 <= time.monotonic() - begun < 5
    eventually(lambda: threading.active_count() <= before, "its threads are gone")


def test_a_server_that_comes_late_is_found(zookeeper: Server, connect: Connect) -> None:
    """Within a second of its start, however long it was away."""
    zookeeper.kill()
    starter = threading.Timer(1.0, zookeeper.start)
    starter.start()
    try:
        assert connect(zookeeper.hosts, KOLLA_ZK_CONNECT_TIMEOUT="30").exists("/")
    finally:
        starter.join()


def test_certificates_that_cant_be_loaded_are_refused_at_once(tmp_path: Path) -> None:
    """Each with its variable; ZooKeeper is not even tried."""
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    files = dict.fromkeys(("KOLLA_ZK_CA", "KOLLA_ZK_CERT"), str(broken))
    with pytest.raises(BadEnvironment) as caught:
        connection.connect(settings_for(f"127.0.0.1:{free_port()}", **files))
    assert [issue.split(" ")[0].rstrip(":") for issue in caught.value.issues] == list(files)


def certificate(directory: Path) -> str:
    """A file with a key, and a certificate for 127.0.0.1 that signs itself."""
    cert, key, both = (directory / f"{name}.pem" for name in ("cert", "key", "both"))
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *request.split(), "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL
    )
    both.write_text(key.read_text() + cert.read_text())
    return str(both)


@contextmanager
def tls_proxy(server: Server, both: str) -> Iterator[str]:
    """TLS in front of the server, only for clients with the same certificate; its host and port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=both)
    context.load_cert_chain(both)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(connection: socket.socket) -> None:
        # A client that asks again only when it has the reply.
        with (
            suppress(OSError),
            connection,
            context.wrap_socket(connection, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", server.port)) as plain,
        ):
            while data := secure.recv(65536):
                plain.sendall(data)
                secure.sendall(plain.recv(65536))

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_tls_with_a_certificate_of_its_own(zookeeper: Server, connect: Connect, tmp_path: Path) -> None:
    """Key and certificate may be one file; a server that another authority has signed is refused."""
    (tmp_path / "other").mkdir()
    write_files(tmp_path, variables__region="one")
    ours, other = certificate(tmp_path), certificate(tmp_path / "other")
    with tls_proxy(zookeeper, ours) as hosts:
        client = connect(hosts, KOLLA_ZK_CA=ours, KOLLA_ZK_CERT=ours)
        assert connection.children(client, ["/zookeeper"]) == {"/zookeeper": ["config", "quota"]}
        connection.close(client)
        for ca, cert in ((other, ours), (ours, other)):
            # As a process of its own: after a failed handshake kazoo leaves its socket open.
            environ = {"KOLLA_ZK_CA": ca, "KOLLA_ZK_CERT": cert, "KOLLA_ZK_CONNECT_TIMEOUT": "1"}
            words = [sys.executable, str(TOOL), str(tmp_path), "--deployment=site", f"--hosts={hosts}"]
            done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stderr[:34]) == (69, "kolla_mesos_publish: no connection")


def test_refused_credentials_end_it(zookeeper: Server, connect: Connect, tmp_path: Path) -> None:
    """By the connection, or by the first request, whichever the refusal reaches first."""
    auth = tmp_path / "auth"
    auth.write_text("nosuchscheme:secret\n")
    with pytest.raises(AccessDenied):
        connection.read(connect(zookeeper.hosts, KOLLA_ZK_AUTH_FILE=str(auth)), ["/"])


def test_a_request_outlives_an_outage(
    link: Link, deployment: Deployment, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent again until a reply comes; the log says what it waits for."""
    client = connect(link.hosts)
    link.kill()
    eventually(lambda: not client.connected, "the connection is lost")
    back = threading.Timer(1.0, link.launch)
    back.start()
    try:
        connection.write(client, f"{deployment.path}/a", b"1")
        assert connection.read(client, [f"{deployment.path}/a"]) == {f"{deployment.path}/a": b"1"}
    finally:
        back.join()
    assert "lost the connection to ZooKeeper; retrying" in caplog.messages
    eventually(lambda: "connected to ZooKeeper again" in caplog.messages, "its return is logged")


def test_requests_may_be_repeated(deployment: Deployment, connect: Connect) -> None:
    """A retry finds what the first try has done, and that is no error."""
    client, path = connect(deployment.hosts), f"{deployment.path}/a"
    for data in (b"1", b"2"):
        connection.write(client, path, data)
    connection.create(client, path)
    assert connection.read(client, [path, f"{path}/no"]) == {path: b"2", f"{path}/no": None}
    assert connection.children(client, [deployment.path, f"{path}/no"]) == {
        deployment.path: ["a"],
        f"{path}/no": [],
    }
    for _ in range(2):
        connection.remove(client, path)
    assert connection.read(client, [path]) == {path: None}


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
        (f"{closed}/a can't be removed", lambda: connection.remove(client, f"{closed}/a")),
    ]
    for message, attempt in attempts:
        with pytest.raises(AccessDenied, match=f"{message}: NoAuthError"):
            attempt()
