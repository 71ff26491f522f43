"""`rerun` and `adopt`: what is recorded of a one-time command, changed beside agents at work."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable

import pytest
from kazoo.client import KazooClient, TransactionRequest
from kazoo.recipe.lock import Lock
from kazoo.security import make_acl

from kolla_mesos_start.ctl.cli import parser
from kolla_mesos_start.ctl.commands import one_time
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile
from kolla_mesos_start.tree.states import Detail
from tests.agent.test_one_time import SERVICE, Site
from tests.conftest import Deployment
from tests.support import lossy_proxy
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import ctl, environ, run_ctl
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import HOST, Process, Server, free_port


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Site:
    """A service whose commands work in a directory of the test's own."""
    return Site(deployment, zk, containers, tmp_path / "work")


def recorded(site: Site) -> dict[str, Any]:
    """All that stands below `status`, with its versions."""
    found = znodes(site.zk, f"{site.deployment.path}/status")
    return {path: (data, stat.version) for path, (data, stat) in found.items()}


# -- rerun ----------------------------------------------------------------------------------------


def test_a_command_that_runs_is_left_alone(site: Site) -> None:
    """Status 1, and not even a version has changed."""
    site.publish(sync=site.once())
    agent = site.start()
    site.running()
    before = recorded(site)
    for word in ("rerun", "adopt"):
        done = ctl(site.deployment, word, "db/sync", status=1)
        assert (
            "db/sync runs now, or is about to (the lock is held by web1); nothing was changed" in done.stderr
        )
    assert recorded(site) == before
    site.let_go()
    assert agent.ends() == 0
    assert len(site.runs()) == 1


@pytest.mark.parametrize("keys", [{}, {"generation": "quay.io/db:1"}])
def test_what_is_taken_back_runs_once_more(site: Site, keys: Any) -> None:
    """With the next container, once, with a larger token; it is no attempt without an outcome."""
    site.publish(sync=site.once(gate=None, **keys))
    assert [site.start(host).ends() for host in ("web1", "web2")] == [0, 0]
    assert site.state("sync", "web2") == "done"
    assert ctl(site.deployment, "rerun", "db/sync").stdout.endswith(
        " is marked as not done; the next container of infra/db that starts runs it\n"
        "start a container of infra/db: there is none now\n"
    )
    assert [site.state(), site.state("sync", "web1"), site.state("sync", "web2")] == ["waiting"] * 3
    assert (site.names(f"{site.at()}/hosts"), site.names(f"{site.at()}/generations")) == ([], [])
    assert "taken back by" in site.detail()["message"]
    agents = [site.start(host) for host in ("web3", "web4")]
    assert [agent.ends() for agent in agents] == [0, 0]
    first, second = site.runs()
    assert second.token > first.token and second.previous == "none"
    assert (site.state(), site.detail()["attempt"]) == ("done", 2)


