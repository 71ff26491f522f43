"""The agent where a container may do next to nothing, has a network of its own, or has no init above it.

The service is memcached: of Kolla's it is the one that needs no capability, writes nothing, and can be more
than once on a host. Where an exit status has to be nobody else's, the daemon is the obedient one.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.obedient import SERVICE, STATUS, is_ready, publish_obedient
from tests.containers.podman import Container, Podman
from tests.containers.relay import Relay
from tests.support.instances import Site
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, Server, free_port

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

MEMCACHED = "infra/memcached/memcached"
UID = 42457  # as Kolla has it
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}


def daemon(*options: str, **more: Any) -> dict[str, Any]:
    """A definition of memcached."""
    return {"service": {"daemon": {"command": ["memcached", *options], **more}}}


def talk(address: str, port: int, *lines: str) -> str:
    """Say something to memcached; the first line of its answer."""
    with socket.create_connection((address, port), timeout=30) as client, client.makefile("rw") as stream:
        stream.write("".join(f"{line}\r\n" for line in lines))
        stream.flush()
        return stream.readline().rstrip()


# -- without rights ------------------------------------------------------------------------------------

NO_RIGHTS = ("--cap-drop=all", "--security-opt=no-new-privileges")
RUN_DIR, STATE_DIR, ETC = "/run/kolla_mesos_start", "/var/lib/kolla_mesos_start", "/etc/memcached"
# All that is written: what the probes are told and the daemon's notify socket, who the container is, and the
# service's files.
WRITTEN = (RUN_DIR, STATE_DIR, ETC)
USERS = f"{ETC}/users"


def read_only(*written: str) -> list[str]:
    """The root file system is read-only, but for a tmpfs of the image's user on each of these.

    Podman would add /run and /tmp, which neither Docker nor Kubernetes does.
    """
    places = (f"--mount=type=tmpfs,dst={path},U=true" for path in written)
    return ["--read-only", "--read-only-tmpfs=false", *places]


@pytest.fixture
def port(deployment: Deployment) -> int:
    """The port of a memcached that is published, and that asks for the password in its file."""
    port = free_port()
    files = {"users": {"dest": USERS, "perm": "0400"}}
    ready = {"tcp": port, "interval": 1}
    definition = daemon(
        f"--listen={HOST}", f"--port={port}", f"--auth-file={USERS}", files=files, ready=ready
    )
    content = "{{ memcached_user }}:{{ memcached_password }}\n"
    values = {"memcached_user": "keystone", "memcached_password": "a-password"}
    publish(deployment, MEMCACHED, definition, files={"users": content}, variables=values)
    return port


def test_a_service_that_needs_no_right_gets_along_without_any(
    podman: Podman, images: Images, deployment: Deployment, port: int
) -> None:
    """memcached: unprivileged, no capability, nothing new to gain, a root that nobody writes to."""
    container = podman.run(
        images.agent("memcached"),
        environ=deployment.environ(MEMCACHED, **LOOPBACK),
        options=[*NO_RIGHTS, *read_only(*WRITTEN)],
    )
    eventually(lambda: is_ready(container), "it is ready")
    rights = container.exec("sh", "-c", "exec cat /proc/[0-9]*/status").stdout.splitlines()
    for right in ("\t".join(("Uid:", *4 * (str(UID),))), f"CapBnd:\t{0:016}", "NoNewPrivs:\t1"):
        # dumb-init, daemon, registrar, and who has asked.
        assert rights.count(right) == 4, right
    assert "Read-only file system" in container.exec("touch", "/tmp/any").stderr
    assert talk(HOST, port, "set auth 0 0 19", "keystone a-password") == "STORED"
    assert container.stop() == 0
    container.remove()


@pytest.mark.parametrize(
    ("missing", "status", "told"),
    [
        # It looks at the other place where the run directory may be before it gives up.
        (RUN_DIR, 64, f"KOLLA_RUN_DIR is '/tmp/kolla_mesos_start-{UID}': expected a directory to write in"),
        (STATE_DIR, 73, f"COPY_ONCE can't be recorded in {STATE_DIR}/copied: Read-only file system"),
        (ETC, 73, f"{USERS} can't be written: Read-only file system"),
    ],
)
def test_what_can_not_be_written_is_named(
    podman: Podman, images: Images, deployment: Deployment, port: int, missing: str, status: int, told: str
) -> None:
    """Without one of them the agent ends, before there is a daemon, and says which it was."""
    container = podman.run(
        images.agent("memcached"),
        environ=deployment.environ(MEMCACHED, KOLLA_CONFIG_STRATEGY="COPY_ONCE", **LOOPBACK),
        options=[*NO_RIGHTS, *read_only(*set(WRITTEN) - {missing})],
    )
    assert container.ends() == status
    ending = json.loads(container.said.splitlines()[-1])
    assert told in ending["reason"]
    assert (ending["status"], ending["retriable"]) == (status, False)
    assert "exec" not in container.said
    container.remove()


def test_a_state_that_can_not_be_kept_ends_nobody_who_does_not_need_it(
    podman: Podman, images: Images, deployment: Deployment, port: int
) -> None:
    """With COPY_ALWAYS only the member's id is kept there: a warning says what that means."""
    container = podman.run(
        images.agent("memcached"),
        environ=deployment.environ(MEMCACHED, **LOOPBACK),
        options=[*NO_RIGHTS, *read_only(RUN_DIR, ETC)],
    )
    eventually(lambda: is_ready(container), "it is ready")
    assert f"{STATE_DIR}/registration can't be written (Read-only file system)" in container.said
    container.remove()


