"""One chaos run: containers with a launcher that restarts them, and planned faults.

`plan` chooses the faults, `recorder` records what the commands do, and `checker` decides whether that was
correct. This module starts the processes and injects the faults.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from drills.chaos.checker import Exit, Fault, Final, History
from drills.chaos.plan import API, CONTAINERS, DB, ENSEMBLE, JOBS, RULES, Plan, Planned
from drills.chaos.recorder import NEVER, Recorder
from kolla_mesos_start.files.place import TEMPORARY_PREFIX
from kolla_mesos_start.loop import now
from kolla_mesos_start.tree.states import decode_detail
from kolla_mesos_start.zookeeper.view import Znode
from tests.conftest import Deployment
from tests.support.agents import Agent
from tests.support.publishing import publish
from tests.support.tcp_proxy import __file__ as PROXY
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, Ensemble, Process, Server, free_port

STEP = str(Path(__file__).with_name("step.py"))
LOOK = 0.02  # seconds between two looks at the containers
LAUNCHER = 0.15  # seconds until the launcher starts a container again
NOTICED = 2.0  # seconds until a killed registrar has let its lock go, and health says so
FULL = ["follower", "follower", "leader"]  # all serve
HANDSHAKE_TIMEOUT = 240.0  # seconds for all to come through once nothing is done to them any more
KILL, STOP, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT

Undo = Callable[[], object]


class Link(Process):
    """A container's own way to all servers, which can be cut: closed (`kill`) or silent (`freeze`)."""

    def __init__(self, ensemble: Ensemble, log: Path) -> None:
        links = {free_port(): server.port for server in ensemble.servers}
        pairs = (f"{port}:{target}" for port, target in links.items())
        super().__init__((sys.executable, str(PROXY), *pairs), log)
        self.hosts = ",".join(f"{HOST}:{port}" for port in links)
        self.mend()

    def mend(self) -> None:
        self.thaw()
        self.launch()


class Ground(NamedTuple):
    """Where seeds run, one after the other: the servers, a client, and the links of the containers."""

    ensemble: Ensemble
    zk: KazooClient
    links: Mapping[str, Link]


@contextlib.contextmanager
def ground(ensemble: Ensemble, zk: KazooClient, directory: Path) -> Iterator[Ground]:
    """The links are made once: their start takes as long as that of the agents."""
    links = {name: Link(ensemble, directory / f"{name}.link") for name in CONTAINERS}
    yield Ground(ensemble, zk, links)
    for link in links.values():
        link.kill()


class Container:
    """One container, its link to the servers, and what its launcher knows.

    `held`: something is being done to its processes. One thing at a time: were agent and guard
    both stopped, one after the other, that would be the whole container without being it.
    """

    def __init__(self, name: str, directory: Path, link: Link, environ: Mapping[str, str]) -> None:
        self.name = name
        self.service, self.host = CONTAINERS[name]
        self.directory = directory
        self.link = link
        self.held = False
        self.link_held = False
        self.passed = False
        self.exits: list[Exit] = []
        self._starts_at = NEVER
        self.agent = Agent(directory, environ)

    @property
    def is_task(self) -> bool:
        return self.service == JOBS

    def look(self) -> None:
        """What a launcher does: note an end, and start it again."""
        if self.passed or self.agent.running:
            return
        if self._starts_at == NEVER:
            status = self.agent.ends()
            self.exits.append(Exit(self.name, status))
            self.passed = self.is_task and status == 0
            self._starts_at = now() + LAUNCHER
        elif now() >= self._starts_at:
            self._starts_at = NEVER
            self.agent.restart()

    @property
    def inside(self) -> dict[int, str]:
        """The processes in it."""
        return inside(self.directory)

    @property
    def guard(self) -> int:
        """The process id of its guard; 0 while there is none."""
        for pid in self.inside:
            with contextlib.suppress(OSError):
                if b"commands.guard" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return 0

    @property
    def registrar(self) -> int:
        """The process id of its registrar, where that is one of its own; else 0."""
        found = (pid for pid, name in self.inside.items() if name == "kolla_registrar")
        return next((pid for pid in found if pid != self.agent.pid), 0)


