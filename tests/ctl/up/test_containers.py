"""Which agent a container runs, which processes are its own, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copytree, ignore_patterns

import psutil
import pytest

from kolla_mesos_start.ctl.up import containers
from kolla_mesos_start.ctl.up.containers import AGENT, LocalContainer, end_all, processes_of
from tests import CHECKOUT


def test_a_checkout_runs_its_own_agent_and_an_installed_tool_the_installed_one(tmp_path: Path) -> None:
    """pip puts the script beside Python."""
    assert (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_start")) == AGENT
    package = "kolla_mesos_start"
    copytree(CHECKOUT / package, tmp_path / "lib" / package, ignore=ignore_patterns("__pycache__"))
    statements = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
        "from kolla_mesos_start.ctl.up.containers import AGENT\n"
        "print(AGENT[1])"
    )
    found = subprocess.run((sys.executable, "-c", statements), capture_output=True, text=True, check=True)
    assert found.stdout.rstrip() == str(Path(sys.executable).with_name(package))


def test_only_what_runs_in_a_container_is_ended(tmp_path: Path) -> None:
    """Not a shell in its directory, nor one with its KOLLA_RUN_DIR (for `health`), nor another container."""
    ours, theirs = tmp_path / "site", tmp_path / "site-2"
    sleep = ("sleep", "300")
    environ = {**os.environ, "KOLLA_STATE_DIR": f"{ours}/web-1/api/state"}
    with (
        subprocess.Popen(sleep, env={**environ, "KOLLA_RUN_DIR": f"{ours}/web-1/api/run"}) as container,
        subprocess.Popen(sleep, env={**environ, "KOLLA_RUN_DIR": f"{theirs}/web-1/api/run"}) as other,
        subprocess.Popen(sleep, env={**os.environ, "KOLLA_RUN_DIR": f"{ours}/web-1/api/run"}) as shell,
    ):
        try:
            assert list(processes_of(ours)) == [container.pid]
            end_all(ours, grace=30.0)
            assert container.wait(30) == -15
            assert (other.poll(), shell.poll()) == (None, None)
        finally:
            for each in (container, other, shell):
                each.kill()


def test_a_container_that_hides_its_environment_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an agent does from all but root."""
    monkeypatch.setattr(containers, "AGENT", ("env", "-i", "sleep", "300"))
    container = LocalContainer("infra/db", "web1", tmp_path / "root", tmp_path / "run", os.environ)
    container.start()
    end_all(tmp_path, containers=[container])
    assert container.wait(30) == -9


KILLED_AT_ONCE = """
import os, subprocess, sys
from kolla_mesos_start.ctl.up.containers import dies_with_us
late = ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done; exec "$@"', sys.argv[1])
print(subprocess.Popen([*late, *dies_with_us(), "sleep", "300"], stdout=subprocess.DEVNULL).pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_tool_was_about_to_start_does_not_run(tmp_path: Path) -> None:
    """The kernel reports only the death of a parent that was alive when setpriv asked for it."""
    go = tmp_path / "go"
    tool = subprocess.run(
        (sys.executable, "-c", KILLED_AT_ONCE, str(go)), stdout=subprocess.PIPE, check=False
    )
    started = psutil.Process(int(tool.stdout))
    assert tool.returncode == -9
    try:
        go.touch()
        started.wait(30)
    finally:
        with suppress(psutil.NoSuchProcess):
            started.kill()


def test_what_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    """SIGTERM first, and after the grace SIGKILL."""
    deaf = "from signal import *; signal(SIGTERM, SIG_IGN); print(flush=True); pause()"
    environ = {**os.environ, "KOLLA_RUN_DIR": f"{tmp_path}/run", "KOLLA_STATE_DIR": f"{tmp_path}/state"}
    with subprocess.Popen([sys.executable, "-c", deaf], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end_all(tmp_path, grace=0.2)
        assert process.wait(30) == -9


def test_what_has_overwritten_its_environment_is_ended_too(tmp_path: Path) -> None:
    """As Nova's processes do, to have a title. The parent ends by SIGTERM, and leaves it behind."""
    deaf = (
        "import os; from signal import *; signal(SIGTERM, SIG_IGN); print(os.getpid(), flush=True); pause()"
    )
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], env={})"
    environ = {**os.environ, "KOLLA_RUN_DIR": f"{tmp_path}/run", "KOLLA_STATE_DIR": f"{tmp_path}/state"}
    with subprocess.Popen(
        [sys.executable, "-c", parent, deaf], env=environ, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            end_all(tmp_path, grace=1.0)
            # On a busy machine it may still be there after the grace.
            assert process.wait(30) in (-15, -9)
            child.wait(30)
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()
