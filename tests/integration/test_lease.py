"""The lease of one-time commands, drilled: whatever is cut off, stopped or killed, never two at a time.

In a drill every holder is struck at the same moment, each in a way of its own, while somebody else
waits for its lock. When they ran is what the commands have written down themselves, by the clock
of the machine that is never set.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Callable, NamedTuple

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionExpiredError
from kolla_mesos_start.container import Container

from kolla_mesos_start import settings
from kolla_mesos_start.commands import guard
from kolla_mesos_start.commands.bootstrap import Bootstrap, Renewals
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.zookeeper import client as session
from kolla_mesos_start.zookeeper.ephemerals import Ephemerals
from kolla_mesos_start.zookeeper.watches import Watches
from tests import own_network
from tests.agents import Agent, Containers
from tests.conftest import Deployment, connected, made
from tests.guarded import PATH, guard_of, lives
from tests.integration.test_files import Home
from tests.integration.test_files import home as home
from tests.integration.test_lost_sync import SYNC
from tests.integration.test_record import Bench, Interrupted
from tests.integration.test_record import bench as bench
from tests.integration.test_record import ensemble as ensemble
from tests.link import Link
from tests.publishing import publish
from tests.tap import Tap, read_packet
from tests.waiting import eventually
from tests.zookeeper import Ensemble, Server

TIMEOUT = 4.0  # seconds: the least that a server of stock settings grants
HOLDER, TAKER = "holder", "taker"


# -- the drill: at small ticks, and at those that ZooKeeper comes with ------------------------------

TICKS: Mapping[str, Mapping[str, object]] = {"small": {}, "stock": {"tickTime": 2000, "syncLimit": 5}}

# Says every few milliseconds that it is there, until it is let go.
BEATS = """
import os, time
host, token = os.environ["KOLLA_HOSTNAME"], os.environ["KOLLA_FENCING_TOKEN"]
previous = os.environ.get("KOLLA_PREVIOUS_ATTEMPT", "none")
with open("{path}/beats", "a", buffering=1) as beats:
    while not os.path.exists("{path}/go"):
        print(host, os.getpid(), token, previous, time.monotonic(), file=beats)
        time.sleep(0.002)
