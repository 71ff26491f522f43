"""The lease of one-time commands: whatever is cut off, stopped or killed, never two run at the same time.

In a drill, something different happens to each holder at the same moment, while another container waits for
its lock. The commands record themselves when they run, by a clock of the machine that is never set.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Callable, NamedTuple

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from kolla_mesos_start.agent import Agent as Start
from kolla_mesos_start.commands import guard
from kolla_mesos_start.commands.bootstrap import Bootstrap, HeldLock
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.zookeeper.client import Client
from tests.agent.test_files import Home
from tests.agent.test_files import home as home
from tests.agent.test_one_time import Site
from tests.agent.test_one_time import site as site
from tests.conftest import Deployment, connected, made
from tests.server.test_attempts import Bench, Interrupted
from tests.server.test_attempts import bench as bench
from tests.server.test_attempts import client as client
from tests.server.test_session import EPHEMERAL, MULTI, servers
from tests.support import own_network
from tests.support.agents import Agent, Containers
from tests.support.guarded import PATH, guard_of, lives
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tap import Tap, read_packet
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble, Server

TIMEOUT = 4.0  # seconds: the least that a server of stock settings grants
HOLDER, TAKER = "holder", "taker"


# -- the drill: at small ticks, and at those that ZooKeeper comes with ------------------------------

TICKS: Mapping[str, Mapping[str, object]] = {"small": {}, "stock": {"tickTime": 2000, "syncLimit": 5}}

# Records every few milliseconds that it runs, until it may end.
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
    """What happens to a holder. `way`: how it reaches ZooKeeper; `takers_way`: how the other one does."""

    way: Callable[[Drill], str]
    strike: Callable[[Drill, Agent], object]
    in_own_network: bool = False
    takers_way: Callable[[Drill], str] = lambda it: it.leader.hosts
    finish: Callable[[Drill], object] = lambda it: None  # once the holder's command is gone


def stop_guard(drill: Drill, agent: Agent) -> None:
    """The agent has to notice by itself that it is cut off, and to end the command."""
    guard_of(agent.pid).suspend()
    drill.link.freeze()


PLIGHTS: Mapping[str, Plight] = {
    # Its server still answers it, but learns nothing.
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


DESERTED: Mapping[str, Plight] = {
    # It still answers reads, pings and syncs of its own clients, and commits nothing.
    "leader-deserted": Plight(
        lambda it: it.link.hosts,
        lambda it, _: it.ensemble.desert(),
        takers_way=lambda it: ",".join(server.hosts for server in it.followers),
        # On a busy machine the others may need so long that the leader, and the holder, are back before.
        finish=lambda it: it.link.freeze(),
    ),
}


def answers(client: KazooClient) -> bool:
    """Whether the server that this client has been connected to has an answer for it."""
    try:
        return client.exists_async("/").get(timeout=1) is not None
    except (ConnectionLoss, SessionExpiredError, client.handler.timeout_exception):
        return False


class Drill:
    """For each plight a service with two containers: a holder, and one that waits for its lock.

    `witnesses`: servers that answer their clients up to the end of the holders' commands at least.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        zk: KazooClient,
        deployment: Deployment,
        path: Path,
        plights: Mapping[str, Plight],
    ) -> None:
        self.ensemble: Ensemble = ensemble
        self.zk = zk
        self.deployment = deployment
        self.path = path
        self.plights = plights
        self.leader: Server = ensemble.leader
        self.followers: list[Server] = ensemble.followers
        self.observers: list[Server] = ensemble.observers
        self.link: Link = Link(self.leader, path / "link.log")
        self.containers = Containers(path / "c", deployment.environ)
        self.holders: dict[str, Agent] = {}
        self.takers: dict[str, Agent] = {}
        self.struck_at = 0.0
        self.answered: list[bool] = []
        (path / "batch").touch()

    @property
    def follower(self) -> Server:
        return self.followers[0]

    @property
    def observer(self) -> Server:
        return self.observers[0]

    @property
    def stopped(self) -> Server:
        return self.observers[1]

    def run(self, witnesses: Sequence[Server], age: float = TIMEOUT) -> None:
        """Up to where every command has been taken over. It has run for `age` seconds when it is struck: for
        less than a session's timeout nothing but its claim may be proved."""
        for name, plight in self.plights.items():
            self._publish(name)
            self.holders[name] = self._start(name, HOLDER, plight.way(self), plight.in_own_network)
        self._await_runs(1)
        for name, plight in self.plights.items():
            self.takers[name] = self._start(name, TAKER, plight.takers_way(self))
        eventually(lambda: all(map(self._is_wanted, self.plights)), "all the locks are wanted", seconds=60)

        eventually(lambda: all(self._age(name) >= age for name in self.plights), "they have run for so long")
        commands = [self.runs(name)[0].pid for name in self.plights]
        with ExitStack() as stack:
            clients = [stack.enter_context(contextmanager(connected)(server)) for server in witnesses]
            self.struck_at = time.monotonic()
            for name, plight in self.plights.items():
                plight.strike(self, self.holders[name])
            eventually(lambda: not any(map(lives, commands)), "the holders' commands are gone")
            self.answered = [answers(client) for client in clients]
            for plight in self.plights.values():
                plight.finish(self)
            self._await_runs(2)
            self.relieve()

    def relieve(self) -> None:
        """Undo everything."""
        self.ensemble.mend()
        self.link.thaw()
        for name, agent in self.holders.items():
            if self.plights[name].in_own_network:
                own_network.heal(agent.pid)
            agent.signal(signal.SIGCONT)

    def let_go(self) -> None:
        """Let the commands end."""
        for name in self.plights:
            (self.path / name / "go").touch()

    def end(self) -> None:
        self.containers.end()
        self.link.kill()

    def runs(self, name: str) -> list[Run]:
        """All runs, in the order of their first beats."""
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
            lambda: all(len(self.runs(name)) == count for name in self.plights),
            f"run {count} of each",
            seconds=60,
        )

    def _age(self, name: str) -> float:
        (run,) = self.runs(name)
        return run.last - run.first

    def _is_wanted(self, name: str) -> bool:
        return len(self.zk.get_children(f"{self.deployment.path}/status/global/{name}/sync/lock")) == 2


