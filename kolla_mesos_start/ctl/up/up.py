"""Runs the deployment of a directory on this machine as plain processes, until Ctrl-C or until all are up.

    ZooKeeper -> publish -> start everything at once -> show progress -> timeline -> stay -> end

Signals are handled only between two steps, and while ZooKeeper is awaited: `end` then knows everything that
was started.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO, Callable, TypeVar

from rich.console import Console

from kolla_mesos_start import settings
from kolla_mesos_start.ctl.directory.directory import Deployment
from kolla_mesos_start.ctl.directory.findings import counted, refuse
from kolla_mesos_start.ctl.directory.source import container_environ
from kolla_mesos_start.ctl.invocation import Invocation, connection_options
from kolla_mesos_start.ctl.live import explanation
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.manifests.model import FINAL
from kolla_mesos_start.ctl.timeline import report
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.up.containers import AGENT, end_all
from kolla_mesos_start.ctl.up.deployment import LocalDeployment, ports_in
from kolla_mesos_start.ctl.up.private_zookeeper import HOST, PrivateZooKeeper, free_port
from kolla_mesos_start.ctl.up.progress import LogStream, ProgressRow, ProgressView, row
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import LEAST, ChangedMeanwhile, OperatorClient
from kolla_mesos_start.ctl.zk.publication import check_chroot
from kolla_mesos_start.ctl.zk.published import OF_UP
from kolla_mesos_start.ctl.zk.services import used_variables
from kolla_mesos_start.errors import AgentError, BadUsage, DependenciesNotSatisfied, Stopped
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.settings import RUN_DIR_LIMIT
from kolla_mesos_start.zookeeper.wire import NodeExistsError

T = TypeVar("T")
PROGRAM = "kolla_mesos_ctl"
ENVIRONMENT = "env"
LOCK = "kolla_mesos_up.lock"  # in the place of a run, which shows that it is one
PREFIX = "kolla-up-"  # of a place that is not given
SITE = "site"
LONGEST_RUN_DIR = len("/run/99")  # bytes
PORT = "port"  # the variable that each container is given
LOOK_EVERY = 0.05  # seconds
STARTS_AGAIN = "everything that was started has ended: correct the cause, and run `up` again"
START_TIMEOUT, ZOOKEEPER_TIMEOUT, CLEANUP_TIMEOUT = 600.0, 60.0, 5.0  # seconds
LOGS_SHOWN, PLACES_SHOWN = 3, 20
GRACE, SHORT_GRACE = 10.0, 1.0  # seconds between TERM and KILL
# Seconds until something is started again: at first, and at most. The delay doubles each time, as with
# launchers, unless it has run for longer than STEADY.
RESTART_DELAY, LONGEST_DELAY, STEADY = 1.0, 10.0, 30.0
MOST_RESTARTS = 3  # of a member of a cluster, until it was up once
TOLD_TIMEOUT = 2.0  # seconds; a registrar says how its daemon ended a moment after that
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GOOD_ENDS = (signal.SIGINT, signal.SIGTERM)  # once all are up


class Failed(AgentError):
    """A container ended unexpectedly."""

    status = 1


class Up:
    """One run of the deployment `name`, whose files are in `directory`. Call `end` whatever `run` raises."""

    def __init__(self, invocation: Invocation, name: str, directory: Path) -> None:
        options = invocation.options
        self.name, self.directory, self.source = name, directory, options.directory.resolve()
        self.environ = {**invocation.environ, **connection_options(options)}
        self.stays, self.is_kept, self.timeout = not options.once, options.place is not None, options.timeout
        self.is_quiet, self.console, self._errors = options.quiet, invocation.out, invocation.err
        self.is_up = False
        self.kept_logs: Sequence[Path] = ()  # of a start that has failed
        self.zookeeper: PrivateZooKeeper | None = None
        self.client: OperatorClient | None = None
        self._created: list[str] = []  # znodes, deepest first
        self._was_away = False
        self._loop = Loop()  # of the connection, and of signals
        self._is_ending = False
        self._show: Callable[[], None]

    def run(self, contents: Deployment, planned: Sequence[tuple[str, str]]) -> None:
        """All stages. `planned`: the service and the host of each container. Stopped for a signal."""
        for signum in STOP_SIGNALS:
            self._loop.on_signal(signum, self._stop)
        self._tick()
        self.directory.mkdir(parents=True, mode=0o755)
        environ = self._zookeeper_environ()
        own = {"KOLLA_APP_ID": f"/{self.name}/{self.name}", "KOLLA_HOSTNAME": self.name}
        limit = {"KOLLA_ZK_CONNECT_TIMEOUT": "10"}
        prefix = {"KOLLA_SYSTEM_PREFIX": self.environ.get("KOLLA_SYSTEM_PREFIX", "")}
        config = settings.parse({**own, **limit, **prefix, **environ})
        self.deployment = self._make(contents, planned, environ, config.prefix)
        prepared = self._prepared(contents)
        if self.zookeeper:
            self._start_zookeeper(self.zookeeper)
        else:
            self._say(f"ZooKeeper: {environ['KOLLA_ZK_HOSTS']}")
        self.client = client = self.deployment.client = connection.connect(config, self._loop)
        check_chroot(client, config)
        if self.zookeeper:
            self.zookeeper.secure(client)
        self._claim()
        self._say(f"publish {short(self.source)} to {self.deployment.path}")
        self.console.print(f"  {self.deployment.publish_contents(prepared)}")
        self._await_start()
        self.is_up = True
        self._say("the timeline of the start")
        self.console.print("\n".join(self._timeline()))
        if self.stays or self.is_kept:
            self._show_places()
        if self.stays:
            self.console.print("\nWhat to try next, in another terminal, while this one shows what happens:")
            for line in self._directions(contents.launch.suggested):
                self.console.print(f"  {line}")
            self._stay()

    # -- the stages -------------------------------------------------------------------------------

    def _zookeeper_environ(self) -> Mapping[str, str]:
        """The variables for the servers of KOLLA_ZK_HOSTS, or else of a private one."""
        environ = {name: value for name, value in self.environ.items() if name.startswith("KOLLA_ZK_")}
        if not environ.get("KOLLA_ZK_HOSTS"):
            self.zookeeper = PrivateZooKeeper(self.directory / "zookeeper")
            environ.update(self.zookeeper.environ)
        return environ

    def _make(
        self,
        contents: Deployment,
        planned: Sequence[tuple[str, str]],
        zookeeper: Mapping[str, str],
        prefix: str,
    ) -> LocalDeployment:
        """The containers. One whose templates name `port` gets a free one, and registers it."""
        environ = {
            **{"HOME": str(self.directory), "LANG": "C.UTF-8", "PATH": os.environ["PATH"]},
            **zookeeper,
            **container_environ(self.environ),
        }
        made = LocalDeployment(self.directory, environ, prefix, self.name)
        uses_port = {
            service.name
            for service in contents.services
            if PORT in used_variables(service.definition, service.files)
        }
        named = ports_in(contents)
        for name, host in planned:
            port = free_port(named) if name in uses_port else None
            container = made.add(name, host, port, {PORT: port} if port else {})
            if tag := contents.launch.tag_of(name):
                container.environ["KOLLA_GENERATION"] = tag
        self._write_environment(made, zookeeper)
        return made

    def _write_environment(self, made: LocalDeployment, zookeeper: Mapping[str, str]) -> None:
        """Write a file for other shells, with which the tool and the agent find this deployment."""
        names = {**zookeeper, **container_environ(self.environ)}
        names.update(KOLLA_SYSTEM_PREFIX=made.prefix, KOLLA_DEPLOYMENT=self.name)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in names.items()]
        programs = dict.fromkeys(str(Path(word).parent) for word in AGENT)
        # The containers' programs too. Ours come last: the checkout's `bin` has one that is called `test`.
        paths = (shlex.quote(made.environ["PATH"]), "$PATH", *map(shlex.quote, programs))
        lines += [f"PATH={':'.join(paths)}", f"site={shlex.quote(str(self.directory))}"]
        file = self.directory / ENVIRONMENT
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n")

    def _prepared(self, contents: Deployment) -> Deployment:
        """What is published. Refuses the errors that `validate` finds: containers would wait in vain."""
        prepared = self.deployment.with_values(contents, only_here=True)
        refuse(validate(prepared, deployment_id=self.name, given=self.deployment.given))
        self.deployment.read_definitions(prepared, inside=True)
        return prepared

    def _start_zookeeper(self, server: PrivateZooKeeper) -> None:
        self._say(f"ZooKeeper: a private one at {server.hosts}")
        self.console.print(f"  its log: {short(server.log)}")
        server.start()
        if not self._until(lambda: server.serves, ZOOKEEPER_TIMEOUT):
            raise AgentError(f"ZooKeeper does not serve after {ZOOKEEPER_TIMEOUT:g} s; {server.last_lines()}")

    def _claim(self) -> None:
        """Create the deployment's znode. Of two concurrent runs only one succeeds."""
        client, path = self.deployment.client, self.deployment.path
        above = connection.create_parents(client, [path])
        try:
            connection.create(client, path, json.dumps({OF_UP: self.deployment.own_names}).encode())
        except NodeExistsError as error:
            raise BadUsage(
                f"{path} exists already in ZooKeeper: give another name (--deployment), or"
                " unset KOLLA_ZK_HOSTS to run with a private ZooKeeper"
            ) from error
        self._created = [path, *sorted(above, key=len, reverse=True)]

    def _await_start(self) -> None:
        deployment, client, deadline = self.deployment, self.deployment.client, now() + self.timeout
        self._say(f"starting {counted(len(deployment.containers), 'container')} at once")
        starting: AbstractContextManager[None] = nullcontext()
        limit = client.limit
        if self.is_quiet:
            client.session.quiet = True  # The view shows the loss of the connection.
            view = ProgressView(self._rows, self.console)
            self._show, starting = view.show, view.starting()
        else:
            self._show = LogStream(deployment.containers, self.console).show
        deployment.start(random.randrange(10**6))
        restarts = Restarts(self.console)

        def has_failed() -> bool:
            """Whether a container has ended for good. A member of a cluster may end while it joins."""
            for container in deployment.broken:
                daemon = deployment.graph(container).daemon
                is_member = daemon is not None and daemon.election is not None
                if not is_member or restarts.is_last(container.name, container.status):
                    return True
                if restarts.is_due(container.name, container.status):
                    container.restart()
            return False

        def settled() -> bool:
            self._show()
            client.limit = max(deadline - now(), LEAST)
            return has_failed() or (deployment.seems_up and deployment.is_up)

        with starting:
            is_settled = self._until(settled, self.timeout)
            self._show()
        client.limit = limit
        if has_failed():
            raise Failed(self._why("the deployment did not come up"))
        if not is_settled:
            raise DependenciesNotSatisfied(self._why(f"not up after {self.timeout:g} s"))

    def _rows(self) -> list[ProgressRow]:
        """A row for each container, and one for ZooKeeper if the connection was ever lost."""
        rows = [row(container) for container in self.deployment.containers]
        away = not self.deployment.client.connected
        self._was_away = self._was_away or away
        if self._was_away:
            stage, text, instant = "away" if away else "back", "no connection" * away, time.time()
            rows.append(ProgressRow("ZooKeeper", stage, text, instant, instant))
        return rows

    def _why(self, what: str) -> str:
        """What happened, the root causes, and the ends of the logs of containers that ended."""
        self.kept_logs = [container.log for container in self.deployment.containers]
        self._until(lambda: self.deployment.broken_told, TOLD_TIMEOUT)
        seen, found = explanation.read_and_explain(self.deployment.live)
        lines = [what, *(line.whole().plain for line in explanation.lines(seen, found, ()))]
        for container in self.deployment.broken[:LOGS_SHOWN]:
            ended = row(container)
            log = re.sub(r"\n\{\"stage\": .*\}\n\Z", "\n", container.log_end())  # The cause is printed above.
            lines.append(f"--- {ended.name}: {ended.stage} {ended.text}; the end of {container.log}:\n{log}")
        return "\n".join([*lines, STARTS_AGAIN])

    def _timeline(self) -> list[str]:
        reader = HistoryReader(self.deployment.znodes, self.deployment.given)
        found = Mirror(self.deployment.client, reader).read(lambda view: reader.report(view, time.time()))
        return list(report.lines(found, self.console.width))

    def _show_places(self) -> None:
        """Print where each container has its log and its files."""
        containers = self.deployment.containers
        self.console.print("\nWhere to find things:")
        if len(containers) > PLACES_SHOWN:
            files = "the log and the files of each container"
            self.console.print(f"  {short(self.directory)}/<host>/<role>/  {files}")
            return
        width = max(len(container.name) for container in containers)
        for container in containers:
            rendered = (file for step in self.deployment.graph(container).all_commands for file in step.files)
            files = " ".join(sorted({file.dest.replace("{{ root }}/", "") for file in rendered}))
            port = container.environ.get("KOLLA_PORTS")
            address = f"  {HOST}:{port}" if port else ""
            line = f"  {container.name:{width}}  {short(container.root)}/  log {files}"
            self.console.print(f"{line.rstrip()}{address}")

    def _directions(self, suggested: Sequence[str]) -> Iterator[str]:
        """Commands to try. After the first one they work in any directory."""
        yield f". {shlex.quote(str(self.directory / ENVIRONMENT))}"
        daemons = [each for each in self.deployment.containers if not self.deployment.is_task(each)]
        if daemons:  # One of the service with the most replicas can best be missed.
            count = Counter(each.service for each in daemons)
            victim = max(daemons, key=lambda each: count[each.service])
            yield f"kill -9 {victim.pid}  # {victim.name} is started again"
            probe = f"KOLLA_RUN_DIR=$site/run/{victim.run_dir.name} kolla_mesos_start health --ready"
            yield f"{probe}  # {victim.name}"
        yield from suggested
        yield f"{PROGRAM} status  # with --watch it stays, and follows"
        yield f"{PROGRAM} --help  # what else there is to see and to change"

    def _stay(self) -> None:
        """Show each change; restart what ends, as a launcher does."""
        self._say("up; Ctrl-C ends it, and so does SIGTERM; with --once it ends by itself")
        restarts = Restarts(self.console)
        while True:
            self._show()
            for container in self.deployment.broken:
                if restarts.is_due(container.name, container.status):
                    container.restart()
            if self.zookeeper and self.zookeeper.has_ended and restarts.is_due("ZooKeeper"):
                self.zookeeper.start()
            self._loop.sleep(LOOK_EVERY)

    def _say(self, text: str) -> None:
        """Print the heading of a stage."""
        self.console.print(f"\n-- {text}")

    # -- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """End everything that was started; remove the deployment from a shared ZooKeeper. Ignores signals."""
        self._is_ending = True
        deployment: LocalDeployment | None = getattr(self, "deployment", None)
        if deployment is not None and deployment.processes():
            with suppress(OSError):  # The terminal is gone.
                self._say("ending all containers")
            # Without ZooKeeper, closing a session takes until its timeout.
            try:
                if self._is_connected():
                    deployment.drain()
                deployment.end(GRACE if self._is_connected() else SHORT_GRACE)
            except AgentError as error:
                self._complain(error.reason)
        if self.zookeeper is not None:
            if self.client is not None:  # Its loss is expected.
                self.client.session.quiet = True
            self.zookeeper.discard()
        elif self.client is not None:
            self._leave(self.client)

    def _is_connected(self) -> bool:
        has_ended = self.zookeeper is not None and self.zookeeper.has_ended
        return not has_ended and self.client is not None and bool(self.client.connected)

    def _leave(self, client: OperatorClient) -> None:
        """Remove what was published, and close the session."""

        client.begin_again()
        client.limit = CLEANUP_TIMEOUT
        try:
            for path in self._created:
                with suppress(ChangedMeanwhile):  # Others use the prefix too.
                    below = connection.below(client, [path]) if path is self._created[0] else []
                    connection.remove_all(client, [*below, path], {})
        except AgentError:
            for path in self._created[:1]:
                self._complain(f"{path} may be left in ZooKeeper; remove it: deleteall {path}")
        client.close()

    # -- waiting, and signals -----------------------------------------------------------------------

    def _stop(self, signum: int) -> None:
        if not self._is_ending:
            raise Stopped(signum, signal.Signals(signum).name)

    def check_signals(self) -> None:
        """Raise Stopped if a signal has come."""
        try:
            self._loop.wait(lambda: True)
        except Stopped:
            raise
        except AgentError:
            pass  # A timer was due. The caller reports the error that came first.

    def _tick(self) -> None:
        """Check repeatedly whether the private ZooKeeper has ended, which ends every wait for it."""
        self._loop.call_at(now() + LOOK_EVERY, self._tick)
        if not (self._is_ending or self.is_up) and self.zookeeper and self.zookeeper.has_ended:
            raise AgentError(f"ZooKeeper has ended; {self.zookeeper.last_lines()}")

    def _until(self, condition: Callable[[], T], seconds: float) -> T:
        """Wait until `condition()` is true or `seconds` have passed; returns its last value.

        Raises Stopped for a signal, and AgentError when the private ZooKeeper ends.
        """
        deadline = now() + seconds
        while not (value := condition()) and now() < deadline:
            self._loop.sleep(LOOK_EVERY)
        return value

    def _complain(self, text: str) -> None:
        """Print an error."""
        with suppress(OSError):  # The reader has gone.
            self._errors.print(f"{PROGRAM}: {text}")


