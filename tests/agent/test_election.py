"""Elections: whole agents with a real ZooKeeper, and a small database in place of Galera."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import make_digest_acl_credential

from tests import CHECKOUT
from tests.conftest import Deployment
from tests.support import lossy_proxy
from tests.support.agents import PROGRAM, Agent, Containers
from tests.support.counting import Line
from tests.support.link import Link
from tests.support.tool import run_ctl
from tests.support.waiting import LIMIT, eventually
from tests.support.zookeeper import HOST, Process, Server, free_port

MEMBER = CHECKOUT / "tests" / "support" / "cluster_member.py"
SERVICE, ROLE = "infra/db", "db"
HOSTS = ("a", "b", "c")


class Cluster:
    """The hosts of a cluster, each with its data and at most one container."""

    def __init__(
        self, directory: Path, deployment: Deployment, zk: KazooClient, containers: Containers
    ) -> None:
        self.zk, self.deployment, self.containers = zk, deployment, containers
        self.data = directory
        self.ports = {host: free_port() for host in HOSTS}
        self.agents: dict[str, Agent] = {}
        self.at = f"{deployment.path}/status/global/{ROLE}/election"

    def publish(self, *, daemon: dict[str, Any] | None = None, **election: Any) -> None:
        """Publish the definition; `election` and `daemon` are keys that differ."""

        def command(verb: str, *more: str) -> list[str]:
            return [
                sys.executable,
                "-I",
                "-S",
                str(MEMBER),
                verb,
                f"{self.data}/{{{{ kolla_hostname }}}}",
                *more,
            ]

        serve = ("{{ port }}", "{{ ports }}")
        keys = {
            "position": f"{ROLE}/position",
            "members": 3,
            "start": command("first", *serve),
            "give_up": 6,
            **election,
        }
        definition = {
            "commands": {"position": {"command": command("position"), "delay": 0.2}},
            "service": {
                "daemon": {
                    "command": command("join", *serve),
                    "ready": {"tcp": "{{ port }}", "interval": 1},
                    "election": keys,
                    **(daemon or {}),
                }
            },
        }
        path = f"{self.deployment.path}/{SERVICE}"
        self.zk.ensure_path(f"{path}/variables")
        for host, port in self.ports.items():
            self.zk.ensure_path(f"{path}/variables/{host}")
            self._set(f"{path}/variables/{host}/port", str(port).encode())
        self._set(f"{path}/variables/ports", ",".join(map(str, self.ports.values())).encode())
        self._set(path, json.dumps(definition).encode())

    def _set(self, path: str, data: bytes) -> None:
        self.zk.ensure_path(path)
        self.zk.set(path, data)

    def start(self, *hosts: str, **environ: str) -> None:
        for host in hosts or HOSTS:
            if host in self.agents:
                self.agents[host].restart()
            else:
                environ = {"KOLLA_ZK_SESSION_TIMEOUT": "4", **environ}
                self.agents[host] = self.containers.start(SERVICE, host, **environ)

    def kill(self, *hosts: str) -> None:
        """Kill all processes of containers at once, as a power cut does; their sessions expire later."""
        for host in hosts or tuple(self.agents):
            for pid in [self.agents[host].pid, *self.agents[host].processes]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.agents[host].process.wait()

    def put(self, **positions: str) -> None:
        """Give hosts data of these positions."""
        for host, position in positions.items():
            (self.data / host).mkdir(parents=True, exist_ok=True)
            (self.data / host / "position").write_text(position)

    def history(self, host: str) -> list[str]:
        path = self.data / host / "history"
        return path.read_text().splitlines() if path.exists() else []

    def bootstraps(self) -> list[str]:
        """The hosts that have bootstrapped a cluster, once for each time."""
        return sorted(host for host in HOSTS for line in self.history(host) if line.startswith("first"))

    def read(self, name: str) -> Any:
        """The record below the election's znode; None without one."""
        try:
            return json.loads(self.zk.get(f"{self.at}/{name}")[0])
        except NoNodeError:
            return None

    def names(self, name: str) -> list[str]:
        with suppress(NoNodeError):
            return sorted(self.zk.get_children(f"{self.at}/{name}"))
        return []

    @property
    def ready(self) -> list[str]:
        path = f"{self.deployment.path}/status/global/{ROLE}/daemon/ready"
        found = []
        with suppress(NoNodeError):
            for name in self.zk.get_children(path):
                with suppress(NoNodeError):
                    found.append(json.loads(self.zk.get(f"{path}/{name}")[0])["host"])
        return sorted(found)

    @contextmanager
    def ready_for_ever(self) -> Iterator[None]:
        """Meanwhile the current ready instances stay registered, even when their sessions have expired."""
        path = f"{self.deployment.path}/status/global/{ROLE}/daemon/ready"
        copies = {
            f"{path}/{name}-copy": self.zk.get(f"{path}/{name}")[0] for name in self.zk.get_children(path)
        }
        for copy, data in copies.items():
            self.zk.create(copy, data, ephemeral=True)
        yield
        for copy in copies:
            self.zk.delete(copy)

    def forms(self, epoch: int, *hosts: str) -> None:
        """Wait until the cluster of that epoch is formed, and these hosts run in it and are ready."""

        def running() -> dict[str, Any]:
            records = {host: self.read(f"running/{host}") for host in self.names("running")}
            return {host: (each["epoch"], each["state"]) for host, each in records.items() if each}

        wanted = dict.fromkeys(hosts or HOSTS, (epoch, "ready"))
        eventually(lambda: running() == wanted, f"{sorted(wanted)} run in epoch {epoch}")
        assert self.read("decision")["state"] == "formed"
        self.is_ready(*wanted)

    def is_ready(self, *hosts: str) -> None:
        eventually(lambda: self.ready == sorted(hosts or HOSTS), f"ready: {hosts or HOSTS}")

    def says(self, host: str, words: str) -> None:
        self.agents[host].says(words)

    def hold(self, host: str) -> Path:
        """Keep the member on this host from serving until the file is removed."""
        (self.data / host).mkdir(parents=True, exist_ok=True)
        path = self.data / host / "hold"
        path.touch()
        return path

    def freeze(self, host: str, signum: int = signal.SIGSTOP) -> None:
        """Stop all processes of a container, or continue them with SIGCONT."""
        for pid in {self.agents[host].pid, *self.agents[host].processes, *self._guards(host)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    def _guards(self, host: str) -> list[int]:
        with suppress(psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(self.agents[host].pid).children(recursive=True)]
        return []

    def gone(self, host: str) -> None:
        """Wait until the session of a host has expired."""
        eventually(lambda: host not in self.names("running"), f"the session of {host} has expired")

    def override(self, epoch: int, winner: str | None, *without: str) -> None:
        """The operator's override."""
        record: dict[str, Any] = {"epoch": epoch, "winner": winner, "without": without, "accept_empty": []}
        self._set(f"{self.at}/override", json.dumps(record).encode())

    def state(self, host: str) -> dict[str, Any]:
        """What the container of a host reports."""
        path = f"{self.deployment.path}/{SERVICE}/.containers"
        with suppress(NoNodeError):
            for name in self.zk.get_children(path):
                with suppress(NoNodeError):
                    found: dict[str, Any] = json.loads(self.zk.get(f"{path}/{name}")[0])
                    if found["host"] == host:
                        return found
        return {}

    def reports(self, host: str, code: str, **fields: str) -> dict[str, Any]:
        """Wait until the container of a host reports this code, with these fields of the election."""

        def found() -> dict[str, Any]:
            state = self.state(host)
            same = state.get("code") == code and fields.items() <= state.get("election", {}).items()
            return state if same else {}

        return eventually(found, f"{host} reports {code} {fields}")


@pytest.fixture
def cluster(
    tmp_path: Path, deployment: Deployment, zk: KazooClient, containers: Containers
) -> Iterator[Cluster]:
    """A cluster of three hosts without data, and nothing started."""
    found = Cluster(tmp_path / "data", deployment, zk, containers)
    yield found
    for agent in found.agents.values():
        for pid in [agent.pid, *agent.processes]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_the_first_cluster_is_bootstrapped_once(cluster: Cluster) -> None:
    """All hosts are empty: the first by name bootstraps, and the others join."""
    cluster.publish()
    cluster.start()
    cluster.forms(1)
    assert cluster.history("a") == ["first first 1 - -"]
    assert cluster.history("b") == ["join join 1 - -"]
    assert cluster.history("c") == ["join join 1 - -"]
    decision = cluster.read("decision")
    assert (decision["winner"], decision["state"], decision["group"]) == ("a", "formed", None)
    assert decision["positions"] == dict.fromkeys(HOSTS, "none")
    assert cluster.names("candidates") == []
    assert {host: cluster.read(f"running/{host}")["state"] for host in HOSTS} == dict.fromkeys(HOSTS, "ready")
    assert {host: cluster.read(f"members/{host}")["state"] for host in HOSTS} == dict.fromkeys(
        HOSTS, "joined"
    )


def test_one_host_joins_again_alone(cluster: Cluster) -> None:
    """Without an election: a ready instance answers it."""
    cluster.publish()
    cluster.start()
    cluster.forms(1)
    cluster.kill("a")
    cluster.start("a")
    eventually(lambda: len(cluster.history("a")) == 2, "a is started again")
    cluster.forms(1)
    assert [line.split()[0] for line in cluster.history("a")] == ["first", "join"]


def test_ready_instances_that_were_killed_are_not_joined(cluster: Cluster) -> None:
    """Their znodes outlive them by the session timeout. Only an answer counts."""
    cluster.publish()
    cluster.start()
    cluster.forms(1)
    with cluster.ready_for_ever():
        cluster.kill()
        cluster.put(**dict.fromkeys(HOSTS, "g:5"))
        cluster.start("a")
        cluster.reports("a", "election-answer")
        assert len(cluster.history("a")) == 1
    cluster.start("b", "c")
    cluster.forms(2)
    assert len(cluster.bootstraps()) == 2


def test_survivors_without_a_ready_instance_give_up(cluster: Cluster) -> None:
    """Otherwise one that waits for a majority would never be a candidate."""
    cluster.publish(daemon={"ready": {"command": ["test", "-e", "{{ port }}"], "interval": 0.2, "fall": 1}})
    for host in HOSTS:
        cluster.start(host)
    for host in HOSTS:
        (cluster.agents[host].directory / str(cluster.ports[host])).touch()
    cluster.forms(1)
    (cluster.agents["c"].directory / str(cluster.ports["c"])).unlink()
    cluster.kill("a", "b")
    assert cluster.agents["c"].ends() in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    cluster.says("c", "no instance is ready for")
    cluster.put(**dict.fromkeys(HOSTS, "g:5"))
    (cluster.agents["c"].directory / str(cluster.ports["c"])).touch()
    cluster.start()
    cluster.forms(2)


def held_file(cluster: Cluster) -> dict[str, Any]:
    """A file whose check waits while `held-HOST` exists: after the decision, before the start."""
    wait = f"while test -e {cluster.data}/held-{{{{ kolla_hostname }}}}; do sleep 0.02; done"
    path = f"{cluster.deployment.path}/{SERVICE}/files/conf"
    cluster.zk.ensure_path(path)
    cluster.zk.set(path, b"x")
    dest = f"{cluster.data}/conf-{{{{ kolla_hostname }}}}"
    return {"files": {"conf": {"dest": dest, "check": ["sh", "-c", wait]}}}


@pytest.mark.parametrize("at", ["decision", "start"])
def test_a_winner_that_dies_is_waited_for(cluster: Cluster, at: str) -> None:
    """The second best never replaces it. It comes back, and all are candidates with fresh positions."""
    cluster.data.mkdir()
    held = cluster.data / "held-a"
    if at == "decision":
        held.touch()
    else:
        held = cluster.hold("a")
    cluster.publish(daemon=held_file(cluster))
    cluster.put(a="g:9", b="g:8", c="g:8")
    cluster.start()
    eventually(lambda: cluster.names("running") == ["a"], "a is elected")
    if at == "start":
        eventually(lambda: cluster.history("a"), "a is started")
    cluster.reports("b", "election-starts", hosts="a")
    cluster.kill("a")
    cluster.reports("b", "election-missing", hosts="a")
    cluster.reports("c", "election-missing", hosts="a")
    held.unlink()
    cluster.start("a")
    cluster.forms(2)
    assert set(cluster.bootstraps()) == {"a"}


class Ending(Process):
    """A way to ZooKeeper that ends around one transition: before the server gets it, or after its commit."""

    def __init__(self, server: Server, log: Path, number: int, loses: str) -> None:
        port = free_port()
        self.hosts, self._address = f"{HOST}:{port}", (HOST, port)
        words = (f"{port}", f"{server.port}", f"{number}", loses, "own", "/election/turn")
        super().__init__((sys.executable, lossy_proxy.__file__, *words), log)
        self.launch()
        eventually(lambda: not self.has_ended, "the proxy accepts connections")

    @property
    def has_ended(self) -> bool:
        with suppress(OSError), socket.create_connection(self._address, timeout=5):
            return False
        return True


# The transitions of a winner: the epochs after its end before, and after, the commit.
TRANSITIONS = {"candidate": (1, 1), "decision": (1, 2), "check": (2, 2), "formed": (2, 2)}


# The registrar or the supervisor makes the last one.
KILLS = [("decision", "reply", "exec"), ("formed", "request", "exec"), ("formed", "reply", "supervise")]


@pytest.mark.parametrize(("transition", "loses", "mode"), KILLS)
def test_a_winner_that_is_killed_around_a_transition_comes_back(
    cluster: Cluster, zookeeper: Server, tmp_path: Path, transition: str, loses: str, mode: str
) -> None:
    """Nobody else bootstraps, `explain` names it, and the cluster forms when it is back."""
    cluster.publish()
    cluster.start(KOLLA_START_MODE=mode)
    cluster.forms(1)
    cluster.kill()
    cluster.put(a="g:9", b="g:8", c="g:8")
    # They join a winner that is ready, and must not be ready themselves before it is killed.
    held = [cluster.hold(host) for host in ("b", "c")]
    cluster.start("b", "c")
    eventually(lambda: cluster.names("candidates") == ["b", "c"], "two candidates")
    winner = cluster.agents["a"]
    direct = winner.environ["KOLLA_ZK_HOSTS"]
    proxy = Ending(zookeeper, tmp_path / "proxy.log", [*TRANSITIONS].index(transition) + 1, loses)
    try:
        winner.environ["KOLLA_ZK_HOSTS"] = proxy.hosts
        cluster.start("a")
        eventually(lambda: proxy.has_ended, "the transition is made")
        cluster.kill("a")
    finally:
        proxy.kill()

    def explained() -> str:
        found = run_ctl(cluster.deployment, "explain").stdout
        return found if "missing: a (last seen" in found else ""

    def both_wait() -> bool:
        # They may have begun to join it: then they give up, and are started again.
        for host in ("b", "c"):
            if not cluster.agents[host].running:
                cluster.start(host)
        states = [cluster.state(host) for host in ("b", "c")]
        wanted = [("election-missing", "a")] * 2
        return cluster.names("candidates") == ["b", "c"] and wanted == [
            (each.get("code"), each.get("election", {}).get("hosts")) for each in states
        ]

    eventually(both_wait, "both wait for a")
    # The session of its agent may last a little longer.
    said = eventually(explained, "explain names the missing host")
    epoch = TRANSITIONS[transition][loses == "reply"]
    decision = cluster.read("decision")
    is_formed = (transition, loses) == ("formed", "reply") or epoch == 1
    assert (decision["epoch"], decision["state"]) == (epoch, "formed" if is_formed else "bootstrapping")
    assert ("a won once and ended before it was ready" in said) != is_formed
    for path in held:
        path.unlink()
    winner.environ["KOLLA_ZK_HOSTS"] = direct
    cluster.start("a")
    cluster.forms(epoch + 1)
    assert set(cluster.bootstraps()) == {"a"}
    epochs = [line.split()[2] for line in cluster.history("a") if line.startswith("first")]
    assert sorted(set(epochs)) == sorted(epochs), "one bootstrap in each epoch"
    positions = {(cluster.data / host / "position").read_text().strip() for host in HOSTS}
    assert len(positions) == 1
    group, _, number = positions.pop().partition(":")
    assert group == "g" and int(number) > 9


def test_a_frozen_winner_does_not_start_after_an_override(cluster: Cluster) -> None:
    """The transaction right before the start proves that it is still its turn."""
    cluster.data.mkdir()
    held = cluster.data / "held-a"
    held.touch()
    cluster.publish(daemon=held_file(cluster))
    cluster.put(a="g:9", b="g:8", c="g:7")
    cluster.start()
    eventually(lambda: cluster.names("running") == ["a"], "a is elected")
    cluster.freeze("a")
    cluster.gone("a")
    cluster.reports("b", "election-missing", hosts="a")
    cluster.override(2, "b", "a")
    cluster.forms(2, "b", "c")
    assert cluster.read("members/a")["state"] == "left-out"
    assert cluster.read("override") is None
    held.unlink()
    cluster.freeze("a", signal.SIGCONT)
    # Its data may differ, whatever its number is: it has to come back empty.
    assert "refused" in cluster.reports("a", "refused-left-out")["reason"]
    assert cluster.history("a") == []
    cluster.kill("a")
    (cluster.data / "a" / "position").unlink()
    cluster.start("a")
    cluster.forms(2)
    assert cluster.read("members/a")["state"] == "joined"
    assert cluster.bootstraps() == ["b"]


def test_a_winner_that_was_frozen_after_its_start_is_killed(cluster: Cluster) -> None:
    """It must not serve beside the cluster of the next epoch."""
    held = cluster.hold("a")
    cluster.publish()
    cluster.put(a="g:9", b="g:8", c="g:7")
    cluster.start()
    eventually(lambda: cluster.history("a"), "a is started")
    eventually(lambda: cluster.agents["a"].registrar, "its registrar runs")
    cluster.freeze("a")
    cluster.gone("a")
    cluster.reports("b", "election-missing", hosts="a")
    cluster.override(2, "b", "a")
    cluster.forms(2, "b", "c")
    cluster.freeze("a", signal.SIGCONT)
    assert cluster.agents["a"].ends() == 128 + signal.SIGKILL
    cluster.says("a", "it must not serve beside that cluster")
    held.unlink()


def test_a_second_container_on_a_host_is_refused(cluster: Cluster) -> None:
    """Its data would be the same, or its own: neither can be in one election."""
    cluster.publish()
    cluster.start("a")
    eventually(lambda: cluster.names("candidates") == ["a"], "a is a candidate")
    second = cluster.containers.start(SERVICE, "a", KOLLA_ZK_SESSION_TIMEOUT="4")
    assert second.ends() == 65
    assert "refused: another of its containers" in second.ending["reason"]
    assert cluster.agents["a"].running
    cluster.start("b", "c")
    cluster.forms(1)


def test_an_output_of_another_form_ends_the_agent(cluster: Cluster) -> None:
    """An error by the definition's author. The output is not shown."""
    cluster.publish()
    cluster.put(a="g:-1")
    cluster.start("a")
    assert cluster.agents["a"].ends() == 65
    assert "commands.position: expected GROUP:NUMBER, NUMBER or none" in cluster.agents["a"].ending["reason"]
    assert "g:-1" not in cluster.agents["a"].said


def test_a_host_without_a_position_is_no_candidate(cluster: Cluster) -> None:
    """The position command is tried again, without a limit, and the reason is reported."""
    cluster.publish()
    cluster.put(a="g:1")
    (cluster.data / "a" / "fail").write_text("3")
    cluster.start()
    assert "exit status 3" in cluster.reports("a", "election-position")["reason"]
    eventually(lambda: cluster.names("candidates") == ["b", "c"], "the others are candidates")
    (cluster.data / "a" / "fail").unlink()
    cluster.forms(1)
    assert cluster.bootstraps() == ["a"]


def test_a_cluster_survives_an_outage_of_zookeeper(cluster: Cluster, link: Link) -> None:
    """A host that is cut off runs on, and blocks every decision: it can't be a candidate."""
    cluster.publish()
    cluster.start("a", "b")
    cluster.start("c", KOLLA_ZK_HOSTS=link.hosts)
    cluster.forms(1)
    link.kill()
    cluster.gone("c")
    cluster.kill("a", "b")
    cluster.start("a", "b")
    cluster.reports("a", "election-missing")
    assert cluster.agents["c"].running
    link.launch()
    cluster.forms(1)
    assert cluster.bootstraps() == ["a"]
    assert len(cluster.history("c")) == 1


def variable(cluster: Cluster, text: str) -> None:
    cluster._set(f"{cluster.deployment.path}/{SERVICE}/variables/word", text.encode())


def with_file(cluster: Cluster, **on_change: Any) -> dict[str, Any]:
    """A daemon whose file shows the election."""
    path = f"{cluster.deployment.path}/{SERVICE}/files/conf"
    cluster.zk.ensure_path(path)
    shown = "{{ election.role }} {{ election.epoch }} {{ election.group }} {{ election.position }} {{ word }}"
    cluster.zk.set(path, shown.encode())
    dest = f"{cluster.data}/conf-{{{{ kolla_hostname }}}}"
    return {"files": {"conf": {"dest": dest}}, "on_change": on_change}


def test_a_refresh_never_sees_the_first(cluster: Cluster) -> None:
    """Reloading a running daemon must not bootstrap a second cluster."""
    variable(cluster, "one")
    cluster.data.mkdir()
    cluster.publish(members=1, daemon=with_file(cluster, command=["true"]))
    cluster.put(a="g:5")
    cluster.start("a")
    cluster.forms(1, "a")
    conf = cluster.data / "conf-a"
    assert conf.read_text() == "first 1 g 5 one"
    variable(cluster, "two")
    eventually(lambda: conf.read_text() == "join 1 g 5 two", "the file is refreshed")
    assert cluster.agents["a"].running


def test_a_supervised_restart_passes_through_the_election(cluster: Cluster) -> None:
    """Like any start, it may have to join by then. It imports no module that the daemon has planted."""
    variable(cluster, "one")
    cluster.data.mkdir()
    cluster.publish(members=1, daemon=with_file(cluster, restart=True))
    cluster.put(a="g:5")
    cluster.start("a", KOLLA_START_MODE="supervise")
    cluster.forms(1, "a")
    for name in ("jinja2", "kazoo", "kolla_mesos_start", "signal"):
        (cluster.agents["a"].directory / f"{name}.py").write_text("raise SystemExit(3)")
    variable(cluster, "two")
    cluster.forms(2, "a")
    assert cluster.history("a") == ["first first 1 g 5", "first first 2 g 6"]
    assert (cluster.data / "conf-a").read_text() == "first 2 g 6 two"
    cluster.agents["a"].signal(signal.SIGTERM)
    assert cluster.agents["a"].ends() == 128 + signal.SIGTERM
    eventually(lambda: cluster.names("running") == [], "nothing runs")


def start_supervised(cluster: Cluster, **daemon: Any) -> Agent:
    """Host a alone, with an interpreter of its own, and standard output in a file of its own."""
    variable(cluster, "one")
    cluster.data.mkdir()
    cluster.publish(members=1, daemon={**with_file(cluster, restart=True), **daemon})
    cluster.put(a="g:5")
    shutil.copy(os.path.realpath(sys.executable), cluster.data / "python")
    launcher = ("sh", "-c", 'shift; exec "$PYTHON" "$@" >out', "sh")
    environ = {
        "KOLLA_START_MODE": "supervise",
        "PYTHON": str(cluster.data / "python"),
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }
    agent = cluster.agents["a"] = cluster.containers.start(SERVICE, "a", under=launcher, **environ)
    cluster.forms(1, "a")
    return agent


def test_a_restart_through_the_election_keeps_standard_output(cluster: Cluster) -> None:
    agent = start_supervised(cluster)
    variable(cluster, "two")
    cluster.forms(2, "a")
    daemons = [pid for pid in agent.processes if str(MEMBER).encode() in _command_line(pid)]
    assert [os.readlink(f"/proc/{pid}/fd/1") for pid in daemons] == [f"{agent.directory}/out"]


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [(None, 127, "No such file or directory"), (0o644, 126, "Permission denied")],
)
def test_a_restart_through_the_election_needs_its_interpreter(
    cluster: Cluster, mode: int | None, status: int, reason: str
) -> None:
    """For example, an update of the image's files has removed it."""
    held = 'while [ -e "$0" ]; do sleep 0.05; done'  # The restart waits until the interpreter is gone.
    hold = cluster.data / "held"
    agent = start_supervised(cluster, before_stop={"command": ["sh", "-c", held, str(hold)], "timeout": 600})
    hold.touch()
    variable(cluster, "two")
    agent.says("running before_stop")
    interpreter = cluster.data / "python"
    interpreter.unlink() if mode is None else interpreter.chmod(mode)
    hold.unlink()
    assert agent.ends() == status
    ended = json.loads(cluster.zk.get(f"{cluster.deployment.path}/status/a/{ROLE}/ended")[0])
    assert (ended["status"], ended["retriable"]) == (status, False)
    assert f"it can't be started again, with its new files: {reason}: {interpreter}" in ended["reason"]
    eventually(lambda: not agent.processes, "no process is left")


