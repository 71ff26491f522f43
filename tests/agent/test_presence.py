"""Presence and readiness: what the container of a daemon registers, and when.

Whole agents with a real ZooKeeper, and daemons that notify, listen, answer and die.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from kazoo.client import KazooClient

from tests import CHECKOUT
from tests.conftest import Deployment, connected, made
from tests.support.agents import Agent, Containers
from tests.support.instances import INSTANCE_DATA, Site
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.sessions import kept_alive
from tests.support.waiting import eventually
from tests.support.zookeeper import Server, free_port

SERVICE = "openstack/web"
SHORT_SESSION = {"KOLLA_ZK_SESSION_TIMEOUT": "2"}
OWN_NETWORK = (sys.executable, str(CHECKOUT / "tests" / "support" / "own_network.py"))

# A daemon that obeys words from the FIFO `tell` in its directory: it listens on a number as a port, `close`
# ends that, and it sends any other word to its notify socket.
OBEYS = """
import os, socket
if not os.path.exists("tell"):
    os.mkfifo("tell")
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening = []
while True:
    with open("tell") as tell:
        words = tell.read().split()
    for word in words:
        if word.isdigit():
            listening.append(socket.create_server(("127.0.0.1", int(word))))
        elif word == "close":
            listening.pop().close()
        else:
            notify.sendto(word.encode(), os.environ["NOTIFY_SOCKET"])
"""
OBEDIENT = [sys.executable, "-c", OBEYS]
# A web server that answers 204 while the file `healthy` is there.
ANSWERS = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204 if os.path.exists("healthy") else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SLEEPS = "sleep 1000"
AT_ONCE = {"alive": 0}
NOTIFY = {"notify": True}


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient) -> Site:
    """The service that most tests publish."""
    return Site(deployment, zk, SERVICE)


def publish_daemon(
    deployment: Deployment,
    command: str | Sequence[str] = SLEEPS,
    ready: Mapping[str, Any] | None = AT_ONCE,
    *,
    service: str = SERVICE,
    commands: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """Publish a service with this daemon; `more` are its other keys."""
    daemon = {"command": command, "ready": ready, **more}
    publish(deployment, service, {"commands": commands or {}, "service": {"daemon": daemon}})


def tell(agent: Agent, word: str) -> None:
    """Have an obedient daemon do something."""
    fifo = agent.directory / "tell"
    eventually(fifo.exists, "the daemon listens")
    fifo.write_text(word)


def kill_container(agent: Agent) -> None:
    """SIGKILL to all its processes, as when its pid namespace ends."""
    if agent.registrar:
        os.kill(agent.registrar, signal.SIGKILL)
    agent.signal(signal.SIGKILL)
    assert agent.ends() == 128 + signal.SIGKILL


def sessions(zookeeper: Server) -> set[int]:
    """The sessions that the server keeps, connected or not."""
    lines = [line.strip() for line in zookeeper.ask("dump").splitlines()]
    return {int(line, 16) for line in lines if line.startswith("0x") and ":" not in line}


def watched(zookeeper: Server, path: str) -> bool:
    """Whether some session watches this path."""
    return path in zookeeper.ask("wchp").splitlines()


# -- presence -----------------------------------------------------------------------------------------


def test_a_container_is_present_from_its_definition_to_its_end(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """With its host's facts, also while it waits; not before it has a definition."""
    agent = containers.start(SERVICE, "web7")
    eventually(lambda: watched(zookeeper, f"{deployment.path}/{SERVICE}"), "it waits for its definition")
    assert zk.exists(site.party) is None
    publish_daemon(deployment, dependencies=["db/daemon"])
    ((member, facts),) = site.await_members(1).items()
    assert site.owner(f"{site.party}/{member}") in sessions(zookeeper)
    assert (facts["host"], facts["service"], facts["ports"]) == ("web7", SERVICE, [])
    assert facts["ansible_hostname"] == os.uname().nodename
    interface = facts[f"ansible_{facts['private_interface']}"]
    assert facts["address"] == facts["private_address"] == interface["ipv4"]["address"]
    assert facts["ansible_lo"]["ipv4"] == {"address": "127.0.0.1"}
    assert not site.instances() and site.state() == "waiting"
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143
    assert not site.members, "its session is closed before it ends"


