"""`kolla_mesos_ctl status` against a real ZooKeeper and real agents."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from errno import EIO
from fcntl import ioctl
from struct import pack
from termios import TIOCSWINSZ

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from kolla_mesos_start.ctl.cli import parser
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live.mirror import mirror
from tests.conftest import Deployment
from tests.ctl.trees import container, definition
from tests.support.agents import Containers, restarted
from tests.support.instances import INSTANCE_DATA, Site
from tests.support.large import fill
from tests.support.publishing import publish
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


def test_a_start_that_fails_again_and_again_is_always_shown(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Beside the next start, if one is running."""
    publish(deployment, "web", {"service": {"daemon": {"command": "python3 -m http.serverr"}}})
    site = Site(deployment, zk, "web")
    with restarted(containers.start("web", "h1")):
        eventually(lambda: site.ended("h1"), "it has ended")
        for _ in range(5):
            lines = tool(deployment, "status", status=1).splitlines()
            (row,) = [line for line in lines if line.startswith("  h1  ended ")]
            assert re.search(
                r" web/daemon ended \d+\.\d s after its start, before it was ready; only its launcher knows",
                row,
            )


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


class Screen:
    """The tool on a terminal of its own; `shown` is all that was drawn."""

    def __init__(self, deployment: Deployment, *words: str, lines: int = 24, columns: int = 80) -> None:
        self.ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, TOOL, *words],
            env={**environ(deployment), "TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self.ours, False)
        self.shown = ""

    def shows(self, words: str) -> float:
        """Wait until something is drawn that contains `words`; returns when. Fails if the tool ends first."""

        def look() -> bool:
            with suppress(BlockingIOError):
                try:
                    self.shown += os.read(self.ours, 1 << 20).decode(errors="replace")
                except OSError as error:
                    if (
                        error.errno != EIO
                    ):  # All is read that a program wrote to its terminal before it ended.
                        raise
                    assert words in self.shown, f"exit status {self.process.wait(60)}: {self.shown!r}"
            return words in self.shown

        eventually(look, f"{words!r} on the screen", every=0.005)
        self.shown = ""
        return time.time()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def test_a_change_is_on_the_screen_at_once(zk: KazooClient, deployment: Deployment) -> None:
    """A container's text, a new container, one that ended; also after an outage."""
    publish(deployment, "a/web", definition())
    screen = Screen(deployment, "status", "--watch")
    try:
        screen.shows("was ever started")
        tell(zk, deployment, "a/web", "1", reason="for what is first")
        delays = []
        for number in range(5):
            begun = time.time()
            tell(zk, deployment, "a/web", "1", reason=f"number {number}")
            delays.append(screen.shows(f"number {number}") - begun)
        zk.create(
            f"{deployment.path}/status/global/web/daemon/ready/1",
            INSTANCE_DATA,
            ephemeral=True,
            makepath=True,
        )
        screen.shows("1 of 1 ready")
        zk.delete(f"{deployment.path}/status/global/web/daemon/ready/1")
        screen.shows("0 of 1 ready")
        zk.delete(f"{deployment.path}/a/web/.containers/1")
        screen.shows("all its containers are gone")
        screen.process.send_signal(signal.SIGINT)
        screen.shows("stopped by SIGINT")
        assert screen.process.wait(60) == 130
    finally:
        screen.close()
    print(f"change to screen: {sorted(delays)}")
    assert sorted(delays)[2] < 2.5  # measured: 0.2 s


def test_watching_continues_after_an_outage(
    zk: KazooClient, deployment: Deployment, zookeeper: object
) -> None:
    publish(deployment, "a/web", definition())
    screen = Screen(deployment, "status", "--watch")
    try:
        screen.shows("was ever started")
        zookeeper.kill()  # type: ignore[attr-defined]
        screen.shows("lost the connection")
        zookeeper.start()  # type: ignore[attr-defined]
        zk.retry(zk.ensure_path, f"{deployment.path}/b/variables")
        screen.shows("no definition")
    finally:
        screen.close()


def test_watching_a_missing_deployment_ends_at_once(deployment: Deployment) -> None:
    """Its name may be mistyped."""
    screen = Screen(deployment, "status", "--watch", "--deployment", "sit")
    try:
        screen.shows("did you mean 'site'")
        assert screen.process.wait(60) == 66
        with pytest.raises(AssertionError, match="exit status 66"):
            screen.shows("services up")
    finally:
        screen.close()


def test_watching_needs_a_terminal(deployment: Deployment) -> None:
    assert "--watch needs a terminal" in tool(deployment, "status", "--watch", status=64)


@pytest.mark.parametrize(("lines", "columns"), [(24, 80), (60, 80), (50, 200)])
def test_a_thousand_containers_fit_the_screen(
    zk: KazooClient, deployment: Deployment, lines: int, columns: int
) -> None:
    """Services that are not up come first."""
    fill(zk, deployment)
    screen = Screen(deployment, "status", "--watch", lines=lines, columns=columns)
    try:
        screen.shows("site: 20 of 100 services up")
    finally:
        screen.close()


def test_a_thousand_containers_are_read_in_a_second(
    zk: KazooClient, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time to connect does not count; the limit is higher for a busy machine."""
    fill(zk, deployment)
    where = ["--deployment", deployment.id, "--prefix", deployment.prefix, "--hosts", deployment.hosts]
    with ExitStack() as stack:
        invocation = Invocation(parser().parse_args(["status", *where]), {}, stack)
        source = mirror(invocation)
        times = []
        begun = time.monotonic(), time.process_time()
        found = source.deployment()
        times = [time.monotonic() - begun[0], time.process_time() - begun[1]]
    assert sum(len(each.containers) for each in found.services.values()) == 1000
    print(f"reading 1000 containers: {times[0]:.2f} s, {times[1]:.2f} s of CPU")
    assert times[1] < 15
