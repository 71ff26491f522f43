"""Real ZooKeeper servers on the loopback interface, which a test can kill, freeze and disconnect.

Nothing here is specific to the agent. Every process ends with the tests (`keeper.py`), so an
interrupted run leaves nothing behind.

    with Server(directory) as server:             one server
        server.hosts                              "127.0.0.1:21810"
        server.freeze(); server.thaw()            SIGSTOP, SIGCONT: it hangs, it does not close connections
        server.kill(); server.start()             SIGKILL, and back with its data
        server.mntr()["zk_packets_received"]      what it counts
    with Ensemble(directory, observers=1) as ensemble:      three servers that vote, one that does not
        ensemble.leader.kill()
        follower = ensemble.followers[0]
        ensemble.cut(follower)                    a partition: the follower still answers its clients' pings
        ensemble.heal(follower)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Callable, TypeVar

from kolla_mesos_start.ctl.up import private_zookeeper
from kolla_mesos_start.ctl.up.private_zookeeper import HOST as HOST
from kolla_mesos_start.ctl.up.private_zookeeper import SERVER, ask, configure
from kolla_mesos_start.ctl.up.private_zookeeper import free_port as free_port
from tests.support.waiting import eventually

S = TypeVar("S", bound="Started")

# Another version than Debian's, with all jars that it needs (drills/zookeepers).
CLASS_PATH = os.environ.get("ZOOKEEPER_CLASS_PATH", "")
*OPTIONS, CP, DEBIANS = private_zookeeper.JAVA
WARNINGS = "-Dorg.apache.logging.log4j.level=WARN"  # as the options have it for Debian's logger
JAVA = (*OPTIONS, WARNINGS, CP, CLASS_PATH or DEBIANS)


class Started:
    """What runs during a `with` statement."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Process:
    """A process that a test can stop, freeze and kill; it is not its child, and ends with the tests."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self.argv = tuple(argv)
        self.log = log
        self._pid: int | None = None
        self._keeper: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._pid is not None, "not started"
        return self._pid

    @property
    def running(self) -> bool:
        if self._pid is None:
            return False
        try:
            # Behind the name in brackets, which can contain anything.
            state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state != "Z"

    def launch(self) -> None:
        """Start it, unless it runs."""
        if self.running:
            return
        self._close()
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("keeper.py")), str(self.log), *self.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._keeper.wait()  # The process itself goes on.
        assert self._keeper.stdout is not None
        self._pid = int(self._keeper.stdout.readline())

    def freeze(self) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine a thread may still answer a request before it stops.
        eventually(lambda: set(self._states()) <= {"T"}, f"{self.pid} has stopped")

    def _states(self) -> Iterator[str]:
        """The state of each of its threads, as /proc has it."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
                yield (task / "stat").read_text().rpartition(")")[2].split()[0]

    def thaw(self) -> None:
        """SIGCONT."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended; SIGKILL after a time limit."""
        self.thaw()
        try:
            self._end(signal.SIGTERM)
        except AssertionError:
            self.kill()

    def _end(self, signum: int) -> None:
        if self.running:
            os.kill(self.pid, signum)
            eventually(lambda: not self.running, f"{self.pid} ends by signal {signum}")
        self._close()

    def _close(self) -> None:
        """Close the pipes to the keeper, which then ends the process if it still runs."""
        if self._keeper is not None:
            for pipe in (self._keeper.stdin, self._keeper.stdout):
                assert pipe is not None
                pipe.close()

    def said(self) -> str:
        """The end of its log, for a message."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


class Server(Process, Started):
    """One ZooKeeper server.

    `settings` are lines of zoo.cfg that are added to, or replace, DEFAULTS; `java` are more
    arguments for the JVM (`-D...`). Its data stay in `directory` over `kill()` and `start()`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        java: Sequence[str] = (),
        my_id: int | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.settings = dict(settings or {})
        self.port = free_port()
        self.my_id = my_id
        super().__init__((*JAVA, *java, SERVER, str(directory / "zoo.cfg")), directory / "log")

    @property
    def hosts(self) -> str:
        """The value for KOLLA_ZK_HOSTS."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it serves clients."""
        self.launch_server()
        self.await_serving()

    def launch_server(self) -> None:
        """Start the server; the members of an ensemble can't serve before the others have started."""
        if self.running:
            return
        self.configure()
        if self.my_id is not None:
            (self.directory / "myid").write_text(str(self.my_id))
        self.launch()

    def configure(self) -> None:
        """Write its zoo.cfg."""
        lines = {"dataDir": self.directory, "clientPort": self.port, **self.settings}
        configure(self.directory / "zoo.cfg", lines)

    def await_serving(self, seconds: float = 60.0) -> None:
        """Wait until the server serves clients: alone, or as a member of a quorum."""

        def serving_or_dead() -> str:
            return self.mode or ("" if self.running else "dead")

        state = eventually(serving_or_dead, f"{self.hosts} serves; its log: {self.said()}", seconds=seconds)
        assert state != "dead", f"the server has ended: {self.said()}"

    @property
    def mode(self) -> str:
        """`standalone`, `leader`, `follower`, `observer`; empty while it does not serve clients."""
        for line in self.ask("srvr", seconds=2.0).splitlines():
            if line.startswith("Mode: "):
                return line[len("Mode: ") :]
        return ""

    def mntr(self) -> dict[str, str]:
        """What the server counts, `zk_packets_received` for one."""
        lines = (line.partition("\t") for line in self.ask("mntr").splitlines())
        return {name: value for name, tab, value in lines if tab}

    def packets(self) -> int:
        """Requests that the server has received so far, pings and this question included."""
        return int(self.mntr()["zk_packets_received"])

    def ask(self, word: str, seconds: float = 10.0) -> str:
        """The answer to one of ZooKeeper's four-letter words; empty if there is no answer."""
        return ask(self.port, word, seconds)

    def mend(self) -> None:
        """Restore the server after a test."""
        self.thaw()
        self.start()


