"""A refresh that is killed with -9 while it replaces files: soon all files are old, or all are new.

Whole agents with a real ZooKeeper. A copy of the package stops the refresh at a chosen rename, and kills the
processes that the test names.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests import CHECKOUT
from tests.agents import Agent, Containers
from tests.conftest import Deployment
from tests.integration.test_refresh import DAEMON, HUP, SERVICE, Web, by_hand, heard
from tests.publishing import publish
from tests.waiting import eventually

NAMES = ("web.conf", "a.conf", "b.conf", "c.conf", "d.conf", "e.conf")
# The file `kill` holds the number of the rename, and the processes: `renaming` is the one that renames,
# `refresher` the one that the registrar has started. The next refresh is not disturbed.
KILLS = """
import itertools, os, signal
with open("/proc/self/cmdline", "rb") as words:
    is_refresh = b"start refresh" in words.read()
if is_refresh and os.path.exists("kill"):
    with open("kill") as file:
        number, *names = file.read().split()
    os.unlink("kill")
    calls, rename = itertools.count(1), os.rename
    refresher, registrar = os.getpid(), os.getppid()
    def renamed(*paths, **directories):
        if next(calls) == int(number):
            pids = {"registrar": registrar, "refresher": refresher, "renaming": os.getpid()}
            for name in names:
                os.kill(pids[name], signal.SIGKILL)
        return rename(*paths, **directories)
    os.rename = renamed
"""


class Container:
    """A container whose next refresh is killed in the middle of its renames."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient, place: Path) -> None:
        self.web = Web(deployment, containers, zk)
        self._deployment, self._place = deployment, place
        ignored = shutil.ignore_patterns("operator", "__pycache__")
        for name in ("bin", "kolla_mesos_start"):
            shutil.copytree(CHECKOUT / name, place / name, ignore=ignored)
        with (place / "kolla_mesos_start/__init__.py").open("a") as module:
            module.write(KILLS)

    def start(self, mode: str = "exec") -> Agent:
        """A container that is ready, with all its files old."""
        daemon = {
            "command": [sys.executable, "-I", "-S", "-c", DAEMON],
            "ready": {"alive": 0},
            "on_change": HUP,
            "width": 1,
            "files": {name: {"dest": f"{{{{ directory }}}}/{name}"} for name in NAMES},
        }
        self.web.set(word="old")
        texts = dict.fromkeys(NAMES, "{{ word }}")
        publish(self._deployment, SERVICE, {"service": {"daemon": daemon}}, files=texts)
        copy = ("sh", "-c", f'exec "$1" {self._place}/bin/kolla_mesos_start', "sh")
        return self.web.start(under=copy, KOLLA_START_MODE=mode)

    def kill(self, agent: Agent, number: int, *names: str) -> None:
        """Publish new files; these processes are killed at that rename of the refresh."""
        (agent.directory / "kill").write_text(" ".join([str(number), *names]))
        self.web.set(word="new")
        eventually(lambda: not (agent.directory / "kill").exists(), "the refresh has begun")


@pytest.fixture
def container(deployment: Deployment, containers: Containers, zk: KazooClient, tmp_path: Path) -> Container:
    return Container(deployment, containers, zk, tmp_path)


def found(agent: Agent) -> set[str]:
    """The texts in the files; exactly one if old and new are not mixed."""
    return {(agent.directory / name).read_text() for name in NAMES}


@pytest.mark.parametrize(
    ("mode", "killed"), [("supervise", ("refresher",)), ("exec", ("refresher", "renaming"))]
)
def test_after_a_killed_refresh_all_files_are_new_and_the_daemon_is_notified(
    container: Container, mode: str, killed: tuple[str, ...]
) -> None:
    """The registrar reports what happened, and tries again without a new change."""
    agent = container.start(mode)
    container.kill(agent, 4, *killed)
    eventually(lambda: heard(agent) == ["SIGHUP new"], "the daemon is notified")
    assert found(agent) == {"new"}
    assert "the refresh of the daemon's files failed: it was killed by signal 9" in agent.said
    assert "trying again in 1 s" in agent.said
    eventually(lambda: agent.state == "ready", "it is ready, without a reason")
    assert agent.health("--ready").returncode == 0
    assert not list(agent.directory.glob(".kolla*"))


@pytest.mark.parametrize("killed", [("registrar",), ("registrar", "refresher")])
def test_when_the_registrar_dies_with_a_refresh_no_mixed_files_are_left(
    container: Container, killed: tuple[str, ...]
) -> None:
    """Nobody could notify the daemon. A refresh that still runs puts the old files back."""
    agent = container.start()
    container.kill(agent, 4, *killed)
    expected = {"old"} if "refresher" not in killed else {"new"}
    eventually(lambda: list(agent.processes) == [agent.pid], "nothing but the daemon is left")
    # The process that renames files has no parent any more, and is not found.
    eventually(lambda: found(agent) == expected, "the files are not mixed")
    eventually(lambda: not list(agent.directory.glob(".kolla*")), "no temporary file is left")


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_restarted_container_completes_what_was_killed(
    container: Container, mode: str, deployment: Deployment, zk: KazooClient
) -> None:
    """Without ZooKeeper, and before it is ready."""
    agent = container.start(mode)
    container.kill(agent, 4, "registrar", "refresher", "renaming")
    eventually(lambda: len(found(agent)) == 2, "the files are mixed")
    assert agent.health("--ready").returncode == 1
    agent.process.kill()
    agent.process.wait()
    zk.delete(f"{deployment.path}/{SERVICE}", recursive=True)
    agent.restart()
    eventually(lambda: found(agent) == {"new"}, "all files are new")


def test_a_refresh_by_hand_completes_what_was_killed(container: Container) -> None:
    """If the registrar is gone too, no other process does. The daemon still cannot be notified."""
    agent = container.start()
    container.kill(agent, 4, "registrar", "refresher", "renaming")
    eventually(lambda: len(found(agent)) == 2, "the files are mixed")
    done = by_hand(agent)
    assert done.returncode == 1
    assert "no daemon can be refreshed here" in done.stdout
    assert "killed while it replaced files: that is completed now" in done.stdout
    assert found(agent) == {"new"}
