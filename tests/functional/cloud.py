"""The deployment under test: the published example, and a container for each part of it.

    ctl-1   mariadb     keystone-api
    ctl-2   memcached   keystone-api
    ctl-3   keystone_tasks (ends by itself)   keystone-api

The example is published as it is, but for the values that this machine gives: roots, ports,
users, passwords. What lives here: making, starting and asking. What must hold is in the tests.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import random
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.functional.command_lines import CommandLines
from tests.functional.containers import CHECKOUT, Container, end_all, processes_of
from tests.functional.openstack import SYSTEM_PATH
from tests.waiting import eventually
from tests.zookeeper import HOST, free_port

EXAMPLE = CHECKOUT / "etc" / "examples" / "keystone"
PUBLISH = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_publish"))
NOTED = Path(__file__).with_name("noted")

MARIADB = "infra/mariadb/mariadb"
MEMCACHED = "infra/memcached/memcached"
TASKS = "openstack/keystone/keystone_tasks"
API = "openstack/keystone/keystone-api"
HOSTS = ("ctl-1", "ctl-2", "ctl-3")
START_LIMIT = 300.0  # seconds: ten times what it takes on two cores that do nothing else


class Users(NamedTuple):
    """Whose the servers' processes and files are."""

    mariadb: str
    memcached: str
    keystone: str
    keystone_group: str

    @classmethod
    def here(cls) -> Users:
        """As root those that Debian's packages have made, else nobody but ourselves."""
        own = pwd.getpwuid(os.geteuid())
        if own.pw_uid == 0:
            # A group that isn't root's own, so that giving a file to it shows.
            return cls("mysql", "memcache", own.pw_name, "www-data")
        return cls(own.pw_name, own.pw_name, own.pw_name, grp.getgrgid(own.pw_gid).gr_name)


class Secrets(NamedTuple):
    """Passwords with a part that can be searched for, in whatever quoting a file has put the rest."""

    mariadb_root_password: str
    keystone_database_password: str
    keystone_admin_password: str

    @classmethod
    def made(cls) -> Secrets:
        # What surrounds the part that is searched for is special in SQL, in URLs, in option files.
        return cls(*(f"{secrets.token_hex(12)}'\"@/%\\" for _ in cls._fields))

    def needles(self) -> dict[str, str]:
        return {name: value[:24] for name, value in self._asdict().items()}


class Run(NamedTuple):
    """One run of a one-time command's program, as the program itself has noted it."""

    host: str
    token: str
    program: str
    arguments: str