# -- a network of its own ------------------------------------------------------------------------------


def test_an_instance_is_found_at_the_address_that_it_was_given(
    podman: Podman,
    images: Images,
    zookeeper: Server,
    deployment: Deployment,
    zk: KazooClient,
    tmp_path: Path,
) -> None:
    """Others reach the container by another address than its interface has; ZooKeeper lies outside of it."""
    net = f"198.18.{random.randint(0, 255)}"
    outside, inside, address = f"{net}.1", f"{net}.2", f"198.19.{random.randint(0, 255)}.7"
    port = free_port()
    definition = daemon("--listen=0.0.0.0", f"--port={port}", ready={"tcp": port, "interval": 1})
    publish(deployment, MEMCACHED, definition)
    environ = deployment.environ(MEMCACHED, KOLLA_ADDRESS=address, KOLLA_PORTS=str(port))
    container = podman.create(
        images.agent("memcached"),
        environ={**environ, "KOLLA_ZK_HOSTS": f"{outside}:{zookeeper.port}"},
        options=["--network=none"],
    )
    # There is its network then, but no process of it.
    podman("init", container.id)
    link = f"kolla{os.getpid()}"
    ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(container.pid))
    ip("address", "add", f"{outside}/30", "dev", link)
    ip("link", "set", link, "up")
    ip("route", "add", address, "via", inside)
    for words in (
        f"address add {inside}/30 dev eth0",
        f"address add {address}/32 dev lo",
        "link set lo up",
        "link set eth0 up",
        f"route add default via {outside}",
    ):
        ip(*words.split(), pid=container.pid)
    relay = Relay(zookeeper, outside, zookeeper.port, tmp_path / "relay")
    container.start()
    site = Site(deployment, zk, MEMCACHED)
    (instance,) = site.await_instances(1).values()
    assert (instance["address"], instance["ports"]) == (address, [port])
    assert talk(instance["address"], instance["ports"][0], "version").startswith("VERSION")
    (facts,) = site.members.values()
    assert facts["private_address"] == inside
    assert container.stop() == 0
    # The link, too, is gone with the network that its other end was in.
    container.remove()
    relay.kill()


def ip(*words: str, pid: int = 0) -> None:
    """ip(8) in the network of that process, or in ours."""
    entered = ("nsenter", f"--target={pid}", "--net") if pid else ()
    subprocess.run((*entered, "ip", *words), check=True)


