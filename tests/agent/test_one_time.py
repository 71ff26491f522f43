"""Several containers run commands: once in the deployment, once on each host, or each for itself.

Whole agents with a real ZooKeeper. The tests look at what the commands write down when they start, and at
the tree.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.protocol.states import ZnodeStat
from kazoo.recipe.watchers import DataWatch

from tests.conftest import Deployment
from tests.support import lossy_proxy
from tests.support.agents import Agent, Containers
from tests.support.guarded import guard_of, lives
from tests.support.instances import INSTANCE_DATA
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import HOST, Process, Server, free_port

SERVICE = "infra/db"
TIMEOUT = 4.0  # seconds: of the sessions, where it is their end that is tested
SHORT = {"KOLLA_ZK_SESSION_TIMEOUT": f"{TIMEOUT:g}"}
# Its lease lasts until a command has ended, on a busy machine too.
LONGER = {"KOLLA_ZK_SESSION_TIMEOUT": "8"}

Command = dict[str, Any]


class Run(NamedTuple):
    """What one run of a command has written down when it started."""

    command: str
    pid: int
    host: str
    token: int
    previous: str


class Site:
    """One service, and the containers that run its commands.

    Commands wait for a file (`let_go`) before they end. They work in `path`.
    """

    def __init__(self, deployment: Deployment, zk: KazooClient, containers: Containers, path: Path) -> None:
        self.deployment = deployment
        self.zk = zk
        self.containers = containers
        self.path = path
        path.mkdir()

    # -- the definition -----------------------------------------------------------------------------

    def once(
        self,
        name: str = "sync",
        *,
        first: str = ":",
        gate: str | None = "go",
        then: str = ":",
        lock: str = "",
        **keys: Any,
    ) -> Command:
        """A one-time command that writes a Run down, waits for the file `gate`, and continues with `then`.

        `first`, `then` and `gate` are shell text. A file lock of the name `lock`, which the kernel releases
        when the last process is gone, proves that it runs alone.
        """
        wait = ":" if gate is None else f'while ! test -e "{gate}"; do sleep 0.05; done'
        previous = "${KOLLA_PREVIOUS_ATTEMPT-none}"
        script = f"""
            cd {self.path}
            exec 9>>"{lock or name}.lock"
            flock -n 9 || echo "$$ $KOLLA_HOSTNAME" >>overlaps
            echo "{name} $$ $KOLLA_HOSTNAME ${{KOLLA_FENCING_TOKEN-0}} {previous}" >>runs
            {first}
            {wait}
            {then}
        """
        return {"command": ["/bin/sh", "-c", script], "run_once": True, **keys}

    def plain(self, name: str = "step", **keys: Any) -> Command:
        """The same without `run_once`: it may run several times at once."""
        return self.once(name, **{"run_once": False, "lock": f"{name}.$$", **keys})

    def publish(self, *, files: Mapping[str, str] | None = None, **commands: Command) -> int:
        """Publish the service; returns the definition's zxid."""
        publish(self.deployment, SERVICE, {"commands": commands}, files=files)
        zxid: int = self.zk.exists(f"{self.deployment.path}/{SERVICE}").mzxid
        return zxid

    def start(self, host: str = "web1", **environ: Any) -> Agent:
        return self.containers.start(SERVICE, host, **environ)

    # -- what the commands do -----------------------------------------------------------------------

    def runs(self, command: str = "sync") -> list[Run]:
        """All runs of a command so far; no two may have overlapped."""
        assert not (self.path / "overlaps").exists(), (self.path / "runs").read_text()
        file = self.path / "runs"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [
            Run(name, int(pid), host, int(token), previous)
            for name, pid, host, token, previous in lines
            if name == command
        ]

    def running(self, count: int = 1, command: str = "sync") -> Run:
        """Wait for the run of this number, and return it; there must be no later one."""
        eventually(lambda: len(self.runs(command)) >= count, f"run {count} of {command}")
        runs = self.runs(command)
        assert len(runs) == count
        return runs[-1]

    def let_go(self, gate: str = "go") -> None:
        (self.path / gate).touch()

    # -- the tree -----------------------------------------------------------------------------------

    def at(self, command: str = "sync", scope: str = "global") -> str:
        """The path of a command's state; `scope` is `global` or a host."""
        return f"{self.deployment.path}/status/{scope}/db/{command}"

    def get(self, path: str) -> tuple[bytes, ZnodeStat] | None:
        try:
            found: tuple[bytes, ZnodeStat] = self.zk.retry(self.zk.get, path)
        except NoNodeError:
            return None
        return found

    def names(self, path: str) -> list[str]:
        try:
            return sorted(self.zk.retry(self.zk.get_children, path))
        except NoNodeError:
            return []

    def state(self, command: str = "sync", scope: str = "global") -> str | None:
        found = self.get(self.at(command, scope))
        return found[0].decode() if found else None

    def detail(self, command: str = "sync", scope: str = "global") -> dict[str, Any]:
        """The record of the last attempt; empty before the first."""
        found = self.get(f"{self.at(command, scope)}/detail")
        detail: dict[str, Any] = json.loads(found[0]) if found and found[0] else {}
        return detail

    def queue(self, command: str = "sync", scope: str = "global") -> list[str]:
        """The hosts of the contenders for a command's lock, in their order."""
        lock = f"{self.at(command, scope)}/lock"
        found = [self.get(f"{lock}/{name}") for name in sorted(self.names(lock), key=lambda name: name[-10:])]
        return [contender[0].decode() for contender in found if contender]

    def queued(self, *hosts: str) -> None:
        """Wait until exactly these hosts are in the queue for `sync`, in this order."""
        eventually(lambda: self.queue() == [*hosts], f"the queue is {hosts}", seconds=60)

    def put(self, path: str, text: str = "", **options: Any) -> None:
        """Write as another service would, below `status`."""
        self.zk.create(f"{self.deployment.path}/status/{path}", text.encode(), makepath=True, **options)

    def take(self, path: str) -> None:
        """Delete what `put` has written."""
        self.zk.delete(f"{self.deployment.path}/status/{path}")