@pytest.fixture(scope="module", params=TICKS)
def drill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """A drill in which every command has been taken over, and everything works again.

    Three servers vote, two observe. Those that wait reach the leader.
    """
    path = tmp_path_factory.mktemp("d")
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(path / "zk", observers=2, settings=TICKS[request.param]))
        zk = stack.enter_context(contextmanager(connected)(ensemble.leader))
        deployment = stack.enter_context(contextmanager(made)(ensemble, zk))
        drill = Drill(ensemble, zk, deployment, path, PLIGHTS)
        stack.callback(drill.end)
        drill.run([drill.follower, drill.observer])
        yield drill


def judge(drill: Drill, plight: str) -> None:
    """The old command is gone before the new one begins, which knows that the old one was unfinished."""
    old, new = drill.runs(plight)
    print(
        f"gone {old.last - drill.struck_at:.3f} s after the strike, {new.first - old.last:.3f} s before "
        "another one began"
    )
    assert (old.host, new.host) == (HOLDER, TAKER)
    assert old.last < new.first
    assert old.token < new.token
    assert (old.previous, new.previous) == ("none", "unfinished")


def pass_on(drill: Drill) -> dict[str, int]:
    """Let the takers finish, and the holders continue without another run; how the holders end."""
    drill.let_go()
    assert {name: agent.ends() for name, agent in drill.takers.items()} == dict.fromkeys(drill.plights, 0)
    statuses = {name: agent.ends() for name, agent in drill.holders.items()}
    assert {len(drill.runs(name)) for name in drill.plights} == {2}
    return statuses


@pytest.mark.parametrize("plight", PLIGHTS)
def test_never_two_at_a_time(drill: Drill, plight: str) -> None:
    judge(drill, plight)


def test_a_server_that_is_cut_off_still_answers(drill: Drill) -> None:
    """No connection had to break for the commands to be killed."""
    assert drill.answered == [True, True]


