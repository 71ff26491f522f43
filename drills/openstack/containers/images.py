"""The images of a whole OpenStack: Kolla's own Dockerfiles, and Dockerfile.snippet on top of them.

What lives here: what is other than in `tests/containers/images.py`. All of OpenStack is in one image, on top
of Kolla's for Keystone: its services are users there, each with the directories that Kolla gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.containers.images import Images
from tests.examples.openstack import CONSTRAINTS, REQUIREMENTS, WHOLE

KEYSTONE = "keystone-base"
# As macros.j2 of Kolla makes a service's user, and then as Dockerfile.snippet opens its directory.
USERS = """\
FROM {keystone}
USER root
RUN for name in glance neutron nova placement; do \\
        usermod --append --home /var/lib/$name --groups kolla $name \\
        && install -d -o $name -g $name /var/lib/$name \\
        && install -d -g $name -m 0775 /etc/$name || exit; \\
    done
"""


class OpenStackImages(Images):
    """Those of the servers, and one with all of OpenStack, in a storage of their own."""

    place = "openstack-images"
    dockerfiles: Mapping[str, str] = {
        "base": "base",
        "haproxy": "haproxy/haproxy",
        "mariadb-server": "mariadb-server",
        "memcached": "memcached",
        "rabbitmq": "rabbitmq",
        "openstack-base": "openstack-base",
        KEYSTONE: "keystone/keystone-base",
    }
    services: Mapping[str, tuple[str, str]] = {
        "haproxy": ("haproxy", "haproxy"),
        "mariadb-server": ("mysql", "mysql"),
        "memcached": ("memcached", "memcached"),
        "rabbitmq": ("rabbitmq", "rabbitmq"),
        KEYSTONE: ("keystone", "keystone"),
    }
    requirements, constraints = WHOLE / REQUIREMENTS.name, WHOLE / CONSTRAINTS.name

    @property
    def openstack(self) -> str:
        """The image of all that is OpenStack's own."""
        return self.agent(KEYSTONE).replace(KEYSTONE, "openstack")

    @property
    def _wanted(self) -> set[str]:
        return {*super()._wanted, self.openstack}

    def _make(self, directory: Path) -> None:
        super()._make(directory)
        context = directory / "openstack"
        context.mkdir()
        (context / "Dockerfile").write_text(USERS.format(keystone=self.agent(KEYSTONE)))
        self.build(context, self.openstack)