def deleted(zk: KazooClient, path: str) -> bool:
    """Delete a tree while agents write to it; whether it is gone."""
    with contextlib.suppress(NotEmptyError, NoNodeError):
        zk.delete(path, recursive=True)
    return not zk.exists(path)


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Site:
    """A service whose commands work in a directory of the test's own."""
    return Site(deployment, zk, containers, tmp_path / "work")


def gone(*pids: int) -> None:
    """Wait until none of these processes is left."""
    eventually(lambda: not any(lives(pid) for pid in pids), f"{pids} are gone")


def numbers(file: Path) -> list[int]:
    """The pids that a command has written into a file, once they are there."""
    eventually(lambda: file.exists() and file.read_text(), str(file))
    return [int(word) for word in file.read_text().split()]


def said_at(agent: Agent, words: str) -> float:
    """When an agent logged this, in seconds since the epoch."""
    line = next(line for line in agent.said.splitlines() if words in line)
    return datetime.strptime(line.split()[0], "%Y-%m-%dT%H:%M:%S.%fZ").timestamp()


# -- claim, outcome, queue ------------------------------------------------------------------------


def test_a_claim_and_an_outcome_are_recorded(site: Site, zk: KazooClient) -> None:
    """While it runs, the tree shows who runs it since when; afterwards, how it ended."""
    site.publish(sync=site.once(then="echo chatter"))
    agent = site.start("web1")
    run = site.running()
    claimed, stat = zk.get(f"{site.at()}/detail")
    claim = json.loads(claimed)
    assert (claim["attempt"], claim["host"], claim["state"]) == (1, "web1", "running")
    assert not {"finished", "status", "token"} & set(claim)
    assert (run.token, run.previous) == (stat.mzxid, "none")
    assert site.state() == "running"
    assert zk.exists(site.at()).mzxid == run.token
    [contender] = site.names(f"{site.at()}/lock")
    assert re.fullmatch(r"[0-9a-f]{32}__lock__\d{10}", contender)
    assert zk.exists(f"{site.at()}/lock/{contender}").ephemeralOwner

    site.let_go()
    assert agent.ends() == 0
    raw, stat = zk.get(f"{site.at()}/detail")
    assert b"chatter" not in raw
    # All in one transaction: text, detail, and the end of the queue.
    assert zk.exists(site.at()).mzxid == stat.mzxid == zk.exists(f"{site.at()}/lock").pzxid
    outcome = json.loads(raw)
    expected = {**claim, "state": "done", "status": 0, "token": run.token, "message": "done"}
    assert outcome == {**expected, "finished": outcome["finished"]}
    assert claim["started"] <= outcome["finished"] <= time.time()
    assert (site.state(), site.state(scope="web1")) == ("done", "done")
    assert site.names(f"{site.at()}/hosts") == ["web1"]
    assert site.queue() == []
    assert len(site.runs()) == 1


def test_tokens_in_the_containers_environment_are_ignored(site: Site) -> None:
    """A launcher that is itself a one-time command passes its own token and warning on."""
    site.publish(sync=site.once(gate=None))
    agent = site.start(KOLLA_FENCING_TOKEN="1", KOLLA_PREVIOUS_ATTEMPT="unfinished")
    assert agent.ends() == 0
    [run] = site.runs()
    assert run.previous == "none"
    assert run.token > 1


def test_many_replicas_run_it_once_and_continue_at_once(site: Site) -> None:
    """They do not continue one after another: a replica that hangs in the queue holds up no other."""
    site.publish(sync=site.once())
    agents = {f"web{n}": site.start(f"web{n}") for n in range(10)}
    eventually(lambda: len(site.queue()) == 10, "ten in the queue")
    holder, hangs, *others = site.queue()
    agents[hangs].signal(signal.SIGSTOP)
    site.let_go()
    assert [agents[host].ends(60) for host in (holder, *others)] == [0] * 9
    done = said_at(agents[holder], "db/sync: done after")
    waits = sorted(said_at(agents[host], "db/sync: already done") - done for host in others)
    print(f"8 waiting replicas went on {waits[0] * 1000:.0f} to {waits[-1] * 1000:.0f} ms after the end")
    assert waits[-1] < 30
    agents[hangs].signal(signal.SIGCONT)
    assert agents[hangs].ends() == 0
    assert [run.host for run in site.runs()] == [holder]
    assert site.detail()["attempt"] == 1


def test_the_lock_is_that_of_kazoos_recipe(site: Site, zk: KazooClient) -> None:
    """An operator's script that takes it with kazoo is waited for."""
    site.publish(sync=site.once(gate=None, dependencies=["gate/open"]))
    agent = site.start("web1")
    eventually(lambda: site.state() == "waiting", "it waits")
    with zk.Lock(f"{site.at()}/lock", "operator"):
        site.put("global/gate/open", "done")
        site.queued("operator", "web1")
        assert site.runs() == []
    assert agent.ends() == 0
    assert len(site.runs()) == 1


def test_a_busy_container_leaves_the_queue(site: Site) -> None:
    """It gives its place back before it runs another command."""
    site.publish(
        sync=site.once(),
        step=site.plain(gate="end", dependencies=[{"path": "cache/daemon", "scope": "local"}]),
    )
    for number in (1, 2, 3):
        site.start(f"web{number}")
        site.queued(*(f"web{n}" for n in range(1, number + 1)))
    site.put("web2/cache/daemon/ready/1", INSTANCE_DATA.decode(), ephemeral=True)
    assert site.running(1, "step").host == "web2"
    site.queued("web1", "web3")


