"""The upgrade example on this machine: three Keystones of two releases behind HAProxy, and their clients.

    ctl-1     mariadb     keystone-api   haproxy
    ctl-2     memcached   keystone-api
    ctl-3     keystone_tasks, keystone_keys (tasks)   keystone-api
    admin-1   keystone_upgrade (a task)

Chooses the release that each container runs, and has the clients. The test has the assertions.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Callable, NamedTuple, TypeVar

from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from tests.conftest import Deployment
from tests.examples.keystone import API, HOSTS, issue_token, url, validate_token
from tests.examples.openstack import SYSTEM_PATH, UPGRADE
from tests.stack.cloud import Cloud, stop

HAPROXY = "infra/haproxy/haproxy"
KEYS = "openstack/keystone/keystone_keys"
TASK = "openstack/keystone/keystone_upgrade"
T = TypeVar("T")

ADMIN = "admin-1"
OLD, NEW = "28.1.0", "29.1.0"
CLIENTS = 3
PAUSE = 0.2  # seconds between a client's requests: the machine has other work too


class Upgrade(Cloud):
    """The containers, all of the old release at first."""

    example = UPGRADE

    def __init__(
        self,
        directory: Path,
        releases: Mapping[str, Path],
        client: KazooClient,
        hosts: str,
        report: list[str],
    ) -> None:
        directory.mkdir(mode=0o755)
        super().__init__(directory, releases[OLD], client, hosts, report)
        # Before release 30 db_sync fails if a character is escaped by % in the URL of the database.
        self.secrets = self.secrets._replace(keystone_database_password=secrets.token_hex(16))
        self.port = free_port()
        self.haproxy = self.add(HAPROXY, HOSTS[0], self.port, {"haproxy_port": self.port})
        self.task = self.add(TASK, ADMIN)
        self.keys_task = self.add(KEYS, HOSTS[2])
        self._images = {
            release: self._image(release, programs, directory) for release, programs in releases.items()
        }
        for container in (*self.replicas, self.task, self.keys_task):
            self.give(container, OLD)
        for replica in self.replicas:
            (replica.root / "var/lib/keystone").mkdir(parents=True)
            replica.environ["KOLLA_START_MODE"] = "supervise"
        self.deployment = Deployment(hosts, self.prefix, self.id)

    def _image(self, release: str, programs: Path, directory: Path) -> Mapping[str, str]:
        """What the image of a release brings: its programs, and that it says which release it is."""
        noting = self._noting(directory / release, programs)
        return {"KOLLA_GENERATION": release, "PATH": f"{noting}:{programs}:{SYSTEM_PATH}"}

    def give(self, container: LocalContainer, release: str) -> None:
        """The image of this release, from the container's next start on."""
        container.environ.update(self._images[release])

    @property
    def values(self) -> Mapping[str, object]:
        return {
            **super().values,
            "keystone_url": url(self.port),
            "keystone_workers": 2,
            "keystone_release": OLD,
            "haproxy_user": self.users.haproxy,
        }

    def stop(self) -> dict[str, int]:
        """HAProxy first, since it uses the replicas."""
        status = {self.haproxy.name: stop(self.haproxy)} if self.haproxy.running else {}
        return {**status, **super().stop()}

    # -- asking ---------------------------------------------------------------------------------

    def releases(self) -> list[str]:
        """The releases of the ready replicas."""
        return sorted(each["generation"] for each in self.ready(API).values())

    def done(self, command: str, release: str) -> bool:
        """Whether the command is done for this release."""
        return self.zk.exists(f"{self.path}/status/global/{command}/generations/{release}") is not None

    def migrations(self) -> list[tuple[str, str]]:
        """The host and the step of every `keystone-manage db_sync` so far."""
        calls = ((run.host, run.arguments.split()) for run in self.runs())
        return [(host, arguments[-1]) for host, arguments in calls if "db_sync" in arguments]

    def sql(self, statement: str) -> None:
        """What the database's administrator does."""
        socket = self.mariadb.root / "run/mysqld/mysqld.sock"
        subprocess.run(("mariadb", f"--socket={socket}", "-e", statement), check=True, timeout=60)


class Answer(NamedTuple):
    """One request: how long it has taken, and what was wrong with it."""

    what: str
    seconds: float
    failure: str = ""


class Clients:
    """Threads that issue and validate tokens at `url`, from `start` to `stop`. Every request counts."""

    def __init__(self, url: str, password: str) -> None:
        self._url, self._password = url, password
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        self._began = 0.0
        self.answers: list[Answer] = []

    def start(self) -> None:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        """A client keeps its first token, which the old release has issued."""
        first = ""
        while not self._stopping.is_set():
            token = self._ask("issued", issue_token, self._password) or ""
            first = first or token
            for each in filter(None, (token, first) * 3):
                self._ask("validated", validate_token, each)

    def _ask(self, what: str, request: Callable[[str, str], T], argument: str) -> T | None:
        self._stopping.wait(PAUSE)
        began = time.monotonic()
        try:
            answer = request(self._url, argument)
        except (OSError, HTTPException, ValueError) as error:  # Refused, an error, cut off, or garbled.
            failure = f"{began - self._began:.1f} s: not {what}: {error!r}"
            self.answers.append(Answer(what, time.monotonic() - began, failure))
            return None
        self.answers.append(Answer(what, time.monotonic() - began))
        return answer

    @property
    def failures(self) -> list[str]:
        return [each.failure for each in self.answers if each.failure]

    def told(self) -> str:
        """All of it in a line."""
        kinds = Counter(each.what for each in self.answers if not each.failure)
        slowest = max(each.seconds for each in self.answers)
        return (
            f"{len(self.answers)} requests in {time.monotonic() - self._began:.0f} s: "
            f"{kinds['issued']} tokens issued, {kinds['validated']} validated, {len(self.failures)} failed; "
            f"the slowest took {slowest:.1f} s"
        )
