"""`kolla_mesos_ctl elect` beside agents at work: a database of three hosts, whose data is a file each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.cli import parser
from kolla_mesos_start.ctl.commands import elect
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.live.model import LiveDeployment
from kolla_mesos_start.ctl.zk import elections
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, OperatorClient, Unanswered
from kolla_mesos_start.election.records import Override
from kolla_mesos_start.tree.znodes import ElectionZnodes
from kolla_mesos_start.zookeeper.client import Outage
from tests.conftest import Deployment
from tests.support import lossy_proxy
from tests.support.agents import Agent, Containers
from tests.support.publishing import publish
from tests.support.terminal import Terminal
from tests.support.tool import TOOL, ctl, environ, operator_client, run_ctl, tool, tool_says
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import HOST, Process, Server, free_port

HOSTS = ("h1", "h2", "h3")
NAME = "infra/db"


class Cluster:
    """The service infra/db, and the disk of each host."""

    def __init__(self, deployment: Deployment, zk: KazooClient, containers: Containers, disks: Path) -> None:
        self.deployment, self.zk, self.containers, self.disks = deployment, zk, containers, disks
        self.at = f"{deployment.path}/status/global/db/election"
        for host in (*HOSTS, "h4"):
            (disks / host).mkdir(parents=True)
        publish(
            deployment,
            NAME,
            {
                "commands": {"position": {"command": ["cat", "{{ disk }}/position"], "delay": 0.1}},
                "service": {
                    "instances": 3,
                    "daemon": {
                        "command": ["sleep", "600"],
                        "ready": {"alive": 0.1},
                        "election": {"position": "db/position", "members": 3, "start": ["sleep", "601"]},
                    },
                },
            },
            host_variables={host: {"disk": str(disks / host)} for host in (*HOSTS, "h4")},
        )

    def start(self, **positions: str) -> dict[str, Agent]:
        """Start a container on each host, with this position."""
        found = {}
        for host, position in positions.items():
            (self.disks / host / "position").write_text(f"{position}\n")
            found[host] = self.containers.start(NAME, host)
        return found

    def shown(self) -> dict[str, Any]:
        """The election, as a program gets it."""
        found: dict[str, Any] = json.loads(run_ctl(self.deployment, "elect", "db", "--format", "json").stdout)
        return found

    def candidates(self, *hosts: str) -> None:
        """Wait until these are the candidates."""
        path = f"{self.at}/candidates"
        eventually(
            lambda: self.zk.exists(path) and set(self.zk.get_children(path)) == set(hosts),
            f"candidates {hosts}",
        )

    def ready(self, *hosts: str) -> None:
        """Wait until these are ready."""
        path = f"{self.deployment.path}/status/global/db/daemon/ready"

        def found() -> set[str]:
            names = self.zk.get_children(path) if self.zk.exists(path) else []
            return {json.loads(self.zk.get(f"{path}/{name}")[0])["host"] for name in names}

        eventually(lambda: found() == set(hosts), f"ready on {hosts}")

    def record(self, **nodes: object) -> None:
        """Write what earlier elections have left; a `__` in a name stands for `/`."""
        for name, value in nodes.items():
            path = f"{self.at}/{name.replace('__', '/')}"
            # A candidate is present: its znode has a session.
            if name.startswith("candidates__") and not self.zk.exists(path):
                self.zk.create(path, ephemeral=True, makepath=True)
            self.zk.ensure_path(path)
            self.zk.set(path, json.dumps(value).encode() if value else b"")

    def formed(self) -> None:
        """Record that the three hosts have formed a cluster."""
        positions = dict.fromkeys(HOSTS, "g:1")
        decision = {"epoch": 1, "winner": "h1", "group": "g", "value": 1, "positions": positions}
        self.zk.ensure_path(f"{self.deployment.path}/status/global/db")
        self.zk.set(f"{self.deployment.path}/status/global/db", NAME.encode())
        self.record(turn=None, candidates=None, running=None, decision={**decision, "state": "formed"})
        self.record(**{f"members__{host}": {"epoch": 1, "state": "joined"} for host in HOSTS})

    def written(self) -> dict[str, tuple[bytes, int]]:
        """Everything below the election, with its version."""
        return {path: (data, stat.version) for path, (data, stat) in znodes(self.zk, self.at).items()}


@pytest.fixture
def cluster(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Cluster:
    return Cluster(deployment, zk, containers, tmp_path / "disks")


def test_a_missing_member_is_named_and_nobody_starts(cluster: Cluster) -> None:
    """By `elect`, `explain` and `status`, as the agents themselves say it."""
    cluster.formed()
    agents = cluster.start(h1="g:5", h2="g:7")
    cluster.candidates("h1", "h2")
    said = tool(cluster.deployment, "elect", "db", status=1)
    first, second, *_ = said.splitlines()
    assert first.endswith(": 2 of 3 candidates")
    assert second == "missing: h3"
    agents["h1"].says("missing: h3; a missing host may have the newest data")
    explained = tool_says(cluster.deployment, "missing: h3", "explain", status=1)
    assert explained.startswith("ROOT CAUSE  db/daemon has waited for ")
    assert "missing: h3 (last seen " in explained
    assert "candidates: h1 (g:5), h2 (g:7); a missing host may have the newest data: start it" in explained
    assert "2 of 3 candidates; missing h3" in tool(cluster.deployment, "status", status=1)
    found = cluster.shown()
    assert (found["state"], found["missing"], found["code"]) == ("electing", ["h3"], "election-missing")
    assert found["service"] == NAME
    status = json.loads(tool(cluster.deployment, "status", "--format", "json", status=1))
    assert status["services"][0]["election"]["missing"] == ["h3"]
    waited = tool(cluster.deployment, "wait", "--timeout", "1", "--quiet", status=75)
    assert "missing: h3" in waited, "it may come back, so it is not the end"
    cluster.start(h3="g:6")
    cluster.ready(*HOSTS)
    assert tool(cluster.deployment, "elect", "db").startswith("infra/db  ready on h1, h2, h3\n")
    assert cluster.shown()["winner"] == "h2"
    assert tool(cluster.deployment, "explain") == "up          db 3 of 3\n"


def test_the_operator_decides_without_a_member_and_forgets_it(cluster: Cluster) -> None:
    """The one that was left out may not come back with its data; another host takes its place."""
    cluster.formed()
    cluster.start(h1="g:5", h2="g:7")
    cluster.candidates("h1", "h2")
    words = ["--winner", "h1", "--without", "h3", "--yes"]
    done = ctl(cluster.deployment, "elect", "db", *words)
    assert done.stdout == "recorded for epoch 2 of infra/db: winner h1, without h3\n"
    assert "only if h3 is powered off and never comes back with its data\n" in done.stderr
    cluster.ready("h1", "h2")
    assert (cluster.shown()["winner"], cluster.shown()["epoch"]) == ("h1", 2)
    assert cluster.shown()["override"] is None, "it was for this epoch only"
    (late,) = cluster.start(h3="g:9").values()
    late.says("refused: h3 was left out of a decision")
    assert "refused: h3 was left out" in tool(cluster.deployment, "elect", "db", status=1)
    tool_says(cluster.deployment, "db/daemon: refused: h3 was left out", "explain", status=1)
    refused = ctl(cluster.deployment, "elect", "db", "--forget", "h3", "--yes", status=1)
    assert "h3 is a candidate: stop its container first; nothing was changed" in refused.stderr
    late.end()
    cluster.candidates()
    said = ctl(cluster.deployment, "elect", "db", "--forget", "h3", "--yes")
    assert said.stdout == "forgot h3: 2 of 3 members of infra/db are left\n"
    cluster.start(h4="none")
    cluster.ready("h1", "h2", "h4")
    assert [each["host"] for each in cluster.shown()["hosts"]] == ["h1", "h2", "h4"]


def test_a_host_that_lost_its_data_is_accepted_for_one_epoch(cluster: Cluster) -> None:
    cluster.formed()
    cluster.start(h1="g:5", h2="g:7", h3="none")
    cluster.candidates(*HOSTS)
    text = "ROOT CAUSE  db/daemon: refused: h3 should have data, and has none"
    tool_says(cluster.deployment, text, "explain", status=1)
    waited = tool(cluster.deployment, "wait", "--quiet", status=1)
    assert "refused: h3 should have data" in waited, "nothing but an operator ends it"
    refused = ctl(cluster.deployment, "elect", "db", "--accept-empty", "h1", "--yes", status=1).stderr
    assert "h1 has data (g:5): --accept-empty is for a host without data; nothing was changed" in refused
    ctl(cluster.deployment, "elect", "db", "--accept-empty", "h3", "--yes")
    cluster.ready(*HOSTS)
    assert cluster.shown()["winner"] == "h2"


# What is asked for while h1 and h2 are candidates, and why it is refused.
REFUSED = [
    (["--winner", "h1"], "infra/db: missing: h3; a missing host may have the newest data; to decide"),
    (["--winner", "h3", "--without", "h3"], "h3 is no candidate"),
    (["--winner", "h1", "--without", "h2", "--without", "h3"], "refused: h2 is to be left out"),
    (["--winner", "h1", "--without", "g3"], "missing: h3"),
    (["--accept-empty", "h3"], "h3 is no candidate"),
    (["--forget", "h1"], "h1 is a candidate: stop its container first"),
    (["--forget", "h5"], "h5 is no member of the election of infra/db"),
]


def test_what_the_agents_would_refuse_changes_nothing(cluster: Cluster) -> None:
    cluster.formed()
    cluster.start(h1="g:5", h2="g:7")
    cluster.candidates("h1", "h2")
    before = cluster.written()
    for words, expected in REFUSED:
        said = ctl(cluster.deployment, "elect", "db", *words, "--yes", status=1).stderr
        assert expected in said and said.endswith("nothing was changed\n"), (words, said)
    assert cluster.written() == before
    # No agent has followed a word that was not recorded.
    assert cluster.shown()["state"] == "electing"


def test_a_word_is_withdrawn(cluster: Cluster) -> None:
    """Otherwise it would wait for the next time that its winner is a candidate."""
    cluster.formed()
    cluster.record(override={"epoch": 2, "winner": "h1", "without": ["h2", "h3"]})
    assert "operator for epoch 2: winner h1, without h2, h3" in tool(
        cluster.deployment, "elect", "db", status=1
    )
    said = tool(cluster.deployment, "elect", "db", "--withdraw")
    assert said == "withdrew the choice that was recorded for the next epoch of infra/db\n"
    assert cluster.shown()["override"] is None
    assert "nothing is recorded" in tool(cluster.deployment, "elect", "db", "--withdraw")


def test_it_asks_before_a_change(cluster: Cluster) -> None:
    """On a terminal; anywhere else it needs a yes."""
    cluster.formed()
    before = cluster.written()
    words = ("elect", "db", "--forget", "h3")
    assert "give --yes" in ctl(cluster.deployment, *words, status=64).stderr
    for answer, status, says in (
        ("\n", 1, "nothing was changed"),
        ("\x03", 130, "stopped by SIGINT"),
        ("y\n", 0, "forgot h3: 2 of 3 members"),
    ):
        assert cluster.written() == before
        with Terminal((sys.executable, str(TOOL), *words), environ(cluster.deployment)) as terminal:
            terminal.shows("forget h3 as a member of the election of infra/db")
            assert "only if h3 is powered off and never comes back with its data" in terminal.screen
            terminal.types(answer)
            assert os.waitstatus_to_exitcode(terminal.ends()) == status
        assert says in terminal.screen


def test_a_candidate_of_another_cluster_cannot_win(cluster: Cluster) -> None:
    """Whatever the operator says: the other members would lose their data."""
    cluster.formed()
    cluster.record(candidates__h1={"group": "other", "value": 9})
    before = cluster.written()
    words = ("--winner", "h1", "--without", "h2", "--without", "h3", "--yes")
    said = ctl(cluster.deployment, "elect", "db", *words, status=1).stderr
    assert "the data of h1 belong to another cluster than the one that was formed" in said
    assert said.endswith("nothing was changed\n")
    assert cluster.written() == before


ONE_CHANGE = "give one of --winner, --forget and --withdraw; --without needs --winner"
BAD_USAGE = [
    (["--winner", "h1", "--forget", "h2"], ONE_CHANGE),
    (["--without", "h1"], ONE_CHANGE),
    (["--withdraw", "--accept-empty", "h1"], ONE_CHANGE),
    (["--winner", "h1", "--format", "json"], "--format json only shows the election"),
    (["--forget", "h1", "--format", "json"], "--format json only shows the election"),
    (["--withdraw", "--format", "json"], "--format json only shows the election"),
]


@pytest.mark.parametrize("words, expected", BAD_USAGE, ids=[" ".join(words) for words, _ in BAD_USAGE])
def test_bad_usage(deployment: Deployment, words: list[str], expected: str) -> None:
    assert expected in ctl(deployment, "elect", "db", *words, status=64).stderr


def test_a_service_without_election_has_none_to_show(deployment: Deployment) -> None:
    publish(deployment, NAME, {"service": {"daemon": {"command": "true"}}})
    for words in ((), ("--forget", "h1", "--yes")):
        said = ctl(deployment, "elect", "db", *words, status=64).stderr
        assert "infra/db has no election: its daemon has no `election`" in said


# -- changes beside those of others -----------------------------------------------------------------------


class Change(NamedTuple):
    """A change of the operator's, from a candidate h1 at the turn that was read."""

    make: Callable[[OperatorClient, ElectionZnodes, int], None]
    leaves: str
    """the znode that it creates or deletes"""


