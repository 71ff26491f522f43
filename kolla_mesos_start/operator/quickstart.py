"""`bin/quickstart`: a whole deployment on this machine, in front of somebody who has never seen one.

    ZooKeeper -> publish -> start everything at once -> watch -> tell -> stay until Ctrl-C -> end

What lives here: the stages. The deployment is `site`'s, of the kind `jobs` or `keystone`; how it is
shown is `view`'s and `timeline`'s. Signals are looked at between two steps only: so there is no moment
at which something has been started and nobody knows of it.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, TimeoutError, wait
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Callable, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError, NotEmptyError

from kolla_mesos_start import settings
from kolla_mesos_start.errors import AgentError, BadUsage, CannotWrite, Stopped
from kolla_mesos_start.operator import connection, openstack, timeline, zookeeper
from kolla_mesos_start.operator.containers import AGENT, DIES_WITH_US, end_all
from kolla_mesos_start.operator.jobs import Jobs
from kolla_mesos_start.operator.keystone import Keystone, Users
from kolla_mesos_start.operator.site import Site
from kolla_mesos_start.operator.view import Row, View, row, terminal
from kolla_mesos_start.operator.zookeeper import HOST, free_port
from kolla_mesos_start.settings import RUN_DIR_LIMIT

T = TypeVar("T")
ID = "quickstart"
ZKCLI = "/usr/share/zookeeper/bin/zkCli.sh"
LOOK_EVERY, ASK_AGAIN = 0.05, 0.3  # seconds
START_LIMIT, ZOOKEEPER_LIMIT, ANSWER_LIMIT, TAKE_BACK_LIMIT = 600.0, 60.0, 60.0, 5.0  # seconds
GRACE, SHORT_GRACE = 10.0, 1.0  # seconds between TERM and KILL
RESTART_AFTER = 1.0  # seconds; as a launcher does
TRY = """
What to try next, in another terminal; this one tells what happens:
  kill {victim}; it is started again, and passes by what is done:
    {kill}
  look at a znode, that of the one-time command for instance:
    {get}
  ask {asked} how it is:
    KOLLA_RUN_DIR={run_dir} {agent} health --ready"""
LONGEST_RUN_DIR = len("/run/99")  # bytes
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Show the deployment that the command line names, and exit; 0 also for Ctrl-C once all is up."""
    logging.basicConfig(format="quickstart: %(message)s", level=logging.ERROR)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="bin/quickstart")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--keystone", action="store_true")
    options = parser.parse_args(sys.argv[2:])
    stays = not options.once and sys.stdin.isatty()
    quickstart = Quickstart(options.directory, Keystone if options.keystone else Jobs, stays)
    try:
        status = quickstart.status()
    finally:
        quickstart.end()
        try:
            sys.stdout.flush()
        except OSError:  # Nobody reads it; Python would complain of that once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)


