"""The deployment `etc/openstack` in podman's containers, with its own values.

Chooses the image, user and volumes of each service. The test has the assertions.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import yaml

from drills.openstack.containers.images import OpenStackImages
from drills.openstack.deployment import OpenStack
from tests.containers.cloud import InPodman
from tests.containers.podman import Podman
from tests.examples import whole
from tests.examples.openstack import WHOLE

PROGRAMS = Path("/var/lib/kolla/venv/bin")
# The images of the servers, and their users. All others have OpenStack's image; their folder names the user.
SERVERS = {
    "infra/databases": ("mariadb-server", "mysql"),
    "infra/haproxy": ("haproxy", "haproxy"),
    "infra/mariadb": ("mariadb-server", "mysql"),
    "infra/memcached": ("memcached", "memcached"),
    "infra/rabbitmq": ("rabbitmq", "rabbitmq"),
}
CLIENT_USER = {whole.SERVER: "keystone"}  # any that is in the image
# What outlives a container.
VOLUMES = {
    "infra/mariadb": "/var/lib/mysql",
    "infra/rabbitmq": "/var/lib/rabbitmq",
    "openstack/glance/glance-api": "/var/lib/glance/images",
    "openstack/nova/nova-compute": "/var/lib/nova",
}
CLIENT = "keystone-api@ctl-1"  # a container that stays, and has OpenStack's client
STOP_LIMIT = 80  # seconds: more than the longest `stop_grace`


class InContainers(OpenStack):
    """All its containers, and one more that boots a first server."""

    def __init__(
        self, podman: Podman, images: OpenStackImages, *args: Any, own: Mapping[str, object], **more: Any
    ) -> None:
        """As OpenStack, without `programs`."""
        self._podman, self._images = podman, images
        directory, *rest = args
        own = {**yaml.safe_load((WHOLE / "variables.yml").read_text()), **own}
        super().__init__(directory, PROGRAMS, *rest, own=own, **more)
        whole.add_server(self.source)
        self.add_on(whole.SERVER, self.control)

    # -- making ---------------------------------------------------------------------------------

    def add_on(self, service: str, host: str) -> InPodman:
        variables = WHOLE / "services" / service / "variables.yml"
        port = yaml.safe_load(variables.read_text())["port"] if variables.exists() else None
        return self.add(service, host, port)

    def add(
        self, service: str, host: str, port: int | None = None, values: Mapping[str, object] | None = None
    ) -> InPodman:
        environ = {
            **self.environ,
            "KOLLA_APP_ID": f"/{self.id}/{service}",
            "KOLLA_GENERATION": str(self._own["openstack_release"]),
            "HOME": "/tmp",  # That of `environ` is a directory of this machine.
        }
        if port:
            environ["KOLLA_PORTS"] = str(port)
        image, user = self._image(service)
        root = self.directory / host / service.rsplit("/", 1)[-1]
        volumes = self._volumes(service, host)
        container = InPodman(self._podman, image, user, volumes, service, host, root, root / "run", environ)
        self.containers.append(container)
        self._own_values[container] = values or {}
        return container

    def _image(self, service: str) -> tuple[str, str]:
        if service in SERVERS:
            image, user = SERVERS[service]
            return self._images.agent(image), user
        return self._images.openstack, CLIENT_USER.get(service) or service.split("/")[1]

    def _volumes(self, service: str, host: str) -> Mapping[Path, str]:
        """Directories on this machine, and where the containers see them; podman gives them to the user."""
        noting = {path: str(path) for path in (self.directory / "bin", self.journal)}
        if service not in VOLUMES:
            return noting
        data = self.directory / "volumes" / host / service.rsplit("/", 1)[-1]
        data.mkdir(parents=True, exist_ok=True)
        return {**noting, data: f"{VOLUMES[service]}:U"}

    # -- starting and ending ----------------------------------------------------------------------

    def start(self, seed: int) -> None:
        """Make all containers, and then start them at the same moment."""
        self._all_at_once(lambda each: each.real, self.containers)
        self.started_at = time.time()
        self._all_at_once(self.start_one, random.Random(seed).sample(self.containers, len(self.containers)))

    def stop(self) -> Mapping[str, int]:
        """Stop all that runs at the same moment, as a launcher does; their exit statuses."""
        running = [each for each in self._real if each.running]
        statuses = self._all_at_once(lambda each: each.real.stop(STOP_LIMIT), running)
        return dict(zip((each.name for each in running), statuses))

    def end(self, grace: float = 0.0) -> None:
        """Remove all containers, with all that is not in volumes."""
        self._all_at_once(InPodman.remove, self._real)

    @property
    def _real(self) -> list[InPodman]:
        return [each for each in self.containers if isinstance(each, InPodman)]

    def _all_at_once(self, do: Callable[[Any], Any], containers: Iterable[Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self.containers)) as pool:
            return list(pool.map(do, containers))

    # -- asking -----------------------------------------------------------------------------------

    def python(self, text: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        container = next(each for each in self._real if each.name == CLIENT)
        given = [f"--env={name}={value}" for name, value in environ.items()]
        # Without a network of its own what is executed has ours.
        with self._inside(self.control):
            return self._podman("exec", *given, container.real.id, "python3", "-c", text, check=False)

    @property
    def users(self) -> set[str]:
        """Whose the processes of all containers are."""
        listed = (self._podman("top", each.real.id, "user").stdout for each in self._real if each.running)
        return {user for lines in listed for user in lines.split()[1:]}

    @property
    def all_ready_at(self) -> float:
        """When the last daemon became ready, in seconds since the start."""
        daemons = {each.service for each in self.containers if not self.is_task(each)}
        return max(at for service in daemons for at in self.ready_hosts(service).values()) - self.started_at

    @property
    def server_active_at(self) -> float:
        """When the first server had become ACTIVE, in seconds since the start."""
        return float(self.detail("first_server/boot")["finished"]) - self.started_at
