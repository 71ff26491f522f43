"""A secured ensemble: three servers that accept only TLS, from clients and from each other.

Issues and replaces certificates, and expires sessions. A client is identified by the subject of its
certificate; without a certificate it can't connect.

    with Secured(directory) as secured:
        secured.hosts                         the value of KOLLA_ZK_HOSTS
        secured.environment("db")             the variables with the certificate of CN=db, which is made
        secured.identity("db")                "x509:CN=db", the same in acl.yml
        secured.authority.issue("db")         another certificate and key in the same files
        secured.leader.kill(); secured.mend() and other methods of Ensemble
        secured.expire(session)
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from kolla_mesos_start.zookeeper.tls import make_context
from tests.support.certificates import Authority
from tests.support.zookeeper import CLASS_PATH, HOST, Ensemble, Server, free_port

OPERATOR, SERVER = "operator", "server"
TRUSTED = "trusted.pem"
QUORUM = "quorum"  # a directory, with a CA for servers among themselves
JARS = Path("/usr/share/java")
NETTY = ("zookeeper.jar", "slf4j-simple.jar", *sorted(path.name for path in JARS.glob("netty-*.jar")))
JAVA = ("-cp", CLASS_PATH or ":".join(str(JARS / name) for name in NETTY))
# Only this part of a server can TLS.
FACTORY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
LONG_SESSIONS = {"maxSessionTimeout": 60000}  # ms; for commands that are to live through an election
SUPER_SECRET = 0xB3415C00  # ZooKeeper's


class Secured(Ensemble):
    """The ensemble. `directory` holds the certificates and keys, and who is `trusted`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        (directory / QUORUM).mkdir()
        self.quorum = Authority(directory / QUORUM, f"{QUORUM}-ca")
        self.quorum.issue(SERVER)
        self.trust(self.authority)
        for name in (SERVER, OPERATOR):
            self.authority.issue(name)
        super().__init__(
            directory / "servers", make=partial(SecureServer, self), java=JAVA, settings=LONG_SESSIONS
        )

    def trust(self, *authorities: Authority) -> None:
        """Have KOLLA_ZK_CA, and the file of each server, hold these CAs and no others."""
        stage = self.directory / f"{TRUSTED}.new"
        stage.write_text("".join((self.directory / f"{each.name}.pem").read_text() for each in authorities))
        stage.replace(self.directory / TRUSTED)

    def reissue(self, authority: Authority) -> None:
        """Have this CA issue everybody's certificate, and those to come."""
        self.authority = authority
        for path in self.directory.glob("*-both.pem"):
            authority.issue(path.name[: -len("-both.pem")])

    def restart_each(self) -> None:
        """One server after the other; each reads its certificate and the CAs at its start."""
        for server in self.servers:
            server.kill()
            server.start()

    @contextmanager
    def observer(self, directory: Path, certificate: Path) -> Iterator[SecureServer]:
        """Meanwhile a server runs that the others don't know. It shows a certificate, and trusts all CAs."""
        directory.mkdir()
        cas = (self.directory / TRUSTED, self.quorum.directory / f"{self.quorum.name}.pem")
        trusted = directory / TRUSTED
        trusted.write_text("".join(path.read_text() for path in cas))
        settings = {name: value for name, value in self.servers[0].settings.items() if name[:7] == "server."}
        number = len(settings) + 1
        settings |= {
            f"server.{number}": f"{HOST}:{free_port()}:{free_port()}:observer",
            "peerType": "observer",
            "ssl.quorum.keyStore.location": certificate,
            "ssl.quorum.trustStore.location": trusted,
        }
        server = SecureServer(self, directory, settings=settings, java=JAVA, my_id=number)
        server.launch_server()
        try:
            yield server
        finally:
            server.kill()

    def identity(self, name: str) -> str:
        """As `acl.yml` wants it."""
        return f"x509:CN={name}"

    def environment(self, name: str) -> dict[str, str]:
        """The variables by which an agent, or the tool, is `name`."""
        if not (self.directory / f"{name}.pem").exists():
            self.authority.issue(name)
        files = {"KOLLA_ZK_CA": TRUSTED, "KOLLA_ZK_CERT": f"{name}.pem", "KOLLA_ZK_KEY": f"{name}.key"}
        return {role: str(self.directory / file) for role, file in files.items()}

    def options(self, name: str = OPERATOR) -> dict[str, Any]:
        """What makes kazoo's client, of a test, `name`."""
        return {"handler": _Handler(self.environment(name))}

    def expire(self, session: int) -> None:
        """End a session from outside, as its expiry would."""
        thief = KazooClient(self.hosts, client_id=(session, password(session)), **self.options())
        thief.start()
        thief.stop()
        thief.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's, which leaves a connection open where TLS fails."""

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__()
        self._files = files

    def create_connection(
        self, address: tuple[str, int], timeout: float, hostname: str, **others: object
    ) -> socket.socket:
        return connect_with_tls(make_context(*self._files.values()), address, timeout, hostname)


def connect_with_tls(
    context: ssl.SSLContext, address: tuple[str, int], timeout: float, hostname: str
) -> ssl.SSLSocket:
    """A connection with TLS.

    The socket is wrapped before it connects: wrapping one that the server has already reset raises an error
    and leaves it open.
    """
    connection = context.wrap_socket(socket.socket(), server_hostname=hostname)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def shows(directory: Path, certificate: str, trusted: str, kind: str = "ssl") -> dict[str, object]:
    """The lines of zoo.cfg by which a server shows a certificate, and trusts CAs; clients need one."""
    return {
        "serverCnxnFactory": FACTORY,
        f"{kind}.keyStore.location": directory / certificate,
        f"{kind}.trustStore.location": directory / trusted,
    }


def lines(directory: Path, port: int) -> dict[str, object]:
    """Those of zoo.cfg by which a server of an ensemble is secured, as README has them."""
    return {
        **shows(directory, f"{SERVER}-both.pem", TRUSTED),
        **shows(directory, f"{QUORUM}/{SERVER}-both.pem", f"{QUORUM}/{QUORUM}-ca.pem", "ssl.quorum"),
        "secureClientPort": port,
        "sslQuorum": "true",
    }


class SecureServer(Server):
    """One whose `port` is for clients with a certificate; there is none for others."""

    def __init__(self, ensemble: Secured, directory: Path, *, settings: Mapping[str, object], **more: Any):
        self._ensemble = ensemble
        super().__init__(directory, **more)
        self.settings |= lines(ensemble.directory, self.port)
        self.settings |= {"secureClientPortAddress": HOST, **settings}

    def configure(self) -> None:
        super().configure()
        path = self.directory / "zoo.cfg"
        plain = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in plain if not line.startswith("clientPort")))

    def ask(self, word: str, seconds: float = 10.0) -> str:
        try:
            with self._connected(seconds) as connection:
                connection.sendall(word.encode())
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return ""
        return answer.decode(errors="replace")

    @contextmanager
    def _connected(self, seconds: float) -> Iterator[socket.socket]:
        files = self._ensemble.environment(OPERATOR)
        context = make_context(*files.values())
        with connect_with_tls(context, (HOST, self.port), seconds, HOST) as connection:
            yield connection


def password(session: int) -> bytes:
    """That of a session, by which anybody can attach to it: servers make it of the id, by Java's Random."""
    mask = (1 << 48) - 1
    seed = (session ^ SUPER_SECRET ^ 0x5DEECE66D) & mask
    found = b""
    while len(found) < 16:
        seed = (seed * 0x5DEECE66D + 0xB) & mask
        found += (seed >> 16).to_bytes(4, "little")
    return found
