"""`kolla_mesos_ctl status` against a real ZooKeeper and real agents."""

from __future__ import annotations

import json
import os
import sys
import time

from kazoo.client import KazooClient
from kazoo.security import make_acl

from tests.conftest import Deployment
from tests.ctl.trees import container, definition
from tests.support.agents import Containers
from tests.support.instances import INSTANCE_DATA
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.terminal import Terminal
from tests.support.tool import TOOL, environ, run_ctl, tool
from tests.support.waiting import eventually

SLEEP = {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0.1}}}}


def tell(zk: KazooClient, deployment: Deployment, service: str, each: str, **said: object) -> None:
    """Write what a container says of itself."""
    path = f"{deployment.path}/{service}/.containers/{each}"
    data = json.dumps(container(**{"state": "waiting", "since": time.time(), **said})).encode()  # type: ignore[arg-type]
    if zk.exists(path):
        zk.set(path, data)
    else:
        zk.create(path, data, ephemeral=True, makepath=True)


def test_the_status_of_real_agents(deployment: Deployment, containers: Containers) -> None:
    """Ready, waiting, and never started; the exit status is 0 only if all are up."""
    publish(deployment, "a/db", SLEEP)
    publish(deployment, "a/web", definition("other/daemon"))
    publish(deployment, "a/job", {"commands": {"once": {"command": "true", "run_once": True}}})
    containers.start("a/db", "h1")
    containers.start("a/web", "h2").says("waits")
    eventually(lambda: run_ctl(deployment, "status", "a/db").returncode == 0, "db is up")
    assert "1 of 1 ready" in tool(deployment, "status", "a/db")
    said = tool(deployment, "status", status=1)
    assert "site: 1 of 3 services up" in said
    assert "site on h1: 1 of 1 services up" in tool(deployment, "status", "--host", "h1")
    assert "a/db" not in tool(deployment, "status", "--host", "h2", status=1)
    assert "no container is on h22 (did you mean 'h2'" in tool(
        deployment, "status", "--host", "h22", status=66
    )
    assert "no container was ever started" in said
    assert containers.start("a/job", "h1").ends() == 0
    found = json.loads(tool(deployment, "status", "--format", "json", status=1))
    assert {each["name"]: each["up"] for each in found["services"]} == {
        "a/db": True,
        "a/web": False,
        "a/job": True,
    }


def test_a_container_shows_what_it_does_and_what_it_runs(zk: KazooClient, deployment: Deployment) -> None:
    publish(deployment, "a/web", definition())
    old = zk.exists(f"{deployment.path}/a/web").mzxid
    publish(deployment, "a/web", definition(instances=2))
    tell(
        zk,
        deployment,
        "a/web",
        "1",
        state="starting",
        command="web/daemon",
        reason="tcp 80: refused",
        definition=f"{old:x}",
        generation="2026.1",
        since=time.time() - 3900,
    )
    line = tool(deployment, "status", "web", status=1).splitlines()[3]
    assert line.split(maxsplit=6) == [
        *("web1", "starting", "1", "h", "5", "min"),
        "2026.1, older definition (restart it)  web/daemon: tcp 80: refused",
    ]
    found = json.loads(tool(deployment, "status", "web", "--format", "json", status=1))["services"][0]
    assert found["definition"] != found["containers"][0]["definition"] == f"{old:x}"


def test_an_unknown_service_suggests_the_nearest(deployment: Deployment) -> None:
    publish(deployment, "infra/rabbitmq", SLEEP)
    assert "did you mean 'rabbitmq'" in tool(deployment, "status", "rabitmq", status=66)
    said = tool(deployment, "status", "--deployment", "sit", status=66)
    assert "did you mean 'site'" in said


def test_status_needs_only_the_right_to_read(zk: KazooClient, deployment: Deployment) -> None:
    """The message names the znode that can't be read."""
    publish(deployment, "web", SLEEP)
    path = f"{deployment.path}/web"
    zk.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    assert "no container" in tool(deployment, "status", status=1)
    zk.set_acls(path, [make_acl("world", "anyone", admin=True)])
    assert f"{path} can't be read" in tool(deployment, "status", status=77)
    zk.set_acls(path, [make_acl("world", "anyone", all=True)])


def watching(deployment: Deployment, *words: str) -> Terminal:
    """`status --watch` on a terminal of 24 lines."""
    screen = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    return Terminal((sys.executable, str(TOOL), "status", "--watch", *words), environ(deployment, **screen))


def test_a_change_is_on_the_screen_at_once(zk: KazooClient, deployment: Deployment) -> None:
    """A container's text, a new container, one that ended."""
    publish(deployment, "a/web", definition())
    ready = f"{deployment.path}/status/global/web/daemon/ready/1"
    with watching(deployment) as terminal:
        terminal.shows("was ever started")
        begun = time.time()
        tell(zk, deployment, "a/web", "1", reason="for what is first")
        terminal.shows("for what is first")
        assert time.time() - begun < 2.5  # measured: 0.2 s
        zk.create(ready, INSTANCE_DATA, ephemeral=True, makepath=True)
        terminal.shows("1 of 1 ready")
        zk.delete(ready)
        terminal.shows("0 of 1 ready")
        zk.delete(f"{deployment.path}/a/web/.containers/1")
        terminal.shows("all its containers are gone")
        terminal.types("\x03")
        assert os.waitstatus_to_exitcode(terminal.ends()) == 130
        assert "stopped by SIGINT" in terminal.screen


def test_watching_continues_after_an_outage(zk: KazooClient, deployment: Deployment, link: Link) -> None:
    """During which Ctrl-C ends it at once."""
    publish(deployment, "a/web", definition())
    with watching(deployment, "--hosts", link.hosts) as terminal:
        terminal.shows("was ever started")
        link.kill()
        terminal.shows("lost the connection")
        link.launch()
        zk.ensure_path(f"{deployment.path}/b/variables")
        terminal.shows("no definition")
        link.kill()
        terminal.shows("lost the connection")
        begun = time.time()
        terminal.types("\x03")
        assert os.waitstatus_to_exitcode(terminal.ends()) == 130
        assert time.time() - begun < 5
    link.launch()


def test_watching_a_host_continues_without_a_container(zk: KazooClient, deployment: Deployment) -> None:
    """The only one there may be restarting."""
    publish(deployment, "a/web", definition())
    tell(zk, deployment, "a/web", "1", reason="for what is first")
    with watching(deployment, "--host", "web1") as terminal:
        terminal.shows("for what is first")
        zk.delete(f"{deployment.path}/a/web/.containers/1")
        terminal.shows("site on web1: there is no container now")
        tell(zk, deployment, "a/web", "2", reason="for what is next")
        terminal.shows("for what is next")
        terminal.types("\x03")
        assert os.waitstatus_to_exitcode(terminal.ends()) == 130


def test_watching_a_missing_deployment_ends_at_once(deployment: Deployment) -> None:
    """Its name may be mistyped. It needs a terminal."""
    with watching(deployment, "--deployment", "sit") as terminal:
        assert os.waitstatus_to_exitcode(terminal.ends()) == 66
        assert "did you mean 'site'" in terminal.screen
    assert "--watch needs a terminal" in tool(deployment, "status", "--watch", status=64)
