"""The load balancer example with real HAProxy and dnsmasq, which follow the replicas that are ready.

Its replicas are under supervise, so that they are not registered any more when SIGTERM reaches them. Requests
come at 1000 a second, from a client that keeps its connections.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import LocalContainer, processes_of
from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from tests import EXAMPLES
from tests.examples import openstack
from tests.stack.cloud import published
from tests.support.arrangement import section
from tests.support.local_deployment import LocalDeployment
from tests.support.tool import operator_client
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

# Packages may have to be installed first.
pytestmark = pytest.mark.timeout(600)

WEB, HAPROXY, DNSMASQ = "edge/web", "edge/haproxy", "edge/dnsmasq"
TIMEOUT = 4  # seconds: of the sessions
RATE, CLIENTS = 1000, 20  # requests a second, of so many clients together
LONGEST = 120  # seconds of load


# In front of dnsmasq: while there is such a file no other one starts.
HELD = """#!/bin/sh
while [ "$1" = --keep-in-foreground ] && [ -e {held} ]; do sleep 0.05; done
PATH={path}
exec dnsmasq "$@"
"""


class Edge(LocalDeployment):
    """Four replicas of the web service, the last one with an IPv6 address, behind HAProxy and dnsmasq."""

    def __init__(self, directory: Path, zk: KazooClient, hosts: str) -> None:
        self.held = directory / "held"
        environ = {
            "PATH": f"{self._held_by(self.held)}:{openstack.SYSTEM_PATH}",
            "KOLLA_ZK_HOSTS": hosts,
            "KOLLA_ZK_SESSION_TIMEOUT": f"{TIMEOUT}",
            "KOLLA_START_MODE": "supervise",
        }
        self.zk, place = zk, ("/kolla-loadbalancer", "edge")
        client = operator_client(zk, *place)
        super().__init__(EXAMPLES / "loadbalancer", directory, client, environ, *place)
        self.replicas = [self._with_port(WEB, f"web-{number}") for number in range(1, 5)]
        self.replicas[-1].environ["KOLLA_ADDRESS"] = "::1"
        self.haproxy = self._with_port(HAPROXY, "edge-1")
        self.dnsmasq = self._with_port(DNSMASQ, "edge-1")
        self.second_dnsmasq = self._with_port(DNSMASQ, "edge-2")

    def _held_by(self, file: Path) -> Path:
        """A directory in front of PATH."""
        programs = file.with_name("bin")
        programs.mkdir(parents=True, mode=0o755)
        program = programs / "dnsmasq"
        program.write_text(HELD.format(held=file, path=openstack.SYSTEM_PATH))
        program.chmod(0o755)
        return programs

    def _with_port(self, service: str, host: str) -> LocalContainer:
        port = free_port()
        return self.add(service, host, port, {"port": port})

    def is_ready(self, *containers: LocalContainer) -> bool:
        return all(each.host in self.ready_hosts(each.service) for each in containers)

    def set(self, **variables: str) -> None:
        """Variables of the deployment, as an operator sets them."""
        for variable, value in variables.items():
            self.zk.set(f"{self.path}/variables/{variable}", value.encode())

    # -- asking HAProxy and dnsmasq -----------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.haproxy.environ['KOLLA_PORTS']}"

    def answer(self) -> str:
        """The host whose replica answers a request."""
        connection = HTTPConnection(self.address, timeout=10)
        connection.request("GET", "/")
        host = connection.getresponse().read().decode().strip()
        connection.close()
        return host

    def haproxy_says(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as stats:
            stats.connect(str(self.haproxy.root / "etc/haproxy/stats.sock"))
            stats.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: stats.recv(65536), b"")).decode()

    def worker(self) -> int:
        """The process of HAProxy's that serves: another one after a reload."""
        return int(self.haproxy_says("show info").partition("\nPid: ")[2].split()[0])

    def rows(self) -> list[dict[str, str]]:
        """HAProxy's statistics of its backend `web`."""
        table = csv.DictReader(self.haproxy_says("show stat").removeprefix("# ").splitlines())
        return [row for row in table if row["pxname"] == "web" and row["svname"] != "FRONTEND"]

    def servers(self) -> dict[str, dict[str, str]]:
        """What HAProxy knows of each server, by the server's address."""
        return {row["svname"]: row for row in self.rows() if row["svname"] != "BACKEND"}

    def repeated(self) -> int:
        """The requests that HAProxy has sent a second time so far, most of them to another replica."""
        return sum(
            int(row["wretr"]) + int(row["wredis"]) for row in self.rows() if row["svname"] == "BACKEND"
        )

    def serves(self, replica: LocalContainer) -> bool:
        return self.servers().get(name(replica), {}).get("status", "").startswith("UP")

    def configured(self) -> list[str]:
        """The servers in HAProxy's file."""
        text = (self.haproxy.root / "etc/haproxy/haproxy.cfg").read_text()
        return re.findall(r"^ *server (\S+)", text, re.MULTILINE)

    def names(self, kind: str, domain: str, dnsmasq: LocalContainer | None = None) -> list[str]:
        """What dnsmasq answers, the first one unless another is given, sorted."""
        port = (dnsmasq or self.dnsmasq).environ["KOLLA_PORTS"]
        asked = ("dig", "+short", "@127.0.0.1", "-p", port, kind, domain)
        return sorted(
            subprocess.run(asked, stdout=subprocess.PIPE, check=False, text=True).stdout.splitlines()
        )