def test_a_completed_command_is_passed_through_not_skipped(site: Site) -> None:
    """A later replica waits for the dependencies and writes the files, but runs nothing."""
    conf = site.path / "db.conf"
    site.put("global/cache/daemon/ready/1", INSTANCE_DATA.decode(), ephemeral=True)
    sync = site.once(gate=None, dependencies=["cache/daemon"], files={"conf": {"dest": str(conf)}})
    site.publish(sync=sync, files={"conf": "for {{ service_name }}\n"})
    assert site.start("web1").ends() == 0
    assert conf.read_text() == f"for {SERVICE}\n"
    conf.unlink()
    site.take("global/cache/daemon/ready/1")

    late = site.start("web2")
    eventually(lambda: "cache/daemon: 0 of 1 instances ready" in late.health().stdout, "it waits")
    assert not conf.exists()
    assert site.state(scope="web2") == "waiting"
    site.put("global/cache/daemon/ready/1", INSTANCE_DATA.decode(), ephemeral=True)
    assert late.ends() == 0
    assert conf.exists()
    assert len(site.runs()) == 1
    assert site.state(scope="web2") == "done"
    assert site.names(f"{site.at()}/hosts") == ["web1"]


def test_a_command_can_run_once_on_each_host(site: Site) -> None:
    """Two containers on each of two hosts: two runs, each under the lock of its host."""
    site.publish(sync=site.once(gate="go.$KOLLA_HOSTNAME", lock="sync.$KOLLA_HOSTNAME", run_once="host"))
    agents = [site.start(host) for host in ("web1", "web1", "web2", "web2")]
    eventually(
        lambda: all(site.queue(scope=host) == [host] * 2 for host in ("web1", "web2")), "two queues of two"
    )
    eventually(lambda: sorted(run.host for run in site.runs()) == ["web1", "web2"], "one run on each")
    assert site.queue() == []
    site.let_go("go.web1")
    assert [agent.ends() for agent in agents[:2]] == [0, 0]
    assert (site.state(scope="web1"), site.state(scope="web2")) == ("done", "running")
    assert site.state() == "done"
    site.let_go("go.web2")
    assert [agent.ends() for agent in agents[2:]] == [0, 0]
    assert len(site.runs()) == 2
    assert site.detail(scope="web2")["host"] == "web2"
    assert site.names(f"{site.at()}/hosts") == ["web1", "web2"]


# -- attempts -------------------------------------------------------------------------------------


def watched(zk: KazooClient, path: str) -> list[str]:
    """The texts at `path`, one after the other, as a watcher sees them."""
    texts: list[str] = []

    def changed(data: bytes | None, stat: ZnodeStat | None) -> None:
        if data:
            texts.append(data.decode())

    DataWatch(zk, path, changed)
    return texts


def test_attempts_are_repeated_and_shown(site: Site, zk: KazooClient) -> None:
    """All states in order; the tokens of the attempts grow, also those of the next container."""
    texts = watched(zk, site.at())
    number = "$(grep -c '^sync ' runs)"
    fails = f"test {number} -gt 2 || exit 7"
    sync = site.once(gate=f"go.{number}", then=fails, retries=1, delay=3, dependencies=["gate/open"])
    site.publish(sync=sync)
    one = site.start("web1")
    eventually(lambda: texts == ["waiting"], "it waits")
    site.put("global/gate/open", "done")
    eventually(lambda: texts[-1] == "running", "it runs")
    site.let_go("go.1")
    eventually(lambda: texts[-1] == "retry", "the first attempt has failed")
    first = site.detail()
    assert (first["attempt"], first["status"], first["state"]) == (1, 7, "retry")
    assert (first["host"], first["message"]) == ("web1", "exit status 7")

    assert site.running(2).host == "web1"
    assert site.detail()["started"] >= first["finished"] + 2.9
    assert "status" not in site.detail()
    eventually(lambda: texts[-1] == "running", "it runs again")
    site.let_go("go.2")
    assert one.ends() == 1
    assert "exit status 7 (2 attempts)" in one.ending["reason"]
    eventually(lambda: texts[-1] == "error", "both attempts have failed")
    two = site.start("web2")
    eventually(lambda: texts[-1] == "running", "it runs in the next container")
    site.let_go("go.3")
    assert two.ends() == 0
    eventually(lambda: texts[-1] == "done", "it is done")
    assert texts == ["waiting", "running", "retry", "running", "error", "running", "done"]
    tokens = [run.token for run in site.runs()]
    assert tokens == sorted(set(tokens))
    assert [run.previous for run in site.runs()] == ["none"] * 3
    assert site.detail()["attempt"] == 3


def test_an_exit_status_in_succeeds_is_a_success(site: Site) -> None:
    """It is logged as a warning and recorded; 0 fails if it is not in the list."""
    keys: Command = {"gate": None, "succeeds": [1, 127]}
    site.publish(sync=site.once(then="exit 1", **keys), check=site.plain("check", then="exit 127", **keys))
    agent = site.start("web1")
    assert agent.ends() == 0
    assert "WARNING kolla_mesos_start.commands.bootstrap: db/sync: done (exit status 1) after" in agent.said
    assert (site.state("sync"), site.detail("sync")["status"]) == ("done", 1)
    assert (site.state("check"), site.detail("check", "web1")["status"]) == ("done", 127)

    site.publish(late=site.once("late", **keys))
    agent = site.start("web1")
    assert agent.ends() == 1
    assert agent.ending["reason"] == "exit status 0, which is not in its succeeds"