WORD = Override(2, "h1", ["h2", "h3"])
CHANGES = {
    "override": Change(lambda client, at, turn: elections.override(client, at, turn, WORD), "override"),
    "forget": Change(lambda client, at, turn: elections.forget(client, at, turn, "h3"), "members/h3"),
    "withdraw": Change(elections.withdraw, "override"),
}


@pytest.fixture
def client(zk: KazooClient, deployment: Deployment) -> Iterator[OperatorClient]:
    client = operator_client(zk, deployment.prefix, deployment.id)
    yield client
    client.close()


def prepared(cluster: Cluster, change: str) -> int:
    """Have the znodes that the change needs; the version of the turn."""
    cluster.formed()
    cluster.record(candidates__h1={"group": "g", "value": 5})
    if change == "withdraw":
        cluster.record(override=WORD._asdict())
    version: int = cluster.zk.get(f"{cluster.at}/turn")[1].version
    return version


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_a_turn_of_its_own(cluster: Cluster, client: OperatorClient, change: str) -> None:
    """Agents that have read the election before cannot decide any more; nor can an operator."""
    turn, at = prepared(cluster, change), ElectionZnodes(cluster.at)
    cluster.zk.set(f"{cluster.at}/turn", b"")
    before = cluster.written()
    with pytest.raises(
        ChangedMeanwhile, match="the election has changed meanwhile: look at it again; nothing"
    ):
        CHANGES[change].make(client, at, turn)
    assert cluster.written() == before
    CHANGES[change].make(client, at, turn + 1)
    after = cluster.written()
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert changed == {f"{cluster.at}/turn", f"{cluster.at}/{CHANGES[change].leaves}"}
    assert after[f"{cluster.at}/turn"][1] == turn + 2