def test_every_holder_that_survives_passes_the_command(drill: Drill) -> None:
    assert pass_on(drill) == {**dict.fromkeys(PLIGHTS, 0), "agent-killed": 128 + signal.SIGKILL}


# A leader alone gives up after syncLimit ticks: that is longer here than the others need.
@pytest.mark.parametrize(
    ("settings", "age"),
    [({"syncLimit": 20}, TIMEOUT), (TICKS["stock"], 0.0)],
    ids=["small ticks, renewed", "stock ticks, just claimed"],
)
def test_never_two_at_a_time_if_both_followers_leave_the_leader(
    tmp_path: Path, settings: Mapping[str, object], age: float
) -> None:
    """The followers elect a new leader, expire the session and give the lock away; the old leader, to which
    the holder is connected, learns nothing."""
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(tmp_path / "zk", settings=settings))
        zk = stack.enter_context(contextmanager(connected)(ensemble.followers[0]))
        deployment = stack.enter_context(contextmanager(made)(ensemble, zk))
        drill = Drill(ensemble, zk, deployment, tmp_path, DESERTED)
        stack.callback(drill.end)
        drill.run([drill.leader], age)
        judge(drill, "leader-deserted")
        assert drill.answered == [True], "it was no longer a leader: any lease would have been enough"
        assert pass_on(drill) == {"leader-deserted": 0}


# -- renewals: what counts as one ---------------------------------------------------------------------

SHORT = 2.0  # seconds


class Slow(Tap):
    """Holds back for `delay` seconds the replies to connections and to transactions.

    `connected`, `asked`: when each of them was asked for. `most`: so many transactions were on their way at a
    time.
    """

    def __init__(self, server: Server, delay: float = 0.0) -> None:
        super().__init__(server, "", lambda: None)
        self.delay = delay
        self.connected: list[float] = []
        self.asked: list[float] = []
        self.most = 0
        self._waiting: dict[bytes, None] = {}

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        self.connected.append(now())
        self._waiting.clear()
        with suppress(OSError):
            while packet := read_packet(client):
                if packet[8:12] == MULTI.to_bytes(4, "big"):
                    self.asked.append(now())
                    self._waiting[packet[4:8]] = None
                    self.most = max(self.most, len(self._waiting))
                server.sendall(packet)
        server.close()

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            time.sleep(self.delay)
            while packet := read_packet(server):
                if packet[4:8] in self._waiting:
                    time.sleep(self.delay)
                    self._waiting.pop(packet[4:8], None)
                client.sendall(packet)
        client.close()


class Renewing:
    """A lock that is held over a slow link, and what its renewals make of its lease.

    `proofs`: from when the lease counts after each renewal, and from when it may count at most.
    """

    def __init__(self, deployment: Deployment, slow: Slow) -> None:
        self.slow = slow
        self.loop = Loop()
        self.client = Client(servers(slow.hosts), SHORT, OPEN_ACL_UNSAFE, self.loop)
        self.client.connect(30.0)
        self.contender = f"{deployment.path}/contender"
        self.client.request(self.client.creation(self.contender, b"", EPHEMERAL), "contending")
        self.claimed = now()
        self.hold = HeldLock(self.client, self.contender, self.claimed)
        self.hold.on_renewed = self._prove
        self.proofs: list[tuple[float, float]] = []
        self.loop.add(self.hold)

    def _prove(self) -> None:
        counts = self.hold.lease.kill_at + max(0.3, SHORT / 20) - SHORT
        if counts > self.claimed - SHORT / 4:  # Else nothing is proved so far.
            self.proofs.append((counts, self.slow.asked[-1] - SHORT / 4))

    def await_proofs(self, count: int) -> None:
        assert self.loop.wait(lambda: len(self.proofs) >= count or self.hold.lost, now() + 30)
        assert not self.hold.lost
        assert [counts for counts, latest in self.proofs if counts > latest] == []


