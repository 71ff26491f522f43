"""`kolla_mesos_ctl explain` of deployments whose real agents are stuck."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

from kazoo.client import KazooClient

from kolla_mesos_start.ctl.cli import parser
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live import causes
from kolla_mesos_start.ctl.live.mirror import mirror
from tests.conftest import Deployment
from tests.ctl.trees import definition, one_time
from tests.support.agents import Containers
from tests.support.instances import Site
from tests.support.large import fill
from tests.support.publishing import publish
from tests.support.tool import tool
from tests.support.waiting import eventually

SLEEP = {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0.1}}}}


def test_a_failed_command_blocks_the_steps_that_wait_for_it(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """With place, time, number of attempts, and reason."""
    failing = {"command": "false", "run_once": True, "retries": 1, "delay": 0}
    publish(deployment, "a/tasks", {"commands": {"schema": failing}})
    publish(deployment, "a/api", definition("tasks/schema"))
    publish(deployment, "a/db", SLEEP)
    containers.start("a/api", "h2").says("waits")
    containers.start("a/db", "h2")
    Site(deployment, zk, "a/db").await_instances(1)
    assert containers.start("a/tasks", "h1").ends() == 1
    said = tool(deployment, "explain", status=1).splitlines()
    assert said[0].startswith("ROOT CAUSE  tasks/schema failed on h1 ")
    assert said[0].endswith(
        "s ago: exit status 1 (2 attempts so far); see the log of a/tasks there, correct the cause, and start"
        " it again"
    )
    assert said[1:] == ["  blocks    api/daemon", "up          db 1 of 1"]
    assert tool(deployment, "explain", "db") == "up          db 1 of 1\n"


def test_the_reason_that_an_agent_writes_is_the_cause(deployment: Deployment, containers: Containers) -> None:
    """A failing check, or a start that ended early; a container that only waits has no cause."""
    check = {"command": "exit 69", "interval": 0.2}
    publish(deployment, "rabbitmq", {"service": {"daemon": {"command": "sleep 600", "ready": check}}})
    publish(deployment, "tasks", {"commands": {"user": one_time("rabbitmq/daemon")}})
    publish(deployment, "web", {"service": {"daemon": {"command": "/no/such/program"}}})
    containers.start("rabbitmq", "rab1")
    containers.start("tasks", "h2").says("waits")
    assert containers.start("web", "h3").ends() == 127

    def said() -> str:
        shown = tool(deployment, "explain", status=1)
        return shown if "not ready" in shown else ""

    lines = eventually(said, "the check fails for long enough").splitlines()
    assert re.match(
        r"ROOT CAUSE  rabbitmq/daemon on rab1 is not ready for [^:]+: check command: exit status 69; ",
        lines[0],
    )
    assert lines[1] == "  blocks    tasks/user"
    assert re.match(r"ROOT CAUSE  web/daemon on h3 ended .* in stage exec, exit status 127: ", lines[2])
    assert len(lines) == 3


def test_a_thousand_containers_are_explained_in_a_second(zk: KazooClient, deployment: Deployment) -> None:
    """The time to connect does not count; the limit is higher for a busy machine."""
    fill(zk, deployment)
    where = ["--deployment", deployment.id, "--prefix", deployment.prefix, "--hosts", deployment.hosts]
    with ExitStack() as stack:
        source = mirror(Invocation(parser().parse_args(["explain", *where]), {}, stack))
        begun = time.monotonic(), time.process_time()
        found = causes.find(source.deployment(), time.time())
        wall, cpu = time.monotonic() - begun[0], time.process_time() - begun[1]
    assert [cause.kind for cause in found] == ["not ready"] * 10
    print(f"explaining 1000 containers: {wall:.2f} s, {cpu:.2f} s of CPU")
    assert cpu < 3
