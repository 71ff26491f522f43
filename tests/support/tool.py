"""The operator's tool as a process of its own, as an operator runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kazoo.client import KazooClient

from kolla_mesos_start import settings
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from tests.conftest import Deployment
from tests.support.forked_tool import FORKS, can_fork
from tests.support.waiting import LIMIT, eventually

TOOL = Path(__file__).resolve().parents[2] / "bin" / "kolla_mesos_ctl"


def environ(deployment: Deployment, **more: str) -> dict[str, str]:
    """What names the deployment to the tool; `more` are added."""
    return {
        "PATH": os.environ["PATH"],
        "KOLLA_ZK_HOSTS": deployment.hosts,
        "KOLLA_SYSTEM_PREFIX": deployment.prefix,
        "KOLLA_DEPLOYMENT": deployment.id,
        **more,
    }


def operator_client(zk: KazooClient, prefix: str, id: str, **more: str) -> OperatorClient:
    """The tool's own connection to the servers of `zk`, for functions of the package."""
    hosts = ",".join(f"{host}:{port}" for host, port in zk.hosts)
    own = {"KOLLA_APP_ID": f"/{id}/tool", "KOLLA_ZK_HOSTS": hosts, "KOLLA_SYSTEM_PREFIX": prefix}
    return connection.connect(settings.parse({**own, **more}))


def run_ctl(
    deployment: Deployment, *words: str | Path, given: str | bytes = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the tool with `given` on its standard input. No traceback, whatever it ends with."""
    env, data = environ(deployment, **more), given.encode() if isinstance(given, str) else given
    if can_fork(env, data):
        done = FORKS.run(TOOL, words, env, data, LIMIT)
    else:
        command = [sys.executable, TOOL, *words]
        done = subprocess.run(command, env=env, input=data, capture_output=True, timeout=LIMIT)
    said, complained = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in complained, complained
    return subprocess.CompletedProcess(done.args, done.returncode, said, complained)


def ctl(
    deployment: Deployment, *words: str | Path, status: int = 0, given: str | bytes = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """The same, held to its exit status."""
    done = run_ctl(deployment, *words, given=given, **more)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def tool(deployment: Deployment, *words: str | Path, status: int = 0) -> str:
    """The same; all that it has printed."""
    done = ctl(deployment, *words, status=status)
    return done.stdout + done.stderr


def tool_says(deployment: Deployment, text: str, *words: str, status: int = 0) -> str:
    """Run the tool until it prints `text`, with this exit status; all that it has printed.

    For what containers report about themselves: they write it up to a second later.
    """

    def look() -> str:
        done = run_ctl(deployment, *words)
        said = done.stdout + done.stderr
        seen.append(said)
        return said if done.returncode == status and text in said else ""

    seen: list[str] = []
    try:
        return eventually(look, f"{words} with status {status} says {text!r}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{seen[-1]}") from None