def inside(directory: Path) -> dict[int, str]:
    """The names of all processes that work in a directory, or below it."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if Path(os.readlink(f"/proc/{entry}/cwd")).is_relative_to(directory):
                    found[int(entry)] = Path(f"/proc/{entry}/comm").read_text().rstrip("\n")
    return found


def send(signum: int, pids: Iterable[int]) -> None:
    """A signal to processes, some of which may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


class Chaos:
    """One run of a plan, in a directory of its own."""

    def __init__(self, plan: Plan, ground: Ground, deployment: Deployment, directory: Path) -> None:
        self.plan = plan
        self._ensemble, self._zk, self._links = ground
        self._deployment = deployment
        self._directory = directory
        self._faults: list[Fault] = []
        self._unnoticed: list[str] = []
        self._servers_held: set[str] = set()
        self._containers: dict[str, Container] = {}
        (directory / "tmp").mkdir()
        self._recorder = Recorder(directory / "recorder")

    def run(self) -> History:
        """All of it: publish, start, do harm, mend, see who came through, stop, and look at what is left."""
        try:
            self._publish()
            for name in CONTAINERS:
                self._containers[name] = self._start(name)
            self._do_harm()
            stuck = self._await_all()
            for link in self._links.values():  # Somebody may have taken the port of one that was cut.
                assert link.running, link.said()
            unregistered = [] if stuck else self._await_registered()
            left = self._stop()
            return History(
                rules=RULES,
                runs=[run._replace(end=min(run.end, now())) for run in self._recorder.runs],
                faults=self._faults,
                exits=[exit for container in self._containers.values() for exit in container.exits],
                finals=list(self._finals()),
                # A session that expires late, an agent that had judged before it was stopped.
                longest_stale=6.0 + 3 * self.plan.timeout,
                stuck=stuck,
                unregistered=unregistered,
                unnoticed=self._unnoticed,
                left=left,
            )
        finally:
            self._end()

    # -- the deployment -----------------------------------------------------------------------------

    def _publish(self) -> None:
        retrying = {"retries": 2, "delay": 0.1, "stop_grace": 1}
        for service in (DB, API, JOBS):
            role = service.rsplit("/", 1)[1]
            definition: dict[str, Any] = {"commands": {}}
            for path in [path for path in RULES if path.startswith(f"{role}/")]:
                rule, name = RULES[path], path.rsplit("/", 1)[1]
                needs = [
                    {"path": needed, **({"count": count} if count > 1 else {})}
                    for needed, count in rule.needs.items()
                ]
                step = {"dependencies": needs, "files": self._file(role, name)}
                if name == "daemon":
                    step["command"] = self._command(path, 0, "daemon")
                    definition["service"] = {"daemon": {**step, "stop_grace": 1}}
                else:
                    step["command"] = self._command(path, *self.plan.work[path])
                    once = "host" if rule.per_host else True
                    definition["commands"][name] = {**step, **retrying, "run_once": once}
            files = {f"{name}.conf": f"{role}\n" for name in [*definition["commands"], "daemon"]}
            with contextlib.redirect_stdout(io.StringIO()):  # It names all that it makes.
                publish(self._deployment, service, definition, files=files)

    def _file(self, role: str, name: str) -> dict[str, Any]:
        # All containers of a role share the directory: they place the same file at the same time.
        return {f"{name}.conf": {"dest": str(self._directory / "etc" / role / f"{name}.conf")}}

    def _command(self, path: str, seconds: float, flavour: str) -> list[str]:
        return [sys.executable, "-I", "-S", STEP, str(self._recorder.path), path, f"{seconds:g}", flavour]

    def _start(self, name: str) -> Container:
        service, host = CONTAINERS[name]
        environ = self._deployment.environ(
            service,
            KOLLA_ZK_HOSTS=self._links[name].hosts,
            KOLLA_ZK_SESSION_TIMEOUT=str(self.plan.timeout),
            KOLLA_HOSTNAME=host,
            KOLLA_ADDRESS=HOST,
            KOLLA_START_MODE="supervise" if name in self.plan.supervised else "exec",
            TMPDIR=str(self._directory / "tmp"),
        )
        return Container(name, self._directory / name, self._links[name], environ)

    # -- harm -----------------------------------------------------------------------------------------

    def _do_harm(self) -> None:
        """Each fault when its time has come, and each taken back in its time."""
        begun, undos = now(), list[tuple[float, Undo]]()
        faults = list(self.plan.faults)
        while faults or undos:
            for due in sorted(undo for undo in undos if undo[0] <= now()):
                undos.remove(due)
                due[1]()
            if faults and now() >= begun + faults[0].at:
                fault = faults.pop(0)
                for target in sorted(fault.order, key=lambda name: fault.busy and not self._is_busy(name)):
                    undo = self._do(fault, target)
                    if undo is not None:
                        undos.append((now() + fault.seconds, undo))
                        break
            self._look()

    def _look(self) -> None:
        for container in self._containers.values():
            if not container.held:
                container.look()
        time.sleep(LOOK)

    def _is_busy(self, name: str) -> bool:
        return any(run.token for _, run in self._recorder.living(name))

    def _do(self, fault: Planned, target: str) -> Undo | None:
        """Do it to a target; what takes it back, or None where it can't be done there now."""
        verb, what = fault.kind.split()
        at = len(self._faults)
        begun = now()
        if target in self._containers:
            container = self._containers[target]
            if what == "link":
                undo = self._to_link(verb, container)
            elif container.held or not container.agent.running:
                return None
            else:
                undo = self._to_processes(verb, what, container)
        elif target == ENSEMBLE:
            undo = self._to_leader(verb)
        else:
            undo = self._to_server(verb, target)
        if undo is None:
            return None
        self._faults.append(Fault(fault.kind, target, begun, NEVER))

        def undo_and_note() -> None:
            undo()
            self._faults[at] = self._faults[at]._replace(end=now())

        return undo_and_note

    def _to_link(self, verb: str, container: Container) -> Undo | None:
        if container.link_held:
            return None
        container.link_held = True
        if verb == "freeze":
            container.link.freeze()
        else:
            container.link.kill()

        def undo() -> None:
            container.link_held = False
            container.link.mend()

        return undo

    def _to_processes(self, verb: str, what: str, container: Container) -> Undo | None:
        if what == "container":
            pids = list(container.inside)
        elif what == "leader":
            pids = [leader for leader, run in self._recorder.living(container.name) if run.token]
        else:
            pid = {
                "agent": container.agent.pid,
                "guard": container.guard,
                "registrar": container.registrar,
            }[what]
            pids = [pid] if pid else []
        if not pids:
            return None
        container.held = True
        send(KILL if verb == "kill" else STOP, pids)
        if what == "container":
            # Who was forked meanwhile.
            pids = list(container.inside)
            send(KILL if verb == "kill" else STOP, pids)

        def undo() -> None:
            send(CONT, pids)
            container.held = False
            if (verb, what) == ("kill", "registrar"):
                self._probe(container)

        return undo

    def _probe(self, container: Container) -> None:
        """A launcher's liveness probe of a container whose registrar was killed; then it ends that."""
        if container.agent.running and not container.registrar:
            # The kernel takes a killed process's memory, by which it is found, before it closes its files.
            until = now() + NOTICED
            while (healthy := container.agent.health().returncode == 0) and now() < until:
                time.sleep(LOOK)
            if healthy:
                self._unnoticed.append(container.name)
            container.agent.process.kill()

    def _to_server(self, verb: str, target: str) -> Undo | None:
        server = self._ensemble.servers[int(target)]
        if target in self._servers_held or not server.running:
            return None
        if verb == "cut" and not _follows(server):
            return None
        self._servers_held.add(target)
        if verb == "kill":
            server.kill()
        elif verb == "freeze":
            server.freeze()
        else:
            self._ensemble.cut(server)

        def undo() -> None:
            self._servers_held.discard(target)
            server.thaw()
            self._ensemble.heal(server)
            server.launch_server()

        return undo

    def _to_leader(self, verb: str) -> Undo | None:
        """Both followers leave it; where it is isolated it also stands still, until it is too late."""
        servers = self._ensemble.servers
        if self._servers_held or sorted(server.mode or "" for server in servers) != FULL:
            return None
        self._servers_held.update(map(str, range(len(servers))))
        leader = self._ensemble.leader
        if verb == "desert":
            self._ensemble.desert()
        else:
            for follower in self._ensemble.followers:
                self._ensemble.cut(follower)
            leader.freeze()

        def undo() -> None:
            self._servers_held.clear()
            self._ensemble.reunite()
            self._ensemble.mend()

        return undo

    # -- the end --------------------------------------------------------------------------------------

    def _await_all(self) -> list[str]:
        """Wait until each container has come through: its task is done, its daemon is ready. Who has not."""
        deadline = now() + HANDSHAKE_TIMEOUT
        while now() < deadline:
            stuck = [name for name, container in self._containers.items() if not self._is_through(container)]
            if not stuck:
                return []
            self._look()
        return stuck

    def _is_through(self, container: Container) -> bool:
        ready = any(run.done and not run.token for _, run in self._recorder.living(container.name))
        return container.passed or (ready and container.agent.running)

    def _await_registered(self) -> list[str]:
        """Wait until each daemon is an instance, globally and on its host; who is none in the end."""
        deadline = now() + HANDSHAKE_TIMEOUT
        while True:
            missing = []
            for service in (DB, API):
                hosts = [host for other, host in CONTAINERS.values() if other == service]
                for scope in ("global", *sorted(set(hosts))):
                    wanted = len(hosts) if scope == "global" else hosts.count(scope)
                    found = len(
                        self._children(self._status(scope, f"{service.rsplit('/', 1)[1]}/daemon/ready"))
                    )
                    if found != wanted:
                        missing.append(f"{service} ({scope}: {found} of {wanted})")
            if not missing or now() > deadline:
                return missing
            self._look()

    def _stop(self) -> list[str]:
        """Stop all containers; what is left then, of processes, ephemerals and files."""
        for container in self._containers.values():
            if container.agent.running:
                container.agent.signal(signal.SIGTERM)
        left = _left(
            lambda: [f"process {name} ({pid})" for pid, name in inside(self._directory).items()], 20.0
        )
        left += _left(lambda: [f"ephemeral {path}" for path in self._ephemerals(self._deployment.path)], 20.0)
        files = [*self._directory.rglob(f"{TEMPORARY_PREFIX}*"), *(self._directory / "tmp").iterdir()]
        files += self._directory.rglob("state.new")
        return left + [f"file {file.relative_to(self._directory)}" for file in files]

    def _ephemerals(self, path: str) -> Iterator[str]:
        stat = self._zk.retry(self._zk.exists, path)
        if stat is not None and stat.ephemeralOwner:
            yield path
        for name in self._children(path):
            yield from self._ephemerals(f"{path}/{name}")

    def _finals(self) -> Iterator[Final]:
        for path, rule in RULES.items():
            if path.endswith("/daemon"):
                continue
            role = path.split("/")[0]
            hosts = {host for service, host in CONTAINERS.values() if service.endswith(f"/{role}")}
            for host in sorted(hosts) if rule.per_host else [""]:
                at = self._status(host or "global", path)
                state, detail = self._get(at), self._get(f"{at}/detail")
                yield Final(path, host, state.data.decode() if state else "", decode_detail(detail).token)

    def _status(self, scope: str, path: str) -> str:
        return f"{self._deployment.path}/status/{scope}/{path}"

    def _get(self, path: str) -> Znode | None:
        try:
            return Znode(*self._zk.retry(self._zk.get, path))
        except NoNodeError:
            return None

    def _children(self, path: str) -> list[str]:
        try:
            children: list[str] = self._zk.retry(self._zk.get_children, path)
        except NoNodeError:
            return []
        return children

    def _end(self) -> None:
        """End all that may still be there, whatever has happened."""
        self._ensemble.reunite()
        self._ensemble.mend()
        for container in self._containers.values():
            send(CONT, container.inside)
            container.agent.end()
            container.link.mend()
        send(KILL, inside(self._directory))
        self._recorder.close()


def _left(find: Callable[[], list[str]], seconds: float) -> list[str]:
    """What is still found after some time; empty as soon as nothing is."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: not find(), "nothing is left", seconds=seconds, every=0.1)
    return find()


def _follows(server: Server) -> bool:
    return "Mode: follower" in server.ask("srvr", seconds=0.5)
