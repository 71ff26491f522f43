"""The registrar beside a daemon: what it keeps registered, what it refuses, and what it survives."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from tests.agent.test_presence import (
    NOTIFY,
    OBEDIENT,
    SERVICE,
    SHORT_SESSION,
    SLEEPS,
    publish_daemon,
    sessions,
    tell,
)
from tests.agent.test_presence import site as site
from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.guarded import lives
from tests.support.instances import Site
from tests.support.link import Link
from tests.support.waiting import eventually
from tests.support.zookeeper import Server


@pytest.fixture
def start(deployment: Deployment, containers: Containers, site: Site) -> Callable[..., Agent]:
    """Starts a daemon that sleeps, and waits until it is ready and knows its instance."""

    def start(**environ: str) -> Agent:
        publish_daemon(deployment)
        agent = containers.start(SERVICE, **environ)
        site.await_instances(1)
        eventually(lambda: site.state() == "running", "it has registered everything")
        return agent

    return start


def test_a_check_that_hangs_ends_with_the_daemon(deployment: Deployment, containers: Containers) -> None:
    script = "echo $$ >pid.new; mv pid.new pid; exec sleep 300"
    publish_daemon(deployment, SLEEPS, {"command": ["sh", "-c", script], "timeout": 300})
    agent = containers.start(SERVICE)
    pid = agent.directory / "pid"
    eventually(pid.exists, "the check runs")
    agent.signal(signal.SIGKILL)
    eventually(lambda: not lives(int(pid.read_text())), "it has ended")


# -- its notify socket --------------------------------------------------------------------------------


def test_a_flooded_notify_socket_does_not_block(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Thousands of datagrams, some of them garbage, are read; READY=1 after them counts."""
    flood = (
        "import os, socket, time\n"
        "notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "notify.settimeout(60)\n"
        "for n in range(20000):\n"
        "    notify.sendto(os.urandom(n % 2000), os.environ['NOTIFY_SOCKET'])\n"
        "notify.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(300)\n"
    )
    publish_daemon(deployment, [sys.executable, "-c", flood], NOTIFY)
    containers.start(SERVICE)
    site.await_instances(1, seconds=120)


STRANGER = """
import os, socket, sys
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.connect(sys.argv[1])
os.setuid(4711)
for _ in range(2):
    notify.send(b"READY=1")
"""


