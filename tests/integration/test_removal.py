"""`remove` and `reset`, beside agents at work and without them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from tests.agents import Containers
from tests.conftest import Deployment
from tests.integration.test_one_time import Site
from tests.integration.test_publish import tree
from tests.publishing import publish
from tests.tool import TOOL, ctl, environ
from tests.waiting import eventually

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
    eventually(lambda: site.names(f"{site.at('daemon')}/ready"), "its daemon is ready")


def ran(site: Site) -> None:
    """Have had one."""
    agent = site.start()
    eventually(lambda: site.names(f"{site.at('daemon')}/ready"), "its daemon is ready")
    agent.signal(9)
    party = f"{site.deployment.path}/infra/db/.party"
    eventually(lambda: not site.names(party), "its presence is gone")
    eventually(lambda: not site.names(f"{site.at('daemon')}/ready"), "its instance is gone")


def test_a_service_goes_with_all_that_is_known_of_it(site: Site, zk: KazooClient) -> None:
    """Others stay, one below it included; and the next one of its name begins from nothing."""
    ran(site)
    done = ctl(site.deployment, "remove", "infra/db", "--yes")
    assert f"removed infra/db from {site.deployment.path}: " in done.stdout
    assert "db/sync" in done.stderr
    left = tree(zk, site.deployment.path)
    assert left.keys() == {"variables/region", "infra/db/web", "infra/db/web/variables/size"}
    assert site.names(f"{site.deployment.path}/infra/db") == ["web"]
    assert site.names(f"{site.deployment.path}/status/global") == []
    ctl(site.deployment, "remove", "infra/db/web", "--yes")
    assert tree(zk, site.deployment.path).keys() == {"variables/region"}
    assert site.names(site.deployment.path) == ["status", "variables"]


def test_reset_forgets_what_is_done_and_nothing_else(site: Site, zk: KazooClient) -> None:
    """The one-time command runs again, once."""
    ran(site)
    before = standing(site, zk)
    assert "db/sync" in ctl(site.deployment, "reset", "--yes").stderr
    assert not zk.exists(f"{site.deployment.path}/status")
    published = {path: data for path, data in before.items() if not path.startswith("status/")}
    assert tree(zk, site.deployment.path) == published
    ran(site)
    assert len(site.runs()) == 2


def standing(site: Site, zk: KazooClient) -> dict[str, bytes]:
    """All that stands in the tree, but for what a container says of itself, which changes."""
    found = tree(zk, site.deployment.path)
    return {path: data for path, data in found.items() if "/.containers/" not in path}


@pytest.mark.parametrize("words", [["remove", "infra/db"], ["reset"]])
def test_it_refuses_while_a_container_is_there(site: Site, zk: KazooClient, words: list[str]) -> None:
    """And --force does not answer the question."""
    started(site)
    before = standing(site, zk)
    done = ctl(site.deployment, *words, "--yes", status=1)
    assert "infra/db has 1 container on web1: stop them first, or give --force" in done.stderr
    assert "give --yes" in ctl(site.deployment, *words, "--force", status=64).stderr
    assert standing(site, zk) == before
    ctl(site.deployment, *words, "--force", "--yes")
    assert (zk.get(f"{site.deployment.path}/infra/db")[0] != b"") == (words == ["reset"])


@pytest.mark.parametrize("place", ["status/global/db/sync/lock", "infra/db/.containers", "infra/db/.party"])
@pytest.mark.parametrize("words", [["remove", "infra/db"], ["reset"]])
def test_whoever_is_there_counts(site: Site, zk: KazooClient, words: list[str], place: str) -> None:
    """A task that waits, a contender: not only a daemon that is present."""
    ran(site)
    zk.create(f"{site.deployment.path}/{place}/x", b"{}", ephemeral=True, makepath=True)
    ctl(site.deployment, *words, "--yes", status=1)
    assert site.state() == "done"
    assert zk.get(f"{site.deployment.path}/infra/db")[0]


def test_a_running_command_is_killed_by_force(site: Site) -> None:
    """As after any removal of the status tree: the agent sees that its lock is gone, and begins again."""
    publish(site.deployment, "infra/db", {"commands": {"sync": site.once()}})
    agent = site.start()
    site.running()
    ctl(site.deployment, "reset", "--yes", status=1)
    ctl(site.deployment, "reset", "--yes", "--force")
    agent.says("the lock is lost")
    site.running(2)
    site.let_go()
    assert agent.ends() == 0


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
def test_on_a_terminal_it_asks(site: Site, answer: str, status: int) -> None:
    """No is the default."""
    question = Question(site)
    assert b"remove the service infra/db/web" in question.said
    assert question.answer(answer) == status
    assert bool(site.zk.exists(f"{site.deployment.path}/infra/db/web")) == (status == 1)


def test_a_container_that_starts_while_it_asks_is_not_hurt(site: Site, zk: KazooClient) -> None:
    """Nothing is removed then, not even the definition."""
    zk.create(f"{site.deployment.path}/infra/db/web/.party")
    before = standing(site, zk)
    question = Question(site)
    zk.create(f"{site.deployment.path}/infra/db/web/.party/x", ephemeral=True)
    assert question.answer("y\n") == 1
    assert b"a container has started meanwhile" in question.until(b"try again")
    assert standing(site, zk) == before


def test_what_is_not_there_is_named(site: Site) -> None:
    done = ctl(site.deployment, "remove", "infra/bd", "--yes", status=66)
    assert "did you mean 'infra/db'?" in done.stderr
    assert "did you mean 'site'?" in ctl(site.deployment, "reset", "--deployment", "siet", status=66).stderr


@pytest.mark.parametrize("words", [["remove", "infra/db"], ["reset"]])
def test_whoever_may_only_read_is_told_so(site: Site, zk: KazooClient, words: list[str]) -> None:
    """Status 77; nothing has changed, since what is refused first goes with all the rest of the places."""
    ran(site)
    zk.set_acls(site.at(), [make_acl("world", "anyone", read=True, admin=True)])
    before = standing(site, zk)
    assert "NoAuth" in ctl(site.deployment, *words, "--yes", status=77).stderr
    assert standing(site, zk) == before
    zk.set_acls(site.at(), OPEN_ACL_UNSAFE)
