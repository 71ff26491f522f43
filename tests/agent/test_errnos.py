"""A start that meets what passes by itself ends with status 75, which every launcher tries again.

The kernel refuses here; `process/test_errnos.py` has every errno.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support import unprivileged
from tests.support.agents import PROGRAM, Agent, Containers
from tests.support.publishing import publish
from tests.support.waiting import eventually

USER = 4712
REFUSED_CALLS = (sys.executable, str(Path(unprivileged.__file__).with_name("refused_calls.py")))
DAEMON: dict[str, Any] = {"command": ["sleep", "300"], "ready": {"alive": 0}}
COMMAND: dict[str, Any] = {"commands": {"go": {"command": ["true"], "run_once": True}}}


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user; those of the tests let nobody in but their owner."""
    path = Path(tempfile.mkdtemp(prefix="home-"))
    if os.geteuid() == 0:
        os.chown(path, USER, USER)
    yield path
    shutil.rmtree(path)


def of_user(home: Path) -> dict[str, str]:
    """The variables that let the user write."""
    return {
        "KOLLA_RUN_DIR": str(home / "run"),
        "KOLLA_STATE_DIR": str(home / "state"),
        "KOLLA_TERMINATION_LOG": str(home / "end"),
    }


def limited(kind: str, value: int) -> tuple[str, ...]:
    """Launch with a limit of processes (-u) or descriptors (-n), which is not an agent's to raise."""
    return ("bash", "-c", f'ulimit {kind} {value}; exec "$@"', "bash")


CALLS = [
    ("clone:EAGAIN", COMMAND, "exec", "guard process can't be started"),
    ("clone:ENOMEM", {}, "exec", "its registrar can't be started"),
    ("clone:EAGAIN", {}, "supervise", "Resource temporarily unavailable"),
    ("pidfd_open:EMFILE", {}, "exec", "its registrar can't be started: Too many open files"),
    ("pidfd_open:EMFILE", {}, "supervise", "its registrar can't be started: Too many open files"),
    ("memfd_create:ENFILE", {}, "exec", "its registrar can't be started: Too many open files in system"),
    ("socketpair:ENOBUFS", COMMAND, "exec", "No buffer space available"),
    ("rename:EDQUOT", {"file": True}, "exec", "Disk quota exceeded"),
    ("fsync:EIO", {"file": True}, "exec", "Input/output error"),
    ("fchmod:ESTALE", {"file": True}, "exec", "Stale file handle"),
    ("mkdir:ENOSPC", {"file": True}, "exec", "No space left on device"),
    ("flock:ENOLCK", {}, "exec", "No locks available"),
]


@pytest.mark.parametrize(("call", "more", "mode", "said"), CALLS)
def test_a_call_that_is_refused_for_now_is_worth_a_retry(
    deployment: Deployment,
    containers: Containers,
    tmp_path: Path,
    call: str,
    more: dict[str, Any],
    mode: str,
    said: str,
) -> None:
    """Whatever the agent was about to do."""
    files = {"conf": {"dest": str(tmp_path / "new" / "conf")}} if "file" in more else {}
    definition = {"service": {"daemon": {**DAEMON, "files": files}}, "commands": more.get("commands", {})}
    publish(deployment, "web", definition, files={"conf": "x"})
    agent = containers.start("web", under=(*REFUSED_CALLS, call), KOLLA_START_MODE=mode)
    assert agent.ends() == 75
    assert agent.ending["retriable"] is True
    assert said in agent.ending["reason"]
    assert "report this" not in agent.said


def test_a_task_needs_no_socket(deployment: Deployment, containers: Containers) -> None:
    """Only `stop` would: some file systems have none."""
    publish(deployment, "web", COMMAND)
    agent = containers.start("web", under=(*REFUSED_CALLS, "listen:EOPNOTSUPP"))
    assert agent.ends() == 0
    assert "`kolla_mesos_start stop` can't reach this start: Operation not supported" in agent.said


@pytest.mark.parametrize("mode", ["exec", "supervise"])
@pytest.mark.parametrize("what", [{}, COMMAND])
def test_a_crowded_container_is_worth_a_retry(
    deployment: Deployment, containers: Containers, home: Path, mode: str, what: dict[str, Any]
) -> None:
    """It has reached its limit of processes while its neighbours start."""
    publish(deployment, "web", {"service": {"daemon": DAEMON}, **what})
    under = (*unprivileged.launcher(USER), *limited("-u", 1))
    agent = containers.start("web", under=under, KOLLA_START_MODE=mode, **of_user(home))
    assert agent.ends() == 75
    assert "(a limit of processes or of memory is reached)" in agent.ending["reason"]


def is_over(agent: Agent) -> bool:
    """Whether it has ended, or has become the daemon."""
    return not agent.running or agent.state.startswith(("starting", "ready"))


