"""A container waits for exactly what its definition asks for, whatever happens to its session meanwhile.

Which command may run, and what is reported, is decided in memory: see tests/test_wait.py.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.loop import Loop
from kolla_mesos_start.tree import published
from kolla_mesos_start.tree.published import Published
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.client import Client
from tests.conftest import Deployment, LogLines
from tests.server.test_session import servers
from tests.support.agents import Agent, Containers
from tests.support.counting import Line
from tests.support.instances import INSTANCE_DATA, MEMBER_DATA
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tap import EXISTS, GET_CHILDREN, GET_DATA, Tap, read_packet
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

HOST = "web1"
INSTANCE, MEMBER = INSTANCE_DATA.decode(), MEMBER_DATA.decode()
SOON = 20.0  # seconds, on a busy machine
SHORT = "2"  # seconds; the least that a session may have, so that an outage is noticed and over soon


class Kind(NamedTuple):
    """A dependency, znodes that do not satisfy it, and those that then do. Paths are below the deployment."""

    dependency: Any
    near: Mapping[str, str]
    enough: Mapping[str, str]


KINDS = {
    "plain": Kind(
        "db/sync",
        {"status/global/db/sync": "error", f"status/{HOST}/db/sync": "done"},
        {"status/global/db/sync": "done"},
    ),
    "any_generation": Kind(
        "net/upgrade",
        {"status/global/net/upgrade": "running"},
        {"status/global/net/upgrade/generations/2": "7 7"},
    ),
    "generation": Kind(
        {"path": "image/upgrade", "generation": "quay.io/kolla:2"},
        {
            "status/global/image/upgrade": "done",
            "status/global/image/upgrade/generations/quay.io%2Fkolla%3A1": "7 7",
        },
        {"status/global/image/upgrade/generations/quay.io%2Fkolla%3A2": "8 8"},
    ),
    "hosts": Kind(
        {"path": "keys/make", "count": 2},
        {"status/global/keys/make": "done", "status/global/keys/make/hosts/web1": ""},
        {"status/global/keys/make/hosts/web2": ""},
    ),
    "local": Kind(
        {"path": "ovs/setup", "scope": "local"},
        {"status/global/ovs/setup": "done", "status/web2/ovs/setup": "done"},
        {f"status/{HOST}/ovs/setup": "done"},
    ),
    "one_instance": Kind(
        "mq/daemon",
        {"status/global/mq/daemon": "running"},
        {"status/global/mq/daemon/ready/one": INSTANCE},
    ),
    "two_instances": Kind(
        {"path": "cache/daemon", "count": 2},
        {"status/global/cache/daemon/ready/one": INSTANCE},
        {"status/global/cache/daemon/ready/two": INSTANCE},
    ),
    "local_instance": Kind(
        {"path": "agent/daemon", "scope": "local"},
        {"status/global/agent/daemon/ready/one": INSTANCE, "status/web2/agent/daemon/ready/one": INSTANCE},
        {f"status/{HOST}/agent/daemon/ready/two": INSTANCE},
    ),
    "members": Kind(
        {"members": "infra/proxy", "count": 2},
        {"infra/proxy/.party/one": MEMBER},
        {"infra/proxy/.party/two": MEMBER},
    ),
}


def one_command_for_each_kind() -> dict[str, Any]:
    """A definition in which each command waits for one kind of dependency."""
    return {
        "commands": {
            name: {"command": f"echo {name} >> ran", "dependencies": [kind.dependency]}
            for name, kind in KINDS.items()
        }
    }


def one_command_for_all(*dependencies: Any, command: str = "true") -> dict[str, Any]:
    return {"commands": {"go": {"command": command, "dependencies": list(dependencies)}}}


def write(zk: KazooClient, deployment: Deployment, nodes: Mapping[str, str]) -> None:
    """Write znodes below the deployment, as other containers would."""
    for name, text in nodes.items():
        path = f"{deployment.path}/{name}"
        if zk.exists(path):
            zk.set(path, text.encode())
        else:
            ephemeral = path.split("/")[-2] in ("ready", ".party", "lock")
            zk.create(path, text.encode(), makepath=True, ephemeral=ephemeral)


def write_near(zk: KazooClient, deployment: Deployment) -> None:
    for kind in KINDS.values():
        write(zk, deployment, kind.near)


def write_enough(zk: KazooClient, deployment: Deployment) -> None:
    for kind in KINDS.values():
        write(zk, deployment, kind.enough)


def watchers(zookeeper: Server, path: str) -> int:
    """How many sessions watch this path; the test's own client never watches."""
    block = re.search(rf"^{re.escape(path)}\n((?:\t.*\n)+)", zookeeper.ask("wchp"), re.MULTILINE)
    return len(block[1].splitlines()) if block else 0