def test_an_interpreter_that_vanishes_at_the_last_instant(cluster: Cluster, zookeeper: Server) -> None:
    """After it was found: while the registrar takes leave of a ZooKeeper that is silent."""
    hold = cluster.data / "held"
    held = ["sh", "-c", 'while [ -e "$0" ]; do sleep 0.05; done', str(hold)]
    agent = start_supervised(cluster, before_stop={"command": held, "timeout": 600})
    hold.touch()
    variable(cluster, "two")
    agent.says("running before_stop")
    zookeeper.freeze()
    try:
        hold.unlink()
        agent.says("its restart passes through the election")
        (cluster.data / "python").unlink()
        assert agent.ends() == 127
    finally:
        zookeeper.thaw()
    assert "it can't be started again, with its new files: No such file" in agent.said
    assert "defect" not in agent.said


@pytest.mark.parametrize("by_client", [False, True], ids=["signal", "client"])
def test_a_stop_during_the_election_of_a_restart_ends_the_container(
    cluster: Cluster, by_client: bool
) -> None:
    agent = start_supervised(cluster, drain=0.1)
    (cluster.data / "a" / "fail").write_text("3")
    variable(cluster, "two")
    agent.says("this host is no candidate yet")
    if by_client:
        assert stopping(agent).wait(LIMIT) == 0
    else:
        agent.signal(signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGTERM
    assert cluster.names("running") == []
    eventually(lambda: not agent.processes, "no process is left")


def stopping(agent: Agent) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(PROGRAM), "stop"], env=agent.environ)


