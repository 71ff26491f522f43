"""The images of an imported Keystone: more of Kolla's own Dockerfiles, in a storage of their own.

What lives here: what differs from `images.py`. Kolla's healthchecks are in these images, and kolla_toolbox
has the collections of ansible that its modules here are from.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.containers.images import Images
from tests.kolla_ansible.installed import NEWEST, environment, pins
from tests.support.pins import versions


class ImportedImages(Images):
    """Those of Kolla that its Keystone needs, as it publishes them."""

    place = "imported-images"
    healthchecks = True
    # What the recorded modules are from.
    collections: tuple[str, ...] = (
        *("community/mysql", "community/library_inventory_filtering_v1", "openstack/cloud"),
    )
    dockerfiles: Mapping[str, str] = {
        "base": "base",
        "haproxy": "haproxy/haproxy",
        "memcached": "memcached",
        "mariadb-server": "mariadb-server",
        "kolla-toolbox": "kolla-toolbox",
        "openstack-base": "openstack-base",
        "keystone-base": "keystone/keystone-base",
        "keystone": "keystone/keystone",
        "keystone-fernet": "keystone/keystone-fernet",
        "keystone-ssh": "keystone/keystone-ssh",
    }
    services: Mapping[str, tuple[str, str]] = {}  # The agent is mounted.

    def _complete(self, contexts: Path) -> None:
        super()._complete(contexts)
        toolbox = contexts / self.dockerfiles["kolla-toolbox"]
        (toolbox / "constraints.txt").write_text(versions(pins(NEWEST)))
        (found,) = environment(self._say).glob("lib/python3*/site-packages/ansible_collections")
        for name in self.collections:
            if (found / name).exists():
                shutil.copytree(found / name, toolbox / "collections" / name)
