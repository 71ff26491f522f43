"""The containers of a deployment on this machine: published, and an agent for each of them.

Creates, starts and stops the containers, and compares what they say with ZooKeeper. A caller decides which
containers there are, and which values they are given.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kolla_mesos_start.ctl.directory import launch, source
from kolla_mesos_start.ctl.directory.directory import Contents, Deployment, Service
from kolla_mesos_start.ctl.directory.findings import refuse
from kolla_mesos_start.ctl.directory.launch import LaunchFile, bad_host, hosts_from, with_instances
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.live.model import LiveDeployment
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.ctl.up.containers import LocalContainer, end_all, processes_of
from kolla_mesos_start.ctl.validate.rules import build_graph, known_graph, rendered
from kolla_mesos_start.ctl.zk import publication, published
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.publication import Counts, Publisher
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import BadDefinition, BadUsage, CannotRender
from kolla_mesos_start.tree.znodes import Znodes

STOP_MARGIN = 5.0  # seconds beyond the limits of a definition
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}


class LocalDeployment:
    """The deployment `id` below `prefix`; its containers live in `directory`.

    `environ` is in the environment of every container; KOLLA_ZK_HOSTS is part of it. `client`, which must be
    set before anything is published, is connected to the same servers.
    """

    client: OperatorClient

    def __init__(self, directory: Path, environ: Mapping[str, str], prefix: str, id: str) -> None:
        self.directory, self.prefix, self.id = directory, prefix, id
        self.environ = {**LOOPBACK, **environ, "KOLLA_SYSTEM_PREFIX": prefix}
        self.containers: list[LocalContainer] = []
        self.given = source.container_variables(self.environ)
        self.started_at = 0.0  # seconds since the epoch
        self._own_values: dict[LocalContainer, Mapping[str, object]] = {}
        self._graphs: dict[LocalContainer, Graph] = {}

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.id}"

    @property
    def znodes(self) -> Znodes:
        return Znodes(self.prefix, self.id, "", "")

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
    def own_names(self) -> list[str]:
        """The variables that single containers get."""
        return sorted({name for values in self._own_values.values() for name in values})

    def with_values(self, contents: Deployment, *, only_here: bool = False) -> Deployment:
        """The directory's contents with the values of each container.

        `only_here`: without the values of hosts that are elsewhere, whatever launch.yml says. The number of
        wanted instances is then that of the containers here.
        """
        services = []
        for service in contents.services:
            here = [each for each in self.containers if each.service == service.name]
            own = {each.host: texts(self._own_values[each]) for each in here}
            given = service.variables.hosts
            hosts = {
                host: {**given.get(host, {}), **own.get(host, {})}
                for host in (own if only_here else {**given, **own})
            }
            service = service._replace(variables=service.variables._replace(hosts=hosts))
            if only_here:
                service = service._replace(definition=with_instances(service.definition, len(here)))
            services.append(service)
        found = contents._replace(services=services)
        return found._replace(launch=LaunchFile()) if only_here else found

    def read_definitions(self, contents: Deployment, *, inside: bool = False) -> None:
        """Read the graph of each container, as its agent will read it.

        With `inside`, BadDefinition also for a file whose dest is outside of the container's directory.
        """
        issues: dict[str, None] = {}
        services = {service.name: service for service in contents.services}
        for container in self.containers:
            service = services[container.service]
            own = service.variables.hosts.get(container.host, {})
            values = {**contents.variables, **service.variables.own, **own}
            # As far as they are published.
            variables = {**{name: value.decode() for name, value in values.items()}, **self.given}
            known = Znodes(self.prefix, self.id, container.service, container.host), variables
            document = load(service.definition)
            graph = build_graph(document, *known) or known_graph(document, *known)
            self._graphs[container] = graph
            on_change = graph.daemon and graph.daemon.on_change
            if on_change and on_change.kind == "restart":  # Only its parent can start it again.
                container.environ.setdefault("KOLLA_START_MODE", "supervise")
            files = ((step, file) for step in graph.all_commands for file in step.files)
            for command, file in files if inside else ():
                try:
                    dest = rendered(Text("dest", file.dest), *known)
                except CannotRender:  # The rest comes from other containers.
                    dest = file.dest.replace("{{ root }}", str(container.root))
                if not dest.startswith(f"{container.root}/") or ".." in dest.split("/"):
                    what = (
                        f"{service.source}: {command.label}.files.{file.name}.dest: begin it with"
                        " {{ root }}, the container's directory: here it would be a file of this machine"
                    )
                    issues[what] = None
        if issues:
            raise BadDefinition(list(issues))

    def publish_contents(self, contents: Deployment) -> Counts:
        """Publish what `with_values` has made."""
        with publication.locked(self.client, self.znodes) as lock:
            before = published.nodes(self.client, self.znodes)
            publisher = Publisher(self.client, self.znodes, before, lock, report=lambda change: None)
            publisher.publish(contents)
        return publisher.counts

    # -- starting and ending --------------------------------------------------------------------

    def start(self, seed: int) -> None:
        """Start all containers at once, in a random order."""
        order = random.Random(seed).sample(self.containers, len(self.containers))
        self.started_at = time.time()
        for container in order:
            container.start()

    def graph(self, container: LocalContainer) -> Graph:
        """The graph of a container, once its definition is read."""
        return self._graphs[container]

    def is_task(self, container: LocalContainer) -> bool:
        """Whether the container ends once its commands are done."""
        return self.graph(container).daemon is None

    @property
    def seems_up(self) -> bool:
        """Whether every task has ended with 0, and every daemon runs and says that it is ready."""
        return all(
            each.status == 0 if self.is_task(each) else each.running and each.state[0] == "ready"
            for each in self.containers
        )

    @property
    def is_up(self) -> bool:
        """Whether it seems up, and every service is up in ZooKeeper, which is read last."""
        return self.seems_up and all(service.is_up for service in self.live().services.values())

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
        services = self.live().services
        ended = {(name, each.host) for name, service in services.items() for each in service.ended}
        running = Counter(each.service for each in self.containers if each.running)
        return ended >= {(each.service, each.host) for each in self.broken} and all(
            len(services[name].containers) >= count for name, count in running.items()
        )

    def live(self) -> LiveDeployment:
        """The deployment as ZooKeeper has it now."""
        return Mirror(self.client, DeploymentReader(self.znodes, self.given)).deployment()

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


def texts(values: Mapping[str, object]) -> Contents:
    """Values of Python as the contents of variables."""
    return {name: str(value).encode() for name, value in values.items()}


# -- which containers, on which hosts: by the command line, launch.yml and the definitions -------------


def pairs(option: str, words: Sequence[str], form: str = "SERVICE=VALUE") -> list[tuple[str, str]]:
    """Parse the `service=value` words of an option."""
    found = [word.partition("=") for word in words]
    for name, sign, value in found:
        if not (name and sign and value):
            raise BadUsage(f"{option} {name}{sign}{value}: expected {form}")
    return [(name, value) for name, _, value in found]


def with_roles(launch: LaunchFile, given: Sequence[tuple[str, str]]) -> LaunchFile:
    """launch.yml with the hosts of `--role` in place of its own."""
    hosts = dict(launch.hosts)
    for role, value in given:
        names = value.split(",")
        wrong = next(filter(None, map(bad_host, names)), None)
        if role not in hosts:
            near = nearest(role, hosts) if hosts else ", or the directory has none"
            wrong = f"no such role in `hosts` of launch.yml{near}"
        elif len(set(names)) < len(names):
            wrong = "a host is named twice"
        if wrong:
            raise BadUsage(f"--role {role}={value}: {wrong}")
        hosts[role] = names
    return launch._replace(hosts=hosts)


def plan(
    deployment: Deployment,
    replicas: Sequence[tuple[str, str]],
    hosts: Sequence[tuple[str, str]],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    """The service and the host of each container; `variables` are given besides those of the directory.

    BadUsage for what the command line can't mean.
    """
    services = deployment.services
    names = [service.name for service in services]
    counts: dict[str, int] = {}
    for given, value in replicas:
        if not value.isdecimal():
            raise BadUsage(f"--replicas {given}={value}: expected a number")
        counts[_named(given, names)] = int(value)
    by_service: dict[str, list[str]] = {name: [] for name in names}
    for given, host in hosts:
        own = by_service[_named(given, names)]
        wrong = bad_host(host) or (f"{host} is named twice" if host in own else None)
        if wrong:
            raise BadUsage(f"--host {given}={host}: {wrong}")
        own.append(host)
    found = []
    for service in services:
        own = by_service[service.name]
        wanted = counts.get(service.name, len(own) or _wanted(deployment, service, variables))
        if len(own) > wanted:
            raise BadUsage(f"--host: {len(own)} names for {wanted} containers of {service.name}")
        if not own and service.name not in counts:
            refuse(deployment.launch.located(deployment.launch.too_few(service.name, wanted)))
        named = [*own, *deployment.launch.hosts_of(service.name)]
        found += [(service.name, host) for host in hosts_from(named, wanted)]
    if not found:
        raise BadUsage("there is no container to start")
    return found


def _named(given: str, names: Sequence[str]) -> str:
    """The service with this name or role."""
    found = [name for name in names if given in (name, name.rpartition("/")[2])]
    if len(found) != 1:
        what = (
            f"is that of several services: {', '.join(found)}" if found else "is no service of the directory"
        )
        raise BadUsage(f"{given!r} {what}{nearest(given, names)}")
    return found[0]


def _wanted(deployment: Deployment, service: Service, variables: Mapping[str, str]) -> int:
    """How many containers: one on each host of the role, or `instances` of the definition."""
    if deployment.launch.is_on_each(service.name):
        return len(deployment.launch.hosts_of(service.name))
    values = {**deployment.variables, **service.variables.own}
    texts = {**{name: data.decode(errors="replace") for name, data in values.items()}, **variables}
    znodes = Znodes("", "", service.name, "")
    found = launch.wanted_instances(
        json.loads(service.definition), lambda text: rendered(text, znodes, texts)
    )
    return 1 if found is None else found


def ports_in(contents: Deployment) -> set[int]:
    """All numbers in variables that may be ports, although nothing may listen there yet."""
    own = (service.variables for service in contents.services)
    all_values = [contents.variables, *(each for one in own for each in (one.own, *one.hosts.values()))]
    texts = (data for values in all_values for data in values.values())
    return {int(number) for data in texts for number in re.findall(rb"\b[0-9]{1,5}\b", data)}
