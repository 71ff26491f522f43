"""A deployment directory run on this machine: published, and an agent for each of its containers.

Creates, starts and stops the containers, and reads their records in ZooKeeper. The list of containers,
and the values that depend on this machine, come from a caller or a subclass.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.directory import container_variables, directory
from kolla_mesos_start.ctl.directory.directory import Contents, Deployment
from kolla_mesos_start.ctl.timeline.critical_path import Need, TimelineStep
from kolla_mesos_start.ctl.up.containers import LocalContainer, end_all, processes_of
from kolla_mesos_start.ctl.validate.rules import build_graph, known_graph
from kolla_mesos_start.ctl.zk import connection, publication, published
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.publisher import Counts, Publisher
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.forms import GLOBAL, LOCAL
from kolla_mesos_start.definition.model import Command, Graph, Members
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Znode

STOP_MARGIN = 5.0  # seconds beyond the limits of a definition
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}


class LocalDeployment:
    """The deployment `id` below `prefix`, from the directory `source`; its containers live in `directory`.

    `environ` is in the environment of every container; KOLLA_ZK_HOSTS is part of it, and `client`
    is connected to the same servers. It may be set later: `prepare` does not need it.
    """

    def __init__(
        self,
        source: Path,
        directory: Path,
        client: OperatorClient | None,
        environ: Mapping[str, str],
        prefix: str,
        id: str,
    ) -> None:
        self.source, self.directory = source, directory
        if client is not None:
            self.client = client
        self.prefix, self.id = prefix, id
        self.environ = {**LOOPBACK, **environ, "KOLLA_SYSTEM_PREFIX": prefix}
        self.containers: list[LocalContainer] = []
        self.given = container_variables.variables(self.environ)
        self.started_at = 0.0  # seconds since the epoch
        self._own_values: dict[LocalContainer, Mapping[str, object]] = {}
        self._graphs: dict[LocalContainer, Graph] = {}
        self._prepared: Deployment | None = None

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.id}"

    # -- making ---------------------------------------------------------------------------------

    def add(
        self, service: str, host: str, port: int | None = None, values: Mapping[str, object] | None = None
    ) -> LocalContainer:
        """One more container, which registers `port`.

        `values` are variables of its service for its host alone; `root`, its root directory, is one too.
        """
        root = self.directory / host / service.rsplit("/", 1)[-1]
        environ = {**self.environ, "KOLLA_APP_ID": f"/{self.id}/{service}"}
        if port is not None:
            environ["KOLLA_PORTS"] = str(port)
        run_dir = self.directory / "run" / str(len(self.containers) + 1)
        container = LocalContainer(service, host, root, run_dir, environ)
        self.containers.append(container)
        self._own_values[container] = {"root": root, **(values or {})}
        return container

    @property
    def values(self) -> Mapping[str, object]:
        """Variables of the deployment, besides those of its directory; they take precedence."""
        return {}

    @property
    def own_names(self) -> list[str]:
        """The variables that single containers get."""
        return sorted({name for values in self._own_values.values() for name in values})

    def prepare(self) -> Deployment:
        """The directory with the values of this machine. Raises BadDefinition for errors in it."""
        deployment = self._prepared = self.with_values(self.read())
        self.check(deployment)
        self._read_definitions(deployment)
        self.check_files(deployment)
        return deployment

    def publish(self) -> Counts:
        """Publish what was prepared; later the directory as it is then."""
        deployment, self._prepared = self._prepared or self.prepare(), None
        znodes = Znodes(self.prefix, self.id, "", "")
        with publication.locked(self.client, znodes) as lock:
            before = published.nodes(self.client, znodes)
            publisher = Publisher(self.client, znodes, before, lock, report=lambda change: None)
            publisher.publish(deployment)
        return publisher.counts

    def read(self) -> Deployment:
        """Read the directory."""
        return directory.read(self.source)

    def check(self, deployment: Deployment) -> None:
        """Refuse errors before anything is published."""

    def check_files(self, deployment: Deployment) -> None:
        """Refuse files that can't be written on this machine. The definitions have been read."""

    def with_values(self, deployment: Deployment) -> Deployment:
        """The deployment with the values of this machine."""
        services = []
        for service in deployment.services:
            hosts = dict(service.variables.hosts)
            for container, own in self._own_values.items():
                if container.service == service.name:
                    hosts[container.host] = {**hosts.get(container.host, {}), **_texts(own)}
            services.append(service._replace(variables=service.variables._replace(hosts=hosts)))
        variables = {**deployment.variables, **_texts(self.values)}
        return deployment._replace(variables=variables, services=services)

    def _read_definitions(self, deployment: Deployment) -> None:
        """Read the graph of each container, as its agent will read it."""
        services = {service.name: service for service in deployment.services}
        for container in self.containers:
            service = services[container.service]
            document, known = load(service.definition), self.known(deployment, container)
            graph = build_graph(document, *known) or known_graph(document, *known)
            self._graphs[container] = graph
            on_change = graph.daemon and graph.daemon.on_change
            if on_change and on_change.kind == "restart":  # Only its parent can start it again.
                container.environ.setdefault("KOLLA_START_MODE", "supervise")

    def known(self, deployment: Deployment, container: LocalContainer) -> tuple[Znodes, dict[str, str]]:
        """The variables for a container's templates, as far as they are published."""
        service = next(each for each in deployment.services if each.name == container.service)
        own = service.variables.hosts.get(container.host, {})
        values = {**deployment.variables, **service.variables.own, **own}
        texts = {**{name: value.decode() for name, value in values.items()}, **self.given}
        return Znodes(self.prefix, self.id, container.service, container.host), texts

    # -- starting and ending --------------------------------------------------------------------

    def start(self, seed: int) -> None:
        """Start all containers at once, in a random order."""
        order = random.Random(seed).sample(self.containers, len(self.containers))
        self.started_at = time.time()
        for container in order:
            container.start()

    def is_task(self, container: LocalContainer) -> bool:
        """Whether the container ends once its commands are done."""
        return self._graphs[container].daemon is None

    def has_election(self, container: LocalContainer) -> bool:
        """Whether its daemon is a member of a cluster with an election."""
        daemon = self._graphs[container].daemon
        return daemon is not None and daemon.election is not None

    @property
    def seems_up(self) -> bool:
        """Whether every task has ended with 0, and every daemon runs and says that it is ready."""
        return all(
            each.status == 0 if self.is_task(each) else each.running and each.state[0] == "ready"
            for each in self.containers
        )

    @property
    def is_up(self) -> bool:
        """Whether it seems up, and every instance is ready in ZooKeeper, which is read last."""
        if not self.seems_up:
            return False
        daemons = [each for each in self.containers if not self.is_task(each)]
        ready = {service: self.ready_hosts(service) for service in {each.service for each in daemons}}
        return all(each.host in ready[each.service] for each in daemons)

    @property
    def broken(self) -> list[LocalContainer]:
        """The daemons that have ended, and the tasks that have not ended with 0."""
        return [
            each for each in self.containers if each.status or (each.status == 0 and not self.is_task(each))
        ]

    @property
    def broken_told(self) -> bool:
        """Whether ZooKeeper has how each of the broken ended (of a daemon that was ready it never has).

        And what each of the others does: one that has just begun would be called absent.
        """
        znodes = (Znodes(self.prefix, self.id, each.service, each.host) for each in self.broken)
        running = Counter(each.service for each in self.containers if each.running)
        return all(connection.stats(self.client, [each.ended for each in znodes]).values()) and all(
            len(self.children(f"{self.path}/{service}/.containers")) >= count
            for service, count in running.items()
        )

    def processes(self) -> list[int]:
        """All processes of all containers."""
        return list(processes_of(self.directory))

    def drain(self) -> None:
        """Drain and stop the daemons that have `drain` or `before_stop`, while the others still run."""
        asked = []
        for container in self.containers:
            graph = self._graphs.get(container)
            if container.running and graph and graph.daemon and graph.daemon.drains:
                limit = graph.daemon.stop_seconds + STOP_MARGIN
                asked.append((container.begin_stop(), time.monotonic() + limit))
        for client, deadline in asked:
            try:
                client.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:  # It is ended with all others.
                client.kill()
                client.wait()

    def end(self, grace: float = 0.0) -> None:
        """End all processes of all containers: TERM, after `grace` seconds KILL."""
        end_all(self.directory, grace, self.containers)
        for container in self.containers:
            if container.running:
                container.wait()

    # -- asking ---------------------------------------------------------------------------------

    def ready(self, service: str) -> dict[str, dict[str, Any]]:
        """The ready instances of a service's daemon: id -> its znode's JSON, and `ready_at`."""
        role = service.rsplit("/", 1)[-1]
        parent = f"{self.path}/status/global/{role}/daemon/ready"
        instances = {}
        for name, znode in self._below(parent).items():
            instances[name] = {**json.loads(znode.data), "ready_at": znode.stat.ctime / 1000}
        return instances

    def ready_hosts(self, service: str) -> dict[str, float]:
        """The hosts on which the service's daemon is ready, and since when (seconds since the epoch)."""
        return {each["host"]: each["ready_at"] for each in self.ready(service).values()}

    def detail(self, command: str, scope: str = "global") -> dict[str, Any]:
        """The record of the last attempt of a command."""
        path = f"{self.path}/status/{scope}/{command}/detail"
        decoded: dict[str, Any] = json.loads(connection.read(self.client, [path])[path] or b"{}")
        return decoded

    def children(self, path: str) -> list[str]:
        """The names of the children of `path`; none if it does not exist."""
        return list(connection.children(self.client, [path])[path])

    def _below(self, parent: str) -> dict[str, Znode]:
        """The znodes below `parent`, by their names."""
        paths = {f"{parent}/{name}": name for name in self.children(parent)}
        return {paths[path]: znode for path, znode in self.client.read(paths).items() if znode}

    def rendered(self, container: LocalContainer) -> list[str]:
        """The files that the agent writes in a container, as paths from its root."""
        files = (file for step in self._graphs[container].steps for file in step.files)
        return sorted({file.dest.replace("{{ root }}/", "") for file in files})

    # -- the steps of the start, for its timeline -------------------------------------------------

    def steps(self) -> list[TimelineStep]:
        """Every command, every daemon, and every presence that was waited for; call it once all are up."""
        return [*self._commands(), *self._daemons(), *self._presences()]

    def _commands(self) -> Iterator[TimelineStep]:
        # A one-time command has one detail, which is the same for all its containers.
        runs = {
            (command.path, GLOBAL if command.run_once == GLOBAL else container.host): command
            for container in self.containers
            for command in self._graphs[container].commands
        }
        for (path, scope), command in runs.items():
            detail = self.detail(path, scope)
            needs = self._needs(command, detail["host"])
            yield TimelineStep(path, detail["host"], needs, detail["started"], detail["finished"])

    def _daemons(self) -> Iterator[TimelineStep]:
        ready = {service: self.ready_hosts(service) for service in {each.service for each in self.containers}}
        for container in self.containers:
            daemon = self._graphs[container].daemon
            ready_at = ready[container.service].get(container.host)
            if daemon and ready_at:  # One that is restarted just now, for a change, is not ready.
                needs = self._needs(daemon, container.host)
                yield TimelineStep(daemon.path, container.host, needs, container.exec_time(), ready_at)

    def _presences(self) -> Iterator[TimelineStep]:
        services = {
            each.service for step in self._all() for each in step.dependencies if isinstance(each, Members)
        }
        for service in services:
            party = f"{self.path}/{service}/.party"
            for znode in self._below(party).values():
                host, instant = json.loads(znode.data)["host"], znode.stat.ctime / 1000
                yield TimelineStep(_presence(service), host, (), self.started_at, instant)

    def graph(self, container: LocalContainer) -> Graph:
        """The graph of a container, once it is published."""
        return self._graphs[container]

    def _all(self) -> Iterator[Command]:
        """The commands and daemons of all containers."""
        for graph in self._graphs.values():
            yield from graph.steps

    def _needs(self, command: Command, host: str) -> tuple[Need, ...]:
        """The dependencies of a command or daemon on `host`."""
        own = command.path.partition("/")[0]
        once = {each.path for each in self._all() if each.run_once == GLOBAL}
        needs = []
        for each in command.inside:
            if isinstance(each, Members):
                needs.append(Need(_presence(each.service), each.count))
            else:
                here = each.path not in once and (each.scope == LOCAL or each.role == own)
                needs.append(Need(each.path, each.count or 1, host if here else None))
        return tuple(needs)


def _texts(values: Mapping[str, object]) -> Contents:
    return {name: str(value).encode() for name, value in values.items()}


def _presence(service: str) -> str:
    return f"{service.rsplit('/', 1)[-1]}/.party"
