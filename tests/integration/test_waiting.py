"""An agent waits for exactly what its definition asks for, whatever happens to its session meanwhile."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from kolla_mesos_start.loop import Loop
from kolla_mesos_start.tree.published import Published
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.client import Client
from tests.agents import Agent, Containers
from tests.benchmarks.counting import Line, Request, summary
from tests.conftest import Deployment, connected, made
from tests.integration.test_session import servers
from tests.link import Link
from tests.publishing import publish
from tests.tap import EXISTS, GET_CHILDREN, GET_DATA, Tap, read_packet
from tests.waiting import eventually
from tests.zookeeper import Server

HOST = "web1"
SOON = 20.0  # seconds, on a busy machine
SHORT = "2"  # seconds; the least that a session may have, so that an outage is noticed and over soon


class Kind(NamedTuple):
    """A dependency, what stands in the tree and does not satisfy it, and what is added and does.

    Paths are those below the deployment.
    """

    dependency: Any
    near: Mapping[str, str]
    enough: Mapping[str, str]
    told: str


KINDS = {
    "plain": Kind(
        "db/sync",
        {"status/global/db/sync": "error", f"status/{HOST}/db/sync": "done"},
        {"status/global/db/sync": "done"},
        "db/sync (error",
    ),
    "any_generation": Kind(
        "net/upgrade",
        {"status/global/net/upgrade": "running"},
        {"status/global/net/upgrade/generations/2": "7 7"},
        "net/upgrade (running",
    ),
    "generation": Kind(
        {"path": "image/upgrade", "generation": "quay.io/kolla:2"},
        {
            "status/global/image/upgrade": "done",
            "status/global/image/upgrade/generations/quay.io%2Fkolla%3A1": "7 7",
        },
        {"status/global/image/upgrade/generations/quay.io%2Fkolla%3A2": "8 8"},
        "image/upgrade generation quay.io/kolla:2 (not done for this generation",
    ),
    "hosts": Kind(
        {"path": "keys/make", "count": 2},
        {"status/global/keys/make": "done", "status/global/keys/make/hosts/web1": ""},
        {"status/global/keys/make/hosts/web2": ""},
        "keys/make (done on 1 of 2 hosts",
    ),
    "local": Kind(
        {"path": "ovs/setup", "scope": "local"},
        {"status/global/ovs/setup": "done", "status/web2/ovs/setup": "done"},
        {f"status/{HOST}/ovs/setup": "done"},
        "ovs/setup on this host (not started",
    ),
    "one_instance": Kind(
        "mq/daemon",
        {"status/global/mq/daemon": "running"},
        {"status/global/mq/daemon/ready/one": "{}"},
        "mq/daemon (0 of 1 instances ready",
    ),
    "two_instances": Kind(
        {"path": "cache/daemon", "count": 2},
        {"status/global/cache/daemon/ready/one": "{}"},
        {"status/global/cache/daemon/ready/two": "{}"},
        "cache/daemon (1 of 2 instances ready",
    ),
    "local_instance": Kind(
        {"path": "agent/daemon", "scope": "local"},
        {
            "status/global/agent/daemon/ready/one": "{}",
            "status/web2/agent/daemon/ready/one": "{}",
        },
        {f"status/{HOST}/agent/daemon/ready/two": "{}"},
        "agent/daemon on this host (0 of 1 instances ready",
    ),
    "members": Kind(
        {"members": "infra/proxy", "count": 2},
        {"infra/proxy/.party/one": "{}"},
        {"infra/proxy/.party/two": "{}"},
        "members of infra/proxy (1 of 2 present",
    ),
}


def one_command_for_each_kind() -> dict[str, Any]:
    """A definition whose commands wait for one kind of dependency each, and say that they ran."""
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
            zk.create(path, text.encode(), makepath=True)


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
            # What is counted is watched at its parent, and of watches on children the server tells only
            # how many there are.
            if path.split("/")[-2] not in ("hosts", "ready", ".party", "generations"):
                # Sooner than the agent would look again anyway, to say what is still missing.
                eventually(lambda path=path: watched(path), f"watches for {path}", seconds=SOON)  # type: ignore[misc]
    eventually(
        lambda: int(zookeeper.mntr()["zk_watch_count"]) >= agents * len(KINDS), "all watches", seconds=SOON
    )


def ran(agent: Agent) -> list[str]:
    path = agent.directory / "ran"
    return path.read_text().split() if path.exists() else []


# -- watch, then read ---------------------------------------------------------------------------------


def test_what_was_there_before_the_start_satisfies(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Every kind of dependency, before the agent starts; then the order is that of the definition."""
    publish(deployment, "web", one_command_for_each_kind())
    write_near(zk, deployment)
    write_enough(zk, deployment)
    agent = containers.start("web", HOST)
    assert agent.ends() == 0
    assert ran(agent) == list(KINDS)


