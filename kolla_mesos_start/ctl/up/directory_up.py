"""The deployment of any directory, run on this machine to try it out.

Chooses the containers and their settings, and prints commands to try next. `up` has the stages, from the
start of ZooKeeper to the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from kolla_mesos_start.ctl.directory import container_variables, instances
from kolla_mesos_start.ctl.directory.directory import Deployment, Service
from kolla_mesos_start.ctl.directory.findings import refuse
from kolla_mesos_start.ctl.directory.instances import with_instances
from kolla_mesos_start.ctl.directory.launch import LaunchFile, bad_host, hosts_from
from kolla_mesos_start.ctl.invocation import Invocation, connection_options
from kolla_mesos_start.ctl.terminal.suggestions import nearest
from kolla_mesos_start.ctl.up.containers import AGENT, LocalContainer, end_all
from kolla_mesos_start.ctl.up.local_deployment import LocalDeployment
from kolla_mesos_start.ctl.up.log_stream import LogStream
from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from kolla_mesos_start.ctl.up.up import ProgressDisplay, Up
from kolla_mesos_start.ctl.validate.rules import rendered, validate
from kolla_mesos_start.ctl.zk.services import used_variables
from kolla_mesos_start.definition.model import Command, File
from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.errors import AgentError, BadDefinition, BadUsage, CannotRender
from kolla_mesos_start.tree.znodes import Znodes

PROGRAM = "kolla_mesos_ctl"
LOCK = "kolla_mesos_up.lock"  # in the place of a run, which shows that it is one
PREFIX = "kolla-up-"  # of a place that is not given
ENVIRONMENT = "env"
PORT = "port"  # the variable that each container is given


class PlaceInUse(AgentError):
    """Another run uses the same directory."""

    status = 1


# -- which containers -----------------------------------------------------------------------------


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
    found = instances.wanted(json.loads(service.definition), lambda text: rendered(text, znodes, texts))
    return 1 if found is None else found


# -- what each is given ---------------------------------------------------------------------------


def ports_in(contents: Deployment) -> set[int]:
    """All numbers in variables that may be ports, although nothing may listen there yet."""
    own = (service.variables for service in contents.services)
    all_values = [contents.variables, *(each for one in own for each in (one.own, *one.hosts.values()))]
    texts = (data for values in all_values for data in values.values())
    return {int(number) for data in texts for number in re.findall(rb"\b[0-9]{1,5}\b", data)}


class DirectoryDeployment(LocalDeployment):
    """The deployment of a directory, each container with a root directory of its own.

    A service whose templates name `port` gets a free one in each container, and registers it.
    """

    def __init__(self, contents: Deployment, planned: Sequence[tuple[str, str]], *where: Any) -> None:
        """`planned`: the service and the host of each container. `where`: as for LocalDeployment."""
        super().__init__(*where)
        self._contents = contents
        uses_port = {
            service.name
            for service in contents.services
            if PORT in used_variables(service.definition, service.files)
        }
        named = ports_in(contents)
        for name, host in planned:
            if name not in uses_port:
                self.add(name, host)
                continue
            port = free_port(named)
            self.add(name, host, port, {PORT: port})

    def read(self) -> Deployment:
        return self._contents

    def with_values(self, deployment: Deployment) -> Deployment:
        """With the containers that run here, and without the values of hosts that are elsewhere.

        The number of wanted instances is that of the containers here, whatever launch.yml says.
        """
        found = super().with_values(deployment)
        here: dict[str, list[str]] = {service.name: [] for service in found.services}
        for container in self.containers:
            here[container.service].append(container.host)
        services = []
        for service in found.services:
            own = here[service.name]
            hosts = {host: each for host, each in service.variables.hosts.items() if host in own}
            services.append(
                service._replace(
                    definition=with_instances(service.definition, len(own)),
                    variables=service.variables._replace(hosts=hosts),
                )
            )
        return found._replace(services=services, launch=LaunchFile())

    def check(self, deployment: Deployment) -> None:
        """Refuse the errors that `validate` finds: containers would wait for some of them in vain."""
        refuse(validate(deployment, deployment_id=self.id, given=self.given))

    def check_files(self, deployment: Deployment) -> None:
        """Refuse files whose dest is outside of the container's directory."""
        issues = []
        sources = {service.name: service.source for service in deployment.services}
        for container in self.containers:
            known = self.known(deployment, container)
            for step, file in self._files(container):
                try:
                    dest = rendered(Text("dest", file.dest), *known)
                except CannotRender:  # The rest comes from other containers.
                    dest = file.dest.replace("{{ root }}", str(container.root))
                if not dest.startswith(f"{container.root}/") or ".." in dest.split("/"):
                    issues.append(
                        f"{sources[container.service]}: {step.label}.files.{file.name}.dest: begin it with"
                        " {{ root }}, the container's directory: here it would be a file of this machine"
                    )
        if issues:
            raise BadDefinition(list(dict.fromkeys(issues)))

    def _files(self, container: LocalContainer) -> Iterator[tuple[Command, File]]:
        """The files that the agent writes, each with its command."""
        for step in self.graph(container).steps:
            for file in step.files:
                yield step, file

    @property
    def victim(self) -> LocalContainer | None:
        """A daemon to suggest for a kill: one of the service with the most replicas."""
        daemons = [each for each in self.containers if not self.is_task(each)]
        count = Counter(each.service for each in daemons)
        return max(daemons, key=lambda each: count[each.service], default=None)


