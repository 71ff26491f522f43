"""`kolla_mesos_ctl import`: what it refuses before the recording, which takes minutes, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator import cli
from tests import CHECKOUT
from tests.kolla_ansible import fake_ansible
from tests.waiting import eventually

TOOL = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_ctl"))


def test_another_directory_is_refused_before_anything_else(tmp_path: Path) -> None:
    words = fake_ansible.make(tmp_path, inventory="exit 1")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/letter").touch()
    with pytest.raises(BadUsage, match="is not empty"):
        cli.run(words)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_ansible_and_leaves_nothing(signum: signal.Signals, tmp_path: Path) -> None:
    """The temporary directory has the operator's files, perhaps with private keys."""
    (tmp_path / "tmp").mkdir()
    pids = tmp_path / "pids"
    words = fake_ansible.make(tmp_path, playbook=f"sleep 600 & echo $$ $! >>{pids}; wait")
    with (tmp_path / "said").open("wb") as said:
        tool = subprocess.Popen(
            (*TOOL, *words), stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        )
    try:
        eventually(lambda: pids.exists() and len(pids.read_text().split()) == 4, "both recordings run")
        tool.send_signal(signum)
        assert tool.wait(timeout=20) == 128 + signum, (tmp_path / "said").read_text()
    finally:
        tool.kill()
        tool.wait()
        left = [pid for pid in pids.read_text().split() if is_running(pid)]
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
    assert not left
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "site").exists()


def is_running(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path("/proc", pid, "status").read_text()
    except FileNotFoundError:
        return False