def test_what_comes_while_waiting_satisfies_whatever_comes_first(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Each command runs as soon as its own dependency is there, against the definition's order too."""
    publish(deployment, "web", one_command_for_each_kind())
    write_near(zk, deployment)
    agent = containers.start("web", HOST)
    await_watches(zookeeper, deployment)
    for number, name in enumerate(reversed(KINDS)):
        assert len(ran(agent)) == number, "what was near was taken for enough"
        write(zk, deployment, KINDS[name].enough)
        eventually(lambda name=name: ran(agent)[-1:] == [name], f"{name} has run")  # type: ignore[misc]
    assert agent.ends() == 0


def test_what_is_near_does_not_satisfy_and_is_told(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Past the limit every missing dependency is named with its state; nothing has run."""
    publish(
        deployment,
        "web",
        one_command_for_all(*(kind.dependency for kind in KINDS.values()), command="echo go >> ran"),
    )
    write_near(zk, deployment)
    agent = containers.start("web", HOST, KOLLA_WAIT_TIMEOUT="1")
    assert agent.ends() == 75
    ending = agent.ending
    assert ending["command"] == "web/go"
    assert ending["reason"].startswith("waited 1 s for ")
    for kind in KINDS.values():
        assert kind.told in ending["reason"]
    assert ran(agent) == []


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
def test_what_comes_between_the_watch_and_the_read_is_not_missed(
    zookeeper: Server,
    zk: KazooClient,
    deployment: Deployment,
    containers: Containers,
    kind: str,
    asked: str,
    question: int,
    is_there: bool,
) -> None:
    """At whatever instant the dependency is satisfied, a watch or a read sees it."""
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
    """A link for each way in which an agent can be cut off, by the name of what becomes of it."""
    links = {name: Link(zookeeper, tmp_path / f"{name}.log") for name in ("cut", "frozen", "expired")}
    yield links
    for link in links.values():
        link.kill()


@pytest.mark.parametrize("when", ["meanwhile", "afterwards"])
def test_an_outage_of_the_agent_loses_nothing(
    zookeeper: Server,
    zk: KazooClient,
    deployment: Deployment,
    containers: Containers,
    links: dict[str, Link],
    when: str,
) -> None:
    """What is satisfied while the agent is away, or after it is back, in the old session or a new one."""
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


@pytest.mark.parametrize("outage", ["killed", "frozen"])
def test_an_outage_of_the_server_loses_nothing(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, outage: str
) -> None:
    """The server is killed and comes back on its port, or hangs for a while: watches are set again."""
    publish(deployment, "web", one_command_for_each_kind())
    write_near(zk, deployment)
    agent = containers.start("web", HOST, KOLLA_ZK_SESSION_TIMEOUT=SHORT)
    await_watches(zookeeper, deployment)
    if outage == "killed":
        zookeeper.kill()
    else:
        zookeeper.freeze()
    agent.says("lost the connection to ZooKeeper")
    zookeeper.mend()
    agent.says("connected to ZooKeeper again")
    await_watches(zookeeper, deployment)
    eventually(lambda: zk.connected, "the test is connected again")
    zk.retry(write_enough, zk, deployment)
    assert agent.ends(SOON) == 0
    assert sorted(ran(agent)) == sorted(KINDS)


# -- which command runs when --------------------------------------------------------------------------


def test_two_containers_that_need_each_other_do_not_deadlock(
    deployment: Deployment, containers: Containers
) -> None:
    """In the order of their definitions each would wait for the other for ever."""
    for role, other in (("a", "b"), ("b", "a")):
        last = {"command": "echo last >> ran", "dependencies": [f"{other}/first"]}
        publish(deployment, role, {"commands": {"last": last, "first": {"command": "echo first >> ran"}}})
    agents = [containers.start(role, role) for role in ("a", "b")]
    assert [agent.ends() for agent in agents] == [0, 0]
    assert [sorted(ran(agent)) for agent in agents] == [["first", "last"]] * 2


def test_an_own_plain_command_is_waited_for_in_this_container(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """That it is done elsewhere, and was done here before, makes no difference."""
    commands = {
        "use": {"command": ["test", "-e", "made"], "dependencies": ["web/make", local("web/make")]},
        "make": {"command": "touch made"},
    }
    publish(deployment, "web", {"commands": commands})
    done = {f"status/{scope}/web/make": "done" for scope in ("global", "web1", "web2")}
    write(zk, deployment, {"status/global/web/make/hosts/web1": "", **done})
    write(zk, deployment, dict.fromkeys(("status/global/web", "status/web1/web"), "web"))
    assert containers.start("web", HOST).ends() == 0


def test_an_own_generation_is_waited_for_and_no_other(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """An older generation that is done does not let the next command go before the migration."""
    commands = {
        "use": {"command": "echo use >> ran", "dependencies": ["web/migrate"]},
        "migrate": {"command": "echo migrate >> ran", "run_once": True, "generation": "2"},
    }
    publish(deployment, "web", {"commands": commands})
    write(zk, deployment, {"status/global/web/migrate": "done", "status/global/web": "web"})
    write(zk, deployment, {"status/global/web/migrate/generations/1": "1 1"})
    agent = containers.start("web", HOST)
    assert agent.ends() == 0
    assert ran(agent) == ["migrate", "use"]


def local(path: str) -> dict[str, str]:
    return {"path": path, "scope": "local"}


def test_a_daemon_waits_for_its_own_dependencies_and_comes_last(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Its dependencies are there before a command's are; it is started after the command all the same."""
    definition = {
        "commands": {"prepare": {"command": "echo prepare >> ran", "dependencies": ["db/sync"]}},
        "service": {"daemon": {"command": "sh -c 'echo daemon >> ran'", "dependencies": ["mq/daemon"]}},
    }
    publish(deployment, "web", definition)
    write(zk, deployment, KINDS["one_instance"].enough)
    agent = containers.start("web", HOST)
    eventually(lambda: "db/sync" in agent.health().stdout, "it waits for db/sync")
    assert ran(agent) == []
    write(zk, deployment, KINDS["plain"].enough)
    assert agent.ends() == 0
    assert ran(agent) == ["prepare", "daemon"]


# -- herds --------------------------------------------------------------------------------------------

HERD = 200


@pytest.fixture
def line(zookeeper: Server) -> Iterator[Line]:
    """A way to `zookeeper` on which the requests of an agent are counted."""
    line = Line(zookeeper)
    yield line
    line.close()


def become_ready(zk: KazooClient, deployment: Deployment) -> float:
    """So many instances, one after the other; returns when the last one is, in seconds since the epoch."""
    for number in range(HERD):
        write(zk, deployment, {f"status/global/mq/daemon/ready/{number}": "{}"})
    return time.time()


def waits(agent: Agent, line: Line) -> int:
    """Wait until it waits; returns how many requests it has sent by then."""
    agent.says("waits for")
    counts = [0]

    def rests() -> bool:
        counts.append(len(line.connections[0]))
        return counts[-1] == counts[-2]

    eventually(rests, "it rests", every=0.5)
    return counts[-1]


def but_pings(requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if request.name != "ping"]


def test_many_instances_are_not_read_again_for_each_that_becomes_ready(
    zk: KazooClient, deployment: Deployment, containers: Containers, line: Line
) -> None:
    """A thousand containers may wait for the same; the last instance is noticed at once all the same."""
    dependency = {"path": "mq/daemon", "count": HERD}
    publish(deployment, "web", one_command_for_all(dependency, command="date +%s.%N > ran"))
    write(zk, deployment, {"status/global/mq/daemon/ready": ""})
    agent = containers.start("web", KOLLA_ZK_HOSTS=line.hosts)
    before = waits(agent, line)
    begun = time.time()
    last = become_ready(zk, deployment)
    assert agent.ends() == 0
    reads = [request for request in line.connections[0][before:] if request.name.startswith("getChildren")]
    late = float(ran(agent)[0]) - last
    print(f"{len(reads)} reads in {last - begun:.1f} s; it goes on {late:.3f} s after the last instance")
    assert len(reads) <= 20 + 5 * (last - begun)
    assert late < 1  # 0.25 s, on a busy machine


def test_a_dependency_that_holds_is_not_read_again_while_another_is_missing(
    zk: KazooClient, deployment: Deployment, containers: Containers, line: Line
) -> None:
    """Whatever becomes of it; once the other one holds too, it is looked at again before anything runs."""
    publish(deployment, "web", one_command_for_all("mq/daemon", "db/sync", "net/upgrade"))
    write(zk, deployment, {"status/global/mq/daemon/ready/first": "{}", "status/global/net/upgrade": "done"})
    agent = containers.start("web", KOLLA_ZK_HOSTS=line.hosts)
    before = waits(agent, line)
    become_ready(zk, deployment)
    write(zk, deployment, {"status/global/net/upgrade": "waiting"})
    write(zk, deployment, {"status/global/db/sync": "done"})
    eventually(
        lambda: agent.state.endswith("net/upgrade: not begun, waiting"), "it sees that one no longer holds"
    )
    requests = but_pings(line.connections[0][before:])
    print(summary(requests))
    assert len(requests) <= 10
    write(zk, deployment, {"status/global/net/upgrade": "done"})
    assert agent.ends() == 0


def test_how_an_attempt_has_failed_is_read_only_where_it_is_told(
    zk: KazooClient, deployment: Deployment, containers: Containers, line: Line
) -> None:
    """Right before the limit: until then nobody who waits has a use for it."""
    publish(deployment, "db", {"commands": {"sync": {"command": "exit 3"}}})
    publish(deployment, "web", one_command_for_all("db/sync"))
    assert containers.start("db", "web2").ends() == 1
    agent = containers.start("web", KOLLA_ZK_HOSTS=line.hosts, KOLLA_WAIT_TIMEOUT="5")
    begun = waits(agent, line)
    detail = f"{deployment.path}/status/global/db/sync/detail"
    assert detail not in [request.path for request in line.connections[0]]
    assert agent.ends() == 75
    assert "attempt 1 on web2 failed: exit status 3" in agent.ending["reason"]
    told = [request for request in line.connections[0][begun:] if request.path == detail]
    assert [request.name for request in told] == ["getData"]


# -- limits -------------------------------------------------------------------------------------------


def test_a_dependency_may_have_a_limit_of_its_own(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """It ends the wait while it is the one that is missing, and not when it is there already."""
    hasty = {"path": "db/sync", "timeout": 1}
    publish(deployment, "unmet", one_command_for_all(hasty, "mq/daemon"))
    publish(deployment, "has", one_command_for_all({**hasty, "path": "net/upgrade"}, "mq/daemon"))
    write(zk, deployment, {"status/global/net/upgrade": "done"})
    unmet, has = (containers.start(service, HOST) for service in ("unmet", "has"))
    assert unmet.ends() == 75
    assert unmet.ending["reason"] == (
        "waited 1 s for db/sync (not started), mq/daemon (0 of 1 instances ready)"
    )
    assert has.running
    write(zk, deployment, KINDS["one_instance"].enough)
    assert has.ends() == 0


class Far(Tap):
    """Answers come one by one, each a little later than the one before."""

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while packet := read_packet(server):
                time.sleep(0.02)
                client.sendall(packet)
        client.close()


def test_what_changes_all_the_time_keeps_nothing_else_waiting(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """There is no instant then at which no answer is under way."""
    busy = [f"busy{number}/step" for number in range(4)]
    commands = {path.split("/")[0]: {"command": "true", "dependencies": [path]} for path in busy}
    go = {"command": "true", "dependencies": ["db/sync"]}
    publish(deployment, "web", {"commands": {**commands, "go": go}})
    write(zk, deployment, {f"status/global/{path}": "running" for path in (*busy, "db/sync")})
    far = Far(zookeeper, "", lambda: None)
    agent = containers.start("web", KOLLA_ZK_HOSTS=far.hosts, KOLLA_WAIT_TIMEOUT="6")
    agent.says("waits for db/sync")
    stop = threading.Event()

    def change() -> None:
        paths = itertools.cycle(f"{deployment.path}/status/global/{path}" for path in busy)
        while not stop.wait(0.005):
            zk.set_async(next(paths), b"running")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        time.sleep(1)
        write(zk, deployment, {"status/global/db/sync": "done"})
        written = time.monotonic()
        eventually(lambda: "web/go: done" in agent.said, "it goes on", seconds=4)
        print(f"{time.monotonic() - written:.3f} s")
        assert agent.ends() == 75
        assert "db/sync" not in agent.said.splitlines()[-1]
    finally:
        stop.set()
        changing.join()
        far.close()


@pytest.mark.parametrize("outage", ["cut", "frozen"])
def test_an_outage_counts_into_the_wait_that_it_interrupts(
    zookeeper: Server, deployment: Deployment, containers: Containers, link: Link, outage: str
) -> None:
    """The limit is kept although the server does not answer, and what was known last is told."""
    publish(deployment, "db", {"commands": {"sync": {"command": "exit 3"}}})
    publish(deployment, "web", one_command_for_all("db/sync"))
    assert containers.start("db", "web2").ends() == 1
    begun = time.monotonic()
    limited = {"KOLLA_WAIT_TIMEOUT": "3", "KOLLA_ZK_HOSTS": link.hosts}
    agent, early = (containers.start(service, HOST, **limited) for service in ("web", "nothing"))
    eventually(lambda: watchers(zookeeper, f"{deployment.path}/nothing"), "a watch for the definition")
    eventually(lambda: agent.state.endswith("db/sync: error"), "it waits")
    if outage == "cut":
        link.kill()
    else:
        link.freeze()
    assert [agent.ends(), early.ends()] == [75, 75]
    assert time.monotonic() - begun < 60
    assert f"{deployment.path}/nothing" in early.ending["reason"]
    assert agent.ending["reason"].startswith("waited 3 s for db/sync (error, for ")


def test_the_time_in_which_a_command_runs_is_no_waiting(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """A limit on waiting does not end a container whose first command takes longer than that."""
    commands = {
        "slow": {"command": "sleep 3.5"},
        "next": {"command": "true", "dependencies": ["web/slow", "db/sync"]},
    }
    publish(deployment, "web", {"commands": commands})
    agent = containers.start("web", HOST, KOLLA_WAIT_TIMEOUT="3")
    agent.says("web/slow: done")
    write(zk, deployment, KINDS["plain"].enough)
    assert agent.ends() == 0


class Written:
    """A report that keeps what is written to it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, stage: str, text: str) -> None:
        self.lines.append(f"{stage} {text}")


def test_a_definition_that_is_being_read_is_not_said_to_be_missing(deployment: Deployment) -> None:
    """A large deployment shows it for a while, and the definition is there."""
    publish(deployment, "web", one_command_for_all())
    client = Client(servers(deployment.hosts), 10.0, OPEN_ACL_UNSAFE, Loop())
    client.connect(30.0)
    written = Written()
    znodes = Znodes(deployment.prefix, deployment.id, "web", HOST)
    Published(client, znodes).await_definition(written, None)  # type: ignore[arg-type]
    client.close()
    assert written.lines == [f"waiting until the definition {deployment.path}/web is read"]


def test_a_definition_is_waited_for_and_no_longer_than_anything_else(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Absent at first, then empty, which is not there yet either; a limit is kept and the znode named."""
    patient = containers.start("web", HOST)
    hasty = containers.start("web", HOST, KOLLA_WAIT_TIMEOUT="1")
    write(zk, deployment, {"web": ""})
    assert hasty.ends() == 75
    assert hasty.ending["reason"] == (
        f"waited 1 s for the definition: the definition {deployment.path}/web is not published yet"
    )
    assert hasty.ending["command"] is None
    assert patient.running
    words = f"waiting for the definition: the definition {deployment.path}/web is"
    eventually(lambda: patient.health().stdout.startswith(words), "the probes are told")
    publish(deployment, "web", one_command_for_all())
    assert patient.ends() == 0


def test_every_command_that_is_over_its_limit_is_named(
    deployment: Deployment, containers: Containers
) -> None:
    """The first one is at fault, the others are told too."""
    waits = {"first": {"command": "true", "dependencies": ["db/sync"]}}
    waits["second"] = {"command": "true", "dependencies": ["mq/daemon"]}
    publish(deployment, "web", {"commands": waits})
    agent = containers.start("web", HOST, KOLLA_WAIT_TIMEOUT="1")
    assert agent.ends() == 75
    assert agent.ending["command"] == "web/first"
    assert agent.ending["reason"] == (
        "waited 1 s for db/sync (not started); "
        "web/second has waited 1 s for mq/daemon (0 of 1 instances ready)"
    )


# -- half a minute, waited for once ---------------------------------------------------------------------


class HalfMinute(NamedTuple):
    """What containers did that waited for half a minute: their logs, and how often they asked.

    `requests`: those that the server had from the container since its wait began, and the last one.
    """

    deployment: Deployment
    logs: Mapping[str, str]
    requests: Mapping[str, tuple[int, str]]
    created: Mapping[str, bool]

    def line(self, container: str) -> str:
        """The one line that the container said after half a minute, without time and module."""
        progress = re.compile(r"has waited \d|waiting for the definition for \d+ s|ZooKeeper at .* for \d+ s")
        found = (line for line in self.logs[container].splitlines() if progress.search(line))
        lines = [line for line in found if "for the definition for 1 s" not in line]
        assert len(lines) == 1, self.logs[container]
        return lines[0].split(": ", 1)[1]


@pytest.fixture(scope="module")
def half_minute(shared_zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HalfMinute]:
    """Containers that wait for everything that can be waited for, side by side."""
    zookeeper, directory = shared_zookeeper, tmp_path_factory.mktemp("half_minute")
    zookeeper.mend()
    link = Link(zookeeper, directory / "link.log")
    for zk in connected(zookeeper):
        for deployment in made(zookeeper, zk):
            containers = Containers(directory, deployment.environ)
            try:
                yield observed(zookeeper, zk, deployment, containers, link)
            finally:
                containers.end()
                link.kill()


def observed(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, link: Link
) -> HalfMinute:
    """Start them, wait until the last one has said its line, and look at what they did."""
    publish(deployment, "db", {"commands": {"sync": {"command": "exit 3"}}})
    publish(deployment, "slow", {"commands": {"load": {"command": "sleep 100", "run_once": True}}})
    publish(deployment, "web", one_command_for_all("db/sync", "slow/load", "mq/daemon"))
    write(zk, deployment, {"empty": ""})
    assert containers.start("db", "web2").ends() == 1
    holder = containers.start("slow", "web3")
    holder.says("starting")
    chroot, stray = f"{zookeeper.hosts}/nowhere", f"{deployment.prefix}-typo"

    idle, idle_session = with_session(zookeeper, lambda: containers.start("web", HOST))
    queued, queued_session = with_session(zookeeper, lambda: containers.start("slow", HOST))
    agents = {
        "dependencies": idle,
        "lock": queued,
        "outage": containers.start("web", HOST, KOLLA_ZK_HOSTS=link.hosts),
        "definition": containers.start("nothing", HOST),
        "empty": containers.start("empty", HOST),
        "deployment": containers.start("web", HOST, KOLLA_SYSTEM_PREFIX=stray),
        "chroot": containers.start("web", HOST, KOLLA_ZK_HOSTS=chroot),
        "connection": containers.start("web", HOST, KOLLA_ZK_HOSTS="127.0.0.1:1"),
    }
    eventually(lambda: "mq/daemon" in agents["outage"].health().stdout, "it waits")
    link.kill()
    before = {session: requests(zookeeper, session)[0] for session in (idle_session, queued_session)}
    words = {
        "dependencies": "has waited 3",
        "lock": "has waited 3",
        "outage": "as last known",
        "connection": "for 3",
    }
    for name, agent in agents.items():
        agent.says(words.get(name, "waiting for the definition for 3"), seconds=60)
    after = {session: requests(zookeeper, session) for session in before}
    return HalfMinute(
        deployment,
        {name: agent.said for name, agent in agents.items()},
        {
            name: (after[session][0] - before[session], after[session][1])
            for name, session in (("dependencies", idle_session), ("lock", queued_session))
        },
        {
            "deployment": bool(zk.exists(stray)),
            "chroot": bool(zk.exists("/nowhere")),
            "definition": bool(zk.exists(f"{deployment.path}/nothing")),
        },
    )


def with_session(zookeeper: Server, start: Callable[[], Agent]) -> tuple[Agent, str]:
    """An agent that has begun to wait, and the id of its session."""
    others = sessions(zookeeper)
    agent = start()
    eventually(lambda: "waits" in agent.health().stdout, "the agent waits")
    (session,) = sessions(zookeeper) - others
    return agent, session


def requests(zookeeper: Server, session: str) -> tuple[int, str]:
    """How many requests the server has had from this session, and of which kind the last one was."""
    found = re.search(rf"recved=(\d+),.*sid={session},lop=(\w+)", zookeeper.ask("cons"))
    assert found is not None
    return int(found[1]), found[2]


@pytest.mark.parametrize(
    ("container", "line"),
    [
        (
            "dependencies",
            r"web/go has waited 3\d s for "
            r"db/sync \(error, for 3\d s, attempt 1 on web2 failed: exit status 3\), "
            r"slow/load \(running, for 3\d s, attempt 1 runs on web3\), "
            r"mq/daemon \(0 of 1 instances ready\)",
        ),
        (
            "lock",
            r"slow/load has waited 3\d s while web3 is running it for \d+ s \(it holds the lock\); it has no "
            "`timeout`: if it hangs, kill its process there, and set one in the definition",
        ),
        (
            "definition",
            r"waiting for the definition for 3\d s: the definition {path}/nothing is not published yet",
        ),
        ("empty", r"waiting for the definition for 3\d s: the definition {path}/empty is not published yet"),
        (
            "deployment",
            r"waiting for the definition for 3\d s: the deployment {prefix}-typo/site is not there, "
            r"nor the definition {prefix}-typo/site/web: correct KOLLA_APP_ID, or publish it",
        ),
        (
            "chroot",
            r"waiting for the definition for 3\d s: the chroot /nowhere is not there: correct .*",
        ),
        (
            "connection",
            r"no connection to ZooKeeper at 127\.0\.0\.1:1 for 3\d s \(.*\); retrying; check KOLLA.*",
        ),
    ],
)
def test_what_is_missing_is_told_every_half_minute(
    half_minute: HalfMinute, container: str, line: str
) -> None:
    """One line: what, in which state, since when, and where and why it failed."""
    path, prefix = half_minute.deployment.path, half_minute.deployment.prefix
    assert re.fullmatch(line.format(path=path, prefix=prefix), half_minute.line(container))


def test_an_outage_is_told_with_what_was_known_before(half_minute: HalfMinute) -> None:
    """Nobody must take an old state for the present one; and an outage is not told every second."""
    lines = re.findall("(?:lost the connection|can't connect) to ZooKeeper", half_minute.logs["outage"])
    assert 1 <= len(lines) <= 4
    assert re.search(
        r"no connection to ZooKeeper; as last known: web/go has waited 3\d s for db/sync \(error, .*\), "
        r"slow/load \(running, .*\), mq/daemon \(0 of 1 instances ready\)\n",
        half_minute.logs["outage"],
    )


@pytest.mark.parametrize("what", ["chroot", "deployment", "definition"])
def test_what_is_not_there_is_never_created_by_waiting_for_it(half_minute: HalfMinute, what: str) -> None:
    """A typo must not wait in a tree of its own making."""
    assert not half_minute.created[what]


@pytest.mark.parametrize(
    ("container", "most", "last"),
    [
        # A third of the session timeout of 10 s passes between two pings, a sixth between two renewals.
        # How an attempt has failed is read for the line that says it.
        ("dependencies", 15, "PING|GETD"),
        ("lock", 30, "SYNC|PING"),
    ],
)
def test_an_agent_that_waits_sends_signs_of_life_only(
    half_minute: HalfMinute, container: str, most: int, last: str
) -> None:
    """Requests don't grow with the time that is waited: nothing is polled."""
    count, kind = half_minute.requests[container]
    assert count <= most
    assert re.fullmatch(last, kind)
