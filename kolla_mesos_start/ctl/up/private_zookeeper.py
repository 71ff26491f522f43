"""A private ZooKeeper server of Debian's package, on the loopback interface.

Configures, starts and queries the server. It is meant for a few minutes on one machine: it starts quickly
and is small, and a power failure loses its data. Every user of the machine can connect to it, so its znodes
have an ACL for a credential that is made at random, and other users can't read its files.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping, Set
from pathlib import Path

from kazoo.security import make_digest_acl_credential

from kolla_mesos_start.ctl.directory import private_file
from kolla_mesos_start.ctl.directory.acl import ALL
from kolla_mesos_start.ctl.up.containers import dies_with_us
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import CurrentAcl, OperatorClient
from kolla_mesos_start.errors import AgentError

HOST = "127.0.0.1"
JAVA = (
    "java",
    "-Xmx256m",
    # A server that starts quickly and is small, not one that is fast after a minute.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # It would leave a file in /tmp.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # kill -9 of a process loses nothing that the kernel has; only a power failure would.
    "-Dzookeeper.forceSync=no",
    "-cp",
    "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar",
)
SERVER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
DEFAULTS: Mapping[str, object] = {
    "tickTime": 500,
    "initLimit": 20,
    "syncLimit": 10,
    "clientPortAddress": HOST,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "maxClientCnxns": 0,
}
USER = "up"
OWN = ("/zookeeper", "/zookeeper/quota")  # znodes of a new server that every client may change
ANSWER_TIMEOUT = 0.3  # seconds
LAST_LINES = 12


def is_installed() -> bool:
    """Whether this machine has what a server needs."""
    return shutil.which(JAVA[0]) is not None and all(Path(jar).exists() for jar in JAVA[-1].split(":"))


class PrivateZooKeeper:
    """One server, whose data and log are in `home`. It ends with us, even if we are killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(mode=0o700)
        configure(
            home / "zoo.cfg",
            {"dataDir": "./data", "clientPort": self.port, "4lw.commands.whitelist": "srvr"},
        )
        password = secrets.token_hex(16)
        self._identity = f"digest:{make_digest_acl_credential(USER, password)}"
        private_file.write(self._credential, f"digest:{USER}:{password}\n".encode())

    @property
    def _credential(self) -> Path:
        return self.home / "credential"

    @property
    def hosts(self) -> str:
        """As KOLLA_ZK_HOSTS wants it."""
        return f"{HOST}:{self.port}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables with which the tool and the agent use it, and keep others out of their znodes."""
        return {
            "KOLLA_ZK_HOSTS": self.hosts,
            "KOLLA_ZK_AUTH_FILE": str(self._credential),
            "KOLLA_ZK_ACL": f"{self._identity}:{ALL}",
        }

    def start(self) -> None:
        """Start it, for the first time or again after its end. It keeps its port and its data."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (*dies_with_us(), *JAVA, SERVER, "./zoo.cfg"),
                # As a working directory: in zoo.cfg a path with a backslash or with letters other than
                # Latin ones would become another one.
                cwd=self.home,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C at the terminal is for us.
                start_new_session=True,
            )

    def secure(self, client: OperatorClient) -> None:
        """Keep other users out. AgentError if one of them was faster than we are."""
        ours = CurrentAcl({self._identity: ALL}, -1)
        connection.set_acls(client, dict.fromkeys(("/", *OWN), ours))
        # Nobody else can create another one now.
        others = set(connection.children(client, ["/"])["/"]) - {OWN[0].strip("/")}
        if others:
            raise AgentError(
                f"somebody else has written /{min(others)} to the private ZooKeeper, before it was secured:"
                " run `up` again"
            )

    @property
    def serves(self) -> bool:
        """Whether it answers its clients. Blocks for ANSWER_TIMEOUT at most."""
        # A connection made in the moment in which the server begins to listen is never answered.
        return "Mode:" in ask(self.port, "srvr", ANSWER_TIMEOUT)

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """End it, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def discard(self) -> None:
        """End it, and remove its data and its credential. Its log stays."""
        self.kill()
        shutil.rmtree(self.home / "data", ignore_errors=True)
        self._credential.unlink(missing_ok=True)

    def last_lines(self) -> str:
        """The end of its log, without Java's stack traces, for a message."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        messages = [line for line in lines if not line.startswith("\tat ")]
        return "\n".join([f"the end of {self.log}:", *messages[-LAST_LINES:]])


def free_port(excluded: Set[int] = frozenset()) -> int:
    """A TCP port of the loopback interface on which no process listens, and which is not `excluded`.

    It is reserved until this process ends.

    It lies below the range from which the kernel gives ports to outgoing connections: there a
    client that keeps trying a dead server can be given that very port, and then talks to itself,
    or keeps the server from coming back.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(10000, max(lowest, 10100))
        if port not in excluded and _is_free(port) and _reserve(port):
            return port
    raise AgentError(f"no free TCP port found on {HOST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Whether no other process of this tool has the port; it then belongs to this one until its end.

    The program that will listen on the port may be started minutes later. An abstract Unix socket
    belongs to the same network namespace as the port, and the kernel removes it with the process.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0kolla_mesos_start/port/{port}")
    except OSError:
        mark.close()
        return False
    mark.detach()  # The descriptor stays open on purpose.
    return True


def configure(path: Path, settings: Mapping[str, object]) -> None:
    """Write a zoo.cfg: `settings` are added to DEFAULTS, or replace them."""
    lines = {**DEFAULTS, **settings}
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def ask(port: int, word: str, seconds: float = 10.0, host: str = HOST) -> str:
    """The server's answer to one of ZooKeeper's four-letter words; empty if none comes."""
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            connection.sendall(word.encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return ""
    return answer.decode(errors="replace")
