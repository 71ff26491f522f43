"""`kolla_mesos_ctl explain` of deployments whose real agents are stuck."""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.cli import parser
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live import causes
from kolla_mesos_start.ctl.live.mirror import mirror
from tests.conftest import Deployment
from tests.ctl.trees import definition, one_time
from tests.support.agents import Containers, restarted
from tests.support.instances import Site
from tests.support.large import fill
from tests.support.publishing import publish
from tests.support.tool import run_ctl, tool
from tests.support.waiting import eventually
from tests.support.zookeeper import free_port

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


def test_a_running_command_is_not_stuck(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Its container holds the lock, so it exists, even before it has written what it does."""
    publish(deployment, "tasks", {"commands": {"schema": {"command": "sleep 600", "run_once": True}}})
    agent = containers.start("tasks", "h1", KOLLA_ZK_SESSION_TIMEOUT="40")
    site = Site(deployment, zk, "tasks")
    eventually(lambda: site.state("schema") == "running", "the command runs")
    said = tool(deployment, "explain")
    assert said.startswith("running     tasks/schema has run on h1 for ")
    assert said.endswith("(attempt 1), and holds its lock\n")
    agent.end()
    found = json.loads(tool(deployment, "explain", "--format", "json", status=0))
    assert not found["stuck"], "its session has not expired yet: nobody may take the lock"


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


def test_a_missing_definition_is_named(deployment: Deployment, containers: Containers) -> None:
    """Never published, or removed. What depends on it has no cause of its own."""
    publish(deployment, "infra/db", SLEEP)
    publish(deployment, "web", definition({"members": "infra/bd"}))
    publish(deployment, "api", definition("db/daemon"))
    containers.start("web", "h1").says("waits")
    tool(deployment, "remove", "infra/db", "--yes", "--force")
    containers.start("api", "h2").says("waits")
    said = tool(deployment, "explain", status=1)
    assert "ROOT CAUSE  api/daemon needs db/daemon, but no service has the role 'db'; publish such" in said
    assert "restart the containers of api\n  blocks    api/daemon\n" in said
    assert "ROOT CAUSE  web/daemon: there is no service 'infra/bd'\n" in said
    assert "has no service 'infra/db'" in tool(deployment, "explain", "infra/db", status=66)


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (
            "python3 -m http.serverr",
            "ended 0 s after its start, before it was ready, 0 s ago; only its launcher knows its exit ",
        ),
        ("sleep {{ seconds }}", "ended 0 s ago in stage render, exit status 78: missing: seconds "),
    ],
)
def test_a_start_that_fails_again_and_again_is_always_the_cause(
    zk: KazooClient, deployment: Deployment, containers: Containers, command: str, cause: str
) -> None:
    """Also while the next start runs, and between two starts."""
    publish(deployment, "web", {"service": {"daemon": {"command": command}}})
    site = Site(deployment, zk, "web")
    with restarted(containers.start("web", "h1")):
        eventually(lambda: site.ended("h1"), "it has ended")
        said = [tool(deployment, "explain", status=1).splitlines()[0] for _ in range(10)]
    for line in said:
        assert re.sub(r"\d+ s|\d+\.\d s", "0 s", line).startswith(f"ROOT CAUSE  web/daemon on h1 {cause}")


def test_a_container_that_disappeared_must_be_started_again(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """It was killed, or ended because another process has its port."""
    port, hold = free_port(), containers.directory / "hold"
    serve = f"while [ -e {hold} ]; do sleep 0.05; done; exec python3 -m http.server {port} --bind 127.0.0.1"
    ready = {"tcp": port, "interval": 0.2}
    publish(deployment, "web", {"service": {"instances": 2, "daemon": {"command": serve, "ready": ready}}})
    publish(deployment, "db", SLEEP)
    publish(deployment, "api", definition("db/daemon", {"path": "web/daemon", "count": 2}))
    web = Site(deployment, zk, "web")
    db = containers.start("db", "h1")
    containers.start("web", "h1")
    web.await_instances(1)
    hold.touch()
    second = containers.start("web", "h2")
    # The server on h1 answers its check. Only the daemon of a container that was ready has "ended".
    eventually(lambda: web.instances("h2"), "the container on h2 is registered on its host")
    eventually(lambda: Site(deployment, zk, "db").instances("h1"), "db is registered on its host")
    hold.unlink()
    db.end()
    assert second.ends() == 1
    containers.start("api", "h3").says("waits")
    # What a registrar records of the end comes after the instance is gone.
    said = eventually(
        lambda: (
            said if (said := run_ctl(deployment, "explain").stdout).count("its daemon ended") == 2 else ""
        ),
        "both ends are recorded",
    )
    assert (
        re.sub(r"ended [^;]* ago", "ended 0 s ago", said)
        == """\
ROOT CAUSE  db/daemon on h1: its container is gone; its daemon ended 0 s ago; see its log, and start it again
  blocks    api/daemon
ROOT CAUSE  web/daemon on h2: its container is gone; its daemon ended 0 s ago; see its log, and start it again
  blocks    api/daemon
"""
    )


def test_a_command_between_two_attempts_is_stuck(deployment: Deployment, containers: Containers) -> None:
    """The result of the last attempt is shown."""
    failing = {"command": "exit 3", "run_once": True, "retries": 10, "delay": 60}
    publish(deployment, "tasks", {"commands": {"schema": failing}})
    publish(deployment, "api", definition("tasks/schema"))
    containers.start("api", "h2").says("waits")
    containers.start("tasks", "h1").says("next attempt")
    said = tool(deployment, "explain", status=1).splitlines()
    assert said[0].startswith("ROOT CAUSE  tasks/schema failed on h1 ")
    assert said[0].endswith(" s ago and is tried again: exit status 3")
    assert said[1:] == ["  blocks    api/daemon"]


def test_a_count_that_only_an_agent_knows_hides_no_cause(
    deployment: Deployment, containers: Containers
) -> None:
    """From the number of a group's members, or from a variable of single hosts."""
    publish(deployment, "db", SLEEP)
    count = {"path": "db/daemon", "count": "{{ groups['db'] | length }}"}
    ready = {"daemon": {"command": "sleep 600", "dependencies": [count], "ready": {"alive": "{{ wait }}"}}}
    publish(deployment, "web", {"service": ready}, host_variables={"h2": {"wait": "0.1"}})
    containers.start("db", "h1").says("ready")
    containers.start("web", "h2").says("ready")
    said = eventually(
        lambda: "up " in tool(deployment, "explain") and tool(deployment, "explain"), "all is up"
    )
    assert said == "up          db 1 of 1, web 1 of 1\n"


def test_a_start_whose_wait_timed_out_shows_its_dependency(
    deployment: Deployment, containers: Containers
) -> None:
    publish(deployment, "db", SLEEP)
    publish(deployment, "web", definition("db/daemon"))
    assert containers.start("web", "h2", KOLLA_WAIT_TIMEOUT="0.5").ends() == 75
    containers.start("db", "h1")
    tool(deployment, "wait", "db", "--timeout", "50")
    said = tool(deployment, "explain", status=1).splitlines()
    assert re.match(r"ROOT CAUSE  web/daemon on h2 ended \d+ s ago in stage wait, exit status 75: ", said[0])
    assert said[0].endswith(": waited 1 s for db/daemon (0 of 1 instances ready)")
    assert said[1:] == ["up          db 1 of 1"]


def test_an_unknown_service_suggests_the_nearest(deployment: Deployment) -> None:
    publish(deployment, "infra/redis", SLEEP)
    assert "did you mean 'redis'" in tool(deployment, "explain", "reddis", status=66)


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
