"""Marathon's `cmd` without an image: the agent is the child of a shell that passes no signal on.

Mesos tells the shell's whole process group to end, and kills it when the app's grace period is over.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import publish
from tests.support.waiting import eventually

SERVICE = "infra/web"
NOT_OURS = ("env", "-u", "KOLLA_APP_ID", "-u", "KOLLA_HOSTNAME")  # Marathon knows nothing of them.
STAYS = ("/bin/sh", "-c", '"$0" "$@"; exit $?')

SLEEPS: Any = {"command": "sleep 1000", "ready": {"alive": 0}}
# It notes that it was told, and goes on.
STUBBORN: Any = {"command": ["sh", "-c", "trap '>told' TERM; >begun; while :; do sleep 0.05; done"]}
STAGES: dict[str, Any] = {
    "waiting": {"commands": {"only": {"command": "true", "dependencies": ["db/sync"]}}},
    "bootstrapping": {"commands": {"only": {"command": "sleep 1000"}}},
    "ready": {"service": {"daemon": SLEEPS}},
}
RUNS = {"waiting": "sh", "bootstrapping": "sleep", "ready": "sleep"}


def start(containers: Containers, deployment: Deployment) -> Agent:
    """As Mesos does it; whoever ends the group ends `agent.pid`, the shell, and its children."""
    return containers.start(
        SERVICE,
        under=(*NOT_OURS, *STAYS),
        MARATHON_APP_ID=f"/{deployment.id}/{SERVICE}",
        MESOS_TASK_ID="site_infra_web.5d9f01a6-4a0a-11e6-8d52-70b3d5800001",
        HOST="agent7",
    )


@pytest.mark.parametrize("stage", STAGES)
def test_sigterm_to_the_shells_group_ends_all_of_it(
    deployment: Deployment, containers: Containers, zk: KazooClient, stage: str
) -> None:
    """Wherever the agent is, and with nothing left that Mesos would have to kill."""
    site = Site(deployment, zk, SERVICE)
    publish(deployment, SERVICE, STAGES[stage])
    agent = start(containers, deployment)
    eventually(
        lambda: agent.state.startswith(stage) and RUNS[stage] in agent.processes.values(),
        f"{stage}, and what it is about runs",
    )
    os.killpg(agent.pid, signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGTERM
    eventually(lambda: not agent.processes, "nothing of it is left")
    assert not site.members and not site.instances() and not site.instances("agent7")


@pytest.mark.parametrize("what", ["command", "daemon"])
def test_what_ignores_sigterm_ends_with_the_grace_period(
    deployment: Deployment, containers: Containers, zk: KazooClient, what: str
) -> None:
    """SIGKILL to the group: a command, whose group is another, goes with it; so does the instance."""
    site = Site(deployment, zk, SERVICE)
    stubborn = {"commands": {"only": {**STUBBORN, "stop_grace": 1000}}}
    if what == "daemon":
        stubborn = {"service": {"daemon": {**STUBBORN, "ready": {"alive": 0}}}}
    publish(deployment, SERVICE, stubborn)
    agent = start(containers, deployment)
    eventually((agent.directory / "begun").exists, "it has begun")
    if what == "daemon":
        site.await_instances(1)
    os.killpg(agent.pid, signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGTERM, "the shell does not wait for anybody"
    eventually((agent.directory / "told").exists, "it was told")
    assert agent.processes
    os.killpg(agent.pid, signal.SIGKILL)
    eventually(lambda: not agent.processes, "nothing of it is left")
    assert not site.instances(), "the registrar has closed its session"