def test_each_limit_of_descriptors_is_worth_a_retry(deployment: Deployment, containers: Containers) -> None:
    """From one that lets the agent's modules be loaded to one that lets the daemon start."""
    publish(deployment, "web", {"service": {"daemon": DAEMON}, **COMMAND})
    ends = {}
    for limit in range(5, 64):
        agent = containers.start("web", under=limited("-n", limit))
        eventually(partial(is_over, agent), "it is over")
        if agent.running:
            break
        ends[limit] = agent.ends()
    assert agent.running
    assert set(ends.values()) == {75}, ends


def test_a_program_that_is_being_written_is_worth_a_retry(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """As by a package that is being installed on a shared volume."""
    program = tmp_path / "serve"
    shutil.copy("/bin/sleep", program)
    publish(deployment, "web", {"service": {"daemon": {"command": [str(program), "300"]}}})
    with program.open("ab"):
        agent = containers.start("web")
        assert agent.ends() == 75
    assert "Text file busy (another process uses it)" in agent.ending["reason"]


def test_a_check_that_cannot_be_started_has_not_refused_its_file(
    deployment: Deployment, containers: Containers, home: Path
) -> None:
    """78 would be final: the file may be right."""
    program = home / "check"
    shutil.copy("/bin/true", program)
    file = {"dest": str(home / "conf"), "check": [str(program)]}
    publish(
        deployment, "web", {"service": {"daemon": {**DAEMON, "files": {"conf": file}}}}, files={"conf": "x"}
    )
    with program.open("ab"):
        agent = containers.start("web")
        assert agent.ends() == 75
    assert "the check of conf: could not be started: Text file busy" in agent.ending["reason"]


def test_a_daemon_that_cannot_be_started_again_for_now_is_worth_a_retry(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Its parent ends: the launcher starts both."""
    program, other = tmp_path / "serve", tmp_path / "other"
    shutil.copy("/bin/sleep", program)
    shutil.copy("/bin/sleep", other)
    more = {"files": {"conf": {"dest": str(tmp_path / "conf")}}, "on_change": {"restart": True}}
    daemon = {**DAEMON, **more, "command": [str(program), "300"]}
    definition = {"service": {"daemon": daemon}}
    publish(deployment, "web", definition, files={"conf": "{{ size }}"}, variables={"size": "one"})
    agent = containers.start("web", KOLLA_START_MODE="supervise")
    eventually(lambda: agent.state.startswith("ready"), "it is ready")
    other.rename(program)
    with program.open("ab"):
        zk.set(f"{deployment.path}/web/variables/size", b"two")
        assert agent.ends() == 75
    assert "it can't be started again, with its new files: Text file busy" in agent.said


def test_a_refresh_that_finds_no_space_is_tried_again(
    deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path
) -> None:
    """Without another change."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        dest = small / "conf"
        more = {"files": {"conf": {"dest": str(dest)}}, "on_change": {"signal": "CONT"}}
        definition = {"service": {"daemon": {**DAEMON, **more}}}
        publish(deployment, "web", definition, files={"conf": "{{ size }}"}, variables={"size": "one"})
        agent = containers.start("web")
        eventually(lambda: agent.state.startswith("ready"), "it is ready")
        with contextlib.suppress(OSError), (small / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        zk.set(f"{deployment.path}/web/variables/size", b"two")
        agent.says("No space left on device")
        (small / "ballast").unlink()
        eventually(lambda: dest.read_text() == "two", "the file is refreshed")
        agent.end()
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.fixture
def pids() -> Iterator[Path]:
    """A cgroup that can limit the number of its processes."""
    root = next(filter(os.path.isdir, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")))
    group = Path(tempfile.mkdtemp(prefix="test-", dir=root))
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text(), "its processes have ended")
    group.rmdir()


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_full_cgroup_is_worth_a_retry(
    deployment: Deployment, containers: Containers, pids: Path, mode: str
) -> None:
    """As podman and Kubernetes limit processes; root is no exception."""
    publish(deployment, "web", {"service": {"daemon": DAEMON}})
    (pids / "pids.max").write_text("1")
    under = ("sh", "-c", f'echo $$ >{pids}/cgroup.procs; exec "$@"', "sh")
    agent = containers.start("web", under=under, KOLLA_START_MODE=mode)
    assert agent.ends() == 75
    assert "Resource temporarily unavailable" in agent.ending["reason"]


def test_before_stop_is_started_as_soon_as_it_can_be(
    deployment: Deployment, containers: Containers, pids: Path, tmp_path: Path
) -> None:
    """Within its limit."""
    daemon = {**DAEMON, "before_stop": f"touch {tmp_path}/handed-over"}
    publish(deployment, "web", {"service": {"daemon": daemon}})
    under = ("sh", "-c", f'echo $$ >{pids}/cgroup.procs; exec "$@"', "sh")
    agent = containers.start("web", under=under)
    eventually(lambda: agent.state.startswith("ready"), "it is ready")
    (pids / "pids.max").write_text("1")
    stop = subprocess.Popen([sys.executable, str(PROGRAM), "stop"], env=agent.environ)
    eventually(lambda: agent.state.startswith("draining"), "it is being drained")
    assert not (tmp_path / "handed-over").exists()
    (pids / "pids.max").write_text("max")
    assert stop.wait(60) == 0
    assert (tmp_path / "handed-over").exists()
