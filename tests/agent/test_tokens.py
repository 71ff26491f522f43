"""Fencing tokens never decrease, whatever an operator does to a deployment.

Each deployment looks as if it was moved here from another ensemble: its tokens are far above the zxids of
this server.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl import cli
from tests.agent.test_one_time import Site
from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import TOOL, ctl, environ

AHEAD = 10**12
COMMANDS = {"sync": [], "each": ["--host", "web1"], "tagged": []}

# The tool with a bomb: the process is killed before the write request of this number, counted from one.
KILLED = """
import os, runpy, signal, sys, time
from kolla_mesos_start.zookeeper.session import Session
from kolla_mesos_start.zookeeper.wire import Create, Delete, SetData, Transaction
left, request = int(sys.argv.pop(1)), Session.request
def counting(self, operation, done):
    global left
    left -= isinstance(operation, (Create, Delete, SetData, Transaction))
    if left == 0:
        self.flush()
        time.sleep(0.2)  # The requests before have arrived by then.
        os.kill(os.getpid(), signal.SIGKILL)
    return request(self, operation, done)
Session.request = counting
sys.argv[0] = sys.argv.pop(1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Moved(Site):
    """A service with a one-time command of each kind. `largest` is the largest token so far."""

    largest = 0

    def publish_all(self) -> None:
        each = self.once("each", gate=None, lock="each.$KOLLA_HOSTNAME", run_once="host")
        tagged = self.once("tagged", gate=None, generation="1")
        commands = {"sync": self.once(gate=None), "each": each, "tagged": tagged}
        publish(self.deployment, "infra/db", {"commands": commands})

    def move(self) -> None:
        """The last attempts were made in another ensemble, whose zxids were larger."""
        self.largest += AHEAD
        for name, scope in (("sync", "global"), ("each", "web1"), ("tagged", "global")):
            detail = {**self.detail(name, scope), "token": self.largest}
            self.zk.set(f"{self.at(name, scope)}/detail", json.dumps(detail).encode())
        self.zk.set(f"{self.at('tagged')}/generations/1", b"%d 1" % self.largest)

    def do(self, line: str) -> None:
        """A line of OPERATIONS."""
        word = line.partition(" ")[2]
        if line == "it is published":
            self.publish_all()
        elif line == "all is lost":
            self.zk.delete(self.deployment.path, recursive=True)
        elif line == "more attempts":
            self.move()
        elif line in ("all is adopted", "all is taken back"):
            verb = "adopt" if word == "is adopted" else "rerun"
            for name, host in COMMANDS.items():
                ctl(self.deployment, verb, f"db/{name}", *host)
        else:
            words = [str(self.path / word) if word.endswith(".tar") else word for word in line.split()]
            ctl(self.deployment, *words)

    def ran(self) -> list[int]:
        """Start a container, which runs all that is not done; the tokens of all attempts so far."""
        assert self.start().ends() == 0
        return [run.token for name in COMMANDS for run in self.runs(name)]

    @property
    def floor(self) -> int:
        found = self.get(f"{self.deployment.path}/.token_floor")
        return int(found[0]) if found else 0

    def run(self, *words: str) -> None:
        """The tool in this process, which is quicker."""
        where = ["--deployment", "site", "--prefix", self.deployment.prefix, "--hosts", self.deployment.hosts]
        cli.run([*words, "--yes", *where])


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Moved:
    site = Moved(deployment, zk, containers, tmp_path / "work")
    site.publish_all()
    site.do("snapshot before.tar")
    site.do("all is adopted")
    site.move()
    site.do("snapshot moved.tar")
    return site


# Commands of the tool, and what else happens.
OPERATIONS = {
    "reset": ["reset --yes"],
    "reset by force": ["reset --yes --force"],
    "remove": ["remove db --yes", "it is published"],
    "remove by force": ["remove db --yes --force", "it is published"],
    "restore": ["reset --yes", "remove db --yes", "restore before.tar --yes"],
    "reset of a host": ["reset --yes --host web1", "all is taken back"],
    "restore elsewhere": ["reset --yes", "snapshot reset.tar", "all is lost", "restore reset.tar"],
    "adopt after a reset": ["reset --yes", "all is adopted", "all is taken back"],
    "an older attempt is restored": [
        "more attempts",
        "reset --yes",
        "remove db --yes",
        "restore moved.tar --yes",
        "all is taken back",
    ],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_next_attempt_has_a_larger_token(site: Moved, name: str) -> None:
    for line in OPERATIONS[name]:
        site.do(line)
    tokens = site.ran()
    assert len(tokens) == len(COMMANDS) and min(tokens) > site.largest


def killed(site: Moved, number: int, *words: str) -> int:
    """The exit status of the tool, which is killed before the write of this number."""
    line = [sys.executable, "-c", KILLED, str(number), str(TOOL), *words, "--yes"]
    env = environ(site.deployment, KOLLA_ZK_SESSION_TIMEOUT="1")  # Its lock stays until its session expires.
    done = subprocess.run(line, env=env, capture_output=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def test_a_reset_that_is_killed_at_any_step_before_a_restore_keeps_the_tokens(site: Moved) -> None:
    """What was removed before the end has left its tokens behind."""
    before, moved = (str(site.path / name) for name in ("before.tar", "moved.tar"))
    for number in count(1):
        site.run("reset")
        site.run("remove", "db")
        site.run("restore", moved)
        if site.floor:
            site.zk.delete(f"{site.deployment.path}/.token_floor")
        if killed(site, number, "reset") == 0:
            break
        site.run("reset")
        site.run("remove", "db")
        site.run("restore", before)
        assert site.detail() == {} and site.floor >= AHEAD, f"killed before write {number}"
    assert number > 3
