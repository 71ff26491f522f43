"""`remove` and `reset`, beside agents at work and without them."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from tests.agent.test_one_time import Site
from tests.conftest import Deployment
from tests.ctl.test_publish import tree
from tests.support import lossy_proxy
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import TOOL, ctl, environ, run_ctl
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import HOST, Process, Server, free_port

KEPT = {"variables/region", ".token_floor"}  # without any service
DAEMON = {"service": {"daemon": {"command": ["sleep", "600"], "ready": {"alive": 0.1}}}}


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Site:
    """The services infra/db, with a one-time command, and infra/db/web below it, which never starts."""
    site = Site(deployment, zk, containers, tmp_path / "work")
    publish(
        deployment,
        "infra/db",
        {
            "commands": {"sync": site.once(gate=None, files={"conf": {"dest": str(tmp_path / "conf")}})},
            **DAEMON,
        },
        files={"conf": "size"},
        variables={"size": "1"},
        host_variables={"web1": {"size": "2"}},
        shared={"region": "one"},
    )
    publish(deployment, "infra/db/web", DAEMON, variables={"size": "3"})
    return site


def started(site: Site) -> None:
    """Have one container of infra/db there, until the end of the test."""
    site.start()
    scopes = ("global", "web1")
    eventually(
        lambda: all(site.state("daemon", scope) == "running" for scope in scopes), "its daemon is ready"
    )


def ran(site: Site) -> None:
    """Have had one."""
    agent = site.start()
    eventually(lambda: site.names(f"{site.at('daemon')}/ready"), "its daemon is ready")
    agent.signal(9)
    party = f"{site.deployment.path}/infra/db/.party"
    eventually(lambda: not site.names(party), "its presence is gone")
    eventually(lambda: not site.names(f"{site.at('daemon')}/ready"), "its instance is gone")


def test_a_service_is_removed_with_all_its_records(site: Site, zk: KazooClient) -> None:
    """Other services stay, also one below it; a new one of this name starts from nothing."""
    ran(site)
    done = ctl(site.deployment, "remove", "infra/db", "--yes")
    assert f"removed infra/db from {site.deployment.path}: " in done.stdout
    assert "db/sync" in done.stderr
    left = tree(zk, site.deployment.path)
    assert left.keys() == {*KEPT, "infra/db/web", "infra/db/web/variables/size"}
    assert site.names(f"{site.deployment.path}/infra/db") == ["web"]
    assert site.names(f"{site.deployment.path}/status/global") == []
    ctl(site.deployment, "remove", "infra/db/web", "--yes")
    assert tree(zk, site.deployment.path).keys() == KEPT
    assert site.names(site.deployment.path) == [
        *(".events", ".publication", ".token_floor", "status", "variables")
    ]


def test_a_service_can_be_given_by_its_role(site: Site, zk: KazooClient) -> None:
    """The remains of a service of that name come first."""
    zk.create(f"{site.deployment.path}/web/variables/size", b"4", makepath=True)
    assert "removed web from" in ctl(site.deployment, "remove", "web", "--yes").stdout
    assert "removed infra/db/web from" in ctl(site.deployment, "remove", "web", "--yes").stdout
    assert zk.get(f"{site.deployment.path}/infra/db")[0]
    assert "has no service 'web'" in ctl(site.deployment, "remove", "web", "--yes", status=66).stderr


@pytest.mark.parametrize("name", ["shop/job", "job"])
def test_a_killed_removal_is_finished_by_the_next_one(site: Site, zk: KazooClient, name: str) -> None:
    """Also if nothing published is left of the service."""
    publish(site.deployment, "shop/job", {"commands": {"sync": site.once()}})
    ctl(site.deployment, "adopt", "job/sync")
    zk.set(f"{site.deployment.path}/shop/job", b"")
    zk.delete(f"{site.deployment.path}/status/global/job/sync/lock")
    assert "removed shop/job" in ctl(site.deployment, "remove", name, "--yes").stdout
    assert "job" not in site.names(f"{site.deployment.path}/status/global")
    assert not zk.exists(f"{site.deployment.path}/shop")


def test_reset_removes_records_and_nothing_else(site: Site, zk: KazooClient) -> None:
    """The one-time command runs once more."""
    ran(site)
    before = standing(site, zk)
    assert "db/sync" in ctl(site.deployment, "reset", "--yes").stderr
    assert not zk.exists(f"{site.deployment.path}/status")
    published = {path: data for path, data in before.items() if not path.startswith("status/")}
    left = tree(zk, site.deployment.path)
    assert left.pop(".token_floor") and left == published
    ran(site)
    assert len(site.runs()) == 2


def standing(site: Site, zk: KazooClient) -> dict[str, bytes]:
    """All that stands in the tree, but for what a container says of itself, which changes."""
    found = tree(zk, site.deployment.path)
    return {path: data for path, data in found.items() if "/.containers/" not in path}


@pytest.mark.parametrize("words", [["remove", "infra/db"], ["reset"]])
def test_removal_is_refused_while_a_container_exists(site: Site, zk: KazooClient, words: list[str]) -> None:
    """--force does not answer the question."""
    started(site)
    before = standing(site, zk)
    done = ctl(site.deployment, *words, "--yes", status=1)
    assert "infra/db has 1 container on web1: stop them first; nothing was changed" in done.stderr
    assert "give --yes" in ctl(site.deployment, *words, "--force", status=64).stderr
    assert standing(site, zk) == before
    assert "daemons keep running" in ctl(site.deployment, *words, "--force", "--yes").stderr
    assert (zk.get(f"{site.deployment.path}/infra/db")[0] != b"") == (words == ["reset"])


@pytest.mark.parametrize("place", ["status/global/db/sync/lock", "infra/db/.containers", "infra/db/.party"])
@pytest.mark.parametrize("words", [["remove", "infra/db"], ["reset"]])
def test_every_kind_of_container_prevents_removal(
    site: Site, zk: KazooClient, words: list[str], place: str
) -> None:
    """A waiting task and a contender, too."""
    ran(site)
    zk.create(f"{site.deployment.path}/{place}/x", b"{}", ephemeral=True, makepath=True)
    ctl(site.deployment, *words, "--yes", status=1)
    assert site.state() == "done"
    assert zk.get(f"{site.deployment.path}/infra/db")[0]


@pytest.mark.parametrize("words", [["remove", "infra/db"], ["reset"]])
def test_removal_needs_the_right_to_delete(site: Site, zk: KazooClient, words: list[str]) -> None:
    """Status 77; nothing has changed."""
    ctl(site.deployment, "adopt", "db/sync")
    zk.set_acls(site.at(), [make_acl("world", "anyone", read=True, admin=True)])
    before = standing(site, zk)
    denied = ctl(site.deployment, *words, "--yes", status=77).stderr
    assert f"{site.at()}/lock can't be deleted: NoAuthError: the ACL of {site.at()} lacks the" in denied
    assert standing(site, zk) == before
    zk.set_acls(site.at(), OPEN_ACL_UNSAFE)


@pytest.mark.parametrize("words", [["remove", "infra/db", "--yes"], ["reset", "--yes"], ["snapshot", "-"]])
def test_what_instances_say_need_not_be_readable(
    site: Site, zk: KazooClient, tmp_path: Path, words: list[str]
) -> None:
    """Nobody asks for it."""
    ctl(site.deployment, "adopt", "db/sync")
    ready = f"{site.at('daemon')}/ready/x"
    zk.create(ready, makepath=True)
    zk.set_acls(ready, [make_acl("world", "anyone", admin=True)])
    ctl(site.deployment, *(str(tmp_path / "site.tar") if word == "-" else word for word in words))
    assert bool(zk.exists(ready)) == (words[0] == "snapshot")
    if words[0] == "snapshot":
        zk.set_acls(ready, OPEN_ACL_UNSAFE)


def test_force_kills_a_running_command(site: Site) -> None:
    """The agent sees that its lock is gone, and starts again."""
    publish(site.deployment, "infra/db", {"commands": {"sync": site.once()}})
    agent = site.start()
    site.running()
    ctl(site.deployment, "reset", "--yes", status=1)
    ctl(site.deployment, "reset", "--yes", "--force")
    agent.says("the lock is lost")
    site.running(2)
    site.let_go()
    assert agent.ends() == 0


def test_a_service_with_dependents_is_not_removed(site: Site, zk: KazooClient) -> None:
    """They are named; --force removes it."""
    waits = {"commands": {"look": {"command": "true", "dependencies": ["db/sync"]}}}
    publish(site.deployment, "shop/look", waits)
    before = tree(zk, site.deployment.path)
    done = ctl(site.deployment, "remove", "infra/db", "--yes", status=1)
    assert "these services depend on infra/db: shop/look; remove them or" in done.stderr
    assert tree(zk, site.deployment.path) == before
    done = ctl(site.deployment, "remove", "infra/db", "--yes", "--force")
    assert "their next containers will wait for infra/db: shop/look\n" in done.stderr


class Question:
    """`remove infra/db/web` on a terminal, once it has asked."""

    def __init__(self, site: Site) -> None:
        self.terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, TOOL, "remove", "infra/db/web"],
            env=environ(site.deployment, TERM="dumb"),
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.DEVNULL,
        )
        os.close(theirs)
        self.said = self.until(b"[y/n]")

    def until(self, end: bytes) -> bytes:
        said = b""
        while end not in said:
            said += os.read(self.terminal, 1024)
        return said

    def answer(self, text: str) -> int:
        """Its exit status."""
        os.write(self.terminal, text.encode())
        return self.process.wait(60)


@pytest.mark.parametrize(("answer", "status"), [("n\n", 1), ("\n", 1), ("\x04", 1), ("y\n", 0)])
def test_removal_asks_on_a_terminal(site: Site, answer: str, status: int) -> None:
    """The default is no."""
    question = Question(site)
    assert b"remove the service infra/db/web" in question.said
    assert question.answer(answer) == status
    assert bool(site.zk.exists(f"{site.deployment.path}/infra/db/web")) == (status == 1)


def test_a_container_that_starts_during_the_question_prevents_removal(site: Site, zk: KazooClient) -> None:
    """Nothing is removed."""
    zk.create(f"{site.deployment.path}/infra/db/web/.party")
    before = standing(site, zk)
    question = Question(site)
    zk.create(f"{site.deployment.path}/infra/db/web/.party/x", ephemeral=True)
    assert question.answer("y\n") == 1
    said = b" ".join(question.until(b"try again").split())  # A terminal's lines are folded.
    assert b"has got a child (of a container that has started?) meanwhile;" in said
    assert standing(site, zk) == before


def test_an_unknown_service_is_named(site: Site) -> None:
    done = ctl(site.deployment, "remove", "infra/bd", "--yes", status=66)
    assert "did you mean 'infra/db'?" in done.stderr
    assert "did you mean 'site'?" in ctl(site.deployment, "reset", "--deployment", "siet", status=66).stderr


def test_only_a_service_can_be_removed(site: Site, zk: KazooClient) -> None:
    """Not other znodes, and not a path that leads to a service in another way."""
    site.put("global/db", "infra/db")
    before = standing(site, zk)
    places = ["variables/region", "infra/db/variables/size", "status/global/db", "infra/db/.party"]
    for name in ["/infra/db", "infra/db/", "infra//db", "../x", ".", *places]:
        refused = ctl(site.deployment, "remove", name, "--yes", status=64).stderr
        assert (
            f"expected the path of a service, such as openstack/keystone/keystone-api, found {name!r}"
            in refused
        )
    assert standing(site, zk) == before


# -- reset of single hosts ------------------------------------------------------------------------


@pytest.fixture
def hosts(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Site:
    """The service infra/db with three commands: once in the deployment, once on each host, at each start."""
    site = Site(deployment, zk, containers, tmp_path / "work")
    commands = {
        "sync": site.once(gate=None),
        "each": site.once("each", gate=None, lock="each.$KOLLA_HOSTNAME", run_once="host"),
        "step": site.plain("step", gate=None),
    }
    publish(deployment, "infra/db", {"commands": commands})
    counts = {"dependencies": [{"path": "db/step", "count": 2}]}
    publish(deployment, "app/web", {"commands": {"use": site.plain("use", **counts)}})
    return site


def of_host(site: Site, host: str) -> list[str]:
    """What stands of a host, by its path."""
    paths = [path for path in znodes(site.zk, site.deployment.path) if host in path.split("/")]
    return [path[len(site.deployment.path) + 1 :] for path in paths]


def test_reset_of_a_host(hosts: Site) -> None:
    """Commands that run once on each host run again there; nothing else has changed."""
    for host in ("web1", "web2"):
        assert hosts.start(host).ends() == 0
    other = of_host(hosts, "web2")
    before = of_host(hosts, "web1")
    done = ctl(hosts.deployment, "reset", "--host", "web1", "--yes")
    left = ["status/global/db/sync/hosts/web1"]
    assert done.stdout == f"removed the records of web1: {len(before) - len(left)} znodes\n"
    assert "db/each on web1" in done.stderr and "db/sync" not in done.stderr
    counts = "a dependency counts the hosts on which db/step has succeeded: 1 then, instead of 2"
    assert counts in done.stderr and "which db/each" not in done.stderr
    # The deployment's own command does not run again: what counts it would be unmet for ever.
    assert of_host(hosts, "web1") == left
    assert of_host(hosts, "web2") == other
    assert (hosts.state(), hosts.state("each"), hosts.state("step")) == ("done", "done", "done")
    assert hosts.start("web1").ends() == 0
    assert of_host(hosts, "web1") == before
    assert [len(hosts.runs(name)) for name in ("sync", "each", "step")] == [1, 3, 3]


def test_a_host_with_any_kind_of_container_is_in_use(hosts: Site, zk: KazooClient) -> None:
    root = hosts.deployment.path
    for number, (path, data) in enumerate(
        [
            ("infra/db/.containers/x", b'{"host": "web0"}'),
            ("infra/db/.party/y", b'{"host": "web1"}'),
            ("status/web2/db/each/lock/x__lock__0", b"web2"),
            ("status/global/db/sync/lock/x__lock__0", b"web3"),
            ("status/web4/db/daemon/ready/z", b"{}"),
        ]
    ):
        zk.create(f"{root}/{path}", data, ephemeral=True, makepath=True)
        zk.ensure_path(f"{root}/status/web{number}/db")
        refused = ctl(hosts.deployment, "reset", "--host", f"web{number}", "--yes", status=1).stderr
        assert "stop them first; nothing was changed" in refused


def test_a_container_of_unknown_host_prevents_the_reset_of_any_host(hosts: Site, zk: KazooClient) -> None:
    """Also if it is garbage; --force overrides."""
    assert hosts.start("web1").ends() == 0
    zk.create(f"{hosts.deployment.path}/infra/db/.containers/x", b"\xff{[", ephemeral=True)
    words = ["reset", "--host", "web1", "--yes"]
    refused = ctl(hosts.deployment, *words, status=1).stderr
    assert "a container of infra/db (x) does not say on which host it is: stop" in refused
    assert "removed the records of web1" in ctl(hosts.deployment, *words, "--force").stdout


def test_reset_of_a_host_is_refused_while_it_has_a_container(hosts: Site) -> None:
    """With --force, only commands of this host run again."""
    hosts.publish(each=hosts.once("each", run_once="host"))
    agent = hosts.start("web1")
    hosts.running(1, "each")
    before = of_host(hosts, "web1")
    refused = ctl(hosts.deployment, "reset", "--host", "web1", "--yes", status=1).stderr
    # Its command may run before the container shows itself; its lock is there by then.
    assert re.search(
        r"(web1 has a container of infra/db|a container on web1 holds \S+): stop them first", refused
    )
    assert of_host(hosts, "web1") == before
    ctl(hosts.deployment, "reset", "--host", "web1", "--yes", "--force")
    agent.says("the lock is lost")
    hosts.running(2, "each")
    hosts.let_go()
    assert agent.ends() == 0


def test_an_unknown_host_is_named(hosts: Site) -> None:
    """Nothing is removed for the other hosts."""
    assert hosts.start("web1").ends() == 0
    words = ["reset", "--yes", "--host", "web1", "--host", "wbe1"]
    refused = ctl(hosts.deployment, *words, status=66).stderr
    assert "nothing is recorded of the host 'wbe1' (did you mean 'web1'?)" in refused
    assert hosts.state("each", "web1") == "done"
    assert "nothing is recorded" in ctl(hosts.deployment, "reset", "--host", "global", status=66).stderr


def test_a_container_may_start_during_the_reset_of_its_host(hosts: Site) -> None:
    """At any moment: nothing runs twice at a time, and removed commands run again."""
    assert hosts.start("web1").ends() == 0
    agents, forgotten = [], 0
    for _ in range(8):
        agents.append(hosts.start("web1"))
        while agents[-1].running:
            done = run_ctl(hosts.deployment, "reset", "--host", "web1", "--yes")
            assert done.returncode in (0, 1, 66), done.stderr
            forgotten += done.returncode == 0
    assert [agent.ends() for agent in agents] == [0] * 8
    assert forgotten and 1 < len(hosts.runs("each")) <= forgotten + 1
    assert len(hosts.runs("sync")) == 1


# -- what is in the way ---------------------------------------------------------------------------

WORDS = [["remove", "infra/db"], ["reset"], ["reset", "--force"]]


@pytest.mark.parametrize("loses", ["request", "reply"])
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_removal_survives_a_lost_connection(
    hosts: Site, zk: KazooClient, zookeeper: Server, tmp_path: Path, words: list[str], loses: str
) -> None:
    """It finds out whether the transaction was applied."""
    for number in (1, 2):
        ctl(hosts.deployment, "adopt", "db/each", "--host", f"web{number}")
    if words[0] == "remove":
        ctl(hosts.deployment, "remove", "app/web", "--yes")  # It depends on infra/db.
    proxy = lossy(zookeeper, tmp_path, 1, loses)
    try:
        done = ctl(hosts.deployment, *words, "--yes", "--hosts", f"{HOST}:{proxy.port}")
    finally:
        proxy.kill()
    assert "lost the connection to ZooKeeper at" in done.stderr
    left = tree(zk, hosts.deployment.path)
    assert not [path for path in left if path.startswith("status/") and not path.startswith("status/global")]
    assert ("infra/db" in left) == (words[0] != "remove")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reset", "--force", "--yes"], "run the command again to remove the rest"),
        (["rerun", "db/each", "--host", "web1"], "db/each on web1 may have been changed already; give"),
        (["reset", "--host", "web1", "--yes"], "kolla_mesos_ctl: stopped by SIGINT"),
    ],
    ids=lambda words: words[0],
)
def test_ctrl_c_during_an_outage_says_what_to_do(
    hosts: Site, zookeeper: Server, tmp_path: Path, words: list[str], said: str
) -> None:
    """The next run finishes it."""
    ctl(hosts.deployment, "adopt", "db/each", "--host", "web1")
    proxy = lossy(zookeeper, tmp_path, 1, "request")
    line = [sys.executable, str(TOOL), *words, "--hosts", f"{HOST}:{proxy.port}"]
    tool = subprocess.Popen(line, env=environ(hosts.deployment), stderr=subprocess.PIPE, text=True)
    assert tool.stderr is not None
    try:
        while "retrying" not in tool.stderr.readline():
            pass
        proxy.freeze()
        tool.send_signal(signal.SIGINT)
        heard = tool.communicate(timeout=60)[1]
    finally:
        proxy.kill()
    assert tool.returncode == 130, heard
    assert said in heard and "Traceback" not in heard
    # The lock goes with the session.
    eventually(lambda: run_ctl(hosts.deployment, *words).returncode == 0, "it is done", seconds=60)
    assert hosts.state("each", "web1") in (None, "waiting")


class Lossy(Process):
    """A way to a server that loses one transaction, or its reply."""

    port: int


def lossy(server: Server, directory: Path, number: int, loses: str) -> Lossy:
    port = free_port()
    words = [f"{port}", f"{server.port}", f"{number}", loses]
    proxy = Lossy([sys.executable, lossy_proxy.__file__, *words], directory / "proxy.log")
    proxy.port = port
    proxy.launch()
    return proxy
