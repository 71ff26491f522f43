"""The deployment of a whole OpenStack, `etc/openstack`, as it can be run on this machine.

What lives here: a copy of it with the values of this machine, and a first server.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from kolla_mesos_start.operator.deployment.secret_values import MAKERS
from kolla_mesos_start.operator.local.private_zookeeper import free_port
from tests.examples.openstack import WHOLE

FIRST_SERVER = WHOLE / "demo" / "first_server"
SERVER = "openstack/demo/first_server"
VALUES = "machine.yml"
# The ports that services have in common; the APIs' own are given by `kolla_mesos_ctl up`.
PORTS = (
    *("keystone_port", "glance_port", "placement_port", "neutron_port", "nova_port"),
    *("mariadb_port", "memcached_port"),
    *("rabbitmq_port", "rabbitmq_distribution_port", "rabbitmq_epmd_port"),
)


def write(site: Path, packaged: Path, volumes: Path) -> None:
    """Write the deployment as it can be run here into `site`; what is in `volumes` is removed."""
    for path in (site, volumes):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(WHOLE, site, symlinks=True)
    images = volumes / "images"
    images.mkdir(parents=True)
    own = {name: str(value) for name, value in values(packaged, images).items()}
    (site / VALUES).write_text(yaml.safe_dump(own))


def add_server(site: Path) -> None:
    """Add a task that boots a server to what `write` has written."""
    shutil.copytree(FIRST_SERVER, site / "services" / SERVER)


def services() -> list[str]:
    """The deployment's services, without the first server."""
    root = WHOLE / "services"
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("definition.yml"))


def secrets() -> Mapping[str, str]:
    """New values of all secrets, which every deployment needs."""
    kinds = yaml.safe_load((WHOLE / "secrets.yml").read_text())
    return {name: MAKERS[kind]() for name, kind in kinds.items()}


def values(packaged: Path, images: Path) -> Mapping[str, object]:
    """The variables of the deployment that depend on the machine.

    `packaged` holds what OpenStack's packages have brought for /etc, `images` is for those of Glance.
    """
    taken: set[int] = set()
    ports = {}
    for name in PORTS:
        ports[name] = free_port(taken)
        taken.add(ports[name])
    user = pwd.getpwuid(os.geteuid()).pw_name
    users = {"mariadb_user": user, "memcached_user": user}
    return {**ports, **users, "packaged": packaged, "glance_images": images}
