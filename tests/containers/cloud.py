"""The Keystone example in real containers: the same definitions, and a podman container for each stand-in.

Adds images, users and volumes to `tests/examples/keystone.py`, whose containers are processes. The
tests have the assertions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up import containers
from tests.containers.images import Images
from tests.containers.podman import Container, Podman
from tests.examples.keystone import API, MARIADB, MEMCACHED, TASKS, Users
from tests.stack.cloud import NOTED
from tests.support.keystone import Keystone
from tests.support.tool import operator_client

IMAGES = {MARIADB: "mariadb-server", MEMCACHED: "memcached", TASKS: "mariadb-server", API: "keystone"}
# Kolla's image of Keystone leaves it to root; nothing in the example needs that.
USERS = {MARIADB: "mysql", MEMCACHED: "memcached", TASKS: "mysql", API: "keystone"}
UIDS = {"mysql": 42434, "keystone": 42425}  # as Kolla has them
KEYS = "/var/lib/keystone-keys"
# Of which user the volumes are, and where the containers see them.
VOLUMES: Mapping[str, list[tuple[str, str]]] = {
    MARIADB: [("mysql", "/var/lib/mysql")],
    MEMCACHED: [],
    TASKS: [],
    API: [("keystone", KEYS)],
}
NOTING = "/noting"  # In front of PATH: a program that notes who runs it, and then becomes the real one.
PATH = "/var/lib/kolla/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class InPodman(containers.LocalContainer):
    """A real container where the example has a process."""

    def __init__(
        self, podman: Podman, image: str, user: str, volumes: Mapping[Path, str], *args: Any
    ) -> None:
        super().__init__(*args)
        for name in ("KOLLA_RUN_DIR", "KOLLA_STATE_DIR"):
            del self.environ[name]  # They are where the image has them.
        self._podman, self._image, self._user, self._volumes = podman, image, user, volumes
        self._real: Container | None = None
        self._init = 0
        self._ended: int | None = None

    @property
    def real(self) -> Container:
        """The container itself; it is made when it is first needed."""
        if self._real is None:
            options = (f"--user={self._user}", f"--log-opt=path={self.log}")
            self._real = self._podman.create(
                self._image, environ=self.environ, volumes=self._volumes, options=options
            )
        return self._real

    def remove(self) -> None:
        """Remove the container with all that is in it but the volumes; the next start makes it anew."""
        self.real.remove()
        self._real, self._init, self._ended = None, 0, None

    def start(self) -> None:
        self.real.start()
        self._init, self._ended = self.real.pid or -1, None  # It may have ended already.

    @property
    def status(self) -> int | None:
        # Podman is asked once: its word costs a twentieth of a second.
        if self._ended is None and self._init and not Path(f"/proc/{self._init}").exists():
            self._ended = self.real.ends()
        return self._ended

    @property
    def running(self) -> bool:
        return self._init != 0 and self.status is None

    @property
    def state(self) -> tuple[str, str, float]:
        try:
            told = Path(f"/proc/{self._init}/root/run/kolla_mesos_start/state").read_text()
        except (FileNotFoundError, ProcessLookupError):
            told = ""
        stage, _, text = told.rstrip("\n").partition(" ")
        return stage, text, 0.0

    def stop(self) -> int:
        return self.real.stop(60)  # uWSGI alone takes over 10 s on a busy machine.

    def wait(self, seconds: float = 60.0) -> int:
        return self.real.ends()


class Cloud(Keystone):
    """MariaDB, memcached, a task and three Keystones, each in a container of its own."""

    def __init__(self, podman: Podman, images: Images, directory: Path, zk: KazooClient, hosts: str) -> None:
        self._podman, self._images = podman, images
        self.noting = directory / "noting"
        self.journal = self.noting / "journal"
        environ = {"KOLLA_ZK_HOSTS": hosts, "PATH": f"{NOTING}:{PATH}"}
        place = ("/kolla-containers", "cloud")
        super().__init__(directory, operator_client(zk, *place), environ, *place)
        self.users = Users("mysql", "memcached", "keystone", "keystone")

    def add(
        self, service: str, host: str, port: int | None = None, values: Mapping[str, object] | None = None
    ) -> InPodman:
        environ = {**self.environ, "KOLLA_APP_ID": f"/{self.id}/{service}"}
        volumes = {self.noting: NOTING, **{self.directory / user: place for user, place in VOLUMES[service]}}
        image = self._images.agent(IMAGES[service])
        root = self.directory / host / service.rsplit("/", 1)[-1]
        user = USERS[service]
        container = InPodman(self._podman, image, user, volumes, service, host, root, root / "run", environ)
        self.containers.append(container)
        self._own_values[container] = values or {}
        return container

    def _prepare_volumes(self) -> None:
        for user, uid in UIDS.items():
            (self.directory / user).mkdir()
            os.chown(self.directory / user, uid, uid)
        self.noting.mkdir()
        self.journal.touch()
        self.journal.chmod(0o666)
        script = NOTED.read_text().replace("@JOURNAL@", f"{NOTING}/journal").replace("@PATH@", PATH)
        for name in ("keystone-manage", "mariadb", "mariadb-install-db"):
            (self.noting / name).write_text(script)
            (self.noting / name).chmod(0o755)

    @property
    def values(self) -> Mapping[str, object]:
        return {**super().values, "keystone_keys": KEYS}

    def container(self, service: str, host: str) -> InPodman:
        """The container of the service on the host."""
        (found,) = (each for each in self.containers if (each.service, each.host) == (service, host))
        assert isinstance(found, InPodman)
        return found

    def end(self, grace: float = 0.0) -> None:
        for container in self.containers:
            self.container(container.service, container.host).remove()

    def runs(self, program: str, argument: str) -> list[str]:
        """On which hosts a one-time command's program was run with that argument, as it has noted itself."""
        lines = (line.split("\t") for line in self.journal.read_text().splitlines())
        return [host for host, _, name, words in lines if name == program and argument in words.split()]
