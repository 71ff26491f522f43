"""What a container tells everybody of what it is doing, in its znode of `.containers`, from start to end."""

from __future__ import annotations

import re
import sys
import time
from typing import Any, Callable

import psutil
import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.counting import Line, summary
from tests.support.instances import INSTANCE_DATA, Site
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tool import tool_says
from tests.support.waiting import eventually
from tests.support.zookeeper import Server, free_port

SERVICE = "shop/api"
SHORT_SESSION = {"KOLLA_ZK_SESSION_TIMEOUT": "2"}
SECRET = "correct-horse"
MODES = ["exec", "supervise"]
UNREADY = {"command": "test -e healthy || exit 69", "fall": 1, "interval": 0.1}
DAEMON = {"service": {"daemon": {"command": "sleep 1000", "ready": UNREADY}}}


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient) -> Site:
    return Site(deployment, zk, SERVICE)


def told(site: Site, **expected: str | None) -> dict[str, Any]:
    """Wait until the one container there is tells this; all that it tells then."""

    def tells() -> dict[str, Any]:
        seen.append(site.containers)
        (container,) = list(seen[-1].values()) or [{}]
        return container if expected.items() <= container.items() else {}

    seen: list[dict[str, dict[str, Any]]] = []
    try:
        return eventually(tells, f"it tells {expected}")
    finally:
        print(f"last seen: {seen[-1]}")


def passes(since: str) -> None:
    """Wait until it is another second than that one."""
    eventually(lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > since, f"{since} passes")


