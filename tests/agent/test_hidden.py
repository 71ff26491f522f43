"""The memory of what holds the credential for ZooKeeper, or other secrets, is hidden from other processes of
the same user, and never in a core file."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kolla_mesos_start.processes import hide_memory
from tests.conftest import Deployment
from tests.support import unprivileged
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.terminal import Terminal
from tests.support.tool import TOOL
from tests.support.waiting import eventually

USER = 4711


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user; those of the tests let nobody in but their owner."""
    path = Path(tempfile.mkdtemp(prefix="home-"))
    os.chown(path, USER, USER)
    yield path
    shutil.rmtree(path)


def owner(pid: int) -> int:
    """Who may read a process's environment, memory and descriptors: its user, unless it is hidden."""
    return Path(f"/proc/{pid}/environ").stat().st_uid


def limits(pid: int) -> str:
    """What a process may use; that of core files is for a daemon's own operator to set."""
    return Path(f"/proc/{pid}/limits").read_text()


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_agent_and_registrar_are_hidden_and_the_daemon_is_not(
    deployment: Deployment, containers: Containers, home: Path, mode: str
) -> None:
    """In an unprivileged container, with files to render, and a locale that Python would change."""
    step = f"touch {home}/runs; until [ -e {home}/go ]; do sleep 0.02; done"
    file = {"conf": {"dest": str(home / "conf")}}
    daemon = {"command": ["sleep", "300"], "ready": {"alive": 0}, "files": file}
    definition = {"commands": {"wait": {"command": step, "files": file}}, "service": {"daemon": daemon}}
    publish(deployment, "web", definition, files={"conf": "{{ deployment_id }}"})
    (home / "auth").write_text("digest:agent:secret\n")
    agent = containers.start(
        "web",
        under=(launcher := unprivileged.launcher(USER)),
        KOLLA_RUN_DIR=str(home / "run"),
        KOLLA_STATE_DIR=str(home / "state"),
        KOLLA_TERMINATION_LOG=str(home / "end"),
        KOLLA_ZK_AUTH_FILE=str(home / "auth"),
        KOLLA_START_MODE=mode,
        LC_CTYPE="C.UTF-8",
    )
    eventually((home / "runs").exists, "the command runs")
    assert owner(agent.pid) == 0
    (guard,) = psutil.Process(agent.pid).children()
    (command,) = guard.children()
    assert (owner(guard.pid), owner(command.pid)) == (0, USER)
    assert limits(command.pid) == limits(os.getpid())
    assert agent.health(under=launcher).stdout == "bootstrapping web/wait\n"
    (home / "go").touch()
    eventually(lambda: agent.health("--ready", under=launcher).returncode == 0, "the daemon is ready")
    names = {name: pid for pid, name in agent.processes.items()}
    registrar, sleeps = names["kolla_registrar"], names["sleep"]
    assert (owner(registrar), owner(sleeps)) == (0, USER)
    assert limits(sleeps) == limits(os.getpid())
    assert b"KOLLA_ZK_" not in Path(f"/proc/{registrar}/environ").read_bytes()
    assert b"LC_CTYPE=C.UTF-8" in Path(f"/proc/{sleeps}/environ").read_bytes().split(b"\0")
    assert (home / "conf").read_text() == deployment.id


def test_a_python_that_cannot_hide_memory_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libffi there is no _ctypes."""
    monkeypatch.setitem(sys.modules, "_ctypes", None)
    assert hide_memory() is False


# As much as the machine lets us: none at all, perhaps. What a shell starts in the background ignores SIGQUIT.
WITH_CORE_FILES = (
    *("env", "--default-signal=QUIT"),
    *("sh", "-c", 'ulimit -S -c "$(ulimit -H -c)"; exec "$@"', "sh"),
)


def test_an_agent_leaves_no_core_file(deployment: Deployment, containers: Containers) -> None:
    """With any signal and any limit. SIGQUIT ends it in the ordinary way."""
    agent = containers.start("web", under=WITH_CORE_FILES)
    eventually(lambda: "the definition" in agent.state, "it waits for its definition")
    agent.signal(signal.SIGABRT)
    _, status = os.waitpid(agent.pid, 0)
    agent.process.returncode = os.waitstatus_to_exitcode(status)
    assert (os.WTERMSIG(status), os.WCOREDUMP(status)) == (signal.SIGABRT, False)


def test_the_operators_tool_leaves_no_core_file() -> None:
    """After Ctrl-\\ at the question for a secret."""
    argv = (*WITH_CORE_FILES, sys.executable, str(TOOL), "set", "password", "-")
    with Terminal(argv, {"PATH": os.environ["PATH"]}) as terminal:
        terminal.shows("value of password")
        terminal.types("\x1c")
        status = terminal.ends()
    assert (os.WTERMSIG(status), os.WCOREDUMP(status)) == (signal.SIGQUIT, False)
