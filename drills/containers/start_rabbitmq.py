"""Imports RabbitMQ on three hosts from kolla-ansible, and kills all its containers at once.

It takes minutes of processor time for the image and the recording, and runs by hand only, as root::

    .venv/bin/python -m drills.containers.start_rabbitmq --rounds 4

The quadlets are what `kolla_mesos_ctl manifests` makes. After each start there must be one cluster of three
nodes with the same identity, and each must have the virtual host that was added after the first start.
In each second round one host loses its data, too. Differences from real hosts: each has a network of its own
on this machine, and this program starts a container again that has ended.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drills.containers.imported import ImportedImages
from drills.containers.three_hosts import HOSTS, ThreeHosts, imported
from tests import CHECKOUT
from tests.containers.images import EXTREPO
from tests.support.zookeeper import Server

TAGS = "common,rabbitmq"
VIRTUAL_HOST = "drill"


class RabbitImages(ImportedImages):
    """That of Kolla's RabbitMQ, with the version and the plugins of Debian's package."""

    place = "rabbitmq-images"
    dockerfiles: Mapping[str, str] = {"base": "base", "rabbitmq": "rabbitmq"}

    def _complete(self, contexts: Path) -> None:
        base = contexts / "base" / "Dockerfile"
        base.write_text(EXTREPO.sub("", base.read_text()))


def main() -> int:
    """Print how long each start took; an error ends it with the logs."""
    parser = argparse.ArgumentParser(prog="python -m drills.containers.start_rabbitmq", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="how often all are killed (default 4)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="default: any")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    images = RabbitImages(CHECKOUT / ".cache", print)
    images.make()
    with tempfile.TemporaryDirectory(prefix="import-") as name, Server(Path(name) / "zookeeper") as server:
        place = Path(name)
        config, site = imported(place, TAGS)
        with ThreeHosts(place, images, server, "rabbitmq") as hosts:
            hosts.publish(config, site)
            drill(hosts, options.rounds, random.Random(options.seed))
    return 0


def drill(hosts: ThreeHosts, rounds: int, dice: random.Random) -> None:
    """The first start, and then so many blackouts."""

    def is_member(host: str) -> bool:
        """Whether all three nodes run in the cluster of this host."""
        return len(cluster(hosts, host).get("running_nodes", ())) == len(HOSTS)

    hosts.start()
    print(f"first start: {hosts.await_all(is_member, 'three nodes'):.1f} s", flush=True)
    hosts.await_steps()
    names = {identity(hosts, host) for host in HOSTS}
    assert len(names) == 1, names
    done = hosts.containers["ctl-1"].exec("rabbitmqctl", "add_vhost", VIRTUAL_HOST)
    assert done.returncode == 0, done.stderr
    for number in range(1, rounds + 1):
        hosts.kill_all()
        hosts.power_on()
        seconds, what = hosts.await_all(is_member, "three nodes"), ""
        if number % 2 == 0:
            lost = dice.choice(sorted(HOSTS))
            hosts.restart_empty(lost, "rabbitmq", partial(forget, hosts, lost))
            what = f"; {lost} with an empty disk after {hosts.await_all(is_member, 'three nodes'):.1f} s"
        assert {identity(hosts, host) for host in HOSTS} == names
        for host in HOSTS:
            vhosts = hosts.containers[host].exec("rabbitmqctl", "-q", "list_vhosts", "name").stdout
            assert VIRTUAL_HOST in vhosts.split(), f"{host} has only {vhosts}"
        print(f"{number}: three nodes after {seconds:.1f} s{what}", flush=True)


def forget(hosts: ThreeHosts, lost: str) -> None:
    """What an operator does before a host comes back without its data."""
    other = next(host for host in HOSTS if host != lost)
    done = hosts.containers[other].exec("rabbitmqctl", "forget_cluster_node", f"rabbit@{lost}")
    assert done.returncode == 0, done.stdout + done.stderr


def identity(hosts: ThreeHosts, host: str) -> str:
    """What a cluster is given when it is formed, and keeps."""
    return (
        hosts.containers[host]
        .exec("rabbitmqctl", "-q", "eval", "rabbit_nodes:persistent_cluster_id().")
        .stdout
    )


def cluster(hosts: ThreeHosts, host: str) -> Mapping[str, Any]:
    """What a node says about its cluster; empty while it does not answer."""
    if not hosts.containers[host].running:
        return {}
    done = hosts.containers[host].exec("rabbitmqctl", "-q", "cluster_status", "--formatter", "json")
    found: Mapping[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