def test_an_error_is_not_final(site: Site) -> None:
    """When the holder has no attempt left, the next contender tries, and later the next container."""
    fails = "test $(grep -c '^sync ' runs) -gt 4 || exit 3"
    site.publish(sync=site.once(then=fails, retries=1, delay=0.1))
    one, two = site.start("web1"), site.start("web2")
    eventually(lambda: len(site.queue()) == 2, "two in the queue")
    site.let_go()
    assert (one.ends(), two.ends()) == (1, 1)
    for agent in (one, two):
        assert agent.ending["command"] == "db/sync"
        assert (agent.ending["status"], agent.ending["retriable"]) == (1, True)
        assert "exit status 3" in agent.ending["reason"]
    assert site.state() == "error"
    detail = site.detail()
    assert (detail["attempt"], detail["status"], detail["message"]) == (4, 3, "exit status 3")
    assert site.queue() == []
    assert site.names(f"{site.at()}/hosts") == []

    assert site.start("web3").ends() == 0
    assert site.state() == "done"
    holder, contender = (site.runs()[0].host, site.runs()[2].host)
    assert {holder, contender} == {"web1", "web2"}
    assert [run.host for run in site.runs()] == [holder, holder, contender, contender, "web3"]
    assert [run.previous for run in site.runs()] == ["none"] * 5


def test_a_timeout_ends_the_whole_group(site: Site) -> None:
    """TERM, after `stop_grace` KILL; the attempt has failed."""
    first = "trap 'echo >asked' TERM; setsid sleep 1000 & echo $! >pids"
    site.publish(sync=site.once(first=first, timeout=0.5, stop_grace=0.5))
    agent = site.start()
    run = site.running()
    assert agent.ends() == 1
    assert not any(lives(pid) for pid in (run.pid, *numbers(site.path / "pids")))
    assert (site.path / "asked").exists()
    detail = site.detail()
    assert (detail["state"], detail["status"]) == ("error", 137)
    assert detail["message"] == "timed out (limit 0.5 s)"
    assert "timed out (limit 0.5 s)" in agent.ending["reason"]


# -- ends of agent, guard and command --------------------------------------------------------------


def test_another_replica_takes_over_from_a_killed_agent(site: Site) -> None:
    """kill -9: the whole command is gone, and the next attempt knows that it was unfinished.

    That it is gone at once, whatever its lease, is shown in tests/process/commands/test_guard.py.
    """
    finish = '[ "$KOLLA_PREVIOUS_ATTEMPT" = unfinished ] && exit 0'
    site.publish(sync=site.once(first=f"{finish}; setsid sleep 1000 & echo $! >pids"))
    one = site.start("web1", KOLLA_ZK_SESSION_TIMEOUT="12")
    first = site.running()
    two = site.start("web2")
    site.queued("web1", "web2")
    pids = (one.pid, first.pid, *numbers(site.path / "pids"))
    one.process.kill()
    one.ends()
    gone(*pids)
    second = site.running(2)
    assert two.ends() == 0
    assert (second.host, second.previous, first.previous) == ("web2", "unfinished", "none")
    assert second.token > first.token
    assert (site.detail()["attempt"], site.state()) == (2, "done")


def test_the_command_of_a_stopped_agent_is_gone_before_another_replica_begins(site: Site) -> None:
    """The guard kills it when the lease ends; the agent, when it continues, leaves it to the others."""
    site.publish(sync=site.once(gate="go.$KOLLA_HOSTNAME"))
    one = site.start("web1", **SHORT)
    first = site.running()
    two = site.start("web2")
    site.queued("web1", "web2")
    one.signal(signal.SIGSTOP)
    second = site.running(2)
    assert not lives(first.pid)
    assert (second.host, second.previous) == ("web2", "unfinished")
    one.signal(signal.SIGCONT)
    one.says("its lease could not be renewed in time; waiting for its turn again")
    site.queued("web2", "web1")
    site.let_go("go.web2")
    assert (one.ends(), two.ends()) == (0, 0)
    assert len(site.runs()) == 2


def test_a_killed_guard_takes_the_command_with_it(site: Site) -> None:
    """The agent runs it again, under another guard: nobody knows whether it had completed."""
    site.publish(sync=site.once(first="setsid sleep 1000 & echo $! >pids"))
    agent = site.start()
    run = site.running()
    pids = (run.pid, *numbers(site.path / "pids"))
    guard_of(agent.pid).kill()
    gone(*pids)
    site.let_go()
    assert agent.ends() == 0
    assert [run.previous for run in site.runs()] == [run.previous, "unfinished"]
    assert (site.state(), site.detail()["attempt"]) == ("done", 2)