def sessions(zookeeper: Server) -> set[str]:
    """The ids of the sessions that the server keeps, connected or not."""
    return set(re.findall(r"^\t(0x[0-9a-f]+)$", zookeeper.ask("dump"), re.MULTILINE))


def await_watches(zookeeper: Server, deployment: Deployment, agents: int = 1) -> None:
    """Wait until the server holds a watch of so many agents for each kind of dependency."""

    def watched(path: str) -> bool:
        return watchers(zookeeper, path) == agents

    for kind in KINDS.values():
        for name in kind.enough:
            path = f"{deployment.path}/{name}"
            # The others are watched at their parent, and the server shows only the number of those watches.
            if path.split("/")[-2] not in ("hosts", "ready", ".party", "generations"):
                eventually(lambda path=path: watched(path), f"watches for {path}")  # type: ignore[misc]
    eventually(
        lambda: int(zookeeper.mntr()["zk_watch_count"]) >= agents * len(KINDS), "all watches", seconds=SOON
    )


def ran(agent: Agent) -> list[str]:
    path = agent.directory / "ran"
    return path.read_text().split() if path.exists() else []


# -- watch, then read ---------------------------------------------------------------------------------


def test_each_command_runs_as_soon_as_its_dependency_is_satisfied(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Also against the order of the definition."""
    publish(deployment, "web", one_command_for_each_kind())
    write_near(zk, deployment)
    agent = containers.start("web", HOST)
    await_watches(zookeeper, deployment)
    for number, name in enumerate(reversed(KINDS)):
        assert len(ran(agent)) == number, "a znode that does not satisfy was accepted"
        write(zk, deployment, KINDS[name].enough)
        eventually(lambda name=name: ran(agent)[-1:] == [name], f"{name} has run")  # type: ignore[misc]
    assert agent.ends() == 0


@pytest.mark.parametrize(
    ("kind", "asked", "question", "is_there"),
    [
        ("plain", "status/global/db/sync", GET_DATA, True),
        ("plain", "status/global/db/sync", GET_DATA, False),
        ("plain", "status/global/db/sync", EXISTS, False),
        ("one_instance", "status/global/mq/daemon/ready", EXISTS, True),
        ("one_instance", "status/global/mq/daemon/ready", GET_CHILDREN, True),
        ("one_instance", "status/global/mq/daemon/ready", EXISTS, False),
        ("one_instance", "status/global/mq/daemon/ready", GET_CHILDREN, False),
    ],
)
def test_a_change_between_the_watch_and_the_read_is_not_missed(
    zookeeper: Server,
    zk: KazooClient,
    deployment: Deployment,
    containers: Containers,
    kind: str,
    asked: str,
    question: int,
    is_there: bool,
) -> None:
    """Either the watch or the read sees it."""
    publish(deployment, "web", one_command_for_all(KINDS[kind].dependency))
    if is_there:
        write(zk, deployment, KINDS[kind].near)
    tap = Tap(
        zookeeper,
        f"{deployment.path}/{asked}",
        lambda: write(zk, deployment, KINDS[kind].enough),
        question,
    )
    try:
        agent = containers.start("web", HOST, KOLLA_ZK_HOSTS=tap.hosts)
        assert agent.ends() == 0
    finally:
        tap.close()
    assert tap.acted


@pytest.fixture
def links(zookeeper: Server, tmp_path: Path) -> Iterator[dict[str, Link]]:
    """One link for each way in which an agent can be cut off."""
    links = {name: Link(zookeeper, tmp_path / f"{name}.log") for name in ("cut", "frozen", "expired")}
    yield links
    for link in links.values():
        link.kill()


@pytest.mark.parametrize("when", ["meanwhile", "afterwards"])
def test_an_agent_that_is_cut_off_misses_nothing(
    zookeeper: Server,
    zk: KazooClient,
    deployment: Deployment,
    containers: Containers,
    links: dict[str, Link],
    when: str,
) -> None:
    """Dependencies are satisfied during the outage or after it, in the old session or a new one."""
    publish(deployment, "web", one_command_for_each_kind())
    write_near(zk, deployment)
    agents: dict[str, Agent] = {}
    for number, (name, link) in enumerate(links.items()):
        others = sessions(zookeeper)
        agents[name] = containers.start(
            "web", HOST, KOLLA_ZK_HOSTS=link.hosts, KOLLA_ZK_SESSION_TIMEOUT=SHORT
        )
        await_watches(zookeeper, deployment, agents=number + 1)
    (session,) = sessions(zookeeper) - others
    links["cut"].kill()
    links["frozen"].freeze()
    links["expired"].kill()
    agents["cut"].says("lost the connection to ZooKeeper")
    agents["frozen"].says("lost the connection to ZooKeeper")
    if when == "meanwhile":
        write_enough(zk, deployment)
    links["cut"].launch()
    links["frozen"].thaw()
    eventually(lambda: session not in sessions(zookeeper), "the session expires")
    links["expired"].launch()
    agents["expired"].says("the ZooKeeper session has expired")
    if when == "afterwards":
        for agent in agents.values():
            agent.says("connected to ZooKeeper again")
        await_watches(zookeeper, deployment, agents=3)
        write_enough(zk, deployment)
    assert [agent.ends(SOON) for agent in agents.values()] == [0, 0, 0]
    assert [sorted(ran(agent)) for agent in agents.values()] == [sorted(KINDS)] * 3


# -- herds --------------------------------------------------------------------------------------------

HERD = 200


@pytest.fixture
def line(zookeeper: Server) -> Iterator[Line]:
    """A link to `zookeeper` that counts the requests."""
    line = Line(zookeeper)
    yield line
    line.close()


def test_many_instances_are_not_read_again_for_each_that_becomes_ready(
    zk: KazooClient, deployment: Deployment, containers: Containers, line: Line
) -> None:
    """A thousand containers may wait for the same ones; the last instance is still noticed at once."""
    dependency = {"path": "mq/daemon", "count": HERD}
    publish(deployment, "web", one_command_for_all(dependency, command="date +%s.%N > ran"))
    write(zk, deployment, {"status/global/mq/daemon/ready": ""})
    agent = containers.start("web", KOLLA_ZK_HOSTS=line.hosts)
    agent.says("waits for")
    before, begun = len(line.connections[0]), time.time()
    for number in range(HERD):
        write(zk, deployment, {f"status/global/mq/daemon/ready/{number}": INSTANCE})
    last = time.time()
    assert agent.ends() == 0
    reads = [request for request in line.connections[0][before:] if request.name.startswith("getChildren")]
    late = float(ran(agent)[0]) - last
    print(f"{len(reads)} reads in {last - begun:.1f} s; it goes on {late:.3f} s after the last instance")
    assert len(reads) <= 20 + 5 * (last - begun)
    assert late < 1  # 0.25 s, on a busy machine


@pytest.mark.parametrize("run_once", [False, True], ids=["dependency", "lock"])
def test_a_container_that_waits_sends_only_pings(
    zk: KazooClient, deployment: Deployment, containers: Containers, line: Line, run_once: bool
) -> None:
    """Nothing is polled, for a dependency or for a lock that another container holds."""
    if run_once:
        publish(deployment, "web", {"commands": {"go": {"command": "true", "run_once": True}}})
        write(zk, deployment, {f"status/global/web/go/lock/{'0' * 32}__lock__0000000000": "web2"})
        write(zk, deployment, {"status/global/web": "web"})
    else:
        publish(deployment, "web", one_command_for_all("db/sync"))
    agent = containers.start("web", KOLLA_ZK_HOSTS=line.hosts, KOLLA_ZK_SESSION_TIMEOUT="6")
    agent.says("web/go waits")
    begun = len(line.connections[0])

    def sent() -> list[str]:
        return [request.name for request in line.connections[0][begun:]]

    eventually(lambda: sent().count("ping") >= 3, "more than a session timeout passes")
    # When it says so, it is still about to write the same for others to see.
    others = [name for name in sent() if name != "ping"]
    assert len(others) <= 8, others
    assert agent.running


# -- limits -------------------------------------------------------------------------------------------


class Far(Tap):
    """Delays each answer a little."""

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(server):
                time.sleep(0.02)
                client.sendall(packet)
        client.close()


def test_a_dependency_is_noticed_while_others_change_all_the_time(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """There is no instant then at which every read is answered; a limit is kept all the same."""
    busy = [f"busy{number}/step" for number in range(4)]
    commands = {path.split("/")[0]: {"command": "true", "dependencies": [path]} for path in busy}
    go = {"command": "true", "dependencies": ["db/sync"]}
    publish(deployment, "web", {"commands": {**commands, "go": go}})
    write(zk, deployment, {f"status/global/{path}": "running" for path in (*busy, "db/sync")})
    far = Far(zookeeper, "", lambda: None)
    agent = containers.start("web", KOLLA_ZK_HOSTS=far.hosts, KOLLA_WAIT_TIMEOUT="3")
    agent.says("waits for db/sync")
    stop = threading.Event()

    def change() -> None:
        paths = itertools.cycle(f"{deployment.path}/status/global/{path}" for path in busy)
        while not stop.wait(0.005):
            zk.set_async(next(paths), b"running")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        write(zk, deployment, {"status/global/db/sync": "done"})
        assert agent.ends() == 75
        assert "web/go: done" in agent.said
        assert "db/sync" not in agent.ending["reason"]
    finally:
        stop.set()
        changing.join()
        far.close()


@pytest.mark.parametrize(
    ("chroot", "prefix", "service", "missing"),
    [
        (
            "",
            "",
            "none",
            "the definition {path}/none is not published yet: correct KOLLA_APP_ID, or publish it",
        ),
        ("", "", "empty", "the definition {path}/empty is not published yet: correct"),
        (
            "",
            "-typo",
            "web",
            "the deployment {prefix}-typo/site is not there, nor the definition {prefix}-typo/site/web: "
            "correct KOLLA_APP_ID, or publish it",
        ),
        ("/nowhere", "", "web", "the chroot /nowhere is not there: correct"),
    ],
)
def test_a_missing_definition_is_reported_every_half_minute(
    zk: KazooClient,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: LogLines,
    chroot: str,
    prefix: str,
    service: str,
    missing: str,
) -> None:
    """The line names the first missing znode. Nothing is created: a typo must not wait in a stray tree."""
    monkeypatch.setattr(published, "SOON", 0.1)
    monkeypatch.setattr(published, "PROGRESS_INTERVAL", 1.2)
    write(zk, deployment, {"empty": ""})
    before = set(zk.get_children("/")), set(zk.get_children(deployment.path))
    znodes = Znodes(deployment.prefix + prefix, deployment.id, service, HOST)
    expected = missing.format(path=deployment.path, prefix=deployment.prefix)
    client = Client(servers(deployment.hosts, chroot=chroot), 10.0, wire.OPEN_ACL_UNSAFE, Loop())
    client.connect(30.0)
    report = SimpleNamespace(write=lambda stage, text: None)
    with pytest.raises(DependenciesNotSatisfied) as raised:
        Published(client, znodes).await_definition(report, 2.0)  # type: ignore[arg-type]
    client.close()
    lines = [line.message for line in log_lines() if line.message.startswith("waiting for the definition")]
    assert len(lines) == 2
    assert all(line.partition(" s: ")[2].startswith(expected) for line in lines)
    assert raised.value.reason.startswith(f"waited 2 s for the definition: {expected}")
    assert (set(zk.get_children("/")), set(zk.get_children(deployment.path))) == before


def test_a_definition_is_waited_for_up_to_the_limit(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """An empty definition counts as not published; the reason names the znode."""
    patient = containers.start("web", HOST)
    hasty = containers.start("web", HOST, KOLLA_WAIT_TIMEOUT="0.4")
    write(zk, deployment, {"web": ""})
    assert hasty.ends() == 75
    missing = f"the definition: the definition {deployment.path}/web is not published yet"
    remedy = "correct KOLLA_APP_ID, or publish it"
    assert (hasty.ending["command"], hasty.ending["reason"]) == (None, f"waited 0 s for {missing}: {remedy}")
    words = f"waiting for the definition: the definition {deployment.path}/web is"
    eventually(lambda: patient.health().stdout.startswith(words), "the probe says so")
    publish(deployment, "web", one_command_for_all())
    assert patient.ends() == 0


def test_a_container_ends_when_its_limit_is_over(deployment: Deployment, containers: Containers) -> None:
    """Its last line names the first command and all missing dependencies; nothing has run."""
    waits = {"first": {"command": "echo > ran", "dependencies": ["db/sync"]}}
    waits["second"] = {"command": "echo > ran", "dependencies": ["mq/daemon"]}
    publish(deployment, "web", {"commands": waits})
    agent = containers.start("web", HOST, KOLLA_WAIT_TIMEOUT="0.4")
    assert agent.ends() == 75
    assert agent.ending["command"] == "web/first"
    assert agent.ending["reason"] == (
        "waited 0 s for db/sync (not started); "
        "web/second has waited 0 s for mq/daemon (0 of 1 instances ready)"
    )
    assert not (agent.directory / "ran").exists()


# -- another definition ----------------------------------------------------------------------------


@pytest.mark.parametrize("run_once", [False, True], ids=["plain", "contender"])
def test_a_container_that_waits_reads_a_corrected_definition(
    zk: KazooClient, deployment: Deployment, containers: Containers, run_once: bool
) -> None:
    """Also one that waits in the queue for a lock; it leaves no contender behind."""
    lock = f"{deployment.path}/status/global/web/go/lock"
    if run_once:
        write(zk, deployment, {"status/global/web": "web"})
        zk.create(f"{lock}/{'0' * 32}__lock__0000000000", b"web2", ephemeral=True, makepath=True)
    dependency = [] if run_once else ["nobody/go"]
    publish(
        deployment,
        "web",
        {"commands": {"go": {"command": "true", "run_once": run_once, "dependencies": dependency}}},
    )
    agent = containers.start("web", HOST)
    agent.says("web/go waits")
    publish(deployment, "web", {"commands": {"went": {"command": "true"}}})
    assert agent.ends() == 0
    assert f"{deployment.path}/web has changed since it was read: beginning again from it" in agent.said
    if run_once:
        assert len(zk.get_children(lock)) == 1


def test_a_container_that_waits_reads_a_corrected_variable(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """If the definition was read with it."""
    dependency = {"path": "db/daemon", "count": "{{ count }}"}
    publish(deployment, "web", one_command_for_all(dependency), variables={"count": "2"})
    write(zk, deployment, {"status/global/db/daemon/ready/one": INSTANCE})
    agent = containers.start("web", HOST)
    agent.says("1 of 2 instances ready")
    publish(deployment, "web", one_command_for_all(dependency), variables={"count": "1"})
    assert agent.ends() == 0


def test_a_container_that_has_run_a_command_goes_on(
    deployment: Deployment, containers: Containers, zk: KazooClient
) -> None:
    """It would run it again."""
    commands = {
        "first": {"command": "echo first >> ran"},
        "go": {"command": "echo go >> ran", "dependencies": ["web/first", "db/sync"]},
    }
    publish(deployment, "web", {"commands": commands})
    agent = containers.start("web", HOST)
    agent.says("web/go waits for db/sync")
    publish(deployment, "web", {"commands": {**commands, "more": {"command": "true"}}})
    write(zk, deployment, {"status/global/db/sync": "done"})
    assert agent.ends() == 0
    assert ran(agent) == ["first", "go"]