def test_tokens_go_on_growing_where_they_are_ahead_of_the_ensemble(site: Site, zk: KazooClient) -> None:
    """As in a tree that was moved from an older one."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    detail = zk.get(f"{site.at()}/detail")[0].replace(b'"token": ', b'"token": 1000000')
    zk.set(f"{site.at()}/detail", detail)
    ahead = site.detail()["token"]
    ctl(site.deployment, "rerun", "db/sync")
    assert site.start().ends() == 0
    ctl(site.deployment, "rerun", "db/sync")
    ctl(site.deployment, "adopt", "db/sync")
    ctl(site.deployment, "rerun", "db/sync")
    assert site.start().ends() == 0
    assert [run.token for run in site.runs()[1:]] == [ahead + 1, ahead + 3]


def test_only_the_published_generation_is_taken_back(site: Site) -> None:
    """It is rendered as an agent would render it."""
    for tag in ("1", "2"):
        publish(
            site.deployment,
            SERVICE,
            {"commands": {"sync": site.once(gate=None, generation="{{ tag }}")}},
            shared={"tag": tag},
        )
        assert site.start().ends() == 0
    assert "db/sync (generation 2) is marked as not done" in ctl(site.deployment, "rerun", "db/sync").stdout
    assert site.names(f"{site.at()}/generations") == ["1"]
    assert "db/sync (generation 2) is not done" in ctl(site.deployment, "rerun", "db/sync").stdout
    assert site.start().ends() == 0
    assert len(site.runs()) == 3


def test_what_is_once_on_each_host_is_taken_back_on_one(site: Site) -> None:
    site.publish(sync=site.once(gate=None, lock="sync.$KOLLA_HOSTNAME", run_once="host"))
    for host in ("web1", "web2"):
        assert site.start(host).ends() == 0
    assert "give --host" in ctl(site.deployment, "rerun", "db/sync", status=64).stderr
    done = ctl(site.deployment, "rerun", "db/sync", "--host", "web1")
    assert "db/sync on web1 is marked as not done" in done.stdout
    assert (site.state(scope="web1"), site.state(scope="web2"), site.state()) == ("waiting", "done", "done")
    assert site.names(f"{site.at()}/hosts") == ["web2"]
    for host in ("web1", "web2"):
        assert site.start(host).ends() == 0
    assert [run.host for run in site.runs()] == ["web1", "web2", "web1"]


def test_what_is_once_in_the_deployment_cannot_be_taken_back_on_one_host(site: Site) -> None:
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    said = ctl(site.deployment, "rerun", "db/sync", "--host", "web1", status=64).stderr
    assert "db/sync runs once in the whole deployment: leave --host out" in said
    assert site.state() == "done"


def test_what_is_done_on_no_host_any_more_is_waited_for(site: Site) -> None:
    """In the deployment too: a dependency of scope global waits until some host has run it again."""
    site.publish(sync=site.once(gate=None, lock="sync.$KOLLA_HOSTNAME", run_once="host"))
    publish(
        site.deployment,
        "app/web",
        {"commands": {"use": site.plain("use", gate=None, dependencies=["db/sync"])}},
    )
    for host in ("web1", "web2"):
        assert site.start(host).ends() == 0
    ctl(site.deployment, "rerun", "db/sync", "--host", "web1")
    assert site.containers.start("app/web", "web3").ends() == 0
    said = ctl(site.deployment, "rerun", "db/sync", "--host", "web2").stdout
    assert "the next container of infra/db on web2 that starts runs it" in said
    assert "start a container of infra/db on web2: there is none now" in said
    assert (site.state(), site.names(f"{site.at()}/hosts")) == ("waiting", [])
    waits = site.containers.start("app/web", "web3")
    waits.says("db/sync: not started yet")
    assert site.start("web1").ends() == 0
    assert waits.ends() == 0
    assert (site.state(), site.names(f"{site.at()}/hosts")) == ("done", ["web1"])


def test_another_generation_still_counts_on_a_host(site: Site) -> None:
    """Without a generation a dependency means any."""
    for tag in ("1", "2"):
        site.publish(sync=site.once(gate=None, run_once="host", generation=tag))
        assert site.start().ends() == 0
    ctl(site.deployment, "rerun", "db/sync", "--host", "web1")
    assert (site.names(f"{site.at()}/hosts"), site.state()) == (["web1"], "done")
    assert site.start().ends() == 0
    assert len(site.runs()) == 3


def test_a_container_that_passes_it_meanwhile_does_not_record_it_again(site: Site) -> None:
    """It has found the command done, and renders its files while that is taken back."""
    source = site.path / "source"
    source.touch()
    hold, held = site.path / "hold", site.path / "held"
    check = f"test ! -e {hold} || touch {held}; while test -e {hold}; do sleep 0.05; done"
    files = {"conf": {"dest": str(site.path / "conf"), "mounted": str(source), "check": ["sh", "-c", check]}}
    site.publish(sync=site.once(gate=None, run_once="host", files=files))
    assert site.start().ends() == 0
    source.write_text("new")
    hold.touch()
    agent = site.start()
    eventually(held.exists, "it checks its file")
    ctl(site.deployment, "rerun", "db/sync", "--host", "web1")
    hold.unlink()
    assert agent.ends() == 0
    assert (site.state(scope="web1"), len(site.runs())) == ("waiting", 1)
    assert site.start().ends() == 0
    assert len(site.runs()) == 2


def test_what_is_not_done_need_not_be_taken_back(site: Site) -> None:
    """Never run, or failed: the next container runs it anyway."""
    site.publish(sync=site.once(gate=None, then="exit 3"))
    assert "has never run" in ctl(site.deployment, "rerun", "db/sync").stdout
    assert not site.zk.exists(f"{site.deployment.path}/status")
    assert site.start().ends() == 1
    assert "is not done (attempt 1 on web1: exit status 3)" in ctl(site.deployment, "rerun", "db/sync").stdout
    assert site.state() == "error"


@pytest.mark.parametrize("word", ["rerun", "adopt"])
def test_a_container_that_holds_the_lock_goes_first(site: Site, zk: KazooClient, word: str) -> None:
    """Though nothing says yet that it runs: a claim may be under way."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    with Lock(zk, f"{site.at()}/lock", "web9"):
        before = recorded(site)
        assert "held by web9" in ctl(site.deployment, word, "db/sync", status=1).stderr
        assert recorded(site).keys() == before.keys()


