"""Containers on hosts whose network is not configured yet, in networks of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tests import CHECKOUT
from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

OWN_NETWORK = (sys.executable, str(CHECKOUT / "tests" / "support" / "own_network.py"))
SERVICE = "infra/web"
BARE = "link add eth0 type veth peer name eth0p\nlink set eth0 addrgenmode none up\n"
DAEMON = {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}}


def start(
    zookeeper: Server,
    containers: Containers,
    tmp_path: Path,
    network: str,
    service: str = SERVICE,
    **environ: str,
) -> Agent:
    batch = tmp_path / "network"
    batch.write_text(network)
    under = (*OWN_NETWORK, zookeeper.hosts.rpartition(":")[2], str(batch))
    return containers.start(service, under=under, **environ)


def ip(agent: Agent, *words: str) -> None:
    """Run `ip` in the network of a container."""
    subprocess.run(["nsenter", f"--net=/proc/{agent.pid}/ns/net", "ip", *words], check=True)


def reason(site: Site) -> str:
    return "".join(each["reason"] for each in site.containers.values())


def test_a_container_waits_for_the_address_that_it_registers(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """With the reason in its log and its znode; a link-local address is not enough. No other one is used."""
    site = Site(deployment, zk, SERVICE)
    publish(deployment, SERVICE, DAEMON)
    agent = start(zookeeper, containers, tmp_path, BARE)
    eventually(lambda: "for an address: " in reason(site), "it says what it waits for")
    agent.says("waiting for an address for 0 s: KOLLA_PRIVATE_INTERFACE, KOLLA_PUBLIC_INTERFACE: set them")
    assert agent.health().returncode == 0
    ip(agent, "address", "add", "169.254.1.1/16", "dev", "eth0")
    assert site.members == {}
    ip(agent, "address", "add", "192.0.2.7/24", "dev", "eth0")
    (facts,) = site.await_members(1).values()
    assert facts["address"] == "192.0.2.7"
    (instance,) = site.await_instances(1).values()
    assert instance["address"] == "192.0.2.7"


def test_a_named_interface_may_come_later(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """It needs no poll, and a new definition is read meanwhile."""
    site = Site(deployment, zk, SERVICE)
    publish(deployment, SERVICE, DAEMON)
    agent = start(zookeeper, containers, tmp_path, BARE, KOLLA_PRIVATE_INTERFACE="eth7")
    eventually(lambda: "KOLLA_PRIVATE_INTERFACE=eth7: no such interface" in reason(site), "it says so")
    publish(deployment, SERVICE, {"commands": {"go": {"command": "true"}}, **DAEMON})
    agent.says("has changed since it was read: beginning again from it")
    ip(agent, "link", "add", "eth7", "type", "veth", "peer", "name", "eth7p")
    eventually(lambda: "the interface has no address" in reason(site), "it has seen that")
    ip(agent, "link", "set", "eth7", "up")
    ip(agent, "address", "add", "192.0.2.7/24", "dev", "eth7")
    ip(agent, "address", "add", "192.0.2.8/24", "dev", "eth0")
    ip(agent, "route", "add", "default", "via", "192.0.2.1", "dev", "eth7")
    (facts,) = site.await_members(1).values()
    assert facts["address"] == "192.0.2.7"


def test_an_address_that_changes_is_reported_at_the_next_connection(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    site = Site(deployment, zk, SERVICE)
    publish(deployment, SERVICE, DAEMON)
    network = f"{BARE}link set eth0 up\nlink set eth0p up\naddress add 192.0.2.7/24 dev eth0\n"
    agent = start(zookeeper, containers, tmp_path, network)
    site.await_instances(1)
    zookeeper.kill()
    zookeeper.start()
    agent.says("connected to ZooKeeper again")
    assert "no longer has the address" not in agent.said
    ip(agent, "address", "del", "192.0.2.7/24", "dev", "eth0")
    ip(agent, "address", "add", "192.0.2.8/24", "dev", "eth0")
    zookeeper.kill()
    zookeeper.start()
    agent.says("this host no longer has the address 192.0.2.7, with which this container is registered")
    assert agent.running


def test_a_stop_signal_ends_the_wait_and_so_does_its_limit(
    zookeeper: Server, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """The limit is that of any dependency."""
    publish(deployment, SERVICE, DAEMON)
    agent = start(zookeeper, containers, tmp_path, BARE)
    agent.says("waiting for an address")
    begun = time.monotonic()
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 5
    agent = start(zookeeper, containers, tmp_path, BARE, KOLLA_WAIT_TIMEOUT="1")
    assert agent.ends() == 75
    agent.says("waited 1 s for an address: KOLLA_PRIVATE_INTERFACE")


def template(text: str, **more: Any) -> dict[str, Any]:
    return {"commands": {"go": {"command": ["sh", "-c", "echo $0 >out", text], **more}}}


def test_a_task_that_uses_no_address_needs_none(
    zookeeper: Server, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Although it has a template."""
    publish(deployment, "infra/task", template("{{ service_name }} {{ get_hostname() and 1 }}"))
    agent = start(zookeeper, containers, tmp_path, BARE, "infra/task", KOLLA_PRIVATE_INTERFACE="eth7")
    assert agent.ends() == 0
    assert (agent.directory / "out").read_text() == "infra/task 1\n"


def test_a_template_waits_for_the_interface_that_it_names(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Without the lock of its command: a container on another host may have the interface."""
    publish(deployment, "infra/task", template("{{ get_ip_address('eth1') }}", run_once=True))
    agent = start(zookeeper, containers, tmp_path, BARE, "infra/task")
    agent.says("the interface that a template names: no such interface on this host")
    lock = f"{deployment.path}/status/global/task/go/lock"
    eventually(lambda: not zk.get_children(lock), "the lock is free")
    ip(agent, "link", "add", "eth1", "type", "veth", "peer", "name", "eth1p")
    ip(agent, "address", "add", "192.0.2.9/24", "dev", "eth1")
    assert agent.ends() == 0
    assert (agent.directory / "out").read_text() == "192.0.2.9\n"
    detail = json.loads(zk.get(f"{deployment.path}/status/global/task/go/detail")[0])
    assert (detail["state"], detail["attempt"]) == ("done", 1)