class Restarts:
    """Decides when something that ended is started again, and prints that."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._delays: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

    def is_last(self, name: str, status: int | None) -> bool:
        """Whether `name`, which has ended with `status`, was started often enough, or need not be."""
        return status in FINAL or (name not in self._due and self._counts[name] == MOST_RESTARTS)

    def is_due(self, name: str, status: int | None = None) -> bool:
        """Whether `name`, which has ended with `status`, should be started now; call it until it is true."""
        instant = self._clock()
        if name not in self._due:
            is_steady = instant - self._started.get(name, -math.inf) > STEADY
            delay = RESTART_DELAY if is_steady else min(2 * self._delays[name], LONGEST_DELAY)
            self._delays[name], self._due[name] = delay, instant + delay
            why = f" (status {status} is final unless the published data change)" if status in FINAL else ""
            self._counts[name] += 1
            self._console.print(f"  {name}: starting it again in {delay:g} s{why}")
        if instant < self._due[name]:
            return False
        del self._due[name]
        self._started[name] = instant
        return True


def short(path: Path) -> str:
    """The path as it can be typed in the working directory."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


# -- the directory of a run: locked, empty at the start, by default removed at the end -----------------


class PlaceInUse(AgentError):
    """Another run uses the same directory."""

    status = 1


def locked(given: Path | None, stack: ExitStack) -> Path:
    """The locked directory for this run: `given`, or a temporary one. It has no `site` in it."""
    place = _temporary(stack) if given is None else _given(given.resolve(), stack)
    if len(os.fsencode(place / SITE)) + LONGEST_RUN_DIR > RUN_DIR_LIMIT:
        raise BadUsage(f"{place / SITE} is too long for the sockets in it: choose a shorter one")
    # A killed run may have left processes: one that has changed its user survives.
    end_all(place / SITE)
    shutil.rmtree(place / SITE, ignore_errors=True)
    return place