class Ensemble(Started):
    """Three servers with a leader, and `observers` that have no vote.

    Each server reaches the others' quorum ports through a proxy of its own; `cut` freezes it.
    Elections don't go through it: a server that is cut off can vote, as after a real partition
    of one link.
    """

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        observers: int = 0,
        settings: Mapping[str, object] | None = None,
        java: Sequence[str] = (),
        make: Callable[..., Server] = Server,
    ) -> None:
        quorum = {n: free_port() for n in range(1, size + observers + 1)}
        role = {n: ":observer" if n > size else "" for n in quorum}
        election = {n: free_port() for n in quorum}
        self.servers: list[Server] = []
        self._proxies: dict[int, Process] = {}
        self._deserters: list[tuple[Server, dict[str, object]]] = []  # and their settings before
        for n in quorum:
            links = {other: free_port() for other in quorum if other != n}
            members = {
                f"server.{other}": f"{HOST}:{links.get(other, quorum[other])}:{election[other]}{role[other]}"
                for other in quorum
            }
            if role[n]:
                members["peerType"] = "observer"
            self.servers.append(
                make(directory / str(n), settings={**(settings or {}), **members}, java=java, my_id=n)
            )
            arguments = (f"{link}:{quorum[other]}" for other, link in links.items())
            self._proxies[n] = Process(
                (sys.executable, str(Path(__file__).with_name("tcp_proxy.py")), *arguments),
                directory / str(n) / "proxy.log",
            )

    @property
    def hosts(self) -> str:
        """As KOLLA_ZK_HOSTS wants it."""
        return ",".join(server.hosts for server in self.servers)

    @property
    def leader(self) -> Server:
        """The leader; an error while there is none."""
        return next(server for server in self.servers if server.mode == "leader")

    @property
    def followers(self) -> list[Server]:
        return [server for server in self.servers if server.mode == "follower"]

    @property
    def observers(self) -> list[Server]:
        return [server for server in self.servers if server.mode == "observer"]

    def cut(self, server: Server) -> None:
        """Cut the link to the leader: it answers its clients until syncLimit x tickTime has passed."""
        assert server.my_id is not None
        self._proxies[server.my_id].freeze()

    def heal(self, server: Server) -> None:
        """Take back `cut`."""
        assert server.my_id is not None
        self._proxies[server.my_id].thaw()

    def desert(self) -> None:
        """Disconnect the followers from their leader, and restart them connected to each other.

        The old leader answers reads, pings and syncs of its clients until syncLimit x tickTime has
        passed, but commits nothing.
        """
        one, other = self.followers
        for follower in (one, other):
            self.cut(follower)
        for follower, peer in ((one, other), (other, one)):
            follower.kill()
            line = f"server.{peer.my_id}"
            self._deserters.append((follower, {line: follower.settings[line]}))
            follower.settings[line] = peer.settings[line]  # Not by way of the link that is cut.
        for follower in (one, other):
            follower.launch_server()

    def reunite(self) -> None:
        """Take back `desert`; `mend` starts the servers, which read their settings then."""
        for server, settings in self._deserters:
            self.heal(server)
            server.kill()
            server.settings.update(settings)
        self._deserters.clear()

    def start(self) -> None:
        """Start all servers that do not run, and wait until all of them serve clients."""
        for proxy in self._proxies.values():
            proxy.launch()
        for server in self.servers:
            server.launch_server()
        for server in self.servers:
            server.await_serving()

    def mend(self) -> None:
        """Restore the ensemble after a test."""
        for process in (*self._proxies.values(), *self.servers):
            process.thaw()
        self.start()

    def stop(self) -> None:
        """End all servers."""
        for process in (*self.servers, *self._proxies.values()):
            process.kill()
