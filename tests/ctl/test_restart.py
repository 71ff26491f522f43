"""`kolla_mesos_ctl restart`, with real agents."""

from __future__ import annotations

from typing import Any

from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.publishing import publish
from tests.support.tool import tool, tool_says

SERVICE = "openstack/web"
DAEMON = "echo $$ >>starts; exec sleep 600"


def published(deployment: Deployment, **daemon: Any) -> None:
    whole = {
        "command": ["sh", "-c", DAEMON],
        "ready": {"alive": 0},
        "on_change": {"restart": True},
        "width": 1,
        "files": {"web.conf": {"dest": "{{ directory }}/web.conf"}},
    }
    publish(
        deployment,
        SERVICE,
        {"service": {"instances": 2, "daemon": {**whole, **daemon}}},
        files={"web.conf": "x"},
    )


def start(deployment: Deployment, containers: Containers, host: str, **environ: str) -> Agent:
    """A ready container."""
    directory = containers.directory / f"{len(containers._agents)}-{host}"
    tool(deployment, "set", "directory", str(directory), "--service", SERVICE, "--host", host)
    agent = containers.start(SERVICE, host, **{"KOLLA_START_MODE": "supervise", **environ})
    agent.says("the daemon is ready")
    return agent


def starts(agent: Agent) -> list[str]:
    return (agent.directory / "starts").read_text().split()


def test_each_daemon_is_restarted_once_one_after_the_other(
    deployment: Deployment, containers: Containers
) -> None:
    """The containers stay, and `wait` ends when both are ready again."""
    published(deployment)
    agents = [start(deployment, containers, host) for host in ("h1", "h2")]
    tool(deployment, "wait", "--timeout", "50")
    said = tool(deployment, "restart", "web")
    assert "web/daemon restarts on h1, h2, at most 1 at a time\n" in said
    tool(deployment, "wait", "--timeout", "50")
    assert [len(starts(agent)) for agent in agents] == [2, 2]
    assert all(agent.running for agent in agents)
    tool(deployment, "restart", "web", "--host", "h2")
    tool(deployment, "wait", "--timeout", "50")
    assert [len(starts(agent)) for agent in agents] == [2, 3]
    said = tool(deployment, "events", "web")
    assert "restart openstack/web/variables/h2/restarted\n" in said


def test_what_cannot_restart_itself_is_named_with_the_command_of_its_launcher(
    deployment: Deployment, containers: Containers
) -> None:
    published(deployment, on_change={"signal": "HUP"})
    start(deployment, containers, "h1", KOLLA_LOGS="journalctl --unit site_web")
    tool_says(deployment, "h1", "status", status=1)
    said = tool(deployment, "restart", "web", status=1)
    assert "openstack/web on h1 does not restart: its definition has no on_change: {restart: true}" in said
    assert "restart its container on h1: systemctl restart site_web" in said
    assert "no container of openstack/web exists on h9" in tool(
        deployment, "restart", "web", "--host", "h9", status=66
    )