def test_notifications_of_another_user_are_refused(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """The log names the user once."""
    publish_daemon(deployment, OBEDIENT, NOTIFY)
    agent = containers.start(SERVICE)
    eventually(lambda: agent.registrar, "the registrar is there")
    notify = str(agent.directory / "run" / "notify")
    subprocess.run([sys.executable, "-c", STRANGER, notify], check=True)
    agent.says("of uid 4711")
    assert agent.state.startswith("starting ") and not site.instances()
    tell(agent, "READY=1")
    site.await_instances(1)
    assert agent.said.count("refused a message to the notify socket") == 1


def test_a_process_of_the_daemon_may_notify_as_any_user(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """A service may start as root, become another user, and notify then."""
    notifies = (
        "import os, socket, time\n"
        "if os.fork():\n"
        "    time.sleep(300)\n"
        "notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "notify.connect(os.environ['NOTIFY_SOCKET'])\n"
        "os.setuid(4711)\n"
        "notify.send(b'READY=1')\n"
    )
    publish_daemon(deployment, [sys.executable, "-c", notifies], NOTIFY)
    containers.start(SERVICE)
    site.await_instances(1)


# -- its process --------------------------------------------------------------------------------------


def test_the_registrar_is_small_and_holds_only_its_own_descriptors(start: Callable[..., Agent]) -> None:
    """At most 15 MB and one thread, once it has registered everything; nothing of the daemon's."""
    agent = start()
    process = Path(f"/proc/{agent.registrar}")
    held = sorted(os.readlink(fd).split(":")[0] for fd in (process / "fd").iterdir())
    lock = str(agent.directory / "run" / "lock")
    ours = ["/dev/null", "/dev/null", lock, str(agent.log), "anon_inode", "socket", "socket"]
    assert held == sorted(ours)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) < 15 * 1024
    assert status["Threads"].strip() == "1"


def test_a_registrar_without_descriptors_connects_when_it_has_some(
    start: Callable[..., Agent], site: Site, link: Link
) -> None:
    """After its connection is lost it can open no socket; it keeps trying."""
    agent = start(KOLLA_ZK_HOSTS=link.hosts)
    registrar = agent.registrar

    def wakes() -> int:
        """How often it has woken up: each failed attempt is one."""
        status = Path(f"/proc/{registrar}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    limits = resource.prlimit(registrar, resource.RLIMIT_NOFILE)
    resource.prlimit(registrar, resource.RLIMIT_NOFILE, (3, limits[1]))
    link.kill()
    link.launch()
    agent.says("lost the connection")
    before = wakes()
    eventually(lambda: wakes() > before, "it tries to connect")
    assert "connected to ZooKeeper again" not in agent.said.partition("lost the connection")[2]
    resource.prlimit(registrar, resource.RLIMIT_NOFILE, limits)
    lost = "lost the connection"
    eventually(lambda: "ZooKeeper again after" in agent.said.partition(lost)[2], "it is connected again")
    site.await_instances(1)
    assert agent.registrar == registrar


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_does_not_stop_registering(
    deployment: Deployment, containers: Containers, site: Site, small_disk: Path
) -> None:
    """The state for probes is written when there is room again."""
    publish_daemon(deployment, OBEDIENT, NOTIFY)
    agent = containers.start(SERVICE, KOLLA_RUN_DIR=str(small_disk / "run"))
    eventually(lambda: agent.registrar and agent.state.startswith("starting check"), "the registrar is there")
    with pytest.raises(OSError, match="No space left on device"):
        (small_disk / "filler").write_bytes(bytes(1 << 20))
    tell(agent, "READY=1")
    site.await_instances(1)
    agent.says("No space left on device")
    assert agent.state.startswith("starting ")
    tell(agent, "STOPPING=1")
    site.await_instances(0)
    tell(agent, "READY=1")
    site.await_instances(1)
    (small_disk / "filler").unlink()
    eventually(lambda: agent.state == "ready", "it is written when there is room", seconds=60)
    assert agent.said.count("No space left on device") == 1


# -- what others do to its znodes ---------------------------------------------------------------------


def test_a_deleted_instance_is_created_again(
    start: Callable[..., Agent], deployment: Deployment, zk: KazooClient, site: Site
) -> None:
    """Also if the whole status tree was deleted."""
    start()
    zk.delete(f"{deployment.path}/status", recursive=True)
    site.await_instances(1)
    assert zk.get(f"{deployment.path}/status/global/web")[0] == SERVICE.encode()


def test_a_deleted_deployment_stays_deleted(
    start: Callable[..., Agent], deployment: Deployment, zk: KazooClient, site: Site
) -> None:
    """Nothing is created until it is published again."""
    agent = start()
    zk.delete(deployment.path, recursive=True)
    agent.says("can't be created")
    assert zk.exists(deployment.path) is None
    zk.ensure_path(f"{deployment.path}/{SERVICE}")
    site.await_instances(1, seconds=60)
    site.await_members(1, seconds=60)


def test_a_daemon_whose_registration_is_denied_is_alive_but_not_ready(
    start: Callable[..., Agent], zookeeper: Server, zk: KazooClient, site: Site, link: Link
) -> None:
    """The readiness probe says what is denied; when it is allowed again, the instance is created."""
    agent = start(KOLLA_ZK_HOSTS=link.hosts, **SHORT_SESSION)
    (member,) = site.instances()
    ready = f"{site.daemon()}/ready"
    session = site.owner(f"{ready}/{member}")
    zk.set_acls(ready, [make_acl("world", "anyone", read=True, admin=True)])
    link.kill()
    eventually(lambda: session not in sessions(zookeeper), "its session expires")
    link.launch()
    eventually(lambda: agent.health("--ready").returncode == 1, "it is no longer registered")
    said = f"not registered: {ready}/{member} can't be created: NoAuthError: the ACL of"
    assert said in agent.health("--ready").stdout
    assert agent.health().returncode == 0
    assert "NoAuthError" in agent.said
    zk.set_acls(ready, [make_acl("world", "anyone", all=True)])
    eventually(lambda: agent.health("--ready").returncode == 0, "it is registered again", seconds=60)
