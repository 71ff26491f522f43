"""Runs a whole deployment on this machine as plain processes, until Ctrl-C or until all are up.

    ZooKeeper -> publish -> start everything at once -> show progress -> timeline -> stay -> end

A subclass of Up makes the deployment. Signals are handled only between two steps, and while ZooKeeper is
awaited: `end` then knows everything that was started.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Callable, Generic, Protocol, TypeVar

from kolla_mesos_start import settings
from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.ctl.live import explanation
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.live.model import EndedStart, LiveDeployment
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.manifests.model import FINAL
from kolla_mesos_start.ctl.terminal.folding import wrapped
from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.up.containers import LocalContainer, end_all
from kolla_mesos_start.ctl.up.local_deployment import LocalDeployment
from kolla_mesos_start.ctl.up.private_zookeeper import HOST, PrivateZooKeeper
from kolla_mesos_start.ctl.up.progress import ProgressRow, ProgressView, row, terminal
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, OperatorClient
from kolla_mesos_start.ctl.zk.containers import Container
from kolla_mesos_start.ctl.zk.published import OF_UP
from kolla_mesos_start.ctl.zk.publisher import check_chroot
from kolla_mesos_start.errors import (
    AgentError,
    BadUsage,
    CannotWrite,
    DependenciesNotSatisfied,
    Issues,
    Stopped,
)
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.settings import RUN_DIR_LIMIT, Settings
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.wire import NodeExistsError

T = TypeVar("T")
D = TypeVar("D", bound=LocalDeployment)
LOOK_EVERY = 0.05  # seconds
STARTS_AGAIN = "everything that was started ends now: correct the cause, and run `up` again"
START_TIMEOUT, ZOOKEEPER_TIMEOUT, REPLY_TIMEOUT, CLEANUP_TIMEOUT = 600.0, 60.0, 60.0, 5.0  # seconds
LOGS_SHOWN, PLACES_SHOWN = 3, 20
GRACE, SHORT_GRACE = 10.0, 1.0  # seconds between TERM and KILL
# Seconds until something is started again: at first, and at most. The delay doubles each time, as with
# launchers, unless it has run for longer than STEADY.
RESTART_DELAY, LONGEST_DELAY, STEADY = 1.0, 10.0, 30.0
MOST_RESTARTS = 3  # of a member of a cluster, until it was up once
TOLD_TIMEOUT = 2.0  # seconds; a registrar says how its daemon ended a moment after that
LONGEST_RUN_DIR = len("/run/99")  # bytes
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GOOD_ENDS = (signal.SIGINT, signal.SIGTERM)  # once all are up


class ProgressDisplay(Protocol):
    """Shows how the containers do."""

    def show(self) -> None:
        """Show what has changed since the last time."""


class Failed(AgentError):
    """A container ended unexpectedly."""

    status = 1


class Up(ABC, Generic[D]):
    """One deployment, from its start to its end; its files stay in `directory`.

    `name` is the deployment's id. Error messages begin with `program`, or else with the name. A subclass
    makes the deployment, and may change `view` and `show_when_up`.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        stays: bool,
        environ: Mapping[str, str] = os.environ,
        program: str = "",
        timeout: float = START_TIMEOUT,
    ) -> None:
        """`stays`: once all are up it waits for Ctrl-C. `environ` says how to reach ZooKeeper.

        `timeout` are the seconds after which all have to be up.
        """
        self.directory = directory
        self.name, self.stays, self.program = name, stays, program or name
        self.environ, self.timeout = environ, timeout
        self.is_up = False
        self.prefix = ""
        self.zookeeper: PrivateZooKeeper | None = None
        self.client: OperatorClient | None = None
        self.running: D | None = None
        self._created: list[str] = []  # znodes, deepest first
        self._was_away = False
        self._signals: list[int] = []  # received, and not looked at yet
        self.loop = Loop()  # of the connection
        self._deadline = math.inf  # of the request that is awaited
        self._is_ending = False

    # -- for subclasses ---------------------------------------------------------------------

    @abstractmethod
    def deployment(self, environ: Mapping[str, str]) -> D:
        """The deployment to run, with all its containers; `environ` is that of each of them. It has no client
        yet."""

    def keep_logs(self, deployment: D) -> Mapping[LocalContainer, Path]:
        """After a failed start: the logs that stay when everything has ended."""
        return {container: container.log for container in deployment.containers}

    def view(self, deployment: D, *, known: bool) -> ProgressDisplay:
        """The display of the containers: during the start, and (`known`) once all are up."""
        live = not known and terminal() is not None
        return ProgressView(self.rows, deployment.started_at, live=live, known=known)

    def show_when_up(self, deployment: D) -> None:
        """Print what is of interest once all are up."""
        self.show_places(deployment)

    # -- the whole run ------------------------------------------------------------------------------

    def main(self) -> int:
        """Run all stages and end everything; the exit status. 0 also for Ctrl-C once all are up."""
        logging.basicConfig(format=f"{self.program}: %(message)s", level=logging.ERROR)
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._receive)
        # A launcher may have blocked them until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        self._tick()
        try:
            return self._status()
        finally:
            self._is_ending = True
            self.end()
            try:
                sys.stdout.flush()
            except OSError:  # The reader has gone; Python would report that once more.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def _status(self) -> int:
        try:
            try:
                self.run()
            except (AgentError, OSError):
                # A child that Ctrl-C has ended looks like a failure.
                self.check_signals()
                raise
        except Stopped as stopped:
            return 0 if self.is_up and stopped.signum in GOOD_ENDS else stopped.status
        except Issues as error:
            for issue in error.issues:
                self.complain(f"{error.subject}: {issue}")
            if self.client is None:
                self.complain("nothing was started")
            return error.status
        except AgentError as error:
            self.complain(error.reason)
            return error.status
        except BrokenPipeError:
            return 128 + signal.SIGPIPE
        except OSError as error:  # The disk is full, for example.
            self.complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
            return CannotWrite.status
        return 0

    def run(self) -> None:
        """All stages."""
        if len(os.fsencode(self.directory)) + LONGEST_RUN_DIR > RUN_DIR_LIMIT:
            raise BadUsage(f"{self.directory} is too long for the sockets in it: choose a shorter one")
        # A killed run may have left processes: one that has changed its user survives.
        end_all(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o755)
        self.check_signals()
        environ = self._zookeeper_environ()
        config = self._settings(environ)
        self.prefix = config.prefix
        own = {"HOME": str(self.directory), "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
        deployment = self.deployment({**own, **environ})
        deployment.prepare()
        self.running = deployment
        self._start_zookeeper(environ["KOLLA_ZK_HOSTS"])
        deployment.client = self._connect(config)
        self._publish(deployment)
        self._start(deployment)
        self.is_up = True
        say("the timeline of the start")
        size = terminal()
        steps = self.aside(deployment.steps)
        print(critical_path.draw(steps, deployment.started_at, size.columns if size else critical_path.PAGE))
        self.show_when_up(deployment)
        if self.stays:
            self._stay(deployment)

    # -- the stages -------------------------------------------------------------------------------

    def _zookeeper_environ(self) -> Mapping[str, str]:
        """The variables for the servers of KOLLA_ZK_HOSTS, or else of a private one."""
        environ = {name: value for name, value in self.environ.items() if name.startswith("KOLLA_ZK_")}
        if not environ.get("KOLLA_ZK_HOSTS"):
            self.zookeeper = PrivateZooKeeper(self.directory / "zookeeper")
            environ.update(self.zookeeper.environ)
        return environ

    def _settings(self, environ: Mapping[str, str]) -> Settings:
        own = {
            "KOLLA_APP_ID": f"/{self.name}/{self.name}",
            "KOLLA_HOSTNAME": self.name,
            "KOLLA_ZK_CONNECT_TIMEOUT": "10",
            "KOLLA_SYSTEM_PREFIX": self.environ.get("KOLLA_SYSTEM_PREFIX", ""),
        }
        return settings.parse({**own, **environ})

    def _start_zookeeper(self, hosts: str) -> None:
        """Start the private ZooKeeper, unless another one is given."""
        server = self.zookeeper
        if server is None:
            say(f"ZooKeeper: {hosts}")
            return
        say(f"ZooKeeper: a private one at {hosts}")
        print(f"  its log: {short(server.log)}", flush=True)
        server.start()
        if not self.until(lambda: server.serves, ZOOKEEPER_TIMEOUT):
            raise AgentError(f"ZooKeeper does not serve after {ZOOKEEPER_TIMEOUT:g} s; {server.last_lines()}")

    def _connect(self, config: Settings) -> OperatorClient:
        self.client = client = connection.connect(config, self.loop)
        self.aside(lambda: check_chroot(client, config))
        if self.zookeeper is not None:
            server = self.zookeeper
            self.aside(lambda: server.secure(client))
        return client

    def _publish(self, deployment: D) -> None:
        self.aside(lambda: self._claim(deployment))
        say(f"publish {short(deployment.source)} to {deployment.path}")
        print(f"  {self.aside(deployment.publish)}")

    def _claim(self, deployment: D) -> None:
        """Create the deployment's znode. Of two concurrent runs only one succeeds."""
        client, path = deployment.client, deployment.path
        above = connection.create_parents(client, [path])
        try:
            connection.create(client, path, json.dumps({OF_UP: deployment.own_names}).encode())
        except NodeExistsError as error:
            raise BadUsage(
                f"{path} exists already in ZooKeeper: give another name (--deployment), or"
                " unset KOLLA_ZK_HOSTS to run with a private ZooKeeper"
            ) from error
        self._created = [path, *sorted(above, key=len, reverse=True)]

    def _start(self, deployment: D) -> None:
        say(f"starting {counted(len(deployment.containers), 'container')} at once")
        deployment.start(random.randrange(10**6))
        view = self.view(deployment, known=False)
        restarts = Restarts()

        def has_failed() -> bool:
            """Whether a container has ended for good. A member of a cluster may end while it joins."""
            for container in deployment.broken:
                if not deployment.has_election(container) or restarts.is_last(
                    container.name, container.status
                ):
                    return True
                if restarts.is_due(container.name, container.status):
                    container.restart()
            return False

        def settled() -> bool:
            view.show()
            return has_failed() or (deployment.seems_up and self.aside(lambda: deployment.is_up))

        is_settled = self.until(settled, self.timeout)
        view.show()
        if has_failed():
            raise Failed(self._why("the deployment did not come up", deployment))
        if not is_settled:
            raise DependenciesNotSatisfied(self._why(f"not up after {self.timeout:g} s", deployment))

    def _why(self, what: str, deployment: D) -> str:
        """What happened, the root causes, and the ends of the logs of containers that ended."""
        self.until(lambda: self.aside(lambda: deployment.broken_told), TOLD_TIMEOUT)
        znodes = Znodes(self.prefix, self.name, "", "")
        live = DeploymentReader(znodes, deployment.given)
        logs = self.keep_logs(deployment)
        seen, found = self.aside(
            lambda: explanation.look(
                lambda: _as_known_here(Mirror(deployment.client, live).deployment(), logs)
            )
        )
        lines = [line.whole().plain for line in explanation.lines(seen, found, ())]
        return "\n".join([what, *lines, *_log_ends(deployment, logs), STARTS_AGAIN])

    def rows(self) -> list[ProgressRow]:
        """A row for each container, and one for ZooKeeper if the connection was ever lost."""
        assert self.running is not None and self.client is not None
        rows = [row(container) for container in self.running.containers]
        away = not self.client.connected
        self._was_away = self._was_away or away
        if self._was_away:
            stage, text, instant = "away" if away else "back", "no connection" * away, time.time()
            rows.append(ProgressRow("ZooKeeper", stage, text, instant, instant))
        return rows

    def show_places(self, deployment: D) -> None:
        """Print where each container has its log and its files."""
        print("\nWhere to find things:")
        if len(deployment.containers) > PLACES_SHOWN:
            print(f"  {short(self.directory)}/<host>/<role>/  the log and the files of each container")
            return
        size = terminal()
        width = max(len(container.name) for container in deployment.containers)
        for container in deployment.containers:
            files = ["log", *deployment.rendered(container)]
            port = container.environ.get("KOLLA_PORTS")
            address = f"  {HOST}:{port}" if port else ""
            line = f"  {container.name:{width}}  {short(container.root)}/  {' '.join(files)}{address}"
            print(wrapped(line, size.columns, "      ") if size else line)

    def _stay(self, deployment: D) -> None:
        """Show each change; restart what ends, as a launcher does."""
        say("up; Ctrl-C ends it, and so does SIGTERM; with --once it ends by itself")
        view = self.view(deployment, known=True)
        restarts = Restarts()
        while True:
            view.show()
            for container in deployment.broken:
                if restarts.is_due(container.name, container.status):
                    container.restart()
            if self.zookeeper and self.zookeeper.has_ended and restarts.is_due("ZooKeeper"):
                self.zookeeper.start()
            self.check_signals()
            self.loop.sleep(LOOK_EVERY)

    # -- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """End everything that was started; remove the deployment from a shared ZooKeeper. Ignores signals."""
        if self.running is not None and self.running.processes():
            with suppress(OSError):  # The terminal is gone.
                say("ending all containers")
            # Without ZooKeeper, closing a session takes until its timeout.
            try:
                if self._is_connected():
                    self.running.drain()
                self.running.end(GRACE if self._is_connected() else SHORT_GRACE)
            except AgentError as error:
                self.complain(error.reason)
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

        def remove() -> None:
            for path in self._created:
                with suppress(ChangedMeanwhile):  # Others use the prefix too.
                    below = connection.below(client, [path]) if path is self._created[0] else []
                    connection.remove_all(client, [*below, path], {})

        try:
            self.aside(remove, CLEANUP_TIMEOUT)
        except AgentError:
            for path in self._created[:1]:
                self.complain(f"{path} may be left in ZooKeeper; remove it: deleteall {path}")
        client.close()

    # -- waiting, and signals -----------------------------------------------------------------------

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)

    def check_signals(self) -> None:
        """Raise Stopped if a signal has come."""
        if self._signals:
            signum = self._signals.pop(0)
            raise Stopped(signum, signal.Signals(signum).name)

    def _tick(self) -> None:
        """Check repeatedly for everything that ends a wait for ZooKeeper."""
        self.loop.call_at(now() + LOOK_EVERY, self._tick)
        if now() >= self._deadline:
            raise AgentError("no answer of ZooKeeper in time")
        if not self._is_ending:
            # First: a signal may be the reason why others have ended.
            self.check_signals()
            if not self.is_up and self.zookeeper and self.zookeeper.has_ended:
                raise AgentError(f"ZooKeeper has ended; {self.zookeeper.last_lines()}")

    def until(self, condition: Callable[[], T], seconds: float) -> T:
        """Wait until `condition()` is true or `seconds` have passed; returns its last value.

        Raises Stopped for a signal, and AgentError when the private ZooKeeper ends.
        """
        deadline = now() + seconds
        while True:
            self.check_signals()
            value = condition()
            left = deadline - now()
            if value or left <= 0:
                return value
            self.loop.sleep(min(LOOK_EVERY, left))

    def aside(self, work: Callable[[], T], seconds: float = REPLY_TIMEOUT) -> T:
        """The result of `work`, which asks ZooKeeper; AgentError after so many seconds."""
        self._deadline = now() + seconds
        try:
            return work()
        finally:
            self._deadline = math.inf

    def complain(self, text: str) -> None:
        """Print an error."""
        with suppress(OSError):  # The reader has gone.
            print(f"{self.program}: {text}", file=sys.stderr, flush=True)