@pytest.fixture
def renewing(request: pytest.FixtureRequest, zookeeper: Server, deployment: Deployment) -> Iterator[Renewing]:
    """The parameter is the delay of the link."""
    slow = Slow(zookeeper, request.param)
    renewing = Renewing(deployment, slow)
    yield renewing
    renewing.client.close()
    slow.close()


@pytest.mark.parametrize("renewing", [0.0], indirect=True)
def test_a_shorter_session_shortens_the_lease(renewing: Renewing) -> None:
    """Another server may grant a shorter timeout when the session moves to it."""
    told: list[float] = []
    hold, before = renewing.hold, renewing.hold.lease.kill_at
    hold.on_renewed = lambda: told.append(hold.lease.kill_at)
    renewing.client.session.timeout = SHORT / 2
    renewing.loop.sleep(0)
    assert told[0] == hold.lease.kill_at < before
    renewing.client.session.timeout = SHORT
    renewing.loop.sleep(0)
    assert hold.lease.timeout == SHORT / 2


@pytest.mark.parametrize("renewing", [0.0, SHORT / 9, SHORT / 3], indirect=True)
def test_a_lease_counts_from_an_earlier_request(renewing: Renewing) -> None:
    """Never from a reply; and only one renewal is outstanding at a time."""
    renewing.await_proofs(5)
    assert renewing.proofs[-1] > renewing.proofs[0]
    assert renewing.slow.most == 1
    # The first one is sent once it can prove the claim, each further one after T/6 or the reply to the last.
    # On a busy machine each may arrive late, but none early.
    first = renewing.claimed + SHORT / 4
    asked = enumerate(renewing.slow.asked)
    assert [at - first for number, at in asked if at - first < number * SHORT / 6 - 0.1] == []


@pytest.mark.parametrize("renewing", [SHORT / 9], indirect=True)
def test_a_renewal_that_fails_with_its_connection_renews_nothing(renewing: Renewing) -> None:
    """Nor does the next connection; the next renewal does."""
    renewing.await_proofs(2)
    client, hold = renewing.client, renewing.hold
    assert renewing.loop.wait(lambda: hold.deadline < math.inf, now() + 30)
    asked = len(renewing.slow.asked)
    assert renewing.loop.wait(lambda: hold.deadline == math.inf, now() + 30)
    client.session.flush()
    eventually(lambda: len(renewing.slow.asked) > asked, "a renewal is on its way")
    proofs, kill_at = len(renewing.proofs), hold.lease.kill_at
    assert client.session._socket
    client.session._socket.shutdown(socket.SHUT_RDWR)
    assert renewing.loop.wait(lambda: not client.connected, now() + 30)
    assert renewing.loop.wait(lambda: client.connected, now() + 30)
    assert (len(renewing.proofs), hold.lease.kill_at) == (proofs, kill_at)
    renewing.await_proofs(proofs + 1)
    assert not client.session.former


@pytest.mark.parametrize("renewing", [0.0], indirect=True)
def test_a_renewal_notices_that_the_lock_is_gone(renewing: Renewing, zk: KazooClient) -> None:
    """Without a watch on it."""
    renewing.await_proofs(1)
    zk.delete(renewing.contender)
    assert renewing.loop.wait(lambda: renewing.hold.lost, now() + 30)


@pytest.mark.parametrize("renewing", [0.0], indirect=True)
def test_a_lock_belongs_to_its_session(renewing: Renewing, zookeeper: Server, zk: KazooClient) -> None:
    """A contender of the same name in a later session renews nothing."""
    renewing.await_proofs(1)
    client = renewing.client
    thief = Client(servers(zookeeper.hosts), SHORT, OPEN_ACL_UNSAFE, Loop())
    thief.session.id, thief.session.password = client.session.id, client.session.password
    thief.connect(30.0)
    thief.close()
    zk.create(renewing.contender)
    assert renewing.loop.wait(lambda: client.session.former and client.connected, now() + 30)
    assert renewing.hold.lost
    proofs = len(renewing.proofs)
    asked = len(renewing.slow.asked)
    assert renewing.loop.wait(lambda: len(renewing.slow.asked) > asked + 2, now() + 30)
    assert len(renewing.proofs) == proofs