def name(replica: LocalContainer) -> str:
    """The replica's server in HAProxy."""
    return f"{replica.environ.get('KOLLA_ADDRESS', '127.0.0.1')}:{replica.environ['KOLLA_PORTS']}"


def kill(containers: Sequence[LocalContainer]) -> None:
    """End all their processes at once, as the end of their host does."""
    for container in containers:
        for pid in processes_of(container.run_dir):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        container.wait()


class Load:
    """What became of the requests: `responses` with status 200, and all others as `hey` describes them."""

    responses = 0
    failures = ""

    def __str__(self) -> str:
        return f"{self.responses} requests, failed: {self.failures or 'none'}"


@contextmanager
def load(edge: Edge, *options: str, rate: int = RATE) -> Iterator[Load]:
    """Meanwhile there are `rate` requests a second; `options` are those of `hey`."""
    words = ("-z", f"{LONGEST}s", "-c", f"{CLIENTS}", "-q", f"{rate // CLIENTS}", *options)
    hey = subprocess.Popen(("hey", *words, f"http://{edge.address}/"), stdout=subprocess.PIPE, text=True)
    found = Load()
    try:
        yield found
        hey.send_signal(signal.SIGINT)
        said, _ = hey.communicate(timeout=60)
    finally:
        hey.kill()
        hey.wait()
    _, _, statuses = said.partition("Status code distribution:")
    found.responses = sum(map(int, re.findall(r"\[200\]\s+(\d+) responses", statuses)))
    found.failures = re.sub(r"\[200\]\s+\d+ responses", "", statuses).strip()


@pytest.fixture(scope="module")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests: what was measured."""
    return section(pytestconfig, "HAProxy and dnsmasq behind changing replicas")


@contextmanager
def running(edge: Edge, zk: KazooClient, *others: LocalContainer) -> Iterator[None]:
    """The deployment is published, and three replicas, HAProxy and the `others` are up."""
    with published(edge, zk):
        started = [*edge.replicas[:3], edge.haproxy, *others]
        for container in started:
            container.start()
        eventually(lambda: edge.is_ready(*started), "all are ready")
        eventually(lambda: all(map(edge.serves, edge.replicas[:3])), "HAProxy has all three")
        yield


@pytest.fixture(scope="module")
def edge(shared_zookeeper: Server, module_zk: KazooClient, edge_servers: None, place: Path) -> Iterator[Edge]:
    """The deployment, published, with three replicas up."""
    edge = Edge(place / "edge", module_zk, shared_zookeeper.hosts)
    with running(edge, module_zk, edge.dnsmasq):
        yield edge


def test_a_replica_takes_requests_soon_after_it_is_ready(edge: Edge, report: list[str]) -> None:
    """And dnsmasq answers for it, by its IPv6 address; HAProxy is not reloaded."""
    new = edge.replicas[3]
    worker = edge.worker()
    new.start()
    eventually(lambda: edge.answer() == new.host, "it answers")
    took = time.time() - edge.ready_hosts(WEB)[new.host]
    report.append(f"ready to its first request: {took:.2f} s")
    assert took < 30
    assert edge.worker() == worker
    eventually(lambda: edge.names("AAAA", "web-4.web.example.org") == ["::1"], "it has a name")


def test_dnsmasq_answers_for_all_that_are_ready(edge: Edge) -> None:
    """A, AAAA, and SRV with ports."""
    eventually(lambda: len(edge.names("SRV", "_web._tcp.example.org")) == 4, "all four are there")
    for replica in edge.replicas[:3]:
        assert edge.names("A", f"{replica.host}.web.example.org") == ["127.0.0.1"]
    assert edge.names("A", "web.example.org") == ["127.0.0.1"]
    assert edge.names("AAAA", "web.example.org") == ["::1"]
    assert edge.names("SRV", "_web._tcp.example.org") == sorted(
        f"0 0 {each.environ['KOLLA_PORTS']} {each.host}.web.example.org." for each in edge.replicas
    )
    assert edge.names("A", "web-5.web.example.org") == []


def test_a_replica_that_is_killed_leaves(edge: Edge, report: list[str]) -> None:
    """HAProxy's own check is quicker than the session; no request fails."""
    gone = edge.replicas[3]
    with load(edge) as seen:
        eventually(lambda: int(edge.servers()[name(gone)]["hrsp_2xx"]) > 100, "it answers requests")
        kill([gone])
        instant = time.monotonic()
        eventually(lambda: not edge.serves(gone), "HAProxy leaves it")
        left = time.monotonic() - instant
        eventually(lambda: gone.host not in edge.ready_hosts(WEB), "its session ends")
        expired = time.monotonic() - instant
        eventually(lambda: name(gone) not in edge.servers(), "HAProxy does not know it any more")
        removed = time.monotonic() - instant
    report.append(
        f"killed: HAProxy's check {left:.2f} s, its session {expired:.2f} s, removed {removed:.2f} s; {seen}"
    )
    assert not seen.failures
    assert left < TIMEOUT
    eventually(lambda: edge.names("AAAA", "web-4.web.example.org") == [], "nor does dnsmasq")


