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


@pytest.mark.parametrize("kind", ["garbage", "path", "fifo"])
def test_a_foreign_registration_is_replaced(
    deployment: Deployment, containers: Containers, tmp_path: Path, kind: str
) -> None:
    """It would end the container at every restart, or hang it."""
    publish(deployment, "web", DAEMON)
    registration = tmp_path / "state" / "registration"
    registration.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(registration)
    else:
        registration.write_bytes(b"\377x" if kind == "garbage" else b"a/b c\n../../x")
    agent = containers.start("web", KOLLA_STATE_DIR=str(registration.parent))
    assert agent.ends() == 0
    assert registration.read_text().endswith("__party__\n")


def test_a_detail_too_deep_to_be_read_says_nothing(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """As any other that is not ours."""
    publish(deployment, "web", {"commands": {"only": {"command": "true", "run_once": True}}})
    zk.create(f"{deployment.path}/status/global/web/only/detail", b"[" * 100_000, makepath=True)
    assert containers.start("web").ends() == 0