class Cloud:
    """The containers and their deployment; `zk` sees what the agents write."""

    def __init__(
        self, directory: Path, programs: Path, zk: KazooClient, zookeeper_hosts: str, report: list[str]
    ) -> None:
        self.directory = directory
        self.report = report
        self.zk = zk
        self.prefix = "/kolla-functional"
        self.id = "cloud"
        self.users = Users.here()
        self.secrets = Secrets.made()
        self.command_lines = CommandLines(self.secrets.needles())
        self.seed = int(os.environ.get("KOLLA_TEST_SEED") or random.randrange(10**6))
        self.journal = directory / "journal"
        self.keys = directory / "keys"
        self.ports = {host: free_port() for host in HOSTS}
        self.started_at = 0.0  # seconds since the epoch
        environ = {
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "PATH": f"{self._noting(programs)}:{programs}:{SYSTEM_PATH}",
            "KOLLA_ZK_HOSTS": zookeeper_hosts,
            "KOLLA_SYSTEM_PREFIX": self.prefix,
            "KOLLA_PRIVATE_INTERFACE": "lo",
            "KOLLA_PUBLIC_INTERFACE": "lo",
            "KOLLA_LOG_FORMAT": "json",
        }
        self.mariadb = self._container(MARIADB, HOSTS[0], environ)
        self.memcached = self._container(MEMCACHED, HOSTS[1], environ)
        self.tasks = self._container(TASKS, HOSTS[2], environ)
        self.replicas = [
            self._container(API, host, {**environ, "KOLLA_PORTS": str(self.ports[host])}) for host in HOSTS
        ]
        self.containers = [self.mariadb, self.memcached, self.tasks, *self.replicas]
        self._prepare_volumes()

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.id}"

    def url(self, host: str) -> str:
        return f"http://{HOST}:{self.ports[host]}/v3"

    # -- making ---------------------------------------------------------------------------------

    def _container(self, service: str, host: str, environ: Mapping[str, str]) -> Container:
        root = self.directory / host / service.rsplit("/", 1)[-1]
        return Container(service, host, root, {**environ, "KOLLA_APP_ID": f"/{self.id}/{service}"})

    def _noting(self, programs: Path) -> Path:
        """A directory in front of PATH: the one-time commands' programs, each noting its own runs."""
        directory = self.directory / "bin"
        directory.mkdir(mode=0o755)
        # The servers' own users write into it as well.
        self.journal.touch()
        self.journal.chmod(0o666)
        script = NOTED.read_text().replace("@JOURNAL@", str(self.journal))
        script = script.replace("@PATH@", f"{programs}:{SYSTEM_PATH}")
        for name in ("keystone-manage", "mariadb", "mariadb-install-db"):
            (directory / name).write_text(script)
            (directory / name).chmod(0o755)
        return directory

    def _prepare_volumes(self) -> None:
        """The directories that an image or a volume would bring."""
        for path in ("var/lib/mysql", "run/mysqld"):
            directory = self.mariadb.root / path
            directory.mkdir(parents=True)
            shutil.chown(directory, self.users.mariadb)
        self.keys.mkdir()
        shutil.chown(self.keys, self.users.keystone)

    def publish(self) -> str:
        """Publish the example with this machine's values; what the tool says."""
        tree = self.directory / "published"
        shutil.copytree(EXAMPLE, tree)
        tree.chmod(0o700)
        variables = tree / "variables.yml"
        values = {**yaml.safe_load(variables.read_text()), **self._values()}
        variables.write_text(yaml.safe_dump(values))
        for container in self.containers:
            own = tree / "services" / container.service / "variables" / container.host
            own.mkdir(parents=True)
            (own / "root").write_text(f"{container.root}\n")
            if container.service == API:
                (own / "keystone_port").write_text(f"{self.ports[container.host]}\n")
        done = subprocess.run(
            (*PUBLISH, str(tree), "--deployment", self.id, "--prefix", self.prefix),
            env=self.mariadb.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _values(self) -> dict[str, Any]:
        return {
            **self.secrets._asdict(),
            "mariadb_user": self.users.mariadb,
            "mariadb_port": free_port(),
            "memcached_user": self.users.memcached,
            "memcached_port": free_port(),
            "keystone_user": self.users.keystone,
            "keystone_group": self.users.keystone_group,
            "keystone_workers": 1,
            "keystone_url": self.url(HOSTS[0]),
            "keystone_keys": str(self.keys),
        }

    # -- starting and stopping ------------------------------------------------------------------

    def start(self) -> None:
        """Start all containers at once, in an order that nobody has chosen."""
        order = random.Random(self.seed).sample(self.containers, len(self.containers))
        self.started_at = time.time()
        for container in order:
            container.start()

    def await_start(self) -> None:
        """Wait until every replica is ready and the task has ended."""
        self.eventually(self._is_up_or_broken, "Keystone is up", seconds=START_LIMIT)
        assert not self._broken(), self.told()

    def eventually(self, condition: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
        """Wait until `condition()` is true; past `seconds` fail with what the containers say."""
        try:
            eventually(condition, what, seconds=seconds, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def _is_up_or_broken(self) -> bool:
        up = len(self.ready(API)) == len(self.replicas) and self.tasks.status == 0
        return up or bool(self._broken())

    def _broken(self) -> list[Container]:
        """The containers that ended and should not have, or not so."""
        return [
            container
            for container in self.containers
            if container.status or (container.status == 0 and container is not self.tasks)
        ]

    def told(self) -> str:
        """What each container said last."""
        return "\n".join(f"--- {each.name} (status {each.status}): {each.said()}" for each in self.containers)

    def stop(self) -> dict[str, int]:
        """Stop what runs, the users of a service before the service; exit statuses by name."""
        order = (self.tasks, *self.replicas, self.memcached, self.mariadb)
        statuses = {each.name: each.stop() for each in order if each.running}
        self.eventually(lambda: not self.processes(), "no process of theirs is left")
        return statuses

    def end(self) -> None:
        """Kill what is left of all containers."""
        end_all(self.directory)
        for container in self.containers:
            if container.running:
                container.ended()

    # -- asking ---------------------------------------------------------------------------------

    def ready(self, service: str) -> dict[str, dict[str, Any]]:
        """The ready instances of a service's daemon: id -> what it says of itself."""
        role = service.rsplit("/", 1)[-1]
        parent = f"{self.path}/status/global/{role}/daemon/ready"
        instances = {}
        for name in self._children(parent):
            try:
                data, stat = self.zk.get(f"{parent}/{name}")
            except NoNodeError:
                continue  # withdrawn meanwhile
            instances[name] = {**json.loads(data), "ready_at": stat.ctime / 1000}
        return instances

    def members(self, service: str) -> list[str]:
        return self._children(f"{self.path}/{service}/.party")

    def detail(self, command: str, scope: str = "global") -> dict[str, Any]:
        data, _ = self.zk.get(f"{self.path}/status/{scope}/{command}/detail")
        decoded: dict[str, Any] = json.loads(data)
        return decoded

    def state(self, command: str, scope: str = "global") -> str:
        data, _ = self.zk.get(f"{self.path}/status/{scope}/{command}")
        return str(data, "utf-8")

    def runs(self) -> list[Run]:
        """Every run of a one-time command's program, in the order of their starts."""
        return [Run(*line.split("\t")) for line in self.journal.read_text().splitlines()]

    def znodes(self, path: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Every znode of the deployment with its data."""
        path = path or self.path
        try:
            data, _ = self.zk.get(path)
            children = self.zk.get_children(path)
        except NoNodeError:
            return
        yield path, data
        for child in children:
            yield from self.znodes(f"{path}/{child}")

    def _children(self, path: str) -> list[str]:
        try:
            children: list[str] = self.zk.get_children(path)
        except NoNodeError:
            return []
        return children

    def issue_token(self, host: str) -> str:
        """A token for the administrator, issued by the replica on `host`."""
        user = {
            "name": "admin",
            "domain": {"id": "default"},
            "password": self.secrets.keystone_admin_password,
        }
        wanted = {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": {"name": "admin", "domain": {"id": "default"}}},
        }
        request = urllib.request.Request(
            f"{self.url(host)}/auth/tokens",
            data=json.dumps({"auth": wanted}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return str(reply.headers["X-Subject-Token"])

    def validate_token(self, host: str, token: str) -> dict[str, Any]:
        """What the replica on `host` knows of `token`; HTTPError where it does not accept it."""
        request = urllib.request.Request(
            f"{self.url(host)}/auth/tokens", headers={"X-Auth-Token": token, "X-Subject-Token": token}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            known: dict[str, Any] = json.load(reply)["token"]
        return known

    def processes(self) -> list[int]:
        """All processes of all containers."""
        return list(processes_of(self.directory))