class DirectoryUp(Up[DirectoryDeployment]):
    """The deployment of a directory, in `site`."""

    def __init__(
        self,
        invocation: Invocation,
        name: str,
        site: Path,
        contents: Deployment,
        planned: Sequence[tuple[str, str]],
    ) -> None:
        options = invocation.options
        environ = {**invocation.environ, **connection_options(options)}
        super().__init__(
            site, name, stays=not options.once, environ=environ, program=PROGRAM, timeout=options.timeout
        )
        self.source, self._contents, self._planned = options.directory.resolve(), contents, planned
        self._console, self._quiet = invocation.out, options.quiet
        self._stream: LogStream | None = None
        self._is_kept = options.place is not None
        self._logs: Path | None = None

    def deployment(self, environ: Mapping[str, str]) -> DirectoryDeployment:
        environ = {**environ, **container_variables.environ(self.environ)}
        if self._contents.launch.tag:
            environ["KOLLA_GENERATION"] = self._contents.launch.tag
        where = (self.source, self.directory, None, environ, self.prefix, self.name)
        made = DirectoryDeployment(self._contents, self._planned, *where)
        self._write_environment(environ)
        return made

    def view(self, deployment: DirectoryDeployment, *, known: bool) -> ProgressDisplay:
        if self._quiet:
            deployment.client.session.quiet = True  # The view shows the loss of the connection.
            return super().view(deployment, known=known)
        self._stream = self._stream or LogStream(deployment.containers, self._console)
        return self._stream

    def keep_logs(self, deployment: DirectoryDeployment) -> Mapping[LocalContainer, Path]:
        """Copies of the logs, which outlast a temporary place."""
        if self._is_kept:
            return super().keep_logs(deployment)
        self._logs = Path(tempfile.mkdtemp(prefix=f"{PREFIX}logs-"))
        logs = {container: self._logs / container.name for container in deployment.containers}
        for container, copy in logs.items():
            shutil.copyfile(container.log, copy)
        return logs

    def end(self) -> None:
        super().end()
        if self._logs:
            self.complain(f"all logs are in {self._logs}; remove them when you have read them")

    # -- what can be tried next ---------------------------------------------------------------------

    def _write_environment(self, environ: Mapping[str, str]) -> None:
        """Write a file for other shells, with which the tool and the agent find this deployment."""
        programs = dict.fromkeys(str(Path(word).parent) for word in AGENT)
        names = {name: value for name, value in environ.items() if name.startswith("KOLLA_ZK_")}
        names.update(container_variables.environ(self.environ))
        names.update(KOLLA_SYSTEM_PREFIX=self.prefix, KOLLA_DEPLOYMENT=self.name)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in names.items()]
        # The containers' programs too. Ours come last: the checkout's `bin` has one that is called `test`.
        paths = (shlex.quote(environ["PATH"]), "$PATH", *map(shlex.quote, programs))
        lines += [f"PATH={':'.join(paths)}", f"site={shlex.quote(str(self.directory))}"]
        file = self.directory / ENVIRONMENT
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n")

    def show_when_up(self, deployment: DirectoryDeployment) -> None:
        if self.stays or self._is_kept:
            super().show_when_up(deployment)
        if self.stays:
            print("\nWhat to try next, in another terminal, while this one shows what happens:")
            for line in self.directions(deployment):
                print(f"  {line}")

    def directions(self, deployment: DirectoryDeployment) -> Iterator[str]:
        """Commands to try. After the first one they work in any directory."""
        yield f". {shlex.quote(str(self.directory / ENVIRONMENT))}"
        victim = deployment.victim
        if victim:
            yield f"kill -9 {victim.pid}  # {victim.name} is started again"
            probe = f"KOLLA_RUN_DIR=$site/run/{victim.run_dir.name} kolla_mesos_start health --ready"
            yield f"{probe}  # {victim.name}"
        yield from self._contents.launch.suggested
        yield f"{PROGRAM} status  # with --watch it stays, and follows"
        yield f"{PROGRAM} --help  # what else there is to see and to change"


# -- where ----------------------------------------------------------------------------------------


def locked_place(given: Path | None, stack: ExitStack) -> Path:
    """The locked directory for this run: `given`, or a temporary one."""
    if given is None:
        _remove_abandoned()
        place = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = stack.enter_context((place / f".{LOCK}").open("w"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        place.chmod(0o755)  # A daemon may run as another user.
        _lock(lock, place)
        # It is renamed once it is locked, so that no other run finds it unlocked.
        (place / f".{LOCK}").rename(place / LOCK)
        return place
    place = given.resolve()
    if (place / "site").exists() and not (place / LOCK).exists():
        raise BadUsage(f"{place / 'site'} exists, but no earlier run has created it: choose another place")
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((place / LOCK).open("w"))
    except OSError as error:
        raise BadUsage(f"{place} can't be used: {error.strerror}") from error
    _lock(lock, place)
    return place


def _remove_abandoned() -> None:
    """Remove the directories of killed runs, and end their surviving processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        place = path.parent
        try:
            if place.lstat().st_uid != os.geteuid():
                continue
            with path.open("r+") as lock:
                _lock(lock, place)
                print(f"removing {place}: the `up` that made it was killed")
                end_all(place / "site")
                shutil.rmtree(place, ignore_errors=True)
        except (FileNotFoundError, PlaceInUse):  # It has ended just now, or has not.
            continue


def _lock(lock: IO[str], place: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PlaceInUse(f"another deployment is up in {place}: choose another place") from error