def test_a_client_of_stop_waits_for_the_agent_of_a_restart(cluster: Cluster, zookeeper: Server) -> None:
    """Nobody listens between the registrar and the new agent, here as long as ZooKeeper is silent."""
    agent = start_supervised(cluster, drain=0.1)
    (cluster.data / "a" / "fail").write_text("3")
    variable(cluster, "two")
    agent.says("draining")
    zookeeper.freeze()
    try:
        agent.says("its restart passes through the election")
        client = stopping(agent)
        with suppress(subprocess.TimeoutExpired):
            client.wait(0.5)
    finally:
        zookeeper.thaw()
    assert client.wait(LIMIT) == 0
    assert agent.ends() == 128 + signal.SIGTERM


def test_only_the_service_may_change_its_election(cluster: Cluster, tmp_path: Path) -> None:
    """Its znodes have the ACL of everything that its agents create."""
    auth = tmp_path / "auth"
    auth.write_text("digest:db:secret\n")
    auth.chmod(0o600)
    identity = f"db:{make_digest_acl_credential('db', 'secret').partition(':')[2]}"
    cluster.publish()
    acl = f"digest:{identity}:cdrw,world:anyone:rd"  # The test cleans up.
    cluster.start(KOLLA_ZK_AUTH_FILE=str(auth), KOLLA_ZK_ACL=acl)
    cluster.forms(1)
    cluster.kill()
    cluster.put(a="g:5", b="g:5", c="g:6")
    cluster.start()
    cluster.forms(2)
    for name in ("", "/turn", "/decision", "/members/a", "/running/a"):
        with pytest.raises(NoAuthError):
            cluster.zk.set(f"{cluster.at}{name}", b"")


