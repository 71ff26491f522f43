"""Imports a Keystone from kolla-ansible, and starts all its containers at once until it issues a token.

It takes minutes of processor time for the images and the recording, and runs by hand only, as root::

    .venv/bin/python -m tests.containers.start_import

The quadlets are what `kolla_mesos_ctl manifests` makes. Differences from a real host: images from this
machine, no systemd, lower limits of open files, named volumes of podman in place of directories that an
operator creates, and no /dev and /run of the host in kolla_toolbox.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kolla_mesos_start.operator import cli
from kolla_mesos_start.operator.manifests.model import shared_place
from tests import CHECKOUT
from tests.containers.imported import ImportedImages
from tests.containers.podman import Container, Podman
from tests.containers.test_quadlet import WITHOUT_SYSTEMD, generated, quadlet_generator
from tests.examples.keystone import issue_token
from tests.kolla_ansible import sites
from tests.kolla_ansible.installed import environment
from tests.waiting import eventually
from tests.zookeeper import Server

HOST, ADDRESS, VIRTUAL = "ctl-1", "127.0.0.11", "127.0.0.100"
TAGS = "common,loadbalancer,mariadb,memcached,keystone"
# ProxySQL and keepalived are not built here. HAProxy and memcached open files for their connections.
GLOBALS = f"""\
kolla_base_distro: debian
kolla_internal_vip_address: {VIRTUAL}
network_interface: lo
neutron_external_interface: eth1
database_address: "{{{{ 'api' | kolla_address }}}}"
enable_openstack_core: false
enable_keystone: true
enable_proxysql: false
enable_keepalived: false
enable_rabbitmq: false
enable_fluentd: false
enable_cron: false
haproxy_max_connections: 4000
"""
FACTS = f"hosts:\n  {HOST}: {{address: {ADDRESS}, interface: lo, cpus: 2, memory: 4096}}\n"
LIMITS = {"nofile": "16384:16384", "nproc": "1000:1000"}
OF_HOST = ("/dev", "/run")


def main() -> int:
    """Print how long it took until a token was issued, and how each container ended if it has."""
    cache = CHECKOUT / ".cache"
    images = ImportedImages(cache, print)
    images.make()
    with tempfile.TemporaryDirectory(prefix="import-") as name:
        place = Path(name)
        config, site = imported(place)
        server, podman = Server(place / "zookeeper"), Podman(place / "podman", images.store)
        server.start()
        try:
            adapt(site / "launch.yml", images, server.hosts)
            words = [str(site), "--deployment", "site"]
            secrets = str(config / "passwords.yml")
            cli.run(["publish", *words, "--hosts", server.hosts, "--secrets", secrets])
            cli.run(["manifests", "quadlet", *words, "--output", str(place / "made")])
            password = yaml.safe_load(Path(secrets).read_text())["keystone_admin_password"]
            return start(podman, place, password)
        finally:
            podman.end()
            server.kill()


def imported(place: Path) -> tuple[Path, Path]:
    """The configuration, and the directory that the tool makes from it."""
    venv, config, site = environment(print), place / "config", place / "site"
    config.mkdir()
    sites.make(venv, "all-in-one", config)
    (config / "globals.yml").write_text(GLOBALS)
    (config / "facts.yml").write_text(FACTS)
    tool = (sys.executable, CHECKOUT / "bin" / "kolla_mesos_ctl", "import", "kolla-ansible")
    where = ("--config", config, "--inventory", config / "inventory", "--facts", config / "facts.yml")
    subprocess.run((*tool, "--ansible", venv, *where, "--tags", TAGS, "--output", site), check=True)
    return config, site


def adapt(launch: Path, images: ImportedImages, zookeeper: str) -> None:
    """Use the images and the limits of this machine."""
    content: dict[str, Any] = yaml.safe_load(launch.read_text())
    content["zookeeper"] = zookeeper
    content["defaults"]["env"] = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}
    for service in content["services"].values():
        service["image"] = images.closed(service["image"].rpartition("/")[2].partition(":")[0])
        if "limits" in service:
            service["limits"] = LIMITS
        for path in OF_HOST:
            service["volumes"].pop(path, None)
    launch.write_text(yaml.safe_dump(content))


def start(podman: Podman, place: Path, password: str) -> int:
    """Start all units of the host, in the order of their names."""
    quadlets = place / "made" / HOST
    for path in quadlets.iterdir():
        # A named volume begins with the content and the owner that the image has there.
        path.write_text(path.read_text().replace(shared_place("site", ""), ""))
    containers: dict[str, Container] = {}
    begun = time.monotonic()
    for name, unit in generated(quadlet_generator(), quadlets).items():
        _, *argv = unit.argv(place)
        podman(*(word for word in argv if word not in (*WITHOUT_SYSTEMD, "--rm")))
        containers[name] = Container(podman, name)
    try:
        url = f"http://{VIRTUAL}:5000/v3"
        eventually(lambda: _has_token(url, password), "Keystone issues a token", seconds=300, every=0.5)
        print(f"a token after {time.monotonic() - begun:.1f} s")
        eventually(lambda: _are_settled(containers), "all steps have ended", seconds=120, every=0.5)
        failed = [name for name, each in containers.items() if not each.running and each.status]
        print(f"{len(containers)} containers; failed: {', '.join(failed) or 'none'}")
        return 1 if failed else 0
    except BaseException:
        for name, container in containers.items():
            print(f"--- {name}: {container.said}")
        raise


def _has_token(url: str, password: str) -> bool:
    try:
        return bool(issue_token(url, password))
    except OSError:
        return False


def _are_settled(containers: Mapping[str, Container]) -> bool:
    """Whether no container is a step that still runs."""
    steps = [each for name, each in containers.items() if name.endswith(("exec", "toolbox-2"))]
    return not any(each.running for each in steps)


if __name__ == "__main__":
    sys.exit(main())