class Quickstart:
    """One deployment, from nothing to nothing; what it leaves in `directory` stays to be looked at."""

    def __init__(self, directory: Path, kind: type[Keystone] | type[Jobs], stays: bool) -> None:
        """`stays`: it waits for Ctrl-C once all is up."""
        self.home = directory
        self.directory = directory / "site"
        self.kind, self.stays = kind, stays
        self.is_up = False
        self.zookeeper: subprocess.Popen[bytes] | None = None
        self.client: KazooClient | None = None
        self.site: Site | None = None
        self.prefix = ""
        self.made: list[str] = []  # znodes, deepest first
        self._was_away = False
        self.signals: list[int] = []  # that have come and were not looked at yet
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._note)
        # A mask is inherited: bin/quickstart has blocked SIGINT.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signals.append(signum)

    def _check_signals(self) -> None:
        """Raise Stopped if a signal has come."""
        if self.signals:
            signum = self.signals.pop(0)
            raise Stopped(signum, signal.Signals(signum).name)

    def status(self) -> int:
        """Run all stages; the exit status, and what is wrong told."""
        try:
            try:
                self.run()
            except (AgentError, OSError):
                # What Ctrl-C has ended before it has left our process group looks like a failure.
                self._check_signals()
                raise
        except Stopped as stopped:
            return 0 if self.is_up and stopped.signum == signal.SIGINT else stopped.status
        except AgentError as error:
            tell(error.reason)
            return error.status
        except BrokenPipeError:
            return 128 + signal.SIGPIPE
        except OSError as error:  # The disk is full, for one.
            tell(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
            return CannotWrite.status
        return 0

    def run(self) -> None:
        """All stages."""
        _check_place(self.directory, self.kind)
        path = self._programs()
        end_all(self.directory)  # Of one that was killed: whoever changes its user survives that.
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o755)
        environ = self._zookeeper_environ()
        client = self._connect(environ)
        site = self._publish(client, {**environ, "PATH": path})
        self._start(site)
        self.is_up = True
        say("the timeline of the start")
        size = terminal()
        steps = self._aside(site.steps)
        print(timeline.drawn(steps, site.started_at, size.columns if size else timeline.PAGE))
        say("a request and its answer")
        for line in self._aside(lambda: list(site.request())):
            print(f"  {line}")
        for line in self._directions(site):
            print(line)
        if self.stays:
            self._stay(site)

    # -- the stages -----------------------------------------------------------------------------

    def _programs(self) -> str:
        """Install what the deployment runs; returns the PATH of its containers."""
        path = os.environ["PATH"]
        if self.kind is not Keystone:
            return path
        openstack.install_packages(say)
        self._check_signals()
        return f"{openstack.keystone_environment(self.home / 'cache', say)}:{openstack.SYSTEM_PATH}"

    def _zookeeper_environ(self) -> Mapping[str, str]:
        """How to reach the ensemble that KOLLA_ZK_HOSTS names, or a private one, which is started."""
        environ = {name: value for name, value in os.environ.items() if name.startswith("KOLLA_ZK_")}
        if environ.get("KOLLA_ZK_HOSTS"):
            say(f"ZooKeeper: {environ['KOLLA_ZK_HOSTS']}")
            return environ
        home, port = self.directory / "zookeeper", free_port()
        home.mkdir()
        zookeeper.configure(home / "zoo.cfg", {"dataDir": "./data", "clientPort": port})
        say(f"ZooKeeper: a private one at {HOST}:{port}")
        print(f"  its log: {short(home / 'log')}", flush=True)
        self._start_zookeeper()

        def serves() -> bool:
            # A connection of the moment in which the server begins to listen is never answered.
            return "Mode:" in self._aside(lambda: zookeeper.ask(port, "srvr", ASK_AGAIN))

        if not self._until(serves, ZOOKEEPER_LIMIT):
            raise AgentError(f"ZooKeeper does not serve; {self._zookeeper_said()}")
        return {**environ, "KOLLA_ZK_HOSTS": f"{HOST}:{port}"}

    def _start_zookeeper(self) -> None:
        home = self.directory / "zookeeper"
        with (home / "log").open("ab") as log:
            self.zookeeper = subprocess.Popen(
                (*DIES_WITH_US, *zookeeper.JAVA, zookeeper.SERVER, "./zoo.cfg"),
                # There a path of other letters than Latin ones, or with a backslash, becomes another one.
                cwd=home,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _zookeeper_said(self) -> str:
        log = self.directory / "zookeeper" / "log"
        return "\n".join([f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-12:]])

    def _zookeeper_ended(self) -> bool:
        return self.zookeeper is not None and self.zookeeper.poll() is not None

    def _connect(self, environ: Mapping[str, str]) -> KazooClient:
        words = {"KOLLA_APP_ID": f"/{ID}/{ID}", "KOLLA_HOSTNAME": ID, "KOLLA_ZK_CONNECT_TIMEOUT": "10"}
        words["KOLLA_SYSTEM_PREFIX"] = os.environ.get("KOLLA_SYSTEM_PREFIX", "")
        config = settings.parse({**words, **environ})
        self.prefix = config.prefix
        self.client = client = self._aside(lambda: connection.connect(config), math.inf)
        return client

    def _publish(self, client: KazooClient, environ: Mapping[str, str]) -> Site:
        path = f"{self.prefix}/{ID}"
        above = [path, *map(str, PurePosixPath(path).parents)][:-1]
        found = self._aside(lambda: connection.read(client, above))
        if found[path] is not None:
            raise BadUsage(
                f"{path} is there already, another quickstart's perhaps; remove it: deleteall {path}"
            )
        self.made = [each for each in above if found[each] is None]
        places = {"HOME": str(self.directory), "LANG": "C.UTF-8"}
        self.site = site = self.kind(self.directory, client, {**places, **environ}, self.prefix, ID)
        say(f"publish {short(site.example)} to {path}")
        print(f"  {self._aside(site.publish).splitlines()[-1].rpartition(': ')[2]}")
        return site

    def _start(self, site: Site) -> None:
        say(f"start {len(site.containers)} containers at the same moment, in no order")
        site.start(random.randrange(10**6))
        view = View(self._rows, site.started_at, live=terminal() is not None)

        def settled() -> bool:
            view.show()
            return bool(site.broken) or (site.seems_up and self._aside(lambda: site.is_up))

        if not self._until(settled, START_LIMIT) or site.broken:
            raise AgentError("\n".join(["the deployment did not come up", *_told(site)]))
        view.show()

    def _rows(self) -> list[Row]:
        """What there is to be seen: the containers, and ZooKeeper once it has been away."""
        assert self.site is not None and self.client is not None
        rows = [row(container) for container in self.site.containers]
        away = not self.client.connected
        self._was_away = self._was_away or away
        if self._was_away:
            stage, text, instant = "away" if away else "back", "no connection" * away, time.time()
            rows.append(Row("ZooKeeper", stage, text, instant, instant))
        return rows

    def _directions(self, site: Site) -> Iterator[str]:
        yield from ("", "Where things lie:")
        width = max(len(container.name) for container in site.containers)
        for container in site.containers:
            files = ["log", *site.rendered(container)]
            yield f"  {container.name:{width}}  {short(container.root)}/  {' '.join(files)}"
        if not self.stays:
            return
        asked, detail = site.containers[-1], f"{site.path}/status/global/{site.once}/detail"
        zkcli = ZKCLI if Path(ZKCLI).exists() else "zkCli.sh"
        yield TRY.format(
            victim=site.victim.name,
            kill=f"kill -9 {site.victim.pid}",
            get=f"{zkcli} -server {site.environ['KOLLA_ZK_HOSTS']} get {detail}",
            asked=asked.name,
            run_dir=shlex.quote(short(asked.run_dir)),
            agent=shlex.join(short(Path(word)) for word in AGENT),
        )

    def _stay(self, site: Site) -> None:
        """Tell each change; start again what ends, as a launcher does."""
        say("up; Ctrl-C ends it")
        view = View(self._rows, site.started_at, live=False, known=True)
        due: dict[object, float] = {}

        def is_due(ended: object) -> bool:
            return time.monotonic() >= due.setdefault(ended, time.monotonic() + RESTART_AFTER) and bool(
                due.pop(ended)
            )

        while True:
            view.show()
            for container in site.broken:
                if is_due(container):
                    container.start()
            if self._zookeeper_ended() and is_due(self.zookeeper):
                self._start_zookeeper()
            self._check_signals()
            time.sleep(LOOK_EVERY)

    # -- the end --------------------------------------------------------------------------------

    def end(self) -> None:
        """End all that was started, and take back what was written elsewhere. A signal changes nothing."""
        if self.site is not None and self.site.processes():
            with suppress(OSError):  # The terminal is gone.
                say("ending all containers")
            # Whoever is registered waits for ZooKeeper to say goodbye, for a session at most.
            away = self._zookeeper_ended() or not (self.client and self.client.connected)
            self.site.end(SHORT_GRACE if away else GRACE)
        if self.zookeeper is not None:
            self.zookeeper.kill()
            self.zookeeper.wait()
        elif self.client is not None and self.made:
            self._take_back(self.client)

    def _take_back(self, client: KazooClient) -> None:
        def work() -> None:
            for path in self.made:
                with suppress(NoNodeError, NotEmptyError):  # Never written; or others use the prefix too.
                    client.delete(path, recursive=path is self.made[0])

        try:
            begun(work).result(TAKE_BACK_LIMIT)
        except (KazooException, TimeoutError):
            tell(f"{self.made[0]} may be left in ZooKeeper; remove it: deleteall {self.made[0]}")

    # -- waiting --------------------------------------------------------------------------------

    def _until(
        self, condition: Callable[[], T], seconds: float, pause: Callable[[float], object] = time.sleep
    ) -> T:
        """Look again and again until `condition()` is true, `seconds` at most; Stopped by a signal."""
        deadline = time.monotonic() + seconds
        while True:
            # First, since a signal comes before whatever it has done to others.
            self._check_signals()
            value = condition()
            left = deadline - time.monotonic()
            if value or left <= 0:
                return value
            if self._zookeeper_ended():
                raise AgentError(f"ZooKeeper has ended; {self._zookeeper_said()}")
            pause(min(LOOK_EVERY, left))

    def _aside(self, work: Callable[[], T], seconds: float = ANSWER_LIMIT) -> T:
        """The result of what may block; meanwhile signals are heard."""
        future = begun(work)
        if not self._until(future.done, seconds, lambda pause: wait([future], pause)):
            raise AgentError(f"no answer within {seconds:g} s")
        try:
            return future.result()
        except KazooException as error:
            raise AgentError(f"ZooKeeper: {type(error).__name__}") from error


