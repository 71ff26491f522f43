"""A refresh that is killed with -9 while it replaces files is run again at once, and no old file stays.

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
from tests.agent.test_refresh import DAEMON, HUP, SERVICE, Web, by_hand, heard
from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.publishing import publish
from tests.support.waiting import eventually

NAMES = ("web.conf", "a.conf", "b.conf", "c.conf")
# The file `kill` holds the number of the rename, and the processes. The next refresh is not disturbed.
KILLS = """
import itertools, os, signal, time
with open("/proc/self/cmdline", "rb") as words:
    is_refresh = b"start refresh" in words.read()
if is_refresh and os.path.exists("kill"):
    with open("kill") as file:
        number, *names = file.read().split()
    os.unlink("kill")
    calls, rename = itertools.count(1), os.rename
    def renamed(*paths, **directories):
        if next(calls) == int(number):
            pids = {"registrar": os.getppid(), "refresher": os.getpid()}
            for name in names:
                os.kill(pids[name], signal.SIGKILL)
            while "registrar" in names and os.getppid() == pids["registrar"]:
                time.sleep(0.001)  # It is being killed.
        return rename(*paths, **directories)
    os.rename = renamed
"""


class Container:
    """A container whose next refresh is killed in the middle of its renames."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient, place: Path) -> None:
        self.web = Web(deployment, containers, zk)
        self._deployment, self._place = deployment, place
        ignored = shutil.ignore_patterns("ctl", "kolla_ansible", "__pycache__")
        for name in ("bin", "kolla_mesos_start"):
            shutil.copytree(CHECKOUT / name, place / name, ignore=ignored)
        with (place / "kolla_mesos_start/__init__.py").open("a") as module:
            module.write(KILLS)

    def start(self, mode: str = "exec", on_change: dict[str, str] = HUP) -> Agent:
        """A container that is ready, with all its files old."""
        daemon = {
            "command": [sys.executable, "-I", "-S", "-c", DAEMON],
            "ready": {"alive": 0},
            "on_change": on_change,
            "width": 1,
            "files": {name: {"dest": f"{{{{ directory }}}}/{name}"} for name in NAMES},
        }
        self.web.set(word="old")
        texts = dict.fromkeys(NAMES, "{{ word }}")
        publish(self._deployment, SERVICE, {"service": {"daemon": daemon}}, files=texts)
        copy = ("sh", "-c", f'exec "$1" {self._place}/bin/kolla_mesos_start', "sh")
        return self.web.start(under=copy, KOLLA_START_MODE=mode)

    def kill(self, agent: Agent, *names: str) -> None:
        """Publish new files; these processes are killed between two renames of the refresh."""
        (agent.directory / "kill").write_text(" ".join(["3", *names]))
        self.web.set(word="new")
        eventually(lambda: not (agent.directory / "kill").exists(), "the refresh has begun")


@pytest.fixture
def container(deployment: Deployment, containers: Containers, zk: KazooClient, tmp_path: Path) -> Container:
    return Container(deployment, containers, zk, tmp_path)


def found(agent: Agent) -> set[str]:
    """The texts in the files; exactly one if old and new are not mixed."""
    return {(agent.directory / name).read_text() for name in NAMES}


@pytest.mark.parametrize("mode", ["supervise", "exec"])
def test_a_killed_refresh_is_run_again_at_once_and_the_daemon_is_notified(
    container: Container, mode: str
) -> None:
    """Without a new change. The registrar reports what happened."""
    agent = container.start(mode)
    container.kill(agent, "refresher")
    eventually(lambda: heard(agent) == ["SIGHUP new"], "the daemon is notified")
    assert found(agent) == {"new"}
    assert "the refresh of the daemon's files failed: it was killed by signal 9" in agent.said
    assert "trying again at once" in agent.said
    eventually(lambda: agent.state == "ready", "it is ready, without a reason")
    assert not list(agent.directory.glob(".kolla*"))


def test_a_command_that_fails_after_a_killed_refresh_leaves_no_mixture(container: Container) -> None:
    """What the killed one had placed can't be put back. The daemon is notified at the next refresh."""
    agent = container.start(on_change={"command": "test -e works && touch told"})
    container.kill(agent, "refresher")
    eventually(lambda: "on_change failed: exit status 1" in container.web.reason(), "the command has failed")
    assert found(agent) == {"new"}
    (agent.directory / "works").touch()
    assert by_hand(agent).returncode == 0
    assert (agent.directory / "told").exists()


def test_a_refresh_whose_registrar_dies_puts_the_old_files_back(container: Container) -> None:
    """No process could notify the daemon."""
    agent = container.start()
    container.kill(agent, "registrar")
    eventually(lambda: list(agent.processes) == [agent.pid], "nothing but the daemon is left")
    assert found(agent) == {"old"}
    assert not list(agent.directory.glob(".kolla*"))


def test_a_restarted_container_writes_all_files(container: Container) -> None:
    """Before its daemon starts."""
    agent = container.start()
    container.kill(agent, "registrar", "refresher")
    eventually(lambda: len(found(agent)) == 2, "the files are mixed")
    eventually(lambda: agent.health().returncode == 1, "it is unhealthy")  # The kernel frees a lock last.
    agent.process.kill()
    agent.process.wait()
    agent.restart()
    eventually(lambda: found(agent) == {"new"}, "all files are new")