"""


class Run(NamedTuple):
    """A run of a command, from the `first` of its beats to the `last`."""

    host: str
    pid: int
    token: int
    previous: str
    first: float
    last: float


class Plight(NamedTuple):
    """What befalls a holder: `way` is how it reaches ZooKeeper until then."""

    way: Callable[[Drill], str]
    strike: Callable[[Drill, Agent], object]
    in_own_network: bool = False


def stop_guard(drill: Drill, agent: Agent) -> None:
    """The agent has to find out by itself then that it is cut off, and to end the command."""
    guard_of(agent.pid).suspend()
    drill.link.freeze()


PLIGHTS: Mapping[str, Plight] = {
    # Its server goes on answering it, but knows nothing any more.
    "follower-cut-off": Plight(lambda it: it.follower.hosts, lambda it, _: it.ensemble.cut(it.follower)),
    "observer-cut-off": Plight(lambda it: it.observer.hosts, lambda it, _: it.ensemble.cut(it.observer)),
    "server-stopped": Plight(lambda it: it.stopped.hosts, lambda it, _: it.stopped.freeze()),
    "packets-dropped": Plight(
        lambda it: it.leader.hosts, lambda it, agent: own_network.cut(agent.pid), in_own_network=True
    ),
    "agent-stopped": Plight(lambda it: it.leader.hosts, lambda it, agent: agent.signal(signal.SIGSTOP)),
    "agent-killed": Plight(lambda it: it.leader.hosts, lambda it, agent: agent.signal(signal.SIGKILL)),
    "guard-stopped": Plight(lambda it: it.link.hosts, stop_guard),
}


def answers(client: KazooClient) -> bool:
    """Whether the server that this client has been connected to has an answer for it."""
    try:
        return client.exists_async("/").get(timeout=1) is not None
    except (ConnectionLoss, SessionExpiredError, client.handler.timeout_exception):
        return False


class Drill:
    """For each plight a service with two containers: a holder, and one that waits for its lock.

    Three servers vote, two observe. Those that wait reach the leader.
    """

    def __init__(self, ensemble: Ensemble, zk: KazooClient, deployment: Deployment, path: Path) -> None:
        self.ensemble: Ensemble = ensemble
        self.zk = zk
        self.deployment = deployment
        self.path = path
        self.leader: Server = ensemble.leader
        self.follower: Server = ensemble.followers[0]
        self.observer: Server = ensemble.observers[0]
        self.stopped: Server = ensemble.observers[1]
        self.link: Link = Link(self.leader, path / "link.log")
        self.containers = Containers(path / "c", deployment.environ)
        self.holders: dict[str, Agent] = {}
        self.takers: dict[str, Agent] = {}
        self.struck_at = 0.0
        self.answered: dict[str, bool] = {}
        (path / "batch").touch()

    def run(self) -> None:
        """Up to where every command has been taken over."""
        for name, plight in PLIGHTS.items():
            self._publish(name)
            self.holders[name] = self._start(name, HOLDER, plight.way(self), plight.in_own_network)
        self._await_runs(1)
        for name in PLIGHTS:
            self.takers[name] = self._start(name, TAKER, self.leader.hosts)
        eventually(lambda: all(map(self._is_wanted, PLIGHTS)), "all the locks are wanted", seconds=60)

        commands = [self.runs(name)[0].pid for name in PLIGHTS]
        with (
            contextmanager(connected)(self.follower) as one,
            contextmanager(connected)(self.observer) as other,
        ):
            self.struck_at = time.monotonic()
            for name, plight in PLIGHTS.items():
                plight.strike(self, self.holders[name])
            eventually(lambda: not any(map(lives, commands)), "the holders' commands are gone")
            self.answered = {"follower": answers(one), "observer": answers(other)}
            self._await_runs(2)
            self.relieve()

    def relieve(self) -> None:
        """Take everything back."""
        self.ensemble.mend()
        self.link.thaw()
        own_network.heal(self.holders["packets-dropped"].pid)
        self.holders["agent-stopped"].signal(signal.SIGCONT)

    def let_go(self) -> None:
        """Let the commands end."""
        for name in PLIGHTS:
            (self.path / name / "go").touch()

    def end(self) -> None:
        self.containers.end()
        self.link.kill()

    def runs(self, name: str) -> list[Run]:
        """What the beats tell, in the order of the first ones."""
        found: dict[int, Run] = {}
        file = self.path / name / "beats"
        for line in file.read_text().splitlines() if file.exists() else []:
            host, pid, token, previous, at = line.split()
            run = Run(host, int(pid), int(token), previous, float(at), float(at))
            found[run.pid] = found.get(run.pid, run)._replace(last=run.last)
        return list(found.values())

    def _publish(self, name: str) -> None:
        (self.path / name).mkdir()
        command = [sys.executable, "-I", "-S", "-c", BEATS.format(path=self.path / name)]
        publish(self.deployment, name, {"commands": {"sync": {"command": command, "run_once": True}}})

    def _start(self, name: str, host: str, way: str, in_own_network: bool = False) -> Agent:
        own = (sys.executable, own_network.__file__, f"{self.leader.port}", f"{self.path / 'batch'}")
        return self.containers.start(
            name,
            host,
            under=own if in_own_network else (),
            KOLLA_ZK_HOSTS=way,
            KOLLA_ZK_SESSION_TIMEOUT=f"{TIMEOUT:g}",
            KOLLA_PRIVATE_INTERFACE="lo",
            KOLLA_PUBLIC_INTERFACE="lo",
        )

    def _await_runs(self, count: int) -> None:
        eventually(
            lambda: all(len(self.runs(name)) == count for name in PLIGHTS), f"run {count} of each", seconds=60
        )

    def _is_wanted(self, name: str) -> bool:
        return len(self.zk.get_children(f"{self.deployment.path}/status/global/{name}/sync/lock")) == 2


@pytest.fixture(scope="module", params=TICKS)
def drill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """A drill that has come to where every command has been taken over, and all is well again."""
    path = tmp_path_factory.mktemp("d")
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(path / "zk", observers=2, settings=TICKS[request.param]))
        zk = stack.enter_context(contextmanager(connected)(ensemble.leader))
        deployment = stack.enter_context(contextmanager(made)(ensemble, zk))
        drill = Drill(ensemble, zk, deployment, path)
        stack.callback(drill.end)
        drill.run()
        yield drill


@pytest.mark.parametrize("plight", PLIGHTS)
def test_never_two_at_a_time(drill: Drill, plight: str) -> None:
    """The old command is gone before another replica's begins, which is told that it was unfinished."""
    old, new = drill.runs(plight)
    print(
        f"gone {old.last - drill.struck_at:.3f} s after the strike, {new.first - old.last:.3f} s before "
        "another one began"
    )
    assert (old.host, new.host) == (HOLDER, TAKER)
    assert old.last < new.first
    assert old.token < new.token
    assert (old.previous, new.previous) == ("none", "unfinished")


