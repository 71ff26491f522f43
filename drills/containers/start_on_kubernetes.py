"""Imports kolla-ansible's default all-in-one, and starts it on a real Kubernetes of one node.

It takes a quarter of an hour of two processors, and more for the images, and runs by hand only, as root::

    .venv/bin/python -m drills.containers.start_on_kubernetes

The manifests are applied as `kolla_mesos_ctl manifests kubernetes` makes them. When a server is ACTIVE,
Keystone and Glance are restarted while requests run. The images are Kolla's own, and the agent is mounted
into them. `start_import` says what is left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import yaml

from drills.containers.first_server import GLANCE, KEYSTONE
from drills.containers.start_import import HOST, WHOLE, adapt, boot, imported, publish
from drills.containers.whole import WholeImages
from tests import CHECKOUT
from tests.containers.podman import MOUNTED
from tests.kubernetes.build import install, programs
from tests.kubernetes.cluster import Cluster, saved
from tests.kubernetes.machine import Machine

CACHE = CHECKOUT / ".cache"
SITE = WHOLE._replace(address="192.0.2.1", virtual="192.0.2.200")
# What report.txt leaves to the operator, as far as it matters here, and the interface of external networks.
SETUP = """\
ip link add eth1 type veth peer name far-eth1
ip link set eth1 up
ip link set far-eth1 up
sysctl -w net.ipv4.ip_nonlocal_bind=1
"""
# The Deployment that is restarted, and a request that only it can answer.
RESTARTED = {"keystone": f":{KEYSTONE}/v3", "glance-api": f":{GLANCE}/healthcheck"}
EVERY = 0.05  # seconds between two requests


def main() -> int:
    """Print how long it took until a server was ACTIVE, and which containers were started again."""
    argparse.ArgumentParser(prog="drills.containers.start_on_kubernetes", description=__doc__).parse_args()
    images = WholeImages(CACHE, print)
    images.make()
    install(print)
    with tempfile.TemporaryDirectory(prefix="import-") as name:
        place = Path(name)
        config, site = imported(place, SITE)
        adapt(site / "launch.yml", images, SITE, MOUNTED)
        services = yaml.safe_load((site / "launch.yml").read_text())["services"].values()
        archive = saved(place, images.store, {each["image"]: [] for each in services})
        with Cluster(place / "cluster", programs(CACHE, print), [HOST]) as cluster:
            node = cluster.nodes[HOST]
            set_up(node)
            cluster.load(archive)
            with node.network():
                return start(cluster, site, config / "passwords.yml")


def set_up(node: Machine) -> None:
    """Do what is left to the operator."""
    for line in SETUP.splitlines():
        node.run(line)


def start(cluster: Cluster, site: Path, passwords: Path) -> int:
    """Apply all manifests, wait for a server, and restart some services; the exit status."""
    made = publish(site, passwords, cluster.zookeeper.hosts, "kubernetes")
    password = yaml.safe_load(passwords.read_text())["keystone_admin_password"]
    begun = time.monotonic()
    cluster.kubectl("apply", "--filename", str(made))
    print(f"applied within {time.monotonic() - begun:.1f} s", flush=True)
    try:
        status = boot(SITE, cluster.zookeeper.hosts, password, begun)
    finally:
        show_failures(cluster)
    for name, path in ({} if status else RESTARTED).items():
        restart(cluster, name, f"http://{SITE.virtual}{path}")
    return status


def show_failures(cluster: Cluster) -> None:
    """Print which containers have ended with a failure, and the last words of their agents."""
    pods, restarts = cluster.get("pods"), 0
    for pod in pods:
        for container in pod["status"].get("containerStatuses", ()):
            restarts += container["restartCount"]
            for state in (container["state"], container["lastState"]):
                ended = state.get("terminated", {"exitCode": 0})
                if ended["exitCode"]:
                    print(f"{pod['metadata']['name']} has ended: {ended}")
    print(f"{len(pods)} pods; {restarts} containers were started again", flush=True)


class Request(NamedTuple):
    """A request; times are in seconds."""

    begun: float
    took: float
    is_good: bool


def restart(cluster: Cluster, name: str, url: str) -> None:
    """Restart a Deployment while requests run."""
    with requests(url) as found:
        begun = time.monotonic()
        cluster.kubectl("rollout", "restart", f"deployment/{name}")
        cluster.kubectl("rollout", "status", f"deployment/{name}", "--timeout=300s")
        print(f"{name} was restarted within {time.monotonic() - begun:.1f} s", flush=True)
    failed = [f"{each.begun - begun:.1f} s" for each in found if not each.is_good]
    slowest = max(each.took for each in found)
    print(f"{len(failed)} of {len(found)} requests failed: {', '.join(failed) or 'none'}")
    print(f"the slowest request took {slowest:.1f} s", flush=True)


@contextmanager
def requests(url: str) -> Iterator[Sequence[Request]]:
    """Send requests meanwhile, one after the other."""
    found: list[Request] = []
    over = threading.Event()

    def send() -> None:
        while not over.wait(EVERY):
            begun, is_good = time.monotonic(), True
            try:
                with urllib.request.urlopen(url, timeout=30) as reply:
                    reply.read()
            except (OSError, HTTPException):  # Also a status such as 503.
                is_good = False
            found.append(Request(begun, time.monotonic() - begun, is_good))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield found
    finally:
        over.set()
        sender.join()


if __name__ == "__main__":
    sys.exit(main())