def test_twenty_agents_start_while_it_is_taken_back(site: Site) -> None:
    """Each time that it was taken back it runs once more, at most once at a time, and all pass it."""
    site.publish(sync=site.once(gate=None, then="sleep 0.1"))
    assert site.start().ends() == 0
    agents = [site.start(f"web{n}") for n in range(20)]
    said = []
    while any(agent.running for agent in agents):
        said.append(taken_back(site))
    assert [agent.ends() for agent in agents] == [0] * 20
    last = site.start("last")
    assert last.ends() == 0
    assert 0 < said.count(True) == len(site.runs()) - 1
    assert site.state() == "done"
    tokens = [run.token for run in site.runs()]
    assert tokens == sorted(set(tokens))
    assert {run.previous for run in site.runs()} == {"none"}


def taken_back(site: Site) -> bool:
    """Whether a rerun took something back; false where it found a container at work, or nothing done."""
    done = run_ctl(site.deployment, "rerun", "db/sync")
    assert done.returncode in (0, 1), done.stderr
    return "is marked as not done" in done.stdout


# -- adopt ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "started"), [({}, True), ({"generation": "quay.io/db:1"}, False)])
def test_what_is_adopted_is_passed_through(site: Site, keys: Any, started: bool) -> None:
    """Before any container has started, or after one has failed; who did it and when is recorded."""
    site.publish(
        sync=site.once(gate=None, then="exit 3", **keys),
        after=site.plain("after", gate=None, dependencies=[{"path": "db/sync", "count": 1}]),
    )
    if started:
        assert site.start().ends() == 1
    begun = time.time()
    counted = ctl(site.deployment, "adopt", "db/sync", status=64).stderr
    assert "a dependency of infra/db counts the hosts on which db/sync has succeeded: give --host" in counted
    assert "is recorded as done" in ctl(site.deployment, "adopt", "db/sync", "--host", "web1").stdout
    assert site.names(f"{site.at()}/hosts") == ["web1"]
    agents = [site.start(host) for host in ("web1", "web2")]
    assert [agent.ends() for agent in agents] == [0, 0]
    assert len(site.runs()) == started
    detail = site.detail()
    assert (detail["state"], detail["attempt"]) == ("done", int(started))
    assert detail["message"].startswith("adopted by ") and begun <= detail["started"] <= time.time()
    assert site.state("sync", "web2") == "done"
    again = ctl(site.deployment, "adopt", "db/sync", "--host", "web1")
    assert "is already done; adopted by" in again.stdout  # No attempt was successful.
    ctl(site.deployment, "rerun", "db/sync")
    assert site.start().ends() == 1
    assert len(site.runs()) == started + 1


def test_a_list_is_adopted_as_a_whole_or_not_at_all(site: Site, tmp_path: Path) -> None:
    site.publish(sync=site.once(), more=site.once())
    listed = tmp_path / "adopt.txt"
    listed.write_text("db/sync  # the database\n\ndb/moer\n")
    assert "'db/moer' (did you mean 'db/more'?)" in run_ctl(site.deployment, "adopt", "--list", listed).stderr
    assert site.zk.exists(f"{site.at()}/state") is None
    listed.write_text("db/sync  # the database\n\ndb/more\n")
    ctl(site.deployment, "adopt", "--list", str(listed))
    assert (site.state(), site.start().ends()) == ("done", 0)
    assert site.runs() == []
    listed.write_text("# none\n")
    assert "names no command" in ctl(site.deployment, "adopt", "--list", str(listed), status=64).stderr
    gone = ctl(site.deployment, "adopt", "--list", tmp_path / "gone", status=64).stderr
    assert "gone can't be read: No such file or directory" in gone
    assert "either" in ctl(site.deployment, "adopt", status=64).stderr


def test_a_mark_that_was_adopted_is_one_of_the_agents_own(site: Site) -> None:
    """The next generation runs after it; a rollback to it does not."""
    site.publish(sync=site.once(gate=None, generation="1"))
    ctl(site.deployment, "adopt", "db/sync")
    site.publish(sync=site.once(gate=None, generation="2"))
    assert site.start().ends() == 0
    site.publish(sync=site.once(gate=None, generation="1"))
    assert site.start().ends() == 0
    assert len(site.runs()) == 1


