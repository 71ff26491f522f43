"""Elections: whole agents with a real ZooKeeper, and a small database in place of Galera."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.agents import Agent, Containers
from tests.conftest import Deployment
from tests.waiting import eventually
from tests.zookeeper import free_port

MEMBER = Path(__file__).resolve().parents[1] / "cluster_member.py"
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

    def reports(self, host: str, code: str) -> dict[str, Any]:
        """Wait until the container of a host reports this code."""

        def found() -> dict[str, Any]:
            state = self.state(host)
            return state if state.get("code") == code else {}

        return eventually(found, f"{host} reports {code}")


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


def test_after_a_blackout_the_newest_data_win(cluster: Cluster) -> None:
    """Whatever the order of the starts is, and each time again."""
    cluster.publish()
    cluster.start()
    cluster.forms(1)
    for epoch, (newest, order) in enumerate([("b", "cba"), ("c", "abc")], 2):
        cluster.kill()
        group = (cluster.data / "a" / "position").read_text().partition(":")[0]
        cluster.put(**{host: f"{group}:{90 * epoch + (host == newest)}" for host in HOSTS})
        cluster.start(*order)
        cluster.forms(epoch)
        assert cluster.history(newest)[-1] == f"first first {epoch} {group} {90 * epoch + 1}"
        assert cluster.read("decision")["winner"] == newest
        assert len(cluster.bootstraps()) == epoch


def test_a_missing_member_is_waited_for_and_named(cluster: Cluster) -> None:
    """However many others are there: it may have the newest data, and here it has."""
    cluster.publish()
    cluster.start()
    cluster.forms(1)
    cluster.kill()
    cluster.put(a="g:7", b="g:8", c="g:9")
    cluster.start("a", "b")
    state = cluster.reports("a", "election-missing")
    assert state["election"] == {"hosts": "c", "position a": "g:7", "position b": "g:8"}
    assert "missing: c" in state["reason"]
    cluster.start("c")
    # The group of the first cluster was not known: the decision sets it.
    cluster.forms(2)
    assert cluster.read("decision")["group"] == "g"
    assert cluster.bootstraps() == ["a", "c"]


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