def test_a_success_that_a_killed_guard_could_not_report_is_no_outcome(site: Site) -> None:
    """The next attempt knows that nobody has seen how the command ended."""
    site.publish(sync=site.once(then="touch completed"))
    agent = site.start()
    first = site.running()
    found = guard_of(agent.pid)
    found.send_signal(signal.SIGSTOP)
    site.let_go()
    eventually(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
    assert (site.path / "completed").exists()
    found.send_signal(signal.SIGKILL)
    assert agent.ends() == 0
    _, second = site.runs()
    assert second.previous == "unfinished"


def test_a_stop_signal_is_passed_on_and_the_outcome_still_written(site: Site) -> None:
    """The agent waits for the end of the command: a success counts, although the agent ends with 143."""
    site.publish(
        sync=site.once(first="trap 'echo term >heard' TERM", then="while ! test -e end; do sleep 0.05; done")
    )
    agent = site.start()
    site.running()
    agent.signal(signal.SIGTERM)
    eventually((site.path / "heard").exists, "the command got the signal")
    site.let_go()
    assert agent.running
    assert site.state() == "running"
    site.let_go("end")
    assert agent.ends() == 143
    assert agent.ending["command"] == "db/sync"
    assert (site.state(), site.detail()["status"]) == ("done", 0)


def test_a_command_that_dies_of_a_stop_signal_has_failed(site: Site) -> None:
    """This container makes no further attempt; for the next one, nothing was left unfinished."""
    site.publish(sync=site.once(gate="go.$KOLLA_HOSTNAME", retries=3))
    agent = site.start("web1")
    site.running()
    agent.signal(signal.SIGINT)
    agent.says("SIGINT: passed to the running command")
    agent.signal(signal.SIGTERM)
    assert agent.ends() in (130, 143)
    detail = site.detail()
    assert (detail["state"], detail["attempt"]) == ("error", 1)
    assert detail["message"] in ("killed by SIGINT", "killed by SIGTERM")
    site.let_go("go.web2")
    assert site.start("web2").ends() == 0
    assert site.runs()[-1].previous == "none"


# -- the lock goes away ---------------------------------------------------------------------------


def delete_at_once(site: Site) -> None:
    """The whole status tree in one transaction."""

    def below(path: str) -> list[str]:
        return [path, *(deeper for name in site.names(path) for deeper in below(f"{path}/{name}"))]

    def deleted() -> bool:
        transaction = site.zk.transaction()
        for path in reversed(below(f"{site.deployment.path}/status")):
            transaction.delete(path)
        return not any(isinstance(result, Exception) for result in transaction.commit())

    eventually(deleted, "the status tree is deleted")


def delete_bit_by_bit(site: Site) -> None:
    """The status tree, znode by znode, while the agent writes to it."""
    with contextlib.suppress(NotEmptyError):
        site.zk.delete(f"{site.deployment.path}/status", recursive=True)


def delete_contender(site: Site) -> None:
    """The holder's znode alone."""
    lock = f"{site.at()}/lock"
    site.zk.delete(f"{lock}/{min(site.names(lock), key=lambda name: name[-10:])}")


def delete_contender_and_detail(site: Site) -> None:
    """As a deletion may leave it while the agent writes."""
    delete_contender(site)
    site.zk.delete(f"{site.at()}/detail")


@pytest.mark.parametrize(
    "delete", [delete_at_once, delete_bit_by_bit, delete_contender, delete_contender_and_detail]
)
def test_a_command_whose_lock_is_deleted_is_killed_and_run_again(site: Site, delete: Any) -> None:
    """A redeploy under a running command: nobody else could know that it runs."""
    site.publish(sync=site.once(first="setsid sleep 1000 & echo $! >>pids"))
    agent = site.start()
    first = site.running()
    [grandchild] = numbers(site.path / "pids")
    delete(site)
    eventually(lambda: site.state() == "running" and len(site.runs()) > 1, "it runs again")
    assert not lives(first.pid)
    assert not lives(grandchild)
    assert "the lock is lost: killing the command" in agent.said
    site.let_go()
    assert agent.ends() == 0
    again = site.runs()[-1]
    assert again.token > first.token
    assert site.state() == "done"
    if delete is delete_contender:
        assert (again.previous, site.detail()["attempt"]) == ("unfinished", 2)
    else:
        assert site.get(f"{site.deployment.path}/status/global/db") is not None


def test_no_attempt_is_made_without_the_lock(site: Site) -> None:
    """It was deleted between two attempts, and another container has it now."""
    fails = "test $KOLLA_HOSTNAME = web2 || exit 3"
    site.publish(sync=site.once(gate="go.$KOLLA_HOSTNAME", then=fails, retries=3, delay=1))
    one = site.start("web1")
    site.running()
    two = site.start("web2")
    site.queued("web1", "web2")
    site.let_go("go.web1")
    eventually(lambda: site.state() == "retry", "the first attempt has failed")
    delete_contender(site)
    assert site.running(2).host == "web2"
    one.says("db/sync was not claimed")
    site.queued("web2", "web1")
    site.let_go("go.web2")
    assert (one.ends(), two.ends()) == (0, 0)
    assert [run.host for run in site.runs()] == ["web1", "web2"]


def test_a_stop_signal_is_not_forgotten_when_the_lock_is_lost(site: Site) -> None:
    """The command ignored the signal, and is killed for another reason: the agent still ends."""
    site.publish(sync=site.once(first="trap '' TERM"))
    agent = site.start()
    run = site.running()
    agent.signal(signal.SIGTERM)
    agent.says("SIGTERM: passed to the running command")
    delete_contender(site)
    assert agent.ends() == 143
    assert not lives(run.pid)
    assert site.detail()["attempt"] == 1


def test_an_outcome_is_written_although_a_part_of_the_tree_is_gone(site: Site, zk: KazooClient) -> None:
    """The host's part was deleted meanwhile, and somebody has created the mark by hand."""
    site.publish(sync=site.once(generation="1.0"))
    agent = site.start("web1")
    run = site.running()
    zk.delete(f"{site.deployment.path}/status/web1", recursive=True)
    zk.create(f"{site.at()}/generations/1.0", b"skip it")
    site.let_go()
    assert agent.ends() == 0
    assert (site.state(), site.state(scope="web1")) == ("done", "done")
    assert zk.get(f"{site.at()}/generations/1.0")[0].split()[0] == str(run.token).encode()


@pytest.mark.parametrize("kind", ["one-time", "plain"])
def test_a_deployment_that_is_deleted_meanwhile_is_waited_for(site: Site, kind: str) -> None:
    """The outcome cannot be recorded; the agent starts over when the deployment is published again."""
    command = site.once() if kind == "one-time" else site.plain("sync")
    site.publish(sync=command)
    agent = site.start()
    site.running()
    eventually(lambda: deleted(site.zk, site.deployment.path), "the deployment is deleted")
    site.let_go()
    agent.says("beginning again from it")
    site.publish(sync=command)
    assert agent.ends() == 0
    assert (site.state(), len(site.runs())) == ("done", 2)


def test_a_late_success_is_refused_if_another_replica_has_claimed(site: Site, link: Link) -> None:
    """The agent waits for the outcome of the other replica."""
    site.publish(sync=site.once(gate="go.$KOLLA_HOSTNAME"))
    one = site.start("web1", **LONGER, KOLLA_ZK_HOSTS=link.hosts)
    first = site.running()
    two = site.start("web2")
    site.queued("web1", "web2")
    link.freeze()
    site.let_go("go.web1")
    gone(first.pid)
    second = site.running(2)
    assert (second.host, second.previous) == ("web2", "unfinished")
    link.thaw()
    one.says("was claimed by another container; waiting for its turn again")
    site.queued("web2", "web1")
    assert (site.state(), site.detail()["host"]) == ("running", "web2")
    site.let_go("go.web2")
    assert (one.ends(), two.ends()) == (0, 0)
    assert (site.detail()["attempt"], site.detail()["token"]) == (2, second.token)
    assert len(site.runs()) == 2


@pytest.mark.parametrize("loses", ["request", "reply", "server"])
@pytest.mark.parametrize(("number", "write"), [(2, "claim"), (3, "outcome")])
def test_a_write_whose_reply_was_lost_is_not_repeated(
    site: Site, zookeeper: Server, tmp_path: Path, number: int, write: str, loses: str
) -> None:
    """The connection breaks, or the server dies: `detail` shows whether it was applied."""
    port = free_port()
    loss = ["reply", f"{zookeeper.pid}"] if loses == "server" else [loses]
    words = [f"{port}", f"{zookeeper.port}", f"{number}", *loss]
    proxy = Process([sys.executable, lossy_proxy.__file__, *words], tmp_path / "proxy.log")
    proxy.launch()
    try:
        site.publish(sync=site.once(gate=None, retries=2, generation="1.0"))
        # On a busy machine a server may take half a minute to be back, and no lease may end meanwhile.
        agent = site.start(KOLLA_ZK_HOSTS=f"{HOST}:{port}", KOLLA_ZK_SESSION_TIMEOUT="40")
        if loses == "server":
            eventually(lambda: not zookeeper.running, "it is killed between applying it and saying so")
            zookeeper.start()
        assert agent.ends() == 0
    finally:
        proxy.kill()
    assert f"the reply to the {write} was lost" in agent.said
    [run] = site.runs()
    assert run.previous == "none"
    detail = site.detail()
    assert (detail["attempt"], detail["state"], detail["token"]) == (1, "done", run.token)
    assert site.state() == "done"
    assert len(site.names(f"{site.at()}/generations")) == 1
    assert site.queue() == []


def test_renewals_keep_a_command_running_past_its_session_timeout(site: Site, link: Link) -> None:
    """Also over a short outage."""
    site.publish(sync=site.once(lock="sync.$KOLLA_HOSTNAME", run_once="host"))
    timeout = 12.0  # The lease has to survive the outage on a busy machine too.
    session = {"KOLLA_ZK_SESSION_TIMEOUT": f"{timeout:g}"}
    steady, shaken = site.start("web1", **session), site.start("web2", **session, KOLLA_ZK_HOSTS=link.hosts)
    site.running(2)
    begun = time.monotonic()
    link.kill()
    shaken.says("lost the connection to ZooKeeper")
    link.launch()
    shaken.says("connected to ZooKeeper again")
    eventually(lambda: time.monotonic() - begun > 1.25 * timeout, "the time is over")
    assert all(lives(run.pid) for run in site.runs())
    site.let_go()
    assert (steady.ends(), shaken.ends()) == (0, 0)
    assert len(site.runs()) == 2


def test_an_outage_longer_than_the_lease_kills_the_command(site: Site, zookeeper: Server) -> None:
    """Nobody knows who holds the lock, so the command is gone before the session can be."""
    site.publish(sync=site.once(first="setsid sleep 1000 & echo $! >>pids"))
    agent = site.start(**SHORT)
    first = site.running()
    pids = (first.pid, *numbers(site.path / "pids"))
    zookeeper.freeze()
    frozen_at = time.monotonic()
    gone(*pids)
    print(f"killed {time.monotonic() - frozen_at:.1f} s after the freeze; the timeout is {TIMEOUT:g} s")
    agent.says("its lease could not be renewed in time; waiting for its turn again")
    assert len(site.runs()) == 1
    zookeeper.thaw()
    second = site.running(2)
    assert (second.previous, site.detail()["attempt"]) == ("unfinished", 2)
    assert second.token > first.token
    site.let_go()
    assert agent.ends() == 0


def test_an_outcome_is_written_after_an_outage(site: Site, zookeeper: Server) -> None:
    """Else the command would run again: even a stop signal waits for that, and for nothing else."""
    site.publish(sync=site.once(), step=site.plain())
    holder = site.start("web1")
    site.running()
    others = [site.start(host) for host in ("web2", "web3", "web4")]
    stopped, stopped_late, goes_on = others
    site.running(3, "step")
    pids = [run.pid for run in (*site.runs(), *site.runs("step"))]
    zookeeper.kill()
    for agent in (holder, *others):
        agent.says("lost the connection to ZooKeeper")
    stopped.signal(signal.SIGTERM)
    assert stopped.ends() == 143
    site.let_go()
    gone(*pids)
    for agent in (holder, stopped_late, goes_on):
        agent.says(": done after")
    holder.signal(signal.SIGTERM)
    stopped_late.signal(signal.SIGTERM)
    assert stopped_late.ends() == 143
    assert holder.running
    zookeeper.start()
    assert holder.ends() == 143
    assert goes_on.ends() == 0
    assert (site.state(), site.detail()["host"]) == ("done", "web1")
    assert site.state("step", "web4") == "done"
    assert len(site.runs()) == 1


# -- generations ----------------------------------------------------------------------------------


def test_each_generation_runs_once_and_a_rollback_does_not(site: Site, zk: KazooClient) -> None:
    """A mark says which attempt made it, and of which definition."""
    tags = ["1.0", "quay.io/kolla/db:16.1.0"]
    marks = {}
    for tag in tags:
        zxid = site.publish(sync=site.once(gate=None, generation=tag))
        agents = [site.start("web1"), site.start("web2")]
        assert [agent.ends() for agent in agents] == [0, 0]
        marks[tag] = f"{site.runs()[-1].token} {zxid}".encode()
    site.publish(sync=site.once(gate=None, generation="1.0"))
    assert site.start("web1").ends() == 0
    assert len(site.runs()) == len(tags)
    parent = f"{site.at()}/generations"
    assert {unquote(name): zk.get(f"{parent}/{name}")[0] for name in zk.get_children(parent)} == marks
    assert site.detail()["generation"] == tags[-1]


def test_an_old_replica_leaves_the_queue_to_newer_ones(site: Site) -> None:
    """It was in the queue already when it became too old."""
    step = {"command": "true"}  # After it, a container does not begin again.
    site.publish(step=step, sync=site.once(generation="1.0", dependencies=["gate/open"]))
    old = site.start("web1")
    eventually(lambda: "waits for gate/open" in old.health().stdout, "the old replica waits")
    site.publish(sync=site.once(generation="2.0"))
    holder = site.start("web2")
    site.running()
    site.put("global/gate/open", "done")
    site.queued("web2", "web1")
    site.publish(sync=site.once(generation="3.0"))
    newest = site.start("web3")
    site.queued("web2", "web1", "web3")
    site.let_go()
    assert (holder.ends(), newest.ends()) == (0, 0)
    assert [run.host for run in site.runs()] == ["web2", "web3"]
    assert old.running


def replace_at_once(zk: KazooClient, path: str, data: bytes) -> None:
    """Delete a znode with what is below it and create it again: an agent must not find that it is missing."""
    replaced = zk.transaction()
    for each in reversed(list(znodes(zk, path))):
        replaced.delete(each)
    replaced.create(path, data)
    failed = [result for result in replaced.commit() if isinstance(result, Exception)]
    assert not failed


@pytest.mark.parametrize("change", ["set", "nearer", "created again", "definition"])
def test_a_claim_is_for_what_is_published_then(site: Site, zk: KazooClient, change: str) -> None:
    """A changed definition or variable makes the agent start over: its generation was read earlier.

    A znode that is created again has its first version again, and a nearer variable changes no other znode.
    """
    service = f"{site.deployment.path}/{SERVICE}"

    def sync(generation: str) -> Command:
        first = "echo {{ tag }} >>tags"
        return site.once(gate=None, generation=generation, first=first, dependencies=["gate/open"])

    tag = f"{site.deployment.path}/variables/tag"
    zk.create(tag, b"1", makepath=True)
    site.publish(sync=sync("{{ tag }}"))
    agent = site.start("web1")
    eventually(lambda: "waits for gate/open" in agent.health().stdout, "it waits")
    changed = {"nearer": f"{service}/variables/tag", "definition": service}.get(change, tag)
    if change == "set":
        zk.set(tag, b"2")
    elif change == "nearer":
        zk.create(changed, b"2", makepath=True)
    else:
        definition = json.dumps({"name": SERVICE, "commands": {"sync": sync("2")}}).encode()
        replace_at_once(zk, changed, b"2" if changed == tag else definition)
    site.put("global/gate/open", "done")
    assert agent.ends() == 0
    assert f"{changed} has changed since it was read: beginning again" in agent.said
    assert (site.path / "tags").read_text() == ("1\n" if change == "definition" else "2\n")
    assert site.names(f"{site.at()}/generations") == ["2"]
    assert site.queue() == []


def test_a_definition_that_was_replaced_meanwhile_is_not_run(site: Site) -> None:
    """The agent starts over; if the new definition has no daemon, its presence is removed."""
    step = {"run_once": True, "dependencies": ["gate/open"]}
    daemon = {"daemon": {"command": "sleep 1000"}}
    publish(site.deployment, SERVICE, {"commands": {"old": {"command": "exit 3", **step}}, "service": daemon})
    agent = site.start()
    eventually(lambda: "waits for gate/open" in agent.health().stdout, "it waits")
    party = f"{site.deployment.path}/{SERVICE}/.party"
    eventually(lambda: site.names(party), "it is present")
    site.publish(new=site.once("new", gate=None))
    site.put("global/gate/open", "done")
    assert agent.ends() == 0
    assert "has changed since it was read: beginning again from it" in agent.said
    assert site.state("old") in (None, "waiting")
    assert len(site.runs("new")) == 1
    assert site.names(party) == []


def test_an_agent_that_starts_over_writes_the_files_again(
    site: Site, zk: KazooClient, tmp_path: Path
) -> None:
    """COPY_ONCE keeps files of an earlier start, not those of this one."""
    dest = tmp_path / "conf"
    sync = site.once(
        gate=None,
        generation="{{ tag }}",
        first=f"cat {dest} >>seen",
        then="test -e mended || exit 3",
        files={"conf": {"dest": str(dest)}},
        retries=1,
        delay=1,
    )
    definition = {"commands": {"sync": sync}}
    publish(site.deployment, SERVICE, definition, files={"conf": "{{ tag }}"}, variables={"tag": "1"})
    agent = site.start(KOLLA_CONFIG_STRATEGY="COPY_ONCE")
    agent.says("next attempt in")
    zk.set(f"{site.deployment.path}/{SERVICE}/variables/tag", b"2")
    (site.path / "mended").touch()
    assert agent.ends() == 0
    assert (site.path / "seen").read_text() == "12"


def test_tokens_keep_growing_in_another_ensemble(site: Site, zk: KazooClient) -> None:
    """Also if its zxids are smaller; a mark from the old ensemble blocks nothing."""
    detail = {"attempt": 3, "host": "web9", "started": 1, "finished": 2, "state": "error", "token": 2**40}
    zk.create(f"{site.at()}/detail", json.dumps(detail).encode(), makepath=True)
    zk.create(f"{site.at()}/generations/0.9", f"{2**40} {2**39}".encode(), makepath=True)
    site.publish(
        sync=site.once(gate=None, retries=1, delay=1, then="test -e again || exit 3", generation="1.0")
    )
    agent = site.start()
    agent.says("next attempt in")
    (site.path / "again").touch()
    assert agent.ends() == 0
    assert [run.token for run in site.runs()] == [2**40 + 1, 2**40 + 2]
    assert zk.get(f"{site.at()}/generations/1.0")[0].startswith(b"%d " % (2**40 + 2))


def test_a_new_mark_removes_the_oldest_ones(site: Site, zk: KazooClient) -> None:
    """Else they would accumulate."""
    for number in range(30):
        mark = f"{site.at()}/generations/0.{number}"
        zk.create(mark, f"{number + 1} {number + 1}".encode(), makepath=True)
    zk.create(f"{site.at()}/generations/0.3/child")
    site.publish(sync=site.once(gate=None, generation="1.0"))
    assert site.start().ends() == 0
    # A mark with a child cannot be deleted; the outcome does not depend on that.
    newest = {"0.3", "1.0", *(f"0.{number}" for number in range(15, 30))}
    eventually(lambda: set(site.names(f"{site.at()}/generations")) == newest, "the oldest are gone")


# -- plain commands -------------------------------------------------------------------------------


def test_a_plain_command_shows_its_state_on_the_host_and_in_the_deployment(site: Site) -> None:
    """One success stays in the deployment; a dependency can require several hosts."""
    fails = "test $KOLLA_HOSTNAME != web2 || test -e mended || exit 3"
    site.publish(step=site.plain(gate="go.$KOLLA_HOSTNAME", then=fails))
    needs = {"command": "true", "dependencies": [{"path": "db/step", "count": 2}]}
    publish(site.deployment, "infra/app", {"commands": {"main": needs}})
    app = site.containers.start("infra/app")
    one, two = site.start("web1"), site.start("web2")
    site.running(2, "step")
    assert {site.state("step", scope) for scope in ("web1", "web2", "global")} == {"running"}
    assert {(run.token, run.previous) for run in site.runs("step")} == {(0, "none")}

    site.let_go("go.web1")
    assert one.ends() == 0
    assert [site.state("step", scope) for scope in ("web1", "web2", "global")] == ["done", "running", "done"]
    site.let_go("go.web2")
    assert two.ends() == 1
    assert [site.state("step", scope) for scope in ("web1", "web2", "global")] == ["done", "error", "done"]
    detail = site.detail("step", "web2")
    assert (detail["host"], detail["status"], detail["message"]) == ("web2", 3, "exit status 3")
    assert site.names(f"{site.at('step')}/hosts") == ["web1"]
    eventually(lambda: "db/step: done on 1 of 2 hosts" in app.health().stdout, "one host is not enough")

    site.let_go("mended")
    two.restart()
    assert (two.ends(), app.ends()) == (0, 0)
    assert site.state("step", "web2") == "done"
    assert site.names(f"{site.at('step')}/hosts") == ["web1", "web2"]


def test_a_plain_command_runs_again_with_its_container(site: Site) -> None:
    """Its state on the host starts over, its success in the deployment stays."""
    site.publish(step=site.plain(dependencies=["gate/open"]))
    site.put("global/gate/open", "done")
    site.let_go()
    agent = site.start()
    assert agent.ends() == 0
    (site.path / "go").unlink()
    site.take("global/gate/open")
    agent.restart()
    eventually(lambda: site.state("step", "web1") == "waiting", "it is to be done again")
    site.put("global/gate/open", "done")
    site.running(2, "step")
    assert (site.state("step", "web1"), site.state("step")) == ("running", "done")
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143
    assert (site.state("step", "web1"), site.state("step")) == ("error", "done")
    assert site.detail("step", "web1")["message"] == "killed by SIGTERM"


def test_a_plain_command_has_no_lease(site: Site, zookeeper: Server) -> None:
    """Neither an outage longer than the session timeout nor a deleted status tree ends it."""
    site.publish(step=site.plain())
    agent = site.start(KOLLA_ZK_SESSION_TIMEOUT="2")
    run = site.running(1, "step")
    zookeeper.freeze()
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 3, "the time is over")
    assert lives(run.pid)
    zookeeper.thaw()
    delete_at_once(site)
    assert lives(run.pid)
    site.let_go()
    assert agent.ends() == 0
    assert (site.state("step", "web1"), site.state("step")) == ("done", "done")
    assert len(site.runs("step")) == 1
