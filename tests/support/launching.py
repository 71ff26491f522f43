"""Keystone of `etc/examples/keystone`, to be started on this machine from generated manifests.

Makes its directory, with the images under test and the values of this machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from kolla_mesos_start.ctl.directory import formats
from tests.containers.images import Images
from tests.examples.keystone import API, MARIADB, MEMCACHED, TASKS
from tests.examples.openstack import EXAMPLE
from tests.support.zookeeper import free_port

PASSWORD = "a 'password\" \\ with a bit of %everything"
IMAGES = {MARIADB: "mariadb-server", MEMCACHED: "memcached", TASKS: "mariadb-server", API: "keystone"}
PORTS = ("mariadb_port", "memcached_port", "keystone_port")


def free_ports() -> Mapping[str, int]:
    """One for each that is listened to."""
    return {name: free_port() for name in PORTS}


def directory(
    place: Path,
    images: Images,
    hosts: str,
    ports: Mapping[str, int],
    settings: Mapping[str, object] = {},
    agent: object = None,
) -> Path:
    """The example, in a place of its own; `settings` are more for all services in its launch.yml.

    `agent` is mounted into Kolla's images as they are.
    """
    shutil.copytree(EXAMPLE, place)
    values = {name: PASSWORD for name in formats.values(EXAMPLE / "variables.yml") if "password" in name}
    values.update(keystone_workers="1")
    values.update((name, str(port)) for name, port in ports.items())
    own = {**formats.values(EXAMPLE / "variables.yml"), **values}
    (place / "variables.yml").write_text(json.dumps(own))
    launch = yaml.safe_load((EXAMPLE / "launch.yml").read_text())
    launch["zookeeper"] = hosts
    launch["services"][MEMCACHED]["read_only"] = True
    launch["defaults"].update(settings)
    launch["defaults"]["env"] = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}
    for service, image in IMAGES.items():
        launch["services"][service]["image"] = images.kolla(image) if agent else images.agent(image)
    if agent:
        launch["agent"] = agent
    (place / "launch.yml").write_text(yaml.safe_dump(launch))
    return place