def test_a_server_that_is_cut_off_still_answers(drill: Drill) -> None:
    """When the commands of those who are connected there are gone: no connection had to break for that."""
    assert drill.answered == {"follower": True, "observer": True}


def test_whoever_lives_on_passes(drill: Drill) -> None:
    """The takers finish, and the holders that were struck go on behind them, without another run."""
    drill.let_go()
    assert {name: agent.ends() for name, agent in drill.takers.items()} == dict.fromkeys(PLIGHTS, 0)
    statuses = {name: agent.ends() for name, agent in drill.holders.items()}
    assert statuses == {**dict.fromkeys(PLIGHTS, 0), "agent-killed": 128 + signal.SIGKILL}
    assert {len(drill.runs(name)) for name in PLIGHTS} == {2}


# -- renewals: what counts as one ---------------------------------------------------------------------

SHORT = 2.0  # seconds


class Slow(Tap):
    """Holds back for `delay` seconds whatever renews a lease: the replies to connections, and to `sync`.

    `connected`, `asked`: when each of them was asked for. `most`: so many `sync` were on their way at a time.
    """

    def __init__(self, server: Server, delay: float) -> None:
        super().__init__(server, "", lambda: None)
        self.delay = delay
        self.connected: list[float] = []
        self.asked: list[float] = []
        self.most = 0
        self._syncs: dict[bytes, None] = {}

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        self.connected.append(now())
        self._syncs.clear()
        with suppress(OSError):
            while packet := read_packet(client):
                if packet[8:12] == SYNC:
                    self.asked.append(now())
                    self._syncs[packet[4:8]] = None
                    self.most = max(self.most, len(self._syncs))
                server.sendall(packet)
        server.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            time.sleep(self.delay)
            while packet := read_packet(server):
                if packet[4:8] in self._syncs:
                    time.sleep(self.delay)
                    self._syncs.pop(packet[4:8], None)
                client.sendall(packet)
        client.close()


class Renewing:
    """A session behind a slow line, and what its renewals have made of its lease."""

    def __init__(self, deployment: Deployment, slow: Slow) -> None:
        environ = deployment.environ("db", KOLLA_ZK_HOSTS=slow.hosts, KOLLA_ZK_SESSION_TIMEOUT=f"{SHORT:g}")
        self.slow = slow
        self.loop = Loop()
        self.ensemble = session.Ensemble(settings.parse(environ), self.loop)
        self.ensemble.connect()
        self.renewals = Renewals(self.ensemble, deployment.path, wanted=True)
        self.proofs = [self.proof()]
        self.renewals.renewed = lambda: self.proofs.append(self.proof())

    def proof(self) -> tuple[float, float]:
        """From when the lease counts, and from when it may count at most."""
        lease = self.renewals.lease
        latest = max([self.slow.connected[-1], *(at - SHORT / 4 for at in self.slow.asked[-1:])])
        return lease.deadline + lease.margin - SHORT, latest


@pytest.fixture
def renewing(request: pytest.FixtureRequest, zookeeper: Server, deployment: Deployment) -> Iterator[Renewing]:
    """The parameter is by how much the line is slow."""
    slow = Slow(zookeeper, request.param)
    renewing = Renewing(deployment, slow)
    yield renewing
    renewing.ensemble.close()
    slow.close()


@pytest.mark.parametrize("renewing", [SHORT / 9, SHORT / 3], indirect=True)
def test_a_lease_counts_from_what_was_sent_long_before_the_last_reply(renewing: Renewing) -> None:
    """Never from when a reply came; and however late they come, one is awaited at a time."""
    assert renewing.loop.wait(lambda: len(renewing.proofs) > 4, now() + 30)
    assert [counts for counts, latest in renewing.proofs if counts > latest] == []
    assert renewing.proofs[-1] > renewing.proofs[0]
    assert renewing.slow.most == 1