def begun(work: Callable[[], T]) -> Future[T]:
    """The result to come of `work`, which runs in a thread that nobody has to wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _told(site: Site) -> Iterator[str]:
    """What those say that have ended, or where none has, all of them."""
    for container in site.broken or site.containers:
        seen = row(container)
        yield f"--- {seen.name}: {seen.stage} {seen.text}; the end of {container.log}:\n{container.said()}"


def _check_place(directory: Path, kind: type[Keystone] | type[Jobs]) -> None:
    """Refuse a directory in which the containers can't work."""
    if len(os.fsencode(directory)) + LONGEST_RUN_DIR > RUN_DIR_LIMIT:
        raise BadUsage(f"{directory} is too long for the sockets in it: choose a shorter DIRECTORY")
    if kind is not Keystone:
        return
    if not re.fullmatch(r"[\w./@+-]*", str(directory), re.ASCII):
        raise BadUsage(f"{directory} can't stand in the config files of servers: choose another DIRECTORY")
    if os.geteuid() == 0:
        for path in directory.parents:
            if not path.stat().st_mode & stat.S_IXOTH:
                user = Users.here().mariadb
                raise BadUsage(f"MariaDB's user, {user}, can't enter {path}: choose another DIRECTORY")


def tell(text: str) -> None:
    """Say what is wrong, if anybody listens."""
    with suppress(OSError):
        print(f"quickstart: {text}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    print(f"\n-- {text}", flush=True)


def short(path: Path) -> str:
    """The path as it can be typed here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