def test_no_request_fails_while_each_replica_is_restarted(edge: Edge, report: list[str]) -> None:
    before = edge.repeated()
    with load(edge) as seen:
        began = time.monotonic()
        for replica in edge.replicas[:3]:
            os.kill(replica.pid, signal.SIGTERM)
            replica.wait()
            replica.start()
            eventually(partial(edge.is_ready, replica), "it is ready again")
            eventually(partial(edge.serves, replica), "HAProxy has it again")
        took = time.monotonic() - began
    report.append(
        f"three replicas restarted in {took:.1f} s, {seen.responses / took:.0f} requests a second: {seen};"
        f" sent a second time: {edge.repeated() - before}"
    )
    assert not seen.failures
    assert seen.responses > took * RATE / 5, "fewer than meant only on a machine that does other things too"


def test_a_drained_replica_gets_no_requests(edge: Edge, report: list[str]) -> None:
    """Its weight changes through the runtime API: HAProxy is not reloaded."""
    worker = edge.worker()
    drained = edge.replicas[0]
    with load(edge) as seen:
        edge.set(drained=drained.host)
        eventually(lambda: edge.servers()[name(drained)]["weight"] == "0", "it has no weight")
        edge.set(drained="")
        eventually(lambda: edge.servers()[name(drained)]["weight"] == "100", "it has its weight again")
    report.append(f"drained: {seen}")
    assert not seen.failures
    assert edge.worker() == worker


def test_no_request_fails_while_haproxy_is_reloaded(edge: Edge, report: list[str]) -> None:
    """For what the runtime API can't change. Each request has a connection of its own."""
    worker = edge.worker()
    with load(edge, "-disable-keepalive") as seen:
        edge.set(server_options="check inter 200ms fall 2 rise 1")
        eventually(lambda: edge.worker() != worker, "another process serves")
        eventually(lambda: all(map(edge.serves, edge.replicas[:3])), "it has all three")
    report.append(f"a reload: {seen}")
    assert not seen.failures


def test_without_any_replica_the_last_list_stays(edge: Edge) -> None:
    """One of those that were the last is known when it comes back; once it is ready it is the only one."""
    before = edge.configured()
    kill(edge.replicas[:3])
    both = (edge.haproxy, edge.dnsmasq)
    eventually(lambda: all("no instance" in each.state[1] for each in both), "they say that they keep it")
    left = edge.configured()
    assert set() < set(left) <= set(before), "their sessions may have ended one after the other"
    assert edge.names("SRV", "_web._tcp.example.org")
    back = next(each for each in edge.replicas if name(each) in left)
    back.start()
    eventually(lambda: edge.answer() == back.host, "it answers")
    eventually(lambda: list(edge.servers()) == [name(back)], "HAProxy has no other one")
    port = back.environ["KOLLA_PORTS"]
    answer = [f"0 0 {port} {back.host}.web.example.org."]
    eventually(lambda: edge.names("SRV", "_web._tcp.example.org") == answer, "nor has dnsmasq")


def test_of_two_dnsmasq_one_is_restarted_after_the_other(edge: Edge) -> None:
    """A variable that both use changes: until the first one answers again the second one does."""
    both = (edge.dnsmasq, edge.second_dnsmasq)
    edge.second_dnsmasq.start()
    eventually(lambda: edge.is_ready(*both), "both are ready")
    edge.held.touch()
    edge.set(dns_domain="example.net")
    first = eventually(lambda: next((each for each in both if not edge.is_ready(each)), None), "one is away")
    (second,) = set(both) - {first}
    eventually(lambda: "1 of at most 1 instances" in second.state[1], "the other one waits for its turn")
    assert edge.is_ready(second)
    assert edge.names("SRV", "_web._tcp.example.org", second)
    edge.held.unlink()
    for each in both:
        asked = partial(edge.names, "SRV", "_web._tcp.example.net", each)
        eventually(asked, f"{each.name} answers for the new domain")