# -- process 1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exec", "supervise"])
@pytest.mark.parametrize("first", ["dumb-init", "kolla_mesos_start"])
def test_whoever_is_process_1_reaps_and_the_daemon_says_how_it_ends(
    podman: Podman, images: Images, deployment: Deployment, first: str, mode: str
) -> None:
    """Only a daemon that is process 1 itself is left with orphans, and the log says how to avoid that."""
    container = podman.run(
        images.agent("memcached"),
        environ=deployment.environ(SERVICE, KOLLA_START_MODE=mode),
        options=[f"--entrypoint={first}"] if first == "kolla_mesos_start" else (),
    )
    eventually(lambda: "waiting for the definition" in told(container), "it waits")
    assert container.read("/proc/1/comm").rstrip() == first[:15]  # The kernel keeps no more of it.
    early = orphan(container)
    eventually(lambda: not state(container, early), "an orphan has been reaped before there is a daemon")
    publish_obedient(deployment, "", f"{ETC}/obedient.conf")
    eventually(lambda: is_ready(container), "it is ready")
    late = orphan(container)
    if (first, mode) == ("kolla_mesos_start", "exec"):
        assert container.read("/proc/1/comm") == "python3\n"
        assert "KOLLA_START_MODE=supervise" in container.said
        eventually(lambda: state(container, late) == "Z", "nobody has reaped an orphan")
    else:
        assert "KOLLA_START_MODE=supervise" not in container.said
        eventually(lambda: not state(container, late), "an orphan has been reaped")
    assert container.stop() == STATUS
    container.remove()


def told(container: Container) -> str:
    """What the probe is told."""
    assert container.running, container.said
    return container.read(f"{RUN_DIR}/state")


def orphan(container: Container) -> str:
    """The process id, in the container, of one whose parent has ended and that ends soon, too."""
    return container.exec("sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!").stdout.strip()


def state(container: Container, pid: str) -> str:
    """The letter that says what a process does, Z of a zombie; empty where there is none."""
    return container.read(f"/proc/{pid}/stat").rpartition(")")[2][1:2]


# -- a host with several -------------------------------------------------------------------------------


def test_two_replicas_on_one_host_are_two_instances_of_one_host(
    podman: Podman, images: Images, deployment: Deployment, zk: KazooClient, tmp_path: Path
) -> None:
    """In the host's network, each by a port of its own; what is for the host one of them does for both."""
    journal = tmp_path / "journal"
    journal.touch()
    journal.chmod(0o666)
    check = 'exec bash -c ": </dev/tcp/127.0.0.1/$KOLLA_PORTS"'
    publish(
        deployment,
        MEMCACHED,
        {
            "commands": {"prepare": {"command": "echo $KOLLA_PORTS >>/journal", "run_once": "host"}},
            "service": {
                "daemon": {
                    "command": f"exec memcached --listen={HOST} --port=$KOLLA_PORTS",
                    "dependencies": [{"path": "memcached/prepare", "scope": "local"}],
                    "ready": {"command": check, "interval": 1},
                }
            },
        },
    )
    # Supervised, an instance is gone as soon as it is stopped.
    here = {"KOLLA_HOSTNAME": "ctl-1", "KOLLA_START_MODE": "supervise", **LOOPBACK}
    ports = sorted((free_port(), free_port()))
    replicas = {
        port: podman.run(
            images.agent("memcached"),
            environ=deployment.environ(MEMCACHED, **here, KOLLA_PORTS=str(port)),
            volumes={journal: "/journal"},
        )
        for port in ports
    }
    site = Site(deployment, zk, MEMCACHED)
    found = site.await_instances(2)
    assert sorted(port for instance in found.values() for port in instance["ports"]) == ports
    assert {instance["host"] for instance in found.values()} == {"ctl-1"}
    assert site.instances("ctl-1") == found
    assert site.members.keys() == found.keys()
    for instance in found.values():
        assert talk(instance["address"], instance["ports"][0], "version").startswith("VERSION")
    assert site.state("prepare", "ctl-1") == "done"
    assert journal.read_text() in {f"{port}\n" for port in ports}
    assert replicas[ports[0]].stop() == 0
    (other,) = site.await_instances(1).values()
    assert other["ports"] == [ports[1]]
    for replica in replicas.values():
        replica.remove()