def _given(place: Path, stack: ExitStack) -> Path:
    if (place / SITE).exists() and not (place / LOCK).exists():
        raise BadUsage(f"{place / SITE} exists, but no earlier run has created it: choose another place")
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((place / LOCK).open("w"))
    except OSError as error:
        raise BadUsage(f"{place} can't be used: {error.strerror}") from error
    _lock(lock, place)
    return place


def _temporary(stack: ExitStack) -> Path:
    _remove_abandoned()
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = stack.enter_context((place / f".{LOCK}").open("w"))
    place.chmod(0o755)  # A daemon may run as another user.
    _lock(lock, place)
    # It is renamed once it is locked, so that no other run finds it unlocked.
    (place / f".{LOCK}").rename(place / LOCK)
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
                end_all(place / SITE)
                shutil.rmtree(place, ignore_errors=True)
        except (FileNotFoundError, PlaceInUse):  # It has ended just now, or has not.
            continue


def _lock(lock: IO[str], place: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PlaceInUse(f"another deployment is up in {place}: choose another place") from error


def remove(place: Path, kept: Sequence[Path]) -> None:
    """Remove a temporary place, but not the `kept` files, which only we can read then."""
    if not kept:
        shutil.rmtree(place, ignore_errors=True)
        return
    place.chmod(0o700)
    above = {parent for path in kept for parent in path.parents}
    for directory, names, files in os.walk(place, topdown=False):
        for path in (Path(directory, name) for name in (*names, *files)):
            if path not in above and path not in kept:
                with suppress(OSError):  # It is not empty: a mount, for example.
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