@pytest.mark.parametrize("renewing", [SHORT / 3], indirect=True)
def test_a_sync_that_fails_with_its_connection_renews_nothing(renewing: Renewing) -> None:
    """What does is the connection that follows."""
    slow = renewing.slow
    asked = len(slow.asked)
    assert renewing.loop.wait(lambda: len(slow.asked) > asked + 1, now() + 30)
    proofs = len(renewing.proofs)
    renewing.ensemble.drop_connection()
    assert renewing.loop.wait(lambda: len(renewing.proofs) > proofs, now() + 30)
    assert len(slow.connected) == 2
    assert renewing.proofs[-1][0] <= slow.connected[-1]


# -- ends: nobody else begins before all is gone -----------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped"])
def test_what_cannot_be_killed_ends_the_agent_but_not_its_session(
    zk: KazooClient, deployment: Deployment, containers: Containers, home: Home, stopped: bool
) -> None:
    """A command that is another user's, as with sudo: the container has to end, nobody begins sooner.

    An agent that was stopped meanwhile has the guard's word of it, one that was not may find out by itself.
    """
    become_root, pid_file = home.path / "become-root", home.path / "pid"
    shutil.copy(shutil.which("setpriv") or "", become_root)
    become_root.chmod(0o4755)
    script = f"echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 1000"
    command = {"command": [f"{become_root}", "--reuid", "0", "sh", "-c", script], "run_once": True}
    publish(deployment, "db", {"commands": {"sync": command}, "service": {"daemon": {"command": "true"}}})
    timeout = f"{SHORT:g}"
    agent = containers.start("db", under=home.launcher, KOLLA_ZK_SESSION_TIMEOUT=timeout, **home.environ)
    eventually(pid_file.exists, "it runs")
    pid = int(pid_file.read_text())
    lock = f"{deployment.path}/status/global/db/sync/lock"
    (contender,) = zk.get_children(lock)
    zk.delete(f"{lock}/{contender}")
    agent.says("the lock is lost: killing the command")
    if stopped:
        agent.signal(signal.SIGSTOP)
        told = now() + 1.5 * SHORT
        eventually(lambda: now() > told, "the guard has told it when the lease was over")
        agent.signal(signal.SIGCONT)
    assert agent.ends() == 70
    # Its session is left to expire: what it has there stays for as long.
    assert stopped or zk.get_children(f"{deployment.path}/db/.party")
    assert "can't be killed" in agent.ending["reason"]
    assert b'"attempt": 1,' in zk.get(f"{deployment.path}/status/global/db/sync/detail")[0]
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)


def test_the_session_is_not_closed_while_a_command_lives(
    zk: KazooClient, ensemble: Interrupted, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the agent, and however long the guard takes: here it is stopped."""
    monkeypatch.setattr(guard, "KILL_TIMEOUT", 0.3)
    container = Container()
    container.ensemble = ensemble
    renewals = Renewals(ensemble, "/", wanted=False)
    container.bootstrap = Bootstrap(ensemble, Watches(ensemble), bench.records, renewals, {})
    container.bootstrap.guard.spawn(["sleep", "1000"], PATH)
    above = psutil.Process(container.bootstrap.guard.pid)
    eventually(above.children, "it runs")
    (command,) = above.children()
    above.suspend()

    contender = bench.at(bench.commands[0]).lock + "/contender"
    ensemble.client.create(contender, ephemeral=True)
    lived: list[bool] = []

    @zk.DataWatch(contender)  # type: ignore[untyped-decorator]
    def changed(data: bytes | None, stat: object) -> None:
        if stat is None:
            lived.append(lives(command.pid))

    container.close()
    eventually(lambda: lived, "the lock is given back")
    assert lived == [False]


def test_what_the_server_would_hang_up_on_is_refused_here(
    ensemble: Interrupted, deployment: Deployment
) -> None:
    """By name and at once: a lost connection would be made anew, and the same sent again, for ever."""
    path = f"{deployment.path}/large"
    ensemble.transaction(lambda writes: writes.create(path, b"x" * 1_000_000), "large")
    told = f"{path}: 1000001 bytes are more than ZooKeeper takes"
    with pytest.raises(AgentError, match=told):
        ensemble.transaction(lambda writes: writes.set_data(path, b"x" * 1_000_001), "larger")
    with pytest.raises(AgentError, match=told):
        Ephemerals(ensemble).keep(path, b"x" * 1_000_001)