def test_a_task_is_not_present(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Neither in the party nor as a daemon."""
    publish(deployment, SERVICE, {"commands": {"go": {"command": "touch going; sleep 1000"}}})
    agent = containers.start(SERVICE)
    eventually((agent.directory / "going").exists, "its command runs")
    assert site.state("go", "web1") == "running"
    assert zk.exists(site.party) is None
    assert zk.exists(site.daemon()) is None and zk.exists(site.daemon("web1")) is None


@pytest.mark.parametrize(
    ("environ", "address", "ports"),
    [
        ({}, None, []),
        ({"KOLLA_ADDRESS": "203.0.113.9"}, "203.0.113.9", []),
        ({"KOLLA_ADDRESS": "2001:db8::9", "KOLLA_PORTS": "5000,35357"}, "2001:db8::9", [5000, 35357]),
        ({"KOLLA_ADDRESS": "web-7.example.org", "PORTS": "31001,31002"}, "web-7.example.org", [31001, 31002]),
        ({"KOLLA_PORTS": "5000", "PORTS": "31001"}, None, [5000]),
    ],
)
def test_address_and_ports_are_those_for_others(
    deployment: Deployment,
    containers: Containers,
    site: Site,
    environ: Mapping[str, str],
    address: str | None,
    ports: list[int],
) -> None:
    """Those of member and instance; a template that binds gets the local address."""
    files = {"bind": {"dest": "{{ place }}/bind"}}
    daemon = {"command": SLEEPS, "ready": AT_ONCE, "files": files}
    publish(
        deployment,
        SERVICE,
        {"service": {"daemon": daemon}},
        files={"bind": "{{ get_ip_address() }}"},
        variables={"place": str(containers.directory)},
    )
    containers.start(SERVICE, "web7", **environ)
    ((member, instance),) = site.await_instances(1).items()
    (facts,) = site.members.values()
    local = facts["private_address"]
    assert (facts["address"], facts["ports"]) == (address or local, ports)
    since = instance.pop("since")
    assert instance == {
        "host": "web7",
        "address": address or local,
        "ports": ports,
        "service": SERVICE,
        "generation": None,
    }
    begun = datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert abs(time.time() - begun.timestamp()) < 60
    assert site.instances("web7") == {member: {**instance, "since": since}}
    assert list(site.members) == [member]
    assert (containers.directory / "bind").read_text() == local


@pytest.mark.parametrize("how", ["killed while it waited", "killed while it ran", "ended"])
def test_a_restarted_container_replaces_its_own_member(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, site: Site, how: str
) -> None:
    """At once, although the previous session still exists: there are never two members, and never none."""
    waits = how == "killed while it waited"
    publish_daemon(deployment, OBEDIENT, NOTIFY, dependencies=["db/daemon"] if waits else [])
    agent = containers.start(SERVICE)
    (member,) = site.await_members(1)
    if not waits:
        tell(agent, "READY=1")
        site.await_instances(1)
    former = site.owner(f"{site.party}/{member}")
    history = site.history(site.party)
    with contextlib.ExitStack() as stack:
        if how == "ended":
            agent.signal(signal.SIGTERM)
            agent.ends()
            eventually(lambda: not agent.processes, "the registrar has closed its session, and ended")
            eventually(lambda: not site.members, "its session is closed")
        else:
            stack.enter_context(kept_alive(zookeeper.hosts, former))
            kill_container(agent)
        # Its second run has to wait, and isn't ready in the meantime.
        publish_daemon(deployment, OBEDIENT, NOTIFY, dependencies=["db/daemon"])
        agent.restart()
        eventually(lambda: site.owner(f"{site.party}/{member}") not in (0, former), "the member is replaced")
        eventually(lambda: not site.instances() and not site.instances("web1"), "the instance is gone")
        assert (how == "ended") == (former not in sessions(zookeeper))
        if how != "ended":
            assert history == [[member]] * len(history)
    ready = f"{deployment.path}/status/global/db/daemon/ready/one"
    zk.create(ready, INSTANCE_DATA, ephemeral=True, makepath=True)
    tell(agent, "READY=1")
    assert list(site.await_instances(1)) == list(site.members) == [member]


def test_a_second_container_counts_and_a_restarted_one_does_not(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Also on the same host: a container is not its host."""
    publish_daemon(deployment)
    count_members = {"members": SERVICE, "count": 2}
    count_ready = {"path": "web/daemon", "count": 2}
    publish_daemon(deployment, "true", service="infra/members", dependencies=[count_members])
    publish_daemon(deployment, "true", service="infra/ready", dependencies=[count_ready])
    dependents = [containers.start("infra/members"), containers.start("infra/ready")]
    first = containers.start(SERVICE, "web1")
    (member,) = site.await_instances(1)
    former = site.owner(f"{site.party}/{member}")
    kill_container(first)
    first.restart()
    eventually(lambda: site.owner(f"{site.daemon()}/ready/{member}") not in (0, former), "it is ready again")
    assert all(dependent.running for dependent in dependents)
    # On the same host too: a container is not its host.
    containers.start(SERVICE, "web1")
    assert len(site.await_instances(2)) == len(site.members) == len(site.instances("web1")) == 2
    assert member in site.members
    assert [dependent.ends() for dependent in dependents] == [0, 0]


def test_a_new_session_registers_everything_once(
    zookeeper: Server, deployment: Deployment, containers: Containers, zk: KazooClient, link: Link
) -> None:
    """A container that waits and one whose daemon runs lose their sessions in one outage."""
    running, waiting = (Site(deployment, zk, service) for service in (SERVICE, "infra/waits"))
    publish_daemon(deployment)
    publish_daemon(deployment, service="infra/waits", dependencies=["db/daemon"])
    environ = {"KOLLA_ZK_HOSTS": link.hosts, "KOLLA_ZK_SESSION_TIMEOUT": "6"}
    runs = containers.start(SERVICE, **environ)
    waits = containers.start("infra/waits", **environ)
    (member,) = running.await_instances(1)
    (other,) = waiting.await_members(1)
    # An outage that the sessions survive changes nothing.
    paths = [f"{running.party}/{member}", f"{running.daemon()}/ready/{member}", f"{waiting.party}/{other}"]
    owners = [waiting.owner(path) for path in paths]
    histories = [running.history(path) for path in (running.party, f"{running.daemon()}/ready")]
    histories.append(waiting.history(waiting.party))
    link.kill()
    link.launch()
    for agent in (runs, waits):
        agent.says("connected to ZooKeeper again")
    assert [waiting.owner(path) for path in paths] == owners
    assert histories == [[[member]], [[member]], [[other]]]
    # One that they don't.
    link.kill()
    eventually(lambda: not sessions(zookeeper) & set(owners), "both sessions expire")
    link.launch()
    for site, expected in ((running, member), (waiting, other)):
        assert list(site.await_members(1)) == [expected]
    assert list(running.await_instances(1)) == [member]
    assert not {waiting.owner(path) for path in paths} & set(owners)
    for history, expected in zip(histories, (member, member, other)):
        eventually(lambda history=history, last=[expected]: history[-1] == last, "the watch has seen it")  # type: ignore[misc]
        assert all(children in ([], [expected]) for children in history)
    assert runs.running and waits.running


def test_a_deployment_that_is_gone_with_the_session_ends_no_container(
    deployment: Deployment, containers: Containers, zk: KazooClient, link: Link, site: Site
) -> None:
    """The container reports it, and is present again when the deployment is."""
    publish_daemon(deployment, dependencies=["db/daemon"])
    agent = containers.start(SERVICE, KOLLA_ZK_HOSTS=link.hosts, **SHORT_SESSION)
    (member,) = site.await_members(1)
    link.kill()
    site.await_members(0)
    zk.delete(deployment.path, recursive=True)
    link.launch()
    agent.says("can't be created: the deployment is gone")
    assert agent.running and zk.exists(deployment.path) is None
    zk.ensure_path(deployment.path)
    publish_daemon(deployment, dependencies=["db/daemon"])
    link.kill()
    link.launch()
    assert list(site.await_members(1)) == [member]


# -- readiness ----------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A readiness check, a daemon for it, and how that becomes good for the check, and bad."""

    ready: Mapping[str, Any]
    daemon: Sequence[str] | str
    good: Callable[[Agent], None]
    bad: Callable[[Agent], None]
    why: str
    """what the state says while it isn't good yet"""
    why_again: str


def heal(agent: Agent) -> None:
    (agent.directory / "healthy").touch()


def harm(agent: Agent) -> None:
    (agent.directory / "healthy").unlink()


QUICKLY = {"interval": 0.1, "fall": 2}
KINDS: Mapping[str, Callable[[int], Kind]] = {
    "notify": lambda port: Kind(
        NOTIFY,
        OBEDIENT,
        lambda agent: tell(agent, "READY=1"),
        lambda agent: tell(agent, "STOPPING=1"),
        "check notify: the daemon has not sent READY=1",
        "the daemon has announced that it is stopping",
    ),
    "tcp": lambda port: Kind(
        {"tcp": port, **QUICKLY},
        OBEDIENT,
        lambda agent: tell(agent, f"{port}"),
        lambda agent: tell(agent, "close"),
        f"check tcp port {port}: Connection refused",
        f"check tcp port {port}: Connection refused",
    ),
    "http": lambda port: Kind(
        {"http": f"http://127.0.0.1:{port}/healthcheck", **QUICKLY},
        [sys.executable, "-c", ANSWERS, f"{port}"],
        heal,
        harm,
        f"check http port {port}: HTTP status 503",
        f"check http port {port}: HTTP status 503",
    ),
    "command": lambda port: Kind(
        {"command": "test -e healthy", **QUICKLY},
        SLEEPS,
        heal,
        harm,
        "check command: exit status 1",
        "check command: exit status 1",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_container_is_ready_while_its_check_succeeds(
    deployment: Deployment, containers: Containers, site: Site, name: str
) -> None:
    """The instance is withdrawn when the check fails, and returns; probes always agree."""
    kind = KINDS[name](free_port())
    publish_daemon(deployment, kind.daemon, kind.ready)
    agent = containers.start(SERVICE)
    eventually(lambda: agent.state == f"starting {kind.why}", f"it waits, as {agent.state!r} will say")
    assert not site.instances() and site.state() == site.state(scope="web1") == "waiting"
    assert (agent.health().returncode, agent.health("--ready").returncode) == (0, 1)
    kind.good(agent)
    for again in (False, True):
        site.await_instances(1)
        eventually(lambda: site.instances("web1") == site.instances(), "its host knows it too")
        eventually(lambda: agent.state == "ready", "the probes agree")
        eventually(
            lambda: [site.state(), site.state(scope="web1")] == ["running"] * 2,
            "the states agree",
        )
        assert (agent.health().returncode, agent.health("--ready").returncode) == (0, 0)
        if again:
            break
        kind.bad(agent)
        site.await_instances(0)
        eventually(lambda: not site.instances("web1"), "on its host too")
        assert agent.state == f"unready {kind.why_again}"
        assert (agent.health().returncode, agent.health("--ready").returncode) == (0, 1)
        assert agent.running and site.members == site.await_members(1), "it stays present"
        kind.good(agent)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_dies_is_unregistered_at_once(
    deployment: Deployment, containers: Containers, site: Site, end: signal.Signals
) -> None:
    """Its registrar does it; a container that depends on it waits until it is back."""
    publish_daemon(deployment)
    publish_daemon(deployment, "true", service="infra/dependent", dependencies=["web/daemon"])
    agent = containers.start(SERVICE)
    site.await_instances(1)
    agent.signal(end)
    assert agent.ends() == 128 + end
    eventually(lambda: not (site.instances() or site.members), "nothing is registered")
    dependent = containers.start("infra/dependent")
    eventually(lambda: "0 of 1 instances ready" in dependent.state, "the dependent waits")
    agent.restart()
    assert dependent.ends() == 0


def test_a_killed_container_is_gone_within_the_session_timeout(
    zookeeper: Server, deployment: Deployment, containers: Containers, site: Site, zk: KazooClient
) -> None:
    """No process can close the session; the registrar asks for at most 6 s."""
    publish_daemon(deployment)
    other = Site(deployment, zk, "infra/patient")
    publish_daemon(deployment, service="infra/patient")
    agent = containers.start(SERVICE, KOLLA_ZK_SESSION_TIMEOUT="4")
    containers.start("infra/patient", KOLLA_ZK_SESSION_TIMEOUT="10")
    timeouts = []
    for registered in (site, other):
        (member,) = registered.await_instances(1)
        session = registered.owner(f"{registered.party}/{member}")
        (connection,) = (line for line in zookeeper.ask("cons").splitlines() if f"sid={session:#x}" in line)
        timeouts.append(connection.partition(",to=")[2].partition(",")[0])
    assert timeouts == ["4000", "6000"]
    kill_container(agent)
    # As the server counts, plus one tick, plus what a busy machine takes.
    site.await_instances(0, seconds=4 + 0.5 + 15)
    assert not site.members


# -- the default check --------------------------------------------------------------------------------


class Patient(NamedTuple):
    """Three daemons with the default check: one never notifies, one notifies, one sends another status."""

    begun: float
    """seconds since the epoch"""
    agents: Sequence[Agent]
    sites: Sequence[Site]


@pytest.fixture(scope="module", autouse=True)
def patient(shared_zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """They start before the other tests, so that the last test waits only for the rest of their 20 s."""
    with contextlib.ExitStack() as stack:
        zk = stack.enter_context(contextlib.contextmanager(connected)(shared_zookeeper))
        deployment = stack.enter_context(contextlib.contextmanager(made)(shared_zookeeper, zk))
        containers = Containers(tmp_path_factory.mktemp("c"), deployment.environ)
        stack.callback(containers.end)
        services = ["infra/silent", "infra/speaks", "infra/recovers"]
        for service in services:
            publish_daemon(deployment, OBEDIENT, None, service=service)
        begun = time.time()
        agents = [containers.start(service) for service in services]
        for agent, word in zip(agents, ("X_MINE=1", "READY=1", "STATUS=recovering")):
            tell(agent, word)
        yield Patient(begun, agents, [Site(deployment, zk, service) for service in services])


def test_by_default_a_daemon_notifies_or_lives_for_20_s(patient: Patient) -> None:
    """A daemon that never notifies is ready after 20 s; one that does, when it sends READY=1."""
    begun, (silent, speaks, recovers), sites = patient
    sites[1].await_instances(1)
    sites[0].await_instances(1)
    eventually(lambda: silent.state == speaks.state == "ready", "the probes agree")
    told = [(agent.directory / "run" / "state").stat().st_mtime - begun for agent in (silent, speaks)]
    assert told[0] >= 20 > told[1]
    assert (
        recovers.state == "starting check notify: the daemon has not sent READY=1"
        and not sites[2].instances()
    )
    tell(recovers, "READY=1")
    sites[2].await_instances(1)


@pytest.mark.parametrize("where", ["127.0.0.1", "KOLLA_ADDRESS", "public"])
def test_a_daemon_may_listen_on_any_of_its_hosts_addresses(
    deployment: Deployment, containers: Containers, site: Site, where: str, tmp_path: Path, zookeeper: Server
) -> None:
    """The check of a port tries loopback, the private, the public and the registered address."""
    port = free_port()
    address = {"KOLLA_ADDRESS": "127.0.0.9", "public": "192.0.2.8"}.get(where, where)
    listen = f"import socket, time; x = socket.create_server(({address!r}, {port})); time.sleep(1000)"
    publish_daemon(deployment, [sys.executable, "-c", listen], {"tcp": port})
    batch = tmp_path / "network"
    lines = ["link add private0 type veth peer name public0", "link set private0 up", "link set public0 up"]
    lines += [f"address add 192.0.2.{at}/32 dev {name}" for at, name in ((7, "private0"), (8, "public0"))]
    batch.write_text("\n".join(lines))
    environ = {"KOLLA_PRIVATE_INTERFACE": "private0", "KOLLA_PUBLIC_INTERFACE": "public0"}
    more = {"KOLLA_ADDRESS": "127.0.0.9"} if where == "KOLLA_ADDRESS" else {}
    under = (*OWN_NETWORK, zookeeper.hosts.rpartition(":")[2], str(batch))
    containers.start(SERVICE, under=under, **environ, **more)
    site.await_instances(1)