def test_a_waiting_container_shows_its_dependency_and_since_when(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """With its host, definition and generation."""
    once = {"command": "true", "run_once": True, "dependencies": ["db/daemon"]}
    publish(deployment, SERVICE, {"commands": {"schema": once}, **DAEMON})
    containers.start(SERVICE, KOLLA_GENERATION="2026.1")
    container = told(site, state="waiting", command="api/schema")
    assert container["reason"] == "api/schema waits for db/daemon: 0 of 1 instances ready"
    assert (container["host"], container["generation"]) == ("web1", "2026.1")
    definition = zk.exists(f"{deployment.path}/{SERVICE}")
    assert int(container["definition"], 16) == definition.mzxid
    assert list(site.containers) == list(site.members), "by the same id"
    passes(container["since"])
    ready = f"{deployment.path}/status/global/db/daemon/ready/1"
    zk.create(ready, INSTANCE_DATA, ephemeral=True, makepath=True)
    later = told(site, state="starting", command="api/daemon")
    assert later["since"] > container["since"]


def test_a_task_shows_the_name_of_its_command(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Never its text, output or variables."""
    command = {"command": f"echo {SECRET}-output; sleep 1000 # {SECRET}", "env": {"PASSWORD": SECRET}}
    publish(deployment, SERVICE, {"commands": {"job": command}})
    agent = containers.start(SERVICE)
    container = told(site, state="bootstrapping", command="api/job")
    assert container["generation"] is None
    assert SECRET not in str(container)
    agent.signal(15)
    assert agent.ends() == 143
    assert site.containers == {}


def test_a_task_without_a_state_directory_has_an_id(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Without a warning: tasks are not counted."""
    publish(deployment, SERVICE, {"commands": {"job": {"command": "sleep 1000"}}})
    agent = containers.start(SERVICE, KOLLA_STATE_DIR="/proc/nowhere")
    told(site, state="bootstrapping")
    assert " WARNING " not in agent.said


def test_several_waiting_commands_share_one_reason(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    commands = {name: {"command": "true", "dependencies": [f"{name}/daemon"]} for name in ("db", "mq")}
    publish(deployment, SERVICE, {"commands": commands})
    containers.start(SERVICE)
    container = told(site, state="waiting", command=None)
    assert "api/db waits for db/daemon" in container["reason"]
    assert "api/mq waits for mq/daemon" in container["reason"]


def test_a_new_session_shows_the_same_again(
    deployment: Deployment, containers: Containers, zk: KazooClient, link: Link, site: Site
) -> None:
    """Of a waiting container and of a daemon; also after somebody has deleted the znode."""
    publish(deployment, SERVICE, DAEMON)
    waits = Site(deployment, zk, "shop/waits")
    publish(
        deployment, "shop/waits", {"commands": {"go": {"command": "true", "dependencies": ["db/daemon"]}}}
    )
    for service in (SERVICE, "shop/waits"):
        containers.start(service, KOLLA_ZK_HOSTS=link.hosts, **SHORT_SESSION)
    told(site, state="starting", reason="check command: exit status 69")
    told(waits, state="waiting")
    before = site.containers, waits.containers
    link.kill()
    eventually(lambda: not site.containers and not waits.containers, "both sessions expire")
    link.launch()
    told(site, state="starting", reason="check command: exit status 69")
    told(waits, state="waiting")
    assert (site.containers, waits.containers) == before, "since when is as before"
    for each in (site, waits):
        (name,) = each.containers
        zk.delete(f"{each.containers_path}/{name}")
    told(site, state="starting")
    told(waits, state="waiting")


def test_frequent_changes_are_written_once_a_second(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """The latest one wins."""
    publish(
        deployment,
        SERVICE,
        {"commands": {"go": {"command": "true", "dependencies": [{"path": "db/daemon", "count": 100}]}}},
    )
    ready = f"{deployment.path}/status/global/db/daemon/ready"
    zk.ensure_path(ready)
    containers.start(SERVICE)
    told(site, state="waiting")
    begun = time.monotonic()
    for number in range(60):
        zk.create(f"{ready}/{number}", INSTANCE_DATA, ephemeral=True)
        time.sleep(0.05)
    told(site, reason="api/go waits for db/daemon: 60 of 100 instances ready")
    (name,) = site.containers
    versions = zk.exists(f"{site.containers_path}/{name}").version
    assert 2 <= versions <= 1 + time.monotonic() - begun


def test_showing_its_stage_costs_a_start_few_requests(
    zookeeper: Server, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """At most four for a start that takes over a second; a shorter one leaves it to the registrar."""
    publish(
        deployment,
        SERVICE,
        {"commands": {"go": {"command": "sleep 1.5"}}, "service": {"daemon": {"command": "sleep 1000"}}},
    )
    line = Line(zookeeper)
    containers.start(SERVICE, KOLLA_ZK_HOSTS=line.hosts)
    told(site, state="starting")
    agent, registrar = line.connections[:2]
    line.close()
    about = [request for request in agent + registrar if ".containers" in request.path]
    print(summary(about))
    assert len([request for request in agent if ".containers/" in request.path]) <= 4


@pytest.mark.parametrize("image", ["2025.2", None])
def test_an_instance_shows_the_generation_of_its_image(
    deployment: Deployment, containers: Containers, site: Site, image: str | None
) -> None:
    """Not that of the definition, which may be for another image."""
    environ = {} if image is None else {"KOLLA_GENERATION": image}
    once = {"command": "true", "run_once": True, "generation": "2025.2"}
    daemon = {"command": "sleep 1000", "ready": {"alive": 0}}
    publish(deployment, SERVICE, {"commands": {"step": once}, "service": {"daemon": daemon}})
    containers.start(SERVICE, **environ)
    (instance,) = site.await_instances(1).values()
    assert instance["generation"] == image
    assert told(site, state="ready")["generation"] == image


@pytest.mark.parametrize("mode", MODES)
def test_a_ready_instance_never_exists_before_the_znode_of_its_container(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """That says which generation it runs. The server numbers its changes in their order."""
    publish(deployment, SERVICE, {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}})
    for count in (1, 2, 3):
        containers.start(SERVICE, f"h{count}", KOLLA_START_MODE=mode)
        instances = site.await_instances(count)
    for each in instances:
        container, instance = f"{site.containers_path}/{each}", f"{site.daemon()}/ready/{each}"
        found = eventually(lambda path=container: zk.exists(path), f"{container} exists")  # type: ignore[misc]
        assert found.czxid < zk.exists(instance).czxid


# -- how a start ended --------------------------------------------------------------------------------

FILES = {"conf": {"dest": "{{ dest }}"}}
TWO = {
    "commands": {
        "one": {"command": "test -e one", "files": FILES},
        "two": {"command": "test -e two", "dependencies": ["api/one"]},
    },
    "service": {"daemon": {"command": ["{{ daemon }}", "1000"], "dependencies": ["api/two"]}},
}
# What an operator mends, one start after the other: each start gets past what ended the one before.
CAUSES = [
    ("one", "render", 78),
    ("one", "bootstrap", 1),
    ("two", "bootstrap", 1),
    ("daemon", "render", 78),
    ("daemon", "exec", 127),
]


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_start_is_shown_until_a_start_gets_further(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """The last line and its time, whether a command had begun or not."""
    publish(deployment, SERVICE, TWO, files={"conf": "text"})
    agent = containers.start(SERVICE, KOLLA_START_MODE=mode)
    variables = f"{deployment.path}/{SERVICE}/variables"
    mends: list[Callable[[], object]] = [
        lambda: zk.create(f"{variables}/dest", str(agent.directory / "conf").encode(), makepath=True),
        (agent.directory / "one").touch,
        (agent.directory / "two").touch,
        lambda: zk.create(f"{variables}/daemon", b"slepp"),
        lambda: zk.set(f"{variables}/daemon", b"sleep"),
    ]
    for (command, stage, status), mend in zip(CAUSES, mends):
        assert agent.ends() == status
        ended = site.ended()
        assert ended.pop("when") <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        assert ended == agent.ending
        assert (ended["command"], ended["stage"]) == (f"api/{command}", stage)
        mend()
        agent.restart()
    eventually(lambda: not site.ended(), "the daemon runs")
    assert agent.running


def test_a_start_that_waits_before_that_point_keeps_the_record(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """So does one that is stopped."""
    definition = {"commands": {"go": {"command": "test -e mended"}}}
    publish(deployment, SERVICE, definition)
    agent = containers.start(SERVICE)
    assert agent.ends() == 1
    before = site.ended()
    assert before["reason"] == "exit status 1"
    publish(deployment, SERVICE, {"commands": {"go": {"command": "true", "dependencies": ["db/daemon"]}}})
    agent.restart()
    told(site, state="waiting")
    agent.signal(15)
    assert agent.ends() == 143
    assert site.ended() == before
    publish(deployment, SERVICE, {"commands": {"other": {"command": "true"}}})
    agent.restart()
    assert agent.ends() == 0
    assert site.ended() == {}, "the end of a task is past everything"


def test_a_bad_definition_is_recorded(
    zk: KazooClient, deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Also before the service has a status; the next good definition removes the record."""
    definition = f"{deployment.path}/{SERVICE}"
    zk.create(definition, b"{", makepath=True)
    agent = containers.start(SERVICE)
    assert agent.ends() == 65
    assert (site.ended()["status"], site.ended()["stage"]) == (65, "read")
    publish(deployment, SERVICE, {"commands": {"go": {"command": "true", "dependencies": ["db/daemon"]}}})
    agent.restart()
    told(site, state="waiting")
    assert site.ended() == {}


def test_an_unpublished_service_creates_no_znodes(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Its name may be a mistake."""
    agent = containers.start("shop/ipa", KOLLA_WAIT_TIMEOUT="0.1")
    assert agent.ends() == 75
    assert zk.get_children(deployment.path) == []


ENDS_EARLY = "test -e mended && exec sleep 1000; exit 3"


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_that_ended_before_ready_is_shown_until_one_is_ready(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """Starting is not enough. Only its parent knows its exit status."""
    publish(deployment, SERVICE, {"service": {"daemon": {"command": ENDS_EARLY, "ready": UNREADY}}})
    agent = containers.start(SERVICE, KOLLA_START_MODE=mode)
    assert agent.ends() == 3
    ended = eventually(site.ended, "it is told")
    assert ended.pop("when") <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assert re.fullmatch(r"ended \d+\.\d s after its start, before it was ready", ended.pop("reason"))
    status = 3 if mode == "supervise" else None
    assert ended.pop("code") == "never-ready"
    assert ("before it was ready; exit status 3\n" in agent.said) == (mode == "supervise")
    assert ended == {"stage": "daemon", "command": "api/daemon", "retriable": True, "status": status}
    agent.restart()
    assert agent.ends() == 3
    tool_says(deployment, "; 2 starts in a row have failed there", "explain", status=1)
    (agent.directory / "mended").touch()
    agent.restart()
    told(site, state="starting", reason="check command: exit status 69")
    assert site.ended()
    (agent.directory / "healthy").touch()
    eventually(lambda: not site.ended(), "the daemon is ready")
    agent.signal(15)
    agent.ends()
    eventually(lambda: not site.containers, "its registrar has ended")
    assert site.ended() == {}


@pytest.mark.parametrize("mode", MODES)
def test_stopping_a_daemon_while_it_starts_is_no_failure(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """A registrar that is not its parent records only that it ended before it was ready."""
    publish(deployment, SERVICE, DAEMON)
    agent = containers.start(SERVICE, KOLLA_START_MODE=mode)
    told(site, state="starting")
    agent.signal(15)
    agent.ends()
    eventually(lambda: not site.containers, "its registrar has ended")
    assert bool(site.ended()) == (mode == "exec")


# -- the daemon's states ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_is_running_only_while_one_replica_runs(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    publish(deployment, SERVICE, {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}})
    agents = {host: containers.start(SERVICE, host, KOLLA_START_MODE=mode) for host in ("web1", "web2")}
    site.await_instances(2)
    for host in ("global", *agents):
        eventually(lambda host=host: site.state(scope=host) == "running", host)  # type: ignore[misc]
    agents["web1"].signal(9 if mode == "exec" else 15)
    agents["web1"].ends()
    eventually(lambda: site.state(scope="web1") == "waiting", "it ran on this host alone")
    site.await_instances(1)
    assert site.state() == site.state(scope="web2") == "running"
    agents["web2"].signal(15)
    agents["web2"].ends()
    eventually(lambda: site.state() == site.state(scope="web2") == "waiting", "it runs nowhere")


# -- two that want one port ---------------------------------------------------------------------------

LISTENS = """
import socket, sys, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(0 if "dies" in sys.argv else 1000)
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_port_in_use_differs_from_a_daemon_that_died(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """The second replica cannot listen, and the first would answer its check."""
    port = free_port()
    command = [sys.executable, "-c", LISTENS, f"{port}"]
    daemon = {"command": command, "ready": {"tcp": port}}
    publish(deployment, SERVICE, {"service": {"daemon": daemon}})
    first = containers.start(SERVICE, KOLLA_START_MODE=mode)
    site.await_instances(1)
    second = containers.start(SERVICE, KOLLA_START_MODE=mode)
    second.says("another process answers its tcp check")
    assert second.ends() == 1
    first.signal(9)
    first.ends()
    publish(deployment, SERVICE, {"service": {"daemon": {**daemon, "command": [*command, "dies"]}}})
    third = containers.start(SERVICE, KOLLA_START_MODE=mode)
    assert third.ends() == 0
    eventually(lambda: not third.registrar, "its registrar has ended")
    assert "another process answers" not in third.said + first.said


# -- mistakes in the environment ----------------------------------------------------------------------


def test_an_unknown_variable_of_the_agent_causes_a_warning(
    deployment: Deployment, containers: Containers
) -> None:
    """Its value is not in the log."""
    publish(deployment, SERVICE, {"commands": {"go": {"command": "true"}}})
    agent = containers.start(SERVICE, KOLLA_HOST_NAME=SECRET, KOLLA_BOOTSTRAP="", KOLLA_BASE_DISTRO="debian")
    assert agent.ends() == 0
    (warning,) = [line for line in agent.said.splitlines() if " WARNING " in line]
    assert "'KOLLA_HOST_NAME' is no variable of the agent; nearest is 'KOLLA_HOSTNAME'" in warning
    assert SECRET not in agent.said


# -- on the machine itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_ps_shows_the_service_of_a_guard_and_a_registrar(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """A host has many of them, and all are Python processes."""
    publish(
        deployment,
        SERVICE,
        {"commands": {"go": {"command": "touch going; sleep 1000"}}, "service": {"daemon": {"command": "x"}}},
    )
    guarded = containers.start(SERVICE)
    eventually((guarded.directory / "going").exists, "its command runs")
    children = psutil.Process(guarded.pid).children()
    assert "guard of shop/api" in [word for child in children for word in child.cmdline()]
    publish(deployment, SERVICE, {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}})
    agent = containers.start(SERVICE, KOLLA_START_MODE=mode)
    site.await_instances(1)
    assert "registrar of shop/api" in psutil.Process(agent.registrar or agent.pid).cmdline()
