"""Members of a Galera cluster, with the files of etc/examples/galera.

Each member is started as an agent would start it. `cluster.py` has members with agents.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import jinja2
import yaml

from kolla_mesos_start.ctl.up.containers import end_all, processes_of
from tests import EXAMPLES
from tests.examples.keystone import Users
from tests.examples.openstack import SYSTEM_PATH
from tests.support.processes import command_line
from tests.support.waiting import eventually
from tests.support.zookeeper import free_port

EXAMPLE = EXAMPLES / "galera"
SERVICE = "infra/mariadb"
FILES = EXAMPLE / "services" / SERVICE / "files"
HOSTS = ("ctl-1", "ctl-2", "ctl-3")
PACKAGES = {
    "mariadb-server": "mariadbd",
    "mariadb-client": "mariadb",
    "mariadb-backup": "mariadb-backup",
    "rsync": "rsync",
    "socat": "socat",
}
NO_GROUP = "00000000-0000-0000-0000-000000000000"
QUERY_TIMEOUT = 20.0  # seconds
PRIMARY = {"2": "Donor", "4": "Synced"}


class Ports(NamedTuple):
    """The ports of all members, on addresses of their own."""

    mariadb_port: int
    galera_port: int
    galera_ist_port: int
    galera_transfer_port: int

    @classmethod
    def free(cls) -> Ports:
        return cls(*(free_port() for _ in cls._fields))


def addresses(first: int = 11) -> dict[str, str]:
    """An address of the loopback interface for each host."""
    return {host: f"127.0.0.{first + number}" for number, host in enumerate(HOSTS)}


def values(ports: Ports, **more: object) -> dict[str, object]:
    """The variables of the deployment that depend on this machine, and make it small."""
    return {
        **ports._asdict(),
        "mariadb_user": Users.here().mariadb,
        "mariadb_root_password": "blackout",
        "mariadb_max_connections": 20,
        "mariadb_buffer_pool": "16M",
        "mariadb_redo_log": "8M",
        "galera_cache": "8M",
        "galera_members": " ".join(f"{host}={address}" for host, address in addresses().items()),
        **more,
    }


class Refused(Exception):
    """The server does not answer, or answers with an error."""


def sql(socket: Path, statement: str, *, seconds: float = QUERY_TIMEOUT) -> list[list[str]]:
    """The rows that a statement of the administrator returns; Refused if it fails."""
    try:
        done = subprocess.run(
            (
                "mariadb",
                f"--socket={socket}",
                "--batch",
                "--skip-column-names",
                "--raw",
                f"--execute={statement}",
            ),
            capture_output=True,
            timeout=seconds,
            env={"PATH": SYSTEM_PATH},
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"no answer within {seconds:g} s") from error
    if done.returncode:
        raise Refused(done.stderr.decode(errors="replace").strip())
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def is_member(socket: Path) -> bool:
    """Whether the server at `socket` is a member of a working cluster."""
    with suppress(Refused):
        rows = sql(socket, "SHOW STATUS LIKE 'wsrep%'", seconds=5.0)
        status = {row[0]: row[-1] for row in rows}
        return status.get("wsrep_cluster_status") == "Primary" and status.get("wsrep_local_state") in PRIMARY
    return False


class Position(NamedTuple):
    """What the position script has done: its exit status, the last line of its output, and its messages."""

    status: int
    text: str
    messages: str

    @property
    def seqno(self) -> int:
        return int(self.text.rpartition(":")[2])


class Member:
    """One member; its files are below `directory`, as in a container."""

    def __init__(self, host: str, directory: Path, ports: Ports, **more: object) -> None:
        self.host = host
        self.root = directory / host
        self.etc = self.root / "etc/mysql"
        self.state = self.root / "var/lib/mysql"
        self.data = self.state / "data"
        self.run = self.root / "run/mysqld"
        self.socket = self.run / "mysqld.sock"
        self.log = self.root / "log"
        self.user = Users.here().mariadb
        self._process: subprocess.Popen[bytes] | None = None
        for path in (self.etc, self.state, self.run):
            path.mkdir(parents=True)
            shutil.chown(path, self.user)
        self.environ = {
            "PATH": SYSTEM_PATH,
            "HOME": str(self.root),
            "KOLLA_RUN_DIR": str(self.run),
            "KOLLA_STATE_DIR": str(self.state),
        }
        known = {
            **yaml.safe_load((EXAMPLE / "variables.yml").read_text()),
            **values(ports, **more),
            "root": self.root,
            "kolla_hostname": host,
            "deployment_id": "blackout",
        }
        for file in FILES.iterdir():
            template = jinja2.Template(file.read_text(), undefined=jinja2.StrictUndefined)
            path = self.etc / file.name
            path.write_text(template.render(known))
            shutil.chown(path, self.user)

    @property
    def pid(self) -> int:
        """The process id of mariadbd."""
        assert self._process is not None, f"{self.host} was not started"
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.poll() if self._process else None

    @property
    def processes(self) -> list[int]:
        """All processes of this member."""
        return list(processes_of(self.run))

    def command(self, script: str) -> Sequence[str]:
        return (
            "sh",
            *map(str, (self.etc / script, self.etc / "galera.cnf", self.data, self.state / "joining")),
        )

    def position(self, seconds: float = 120.0) -> Position:
        """What the position script says about the data."""
        done = subprocess.run(
            self.command("position.sh"),
            env=self.environ,
            user=self.user,
            cwd="/",
            capture_output=True,
            timeout=seconds,
        )
        last = done.stdout.decode().rstrip("\n").rpartition("\n")[2]
        return Position(done.returncode, last, done.stderr.decode(errors="replace"))

    def start(self, role: str, position: str | None = None) -> None:
        """Start it as the winner (`first`) or as a joiner (`join`); by default with its own position."""
        group, _, seqno = (position or self.position().text).replace("none", "").partition(":")
        election = {
            "KOLLA_ELECTION": role,
            "KOLLA_ELECTION_GROUP": group,
            "KOLLA_ELECTION_POSITION": seqno,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command("start.sh"),
                env={**self.environ, **election},
                user=self.user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_ready(self) -> bool:
        """Whether the readiness check succeeds."""
        done = subprocess.run(
            self.command("ready.sh"),
            env=self.environ,
            user=self.user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=QUERY_TIMEOUT,
        )
        return done.returncode == 0

    def await_ready(self) -> None:
        def ready_or_dead() -> bool:
            assert self.status is None, f"{self.host} ended with {self.status}: {self.log_end()}"
            return self.is_ready

        try:
            eventually(ready_or_dead, f"{self.host} is ready", seconds=180)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.log_end()}") from None

    def sql(self, statement: str) -> list[list[str]]:
        return sql(self.socket, statement)

    def kill(self) -> None:
        """KILL all its processes, as the end of a container does."""
        end_all(self.run)
        if self._process is not None:
            self._process.wait(30)

    def kill_server(self) -> None:
        """KILL mariadbd alone: what it has started must end by itself."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(30)

    def stop(self) -> int:
        """TERM, and wait for its end."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(60)

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def runs(self, program: str) -> bool:
        """Whether one of its processes runs this program."""
        return any(program in command_line(pid) for pid in self.processes)

    def grastate(self) -> Mapping[str, str]:
        """What grastate.dat says; empty if there is none, or an empty one."""
        with suppress(FileNotFoundError):
            lines = (line.partition(":") for line in (self.data / "grastate.dat").read_text().splitlines())
            return {name: value.strip() for name, colon, value in lines if colon}
        return {}