def test_a_winner_that_is_gone_is_no_winner(cluster: Cluster, client: OperatorClient) -> None:
    """An ephemeral that expires does not change the turn."""
    turn = prepared(cluster, "override")
    cluster.zk.delete(f"{cluster.at}/candidates/h1")
    before = cluster.written()
    with pytest.raises(ChangedMeanwhile):
        elections.override(client, ElectionZnodes(cluster.at), turn, WORD)
    assert cluster.written() == before


@pytest.fixture
def lossy(zookeeper: Server, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes the address of a proxy that loses the first transaction (`request`), or its reply."""
    with ExitStack() as stack:

        def launch(loses: str, *more: str) -> str:
            port = free_port()
            words = [f"{port}", f"{zookeeper.port}", "1", loses, *more]
            proxy = Process([sys.executable, lossy_proxy.__file__, *words], tmp_path / "proxy.log")
            stack.callback(proxy.kill)
            proxy.launch()
            return f"{HOST}:{port}"

        yield launch


@pytest.mark.parametrize(
    ("words", "loses"),
    [(["--winner", "h1", "--without", "h2", "--without", "h3"], "reply"), (["--withdraw"], "request")],
)
def test_a_change_is_recorded_once_although_the_connection_is_lost(
    cluster: Cluster, lossy: Callable[..., str], words: list[str], loses: str
) -> None:
    """The tool says that it is recorded, and it is."""
    before = prepared(cluster, "withdraw" if words == ["--withdraw"] else "override")
    done = ctl(cluster.deployment, "elect", "db", *words, "--yes", "--hosts", lossy(loses))
    assert "lost the connection to ZooKeeper at" in done.stderr
    assert done.stdout.startswith("withdrew" if words == ["--withdraw"] else "recorded for epoch 2")
    assert (cluster.zk.exists(f"{cluster.at}/override") is None) == (words == ["--withdraw"])
    assert cluster.zk.get(f"{cluster.at}/turn")[1].version == before + 1


@pytest.mark.parametrize("loses", ["request", "reply"])
def test_ctrl_c_in_an_outage_says_that_the_result_is_unknown(
    cluster: Cluster, lossy: Callable[..., str], tmp_path: Path, loses: str
) -> None:
    """Nobody can connect again after the change was sent."""
    prepared(cluster, "override")
    hosts = lossy(loses, "own", f"{cluster.at}/override")
    words = ("--winner", "h1", "--without", "h2", "--without", "h3", "--yes", "--hosts", hosts)
    with (tmp_path / "said").open("w") as said:
        tool = subprocess.Popen(
            (sys.executable, str(TOOL), "elect", "db", *words), env=environ(cluster.deployment), stderr=said
        )
    try:
        eventually(lambda: "lost the connection" in (tmp_path / "said").read_text(), "the change was sent")
        tool.send_signal(signal.SIGINT)
        assert tool.wait(timeout=60) == 130
    finally:
        tool.kill()
        tool.wait()
    unknown = "it is unknown whether this was recorded: look at the election again"
    assert unknown in (tmp_path / "said").read_text()


class LostReply:
    """A client whose first transaction is lost after `meanwhile`."""

    def __init__(self, client: OperatorClient, meanwhile: Callable[[], object], *, applied: bool) -> None:
        self.client, self.meanwhile, self.applied = client, meanwhile, applied
        self.calls = 0

    def __call__(self, operations: Any, what: str, *more: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            return OperatorClient.transaction(self.client, operations, what)
        if self.applied:
            OperatorClient.transaction(self.client, operations, what)
        self.meanwhile()
        raise Outage(what)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_an_override_of_a_decided_epoch_is_not_called_recorded(
    cluster: Cluster, client: OperatorClient, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """The agents may have used it before the connection was back."""
    turn = prepared(cluster, "override")
    decision = json.loads(cluster.zk.get(f"{cluster.at}/decision")[0])

    def decide() -> None:
        cluster.record(turn=None, decision={**decision, "epoch": 2})
        if applied:
            cluster.zk.delete(f"{cluster.at}/override")

    monkeypatch.setattr(client, "transaction", LostReply(client, decide, applied=applied))
    with pytest.raises(Unanswered, match="epoch 2 has been decided meanwhile: look at the election"):
        elections.override(client, ElectionZnodes(cluster.at), turn, WORD)


def test_the_election_is_read_between_two_transitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that became a candidate while it was read would be in both places, or in none."""
    prepared(cluster, "override")
    looks: list[int] = []

    def deployment(source: Mirror) -> LiveDeployment:
        found = original(source)
        looks.append(len(looks))
        if len(looks) == 1:
            cluster.record(turn=None, candidates__h2={"group": "g", "value": 9})
        return found

    original = Mirror.deployment
    monkeypatch.setattr(Mirror, "deployment", deployment)
    words = ["--hosts", cluster.deployment.hosts, "--prefix", cluster.deployment.prefix]
    with ExitStack() as stack:
        options = parser().parse_args(["elect", "db", "--deployment", cluster.deployment.id, *words])
        _, election = elect.read(Invocation(options, {}, stack), "db")
    assert len(looks) == 2
    assert [each.host for each in election.candidates] == ["h1", "h2"]
