"""The deployment of a whole OpenStack, `etc/openstack`, as it can be run on this machine.

Copies it with the values of this machine, and boots a first server.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from kolla_mesos_start.ctl.directory.secret_values import MAKERS
from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from tests.examples.keystone import Users
from tests.examples.openstack import WHOLE

FIRST_SERVER = WHOLE / "demo" / "first_server"
SERVER = "openstack/demo/first_server"
VALUES = "machine.yml"
# The ports that services have in common; the APIs' own are given by `kolla_mesos_ctl up`.
PORTS = (
    *("keystone_port", "glance_port", "placement_port", "neutron_port", "nova_port"),
    *("database_port", "database_check_port", "mariadb_port", "memcached_port"),
    *("galera_port", "galera_ist_port", "galera_transfer_port"),
    *("rabbitmq_port", "rabbitmq_epmd_port"),
)
GIVEN = {15000}  # of Keystone, in the directory
RABBITMQ, OWN_PORT = "infra/rabbitmq", "rabbitmq_distribution_port"


def write(site: Path, packaged: Path, volumes: Path, controllers: int = 1) -> None:
    """Write the deployment as it can be run here into `site`; what is in `volumes` is removed."""
    for path in (site, volumes):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(WHOLE, site, symlinks=True)
    images = volumes / "images"
    images.mkdir(parents=True)
    found = values(packaged, images, controllers)
    (site / VALUES).write_text(yaml.safe_dump({name: str(value) for name, value in found.items()}))
    # Nodes of RabbitMQ that share an epmd need ports of their own, even on different addresses.
    for host in addresses(controllers):
        own = site / "services" / RABBITMQ / "variables" / host / OWN_PORT
        own.parent.mkdir(parents=True)
        own.write_text(str(free_port(GIVEN)))


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


def addresses(controllers: int) -> Mapping[str, str]:
    """An address of the loopback interface for each controller."""
    return {f"ctl-{number}": f"127.0.0.{10 + number}" for number in range(1, controllers + 1)}


def values(packaged: Path, images: Path, controllers: int) -> Mapping[str, object]:
    """The variables of the deployment that depend on the machine.

    `packaged` holds what OpenStack's packages have brought for /etc, `images` is for those of Glance.
    """
    hosts = addresses(controllers)
    return {
        **{name: free_port(GIVEN) for name in PORTS},
        "controllers": " ".join(f"{host}={address}" for host, address in hosts.items()),
        "rabbitmq_epmd_addresses": ",".join(hosts.values()),
        # Not root: rsync's daemon would change its user, and fail to write MariaDB's files.
        "mariadb_user": Users.here().mariadb,
        "memcached_user": pwd.getpwuid(os.geteuid()).pw_name,
        "mariadb_buffer_pool": "64M",
        "mariadb_redo_log": "32M",
        "galera_cache": "32M",
        "packaged": packaged,
        "glance_images": images,
    }
