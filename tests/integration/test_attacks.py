"""What a fault-finder has broken once: each find stays found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.agents import PROGRAM, Containers
from tests.conftest import Deployment
from tests.publishing import publish

TASK = {"commands": {"only": {"command": "true"}}}
DAEMON = {"service": {"daemon": {"command": ["true"]}}}


@pytest.mark.parametrize(("words", "status"), [((), 64), (("health",), 1), (("check",), 64)])
def test_what_nobody_can_read_does_not_change_the_status(
    words: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    """A full disk under the log is no reason for a launcher to try again, or not to."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *words],
            env={"PATH": os.environ["PATH"], "KOLLA_RUN_DIR": str(tmp_path)},
            stdout=full,
            stderr=full,
            check=False,
        )
    assert done.returncode == status


@pytest.mark.parametrize("kind", ["garbage", "path", "fifo", "link", "hard link"])
def test_a_foreign_registration_is_replaced(
    deployment: Deployment, containers: Containers, tmp_path: Path, kind: str
) -> None:
    """It would end the container at every restart, or hang it; or have it write somewhere else."""
    publish(deployment, "web", DAEMON)
    registration = tmp_path / "state" / "registration"
    registration.parent.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o600)
    if kind == "fifo":
        os.mkfifo(registration)
    elif kind == "link":
        registration.symlink_to(precious)
    elif kind == "hard link":
        os.link(precious, registration)
    else:
        registration.write_bytes(b"\377x" if kind == "garbage" else b"a/b c\n../../x")
    agent = containers.start("web", KOLLA_STATE_DIR=str(registration.parent))
    assert agent.ends() == 0
    assert registration.read_text().endswith("__party__\n")
    assert (precious.read_text(), precious.stat().st_mode & 0o777) == ("precious", 0o600)


def test_a_state_directory_that_somebody_else_may_have_made_is_not_used(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """The container runs under a new id, and says why."""
    publish(deployment, "web", DAEMON)
    tmp_path.chmod(0o1777)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 4711, 4711)
    agent = containers.start("web", KOLLA_STATE_DIR=str(state))
    assert agent.ends() == 0
    assert os.listdir(state) == []
    assert f"{state}/registration can't be written (it belongs to uid 4711, not to uid 0" in agent.said


def test_a_detail_too_deep_to_be_read_says_nothing(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """As any other that is not ours."""
    publish(deployment, "web", {"commands": {"only": {"command": "true", "run_once": True}}})
    zk.create(f"{deployment.path}/status/global/web/only/detail", b"[" * 100_000, makepath=True)
    assert containers.start("web").ends() == 0