class Restarts:
    """Decides when something that ended is started again, and prints that."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
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
            print(f"  {name}: starting it again in {delay:g} s{why}", flush=True)
        if instant < self._due[name]:
            return False
        del self._due[name]
        self._started[name] = instant
        return True


def _as_known_here(seen: LiveDeployment, logs: Mapping[LocalContainer, Path]) -> LiveDeployment:
    """The deployment with the exit statuses of daemons that replaced their agent, because we are their
    parent, and with the `logs` that stay."""
    statuses = {(each.service, each.host): each.status for each in logs if each.status is not None}
    places = {str(each.log): str(place) for each, place in logs.items()}

    def known(service: str, ended: EndedStart) -> EndedStart:
        ended = ended._replace(logs=places.get(ended.logs, ended.logs))
        status = statuses.get((service, ended.host))
        if ended.status is not None or status is None:
            return ended
        return ended._replace(status=status if status >= 0 else 128 - status)

    def present(each: Container) -> Container:
        return each._replace(logs=places.get(each.logs, each.logs))

    services = {
        name: service._replace(
            ended=tuple(known(name, ended) for ended in service.ended),
            containers=tuple(map(present, service.containers)),
        )
        for name, service in seen.services.items()
    }
    return seen._replace(services=services)


def _log_ends(deployment: LocalDeployment, logs: Mapping[LocalContainer, Path]) -> Iterator[str]:
    """The ends of the logs of the first containers that are broken."""
    for container in deployment.broken[:LOGS_SHOWN]:
        seen = row(container)
        log = re.sub(r"\n\{\"stage\": .*\}\n\Z", "\n", container.log_end())  # The cause is printed above.
        yield f"--- {seen.name}: {seen.stage} {seen.text}; the end of {logs[container]}:\n{log}"


def say(text: str) -> None:
    """Print the heading of a stage."""
    print(f"\n-- {text}", flush=True)


def short(path: Path) -> str:
    """The path as it can be typed in the working directory."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