def test_the_operators_own_machine_is_no_host_of_the_deployment(site: Site) -> None:
    """Without --host no host is counted; the command is done all the same."""
    site.publish(sync=site.once(gate=None))
    ctl(site.deployment, "adopt", "db/sync")
    assert (site.state(), site.names(f"{site.at()}/hosts")) == ("done", [])
    assert site.start().ends() == 0
    assert site.runs() == []


def test_adopting_on_one_host(site: Site) -> None:
    """The other hosts run it; the deployment counts it as done on one."""
    site.publish(sync=site.once(gate=None, lock="sync.$KOLLA_HOSTNAME", run_once="host"))
    assert "give --host" in ctl(site.deployment, "adopt", "db/sync", status=64).stderr
    ctl(site.deployment, "adopt", "db/sync", "--host", "web1")
    assert (site.state(scope="web1"), site.state()) == ("done", "done")
    assert [site.start(host).ends() for host in ("web1", "web2")] == [0, 0]
    assert [run.host for run in site.runs()] == ["web2"]
    assert site.names(f"{site.at()}/hosts") == ["web1", "web2"]


def test_a_late_success_after_it_was_adopted_is_refused(site: Site) -> None:
    """Its lock is deleted, or its session expires first: the agent kills it, and passes it as done."""
    site.publish(sync=site.once())
    agent = site.start()
    site.running()
    agent.signal(signal.SIGSTOP)
    for name in site.names(f"{site.at()}/lock"):
        site.zk.delete(f"{site.at()}/lock/{name}")
    ctl(site.deployment, "adopt", "db/sync")
    agent.signal(signal.SIGCONT)
    assert agent.ends() == 0
    assert "the lock is lost" in agent.said or "its lease could not be renewed" in agent.said
    assert site.detail()["message"].startswith("adopted by")
    assert len(site.runs()) == 1


# -- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["db"], 64, "'db': expected ROLE/COMMAND: db/sync\n"),
        (["sync"], 64, "'sync': expected ROLE/COMMAND: db/sync, web/sync\n"),
        (["snyc"], 64, "'snyc': expected ROLE/COMMAND: db/sync, web/sync\n"),
        (["dbs/sync"], 66, "has no service 'dbs' (did you mean 'db'?"),
        (["db/synk"], 66, "no command 'db/synk' (did you mean 'db/sync'?)"),
        (["db/plain"], 64, "no one-time command"),
        (["db/sync", "--host", "a/b"], 64, "--host"),
    ],
)
def test_what_is_wrong_is_named(site: Site, words: list[str], status: int, expected: str) -> None:
    """And nothing is written."""
    site.publish(sync=site.once(), plain=site.plain())
    publish(site.deployment, "shop/web", {"commands": {"sync": site.once()}})
    for word in ("rerun", "adopt"):
        assert expected in ctl(site.deployment, word, *words, status=status).stderr
    assert not site.zk.exists(f"{site.deployment.path}/status")


@pytest.mark.parametrize("word", ["rerun", "adopt"])
def test_a_variable_that_only_hosts_have_does_not_matter(site: Site, word: str) -> None:
    """Such as the port of the daemon beside it, with `up`: the command is the same on all hosts."""
    service = {"daemon": {"command": "true", "ready": {"tcp": "{{ port }}"}}}
    definition = {"commands": {"sync": site.once()}, "service": service}
    publish(site.deployment, SERVICE, definition, host_variables={"web1": {"port": "80"}})
    expected = {"rerun": "db/sync has never run", "adopt": "db/sync is recorded as done"}
    assert expected[word] in ctl(site.deployment, word, "db/sync").stdout


@pytest.mark.parametrize(
    ("word", "number", "loses"), [("rerun", 1, "reply"), ("adopt", 1, "request"), ("adopt", 2, "reply")]
)
def test_a_write_whose_fate_is_unknown_is_not_made_twice(
    site: Site, zookeeper: Server, tmp_path: Path, word: str, number: int, loses: str
) -> None:
    """The connection breaks under it: `detail` tells whether it was applied."""
    site.publish(sync=site.once(gate=None, generation="1"))
    if word == "rerun":
        assert site.start().ends() == 0
    port = free_port()
    words = [f"{port}", f"{zookeeper.port}", f"{number}", loses]
    proxy = Process([sys.executable, lossy_proxy.__file__, *words], tmp_path / "proxy.log")
    proxy.launch()
    try:
        done = ctl(site.deployment, word, "db/sync", "--hosts", f"{HOST}:{port}")
    finally:
        proxy.kill()
    assert "lost the connection to ZooKeeper at" in done.stderr
    assert ("is marked as not done" if word == "rerun" else "is recorded as done") in done.stdout
    assert len(site.names(f"{site.at()}/generations")) == (word == "adopt")
    assert site.queue() == []
    assert site.start().ends() == 0
    assert len(site.runs()) == 2 * (word == "rerun")


