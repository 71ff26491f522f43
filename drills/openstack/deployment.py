"""The deployment `etc/openstack` under test: its containers, what its one-time commands ran, and its API.

Creates the deployment and sends requests. The tests have the assertions.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Callable

import psutil
import yaml
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import LocalContainer, processes_of
from kolla_mesos_start.definition.strings import LOCAL
from tests.examples import whole
from tests.examples.openstack import SYSTEM_PATH, WHOLE
from tests.stack.cloud import noting
from tests.support.local_deployment import LocalDeployment
from tests.support.tool import operator_client
from tests.support.waiting import eventually
from tests.support.zookeeper import free_port

RESTART_DELAY = 1.0  # seconds
START_LIMIT = 300.0  # seconds: eight times what it takes on two cores that do nothing else
MANAGERS = ("keystone", "glance", "placement", "nova")
# The programs of the one-time commands, whose runs are noted.
ONE_TIME = ("mariadb-install-db", "neutron-db-manage", *(f"{name}-manage" for name in MANAGERS))
COMPUTE, HOSTS = "openstack/nova/nova-compute", "openstack/nova/nova_hosts"
Place = Callable[[str], AbstractContextManager[None]]


class OpenStack(LocalDeployment):
    """All containers of the deployment; `hosts` says on which hosts each service has one, else on `control`.

    `inside` enters a host, in which its processes are started.
    """

    def __init__(
        self,
        directory: Path,
        programs: Path,
        zk: KazooClient,
        zookeeper_hosts: str,
        *,
        control: str = "ctl-1",
        hosts: Mapping[str, Iterable[str]] = {COMPUTE: ["cmp-1"], HOSTS: ["cmp-1"]},
        environ: Mapping[str, str] = {},
        own: Mapping[str, object] = {},
        inside: Place = lambda host: nullcontext(),
        controllers: int = 1,
    ) -> None:
        """`own` are values of this place, which win over those of the machine."""
        site = directory / "openstack"
        whole.write(site, programs.parent / "etc", directory / "volumes", controllers)
        self._own = {**yaml.safe_load((site / whole.VALUES).read_text()), **whole.secrets(), **own}
        self._inside, self._programs = inside, programs
        self.journal = directory / "journal"
        self.control = control
        path = f"{noting(directory / 'bin', self.journal, ONE_TIME, programs)}:{programs}:{SYSTEM_PATH}"
        more = {"HOME": str(directory), "LANG": "C.UTF-8", "PATH": path, "KOLLA_ZK_HOSTS": zookeeper_hosts}
        self.zk, at = zk, ("/kolla-openstack", f"cloud-{os.getpid()}")
        super().__init__(site, directory, operator_client(zk, *at), {**more, **environ}, *at)
        self.seed = int(os.environ.get("KOLLA_TEST_SEED") or random.randrange(10**6))
        for service in whole.services():
            for host in hosts.get(service, [control]):
                self.add_on(service, host)

    def add_on(self, service: str, host: str) -> LocalContainer:
        """One more container of the service; an API registers its port."""
        if not (WHOLE / "services" / service / "variables.yml").exists():
            return self.add(service, host)
        port = free_port()
        return self.add(service, host, port, {"port": port})

    @property
    def values(self) -> Mapping[str, object]:
        return self._own

    def start(self, seed: int) -> None:
        """Start all containers at once, in a random order."""
        self.started_at = time.time()
        for container in random.Random(seed).sample(self.containers, len(self.containers)):
            self.start_one(container)

    def start_one(self, container: LocalContainer) -> None:
        with self._inside(container.host):
            container.start()

    def named(self, name: str) -> LocalContainer:
        """The container `role@host`."""
        return next(each for each in self.containers if each.name == name)

    def kill(self, container: LocalContainer) -> None:
        """The end of its process 1: the kernel kills all others of the container."""
        found = set(processes_of(container.run_dir))
        if container.running:  # Nova overwrites its environment, by which others are found.
            found |= {
                container.pid,
                *(each.pid for each in psutil.Process(container.pid).children(recursive=True)),
            }
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if container.running:
            container.wait()

    def await_up(self, seconds: float = START_LIMIT) -> None:
        """Wait until every daemon is ready and every task has ended with 0."""
        self.eventually(lambda: self.broken or self.is_up, "OpenStack is up", seconds=seconds)
        assert not self.broken, self.log_ends()

    def await_up_as_a_launcher(self, seconds: float = START_LIMIT) -> Counter[str]:
        """The same, but what ends is started again a moment later; how often, by name."""
        restarts: Counter[str] = Counter()

        def is_up() -> bool:
            for container in self.broken:
                restarts[container.name] += 1
                time.sleep(RESTART_DELAY)
                self.start_one(container)
            return self.is_up

        self.eventually(is_up, "OpenStack is up", seconds=seconds)
        return restarts

    def eventually(self, condition: Callable[[], object], what: str, *, seconds: float = 60.0) -> Any:
        """Wait until `condition()` is true; past `seconds` fail with what the containers say."""
        try:
            return eventually(condition, what, seconds=seconds, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_ends()}") from None

    def log_ends(self) -> str:
        """The end of the log of each container that is not as it should be."""
        return "\n".join(
            f"--- {each.name} (status {each.status}; {' '.join(each.state[:2])}): {each.log_end()}"
            for each in self.containers
            if each.status or (each.status is None and each.state[0] != "ready")
        )

    def successes(self) -> Counter[str]:
        """How often each one-time command has succeeded, by the agents' logs; a host's own begin with it."""
        found: Counter[str] = Counter()
        for container in self.containers:
            said = container.log.read_text(errors="replace") if container.log.exists() else ""
            for command in self.graph(container).commands:
                if command.run_once:
                    scope = f"{container.host}: " if command.run_once == LOCAL else ""
                    found[scope + command.path] += said.count(f" {command.path}: done after ")
        return found

    def runs(self) -> Counter[str]:
        """How often each program of the one-time commands has run, by its arguments without paths."""
        lines = self.journal.read_text().splitlines()
        return Counter(_what(*line.split("\t")) for line in lines)

    def ask(self, script: str) -> Any:
        """What a script finds; `cloud` is a connection of the administrator, `answer` what to assign."""
        text = f"import json, openstack\ncloud = openstack.connect()\n{script}\nprint(json.dumps(answer))"
        done = self.python(text, _administrator(self._own))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def python(self, text: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a script with OpenStack's client on the controller."""
        command = (str(self._programs / "python3"), "-c", text)
        with self._inside(self.control):
            return subprocess.run(command, env={**self.environ, **environ}, capture_output=True, text=True)

    def close(self) -> None:
        """End all processes, and remove what is in ZooKeeper."""
        self.end()
        self.client.close()
        self.zk.delete(self.path, recursive=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def _what(host: str, token: str, program: str, arguments: str) -> str:
    """A run without the paths, which are different in each deployment; what each host runs has its name."""
    words = [word.rpartition("/")[2] for word in arguments.split() if word != "--config-file"]
    scope = f"{host}: " if program == "mariadb-install-db" or "discover_hosts" in words else ""
    return f"{scope}{program} {' '.join(words)}"


def _administrator(values: Mapping[str, object]) -> Mapping[str, str]:
    """What the client of OpenStack is told."""
    domains = {"OS_USER_DOMAIN_ID": "default", "OS_PROJECT_DOMAIN_ID": "default"}
    return {
        "OS_AUTH_URL": f"http://{values.get('front_address', '127.0.0.1')}:{values['keystone_port']}/v3",
        "OS_USERNAME": "admin",
        "OS_PROJECT_NAME": "admin",
        "OS_PASSWORD": str(values["keystone_admin_password"]),
        "OS_REGION_NAME": "RegionOne",
        **domains,
    }