def test_only_a_running_attempt_is_renewed(zookeeper: Server, site: Site) -> None:
    """A container that waits for the lock, or has passed the command, sends no transaction."""
    holders, waiters = Slow(zookeeper), Slow(zookeeper)
    try:
        site.publish(sync=site.once(), then=site.plain("then", gate="then", dependencies=["db/sync"]))
        timeout = f"{SHORT:g}"
        holder = site.start("web1", KOLLA_ZK_HOSTS=holders.hosts, KOLLA_ZK_SESSION_TIMEOUT=timeout)
        site.running()
        waiter = site.start("web2", KOLLA_ZK_HOSTS=waiters.hosts, KOLLA_ZK_SESSION_TIMEOUT=timeout)
        waiter.says("web1 is running it")
        renewals, before = len(holders.asked), len(waiters.asked)
        eventually(lambda: len(holders.asked) >= renewals + 4, "the holder renews its lease")
        assert len(waiters.asked) == before

        site.let_go()
        eventually(lambda: len(site.runs("then")) == 2, "both have passed it")
        # First they record that they run it. A lease would be renewed several times in such a time.
        eventually(lambda: now() > max(*holders.asked, *waiters.asked) + SHORT, "no transactions any more")
        site.let_go("then")
        assert (holder.ends(), waiter.ends()) == (0, 0)
    finally:
        holders.close()
        waiters.close()


# -- ends -----------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped"])
def test_a_command_that_cannot_be_killed_ends_the_agent(
    zk: KazooClient, deployment: Deployment, containers: Containers, home: Home, stopped: bool
) -> None:
    """It belongs to another user, as with sudo. The session stays until it expires, so nobody begins sooner.

    If the agent was stopped meanwhile, the guard reports it; otherwise the agent may notice by itself."""
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
        over = now() + 1.5 * SHORT
        eventually(lambda: now() > over, "the guard has reported it when the lease was over")
        agent.signal(signal.SIGCONT)
    assert agent.ends() == 70
    # Its session is left to expire: what it has there stays for as long.
    assert stopped or zk.get_children(f"{deployment.path}/db/.party")
    assert "can't be killed" in agent.ending["reason"]
    assert b'"attempt": 1,' in zk.get(f"{deployment.path}/status/global/db/sync/detail")[0]
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)


def test_the_session_is_not_closed_while_a_command_lives(
    zk: KazooClient, client: Interrupted, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the guard takes: here it is stopped."""
    monkeypatch.setattr(guard, "KILL_TIMEOUT", 2.0)  # twice; a machine may be busy
    start = Start()
    start.client = client
    start.bootstrap = Bootstrap(bench.tree)
    start.bootstrap.guard.spawn(["sleep", "1000"], PATH)
    above = psutil.Process(start.bootstrap.guard.pid)
    eventually(above.children, "it runs")
    (command,) = above.children()
    above.suspend()

    contender = bench.at(bench.commands[0]).lock + "/contender"
    client.request(client.creation(contender, b"", EPHEMERAL), "contending")
    lived: list[bool] = []

    @zk.DataWatch(contender)  # type: ignore[untyped-decorator]
    def changed(data: bytes | None, stat: object) -> None:
        if stat is None:
            lived.append(lives(command.pid))

    start.close()
    eventually(lambda: lived, "the lock is given back")
    assert lived == [False]


def test_a_request_that_is_too_large_is_refused_locally(client: Interrupted, deployment: Deployment) -> None:
    """By name: otherwise the connection would be lost, and the same request sent again, for ever."""
    path = f"{deployment.path}/large"
    client.transaction([client.creation(path, b"x" * 1_000_000)], "large")
    told = f"{path}: 1000001 bytes are more than ZooKeeper accepts"
    with pytest.raises(AgentError, match=told):
        client.transaction([SetData(path, b"x" * 1_000_001, -1)], "larger")
    with pytest.raises(AgentError, match=told):
        client.ephemerals.keep(path, b"x" * 1_000_001)
    client.transaction([Delete(path, -1)], "what has no data")