class Change:
    """A change of db/sync under its lock, in this process; `meanwhile` runs while it is planned first."""

    def __init__(self, site: Site, meanwhile: Callable[[], object]) -> None:
        self.planned: list[int] = []  # the attempts that were found
        self.meanwhile = meanwhile
        with ExitStack() as stack:
            options = parser().parse_args(["rerun", "db/sync"])
            invocation = Invocation(options, environ(site.deployment), stack)
            one = one_time.find(invocation, "db/sync", "")
            one_time.change(invocation.client, one, "rerun", self.plan)

    def plan(self, contender: str, record: one_time.Record, transaction: TransactionRequest) -> Detail:
        if not self.planned:
            self.meanwhile()
        self.planned.append(record.detail.attempt)
        return record.detail._replace(message="changed")


def test_an_outcome_that_comes_late_is_not_overwritten(site: Site, zk: KazooClient) -> None:
    """Of a holder whose lock was lost, and that nobody has followed: it is read, and planned again."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    late = json.dumps({**site.detail(), "attempt": 9}).encode()
    change = Change(site, lambda: zk.set(f"{site.at()}/detail", late))
    assert change.planned == [1, 9]
    assert (site.detail()["attempt"], site.detail()["message"]) == (9, "changed")


def test_what_is_published_meanwhile_ends_it(site: Site, zk: KazooClient) -> None:
    """Another generation may be meant by now. The same where the lock was taken away."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    before = site.detail()
    with pytest.raises(ChangedMeanwhile, match="try again"):
        Change(site, lambda: site.publish(sync=site.once(gate=None, then="true")))
    with pytest.raises(ChangedMeanwhile, match="try again"):
        Change(
            site, lambda: [zk.delete(f"{site.at()}/lock/{name}") for name in site.names(f"{site.at()}/lock")]
        )
    assert site.detail() == before


@pytest.mark.parametrize("place", ["lock", "detail"])
def test_whoever_may_only_read_is_told_so(site: Site, zk: KazooClient, place: str) -> None:
    """Status 77; nothing has changed."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    zk.set_acls(f"{site.at()}/{place}", [make_acl("world", "anyone", read=True, admin=True)])
    before = recorded(site)
    denied = ctl(site.deployment, "rerun", "db/sync", status=77).stderr
    assert "NoAuth" in denied and f"{site.at()}/{place}" in denied
    assert recorded(site) == before


def test_a_refusal_to_give_the_lock_back_ends_no_later_request(site: Site, zk: KazooClient) -> None:
    """It comes with the reply to the request after it."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    zk.set_acls(f"{site.at()}/lock", [make_acl("world", "anyone", read=True, create=True, admin=True)])
    with ExitStack() as stack:
        invocation = Invocation(parser().parse_args(["rerun", "db/sync"]), environ(site.deployment), stack)
        client = invocation.client
        with one_time.locked(client, one_time.find(invocation, "db/sync", "")) as contender:
            assert client.children([f"{site.at()}/lock"]) == {f"{site.at()}/lock": [Path(contender).name]}
        for _ in range(3):
            client.children([f"{site.at()}/lock"])


@pytest.mark.parametrize("word", ["rerun", "adopt"])
def test_garbage_is_shown_in_one_short_line(site: Site, zk: KazooClient, word: str) -> None:
    """Whoever holds the lock, and what is no definition: its znode is named."""
    site.publish(sync=site.once(gate=None))
    assert site.start().ends() == 0
    zk.create(f"{site.at()}/lock/x__lock__0000000000", b"\x1b[2J\n" * 100_000, ephemeral=True)
    refused = ctl(site.deployment, word, "db/sync", status=1).stderr
    assert "the lock is held by" in refused and len(refused) < 500 and "\x1b" not in refused
    zk.set(f"{site.deployment.path}/{SERVICE}", b"[" * 900_000)
    bad = ctl(site.deployment, word, "db/sync", status=65).stderr
    assert (
        bad == f"kolla_mesos_ctl: definition: {site.deployment.path}/{SERVICE}: bad JSON: nested too deep\n"
    )


def test_a_role_that_another_service_has_claimed_is_refused(site: Site) -> None:
    site.publish(sync=site.once())
    site.put("global/db", "other/db")
    assert "claimed by other/db" in ctl(site.deployment, "adopt", "db/sync", status=65).stderr
    eventually(lambda: site.names(f"{site.deployment.path}/status/global/db") == [], "nothing is made")
