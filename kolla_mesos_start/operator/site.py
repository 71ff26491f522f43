"""An example deployment on this machine: published, and a container for each part of it.

What lives here: making, starting, ending, and what its znodes say of it. Which containers there
are, and which values only this machine can give, is said by the classes below Site: `jobs`,
`keystone`.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Command, Graph, Members
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.operator import directory, notation
from kolla_mesos_start.operator.containers import (
    CHECKOUT,
    DIES_WITH_US,
    Container,
    end_all,
    processes_of,
)
from kolla_mesos_start.operator.rehearsal import Rehearsal
from kolla_mesos_start.operator.timeline import Need, Step
from kolla_mesos_start.tree.znodes import GLOBAL, LOCAL, Znodes

PUBLISH = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_publish"))
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}


class Site:
    """The deployment `id`, below `prefix`, of an example's directory; `zk` sees what its agents write.

    `environ` is what all containers have in their environment; KOLLA_ZK_HOSTS is among it.
    `once` is one of its one-time commands.
    """

    once = ""

    def __init__(
        self,
        example: Path,
        directory: Path,
        zk: KazooClient,
        environ: Mapping[str, str],
        prefix: str,
        id: str,
    ) -> None:
        self.example, self.directory, self.zk = example, directory, zk
        self.prefix, self.id = prefix, id
        self.environ = {**LOOPBACK, **environ, "KOLLA_SYSTEM_PREFIX": prefix}
        self.containers: list[Container] = []
        self.started_at = 0.0  # seconds since the epoch
        self._values: dict[Container, Mapping[str, object]] = {}
        self._graphs: dict[Container, Graph] = {}

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.id}"

    # -- making ---------------------------------------------------------------------------------

    def add(
        self, service: str, host: str, port: int | None = None, values: Mapping[str, object] | None = None
    ) -> Container:
        """One more container, which registers `port`; `values` are variables for it alone, beside `root`."""
        root = self.directory / host / service.rsplit("/", 1)[-1]
        environ = {**self.environ, "KOLLA_APP_ID": f"/{self.id}/{service}"}
        if port is not None:
            environ["KOLLA_PORTS"] = str(port)
        run_dir = self.directory / "run" / str(len(self.containers) + 1)
        container = Container(service, host, root, run_dir, environ)
        self.containers.append(container)
        self._values[container] = {"root": root, **(values or {})}
        return container

    @property
    def values(self) -> Mapping[str, object]:
        """Variables that replace or join those of the example."""
        return {}

    @property
    def victim(self) -> Container:
        """One that may be killed, to see what happens then."""
        return self.containers[-1]

    def request(self) -> Iterator[str]:
        """Ask the deployment for something; yields what was asked and the answer, as text."""
        yield from ()

    def publish(self) -> str:
        """Publish the example; returns what the tool says."""
        tree = self.directory / "published"
        shutil.copytree(self.example, tree)
        tree.chmod(0o700)  # There may be passwords among the values.
        self._write_values(tree)
        done = subprocess.run(
            (*DIES_WITH_US, *PUBLISH, str(tree), "--deployment", self.id),
            # By its run directory `end` finds it, like a container.
            env={**self.environ, "KOLLA_RUN_DIR": f"{self.directory}/publish"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at the terminal is for us.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise AgentError(done.stdout.rstrip())
        self._read(tree)
        return done.stdout

    def _write_values(self, tree: Path) -> None:
        variables = tree / "variables.yml"
        values = {**notation.values(variables), **self.values}
        (tree / "variables.json").write_text(json.dumps(values, default=str))
        variables.unlink()
        for container, own in self._values.items():
            place = tree / "services" / container.service / "variables" / container.host
            place.mkdir(parents=True)
            for name, value in own.items():
                (place / name).write_text(f"{value}\n")

    def _read(self, tree: Path) -> None:
        """Read what was published, as each container's agent is going to."""
        deployment = directory.read(tree)
        services = {service.name: service for service in deployment.services}
        for container in self.containers:
            service = services[container.service]
            own = service.variables.hosts.get(container.host, {})
            values = {**deployment.variables, **service.variables.own, **own}
            texts = {name: value.decode() for name, value in values.items()}
            znodes = Znodes(self.prefix, self.id, container.service, container.host)
            graph = Rehearsal(znodes, texts, missing_is_empty=False).build(load(service.definition))
            if graph is None:
                raise AgentError(f"{service.source}: what it depends on is known to its agent alone")
            self._graphs[container] = graph

    # -- starting and ending --------------------------------------------------------------------

    def start(self, seed: int) -> None:
        """Start all containers at once, in an order that nobody has chosen."""
        order = random.Random(seed).sample(self.containers, len(self.containers))
        self.started_at = time.time()
        for container in order:
            container.start()

    def is_task(self, container: Container) -> bool:
        """Whether it ends by itself once its commands are done."""
        return self._graphs[container].daemon is None

    @property
    def seems_up(self) -> bool:
        """Whether every task has ended well, and every daemon says itself that it is ready."""
        return all(
            each.status == 0 if self.is_task(each) else each.state[0] == "ready" for each in self.containers
        )

    @property
    def is_up(self) -> bool:
        """Whether it seems up, and everybody can see it: ZooKeeper is asked only when it can be true."""
        return self.seems_up and all(
            each.host in self.ready_hosts(each.service) for each in self.containers if not self.is_task(each)
        )

    @property
    def broken(self) -> list[Container]:
        """The containers that ended and should not have, or not so."""
        return [
            each for each in self.containers if each.status or (each.status == 0 and not self.is_task(each))
        ]

    def processes(self) -> list[int]:
        """All processes of all containers."""
        return list(processes_of(self.directory))

    def end(self, grace: float = 0.0) -> None:
        """End what is left of all containers: TERM, after `grace` seconds KILL."""
        end_all(self.directory, grace)
        for container in self.containers:
            if container.running:
                container.ended()

    # -- asking ---------------------------------------------------------------------------------

    def ready(self, service: str) -> dict[str, dict[str, Any]]:
        """The ready instances of a service's daemon: id -> what it says of itself, and `ready_at`."""
        role = service.rsplit("/", 1)[-1]
        parent = f"{self.path}/status/global/{role}/daemon/ready"
        instances = {}
        for name in self.children(parent):
            try:
                data, stat = self.zk.get(f"{parent}/{name}")
            except NoNodeError:
                continue  # withdrawn meanwhile
            instances[name] = {**json.loads(data), "ready_at": stat.ctime / 1000}
        return instances

    def ready_hosts(self, service: str) -> dict[str, float]:
        """On which hosts the service's daemon is ready, and since when (seconds since the epoch)."""
        return {each["host"]: each["ready_at"] for each in self.ready(service).values()}

    def detail(self, command: str, scope: str = "global") -> dict[str, Any]:
        data, _ = self.zk.get(f"{self.path}/status/{scope}/{command}/detail")
        decoded: dict[str, Any] = json.loads(data)
        return decoded

    def children(self, path: str) -> list[str]:
        try:
            children: list[str] = self.zk.get_children(path)
        except NoNodeError:
            return []
        return children

    def rendered(self, container: Container) -> list[str]:
        """The files that the agent places in a container, as paths from its root."""
        files = (file for step in self._graphs[container].steps for file in step.files)
        return sorted({file.dest.replace("{{ root }}/", "") for file in files})

    # -- what the start consisted of ------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Every command, every container's daemon, and every presence that was waited for; once all is up."""
        return [*self._commands(), *self._daemons(), *self._presences()]

    def _commands(self) -> Iterator[Step]:
        # What runs once has one detail, whichever container looks at it.
        runs = {
            (command.path, GLOBAL if command.run_once == GLOBAL else container.host): command
            for container in self.containers
            for command in self._graphs[container].commands
        }
        for (path, scope), command in runs.items():
            detail = self.detail(path, scope)
            needs = self._needs(command, detail["host"])
            yield Step(path, detail["host"], needs, detail["started"], detail["finished"])

    def _daemons(self) -> Iterator[Step]:
        for container in self.containers:
            daemon = self._graphs[container].daemon
            if daemon is not None:
                ready_at = self.ready_hosts(container.service)[container.host]
                needs = self._needs(daemon, container.host)
                yield Step(daemon.path, container.host, needs, container.exec_time(), ready_at)

    def _presences(self) -> Iterator[Step]:
        services = {
            each.service for step in self._all() for each in step.dependencies if isinstance(each, Members)
        }
        for service in services:
            party = f"{self.path}/{service}/.party"
            for name in self.children(party):
                data, stat = self.zk.get(f"{party}/{name}")
                host = json.loads(data)["host"]
                yield Step(_presence(service), host, (), self.started_at, stat.ctime / 1000)

    def _all(self) -> Iterator[Command]:
        """The commands and daemons of all containers."""
        for graph in self._graphs.values():
            yield from graph.steps

    def _needs(self, command: Command, host: str) -> tuple[Need, ...]:
        """What the command, or daemon, waits for where it runs on `host`."""
        own = command.path.partition("/")[0]
        once = {each.path for each in self._all() if each.run_once == GLOBAL}
        needs = []
        for each in command.dependencies:
            if isinstance(each, Members):
                needs.append(Need(_presence(each.service), each.count))
            else:
                here = each.path not in once and (each.scope == LOCAL or each.role == own)
                needs.append(Need(each.path, each.count or 1, host if here else None))
        return tuple(needs)


def _presence(service: str) -> str:
    return f"{service.rsplit('/', 1)[-1]}/.party"