def test_a_candidate_follows_the_definition(cluster: Cluster) -> None:
    """Another definition may want fewer hosts: its agents begin again from it."""
    cluster.publish()
    cluster.start("a", "b")
    cluster.reports("a", "election-missing", count="1")
    cluster.publish(members=2)
    cluster.forms(1, "a", "b")
    assert cluster.bootstraps() == ["a"]


def test_garbage_in_a_znode_is_refused_and_named(cluster: Cluster) -> None:
    """Until it is corrected."""
    cluster.publish()
    cluster.start()
    cluster.forms(1)
    valid = cluster.zk.get(f"{cluster.at}/members/b")[0]
    cluster.kill()
    cluster.zk.set(f"{cluster.at}/members/b", b"joined")
    cluster.start()
    state = cluster.reports("a", "refused-bad-record")
    assert f"refused: {cluster.at}/members/b: it is not a JSON object" in state["reason"]
    cluster.zk.set(f"{cluster.at}/members/b", valid)
    cluster.forms(2)


# What an agent and a registrar without an election read and create, in no order.
REQUESTS = {
    "getData .publication": 1,
    "getData infra/db": 1,
    "getData status/global": 1,
    "getData status/global/db": 1,
    "getData status/global/db/daemon": 2,
    "getData status/HOST": 1,
    "getData status/HOST/db/daemon": 2,
    "getData status/HOST/db/ended": 1,
    "create infra/db/.containers/ID": 1,
    "create infra/db/.party/ID": 1,
    "create status/HOST/db/daemon/ready/ID": 1,
    "create status/global/db/daemon/ready/ID": 1,
    "multi": 1,
}


def test_a_daemon_without_an_election_sends_no_request_for_one(
    deployment: Deployment, zookeeper: Server, zk: KazooClient, containers: Containers
) -> None:
    """The same requests as before there were elections."""
    path = f"{deployment.path}/{SERVICE}"
    zk.ensure_path(path)
    daemon = {"command": ["sleep", "600"], "ready": {"alive": 0.1}}
    zk.set(path, json.dumps({"service": {"daemon": daemon}}).encode())
    with contextlib.closing(Line(zookeeper)) as line:
        containers.start(SERVICE, "HOST", KOLLA_ZK_HOSTS=line.hosts, KOLLA_ZK_SESSION_TIMEOUT="60")
        eventually(lambda: _counted(line, deployment) == REQUESTS, f"the requests are {REQUESTS}")


def _counted(line: Line, deployment: Deployment) -> dict[str, int]:
    return Counter(
        f"{each.name} {_relative(each.path, deployment)}".rstrip()
        for requests in line.connections
        for each in requests
        if each.name in ("getData", "create", "multi") or "election" in each.path
    )


def _relative(path: str, deployment: Deployment) -> str:
    return re.sub(r"[0-9a-f]{32}__party__$", "ID", path[len(deployment.path) + 1 :])
