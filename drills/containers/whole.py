"""The images of kolla-ansible's all-in-one: all of Kolla's that can be built here, in a storage of their own.

What lives here: what differs from `imported.py`. OpenStack is of the release that kolla-ansible deploys.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

from drills.containers.imported import ImportedImages
from tests.containers.images import RECIPE as COMMON
from tests.containers.images import kolla_build, render
from tests.examples.openstack import PIP, Say, python_for_keystone, run

RECIPE = Path(__file__).with_name("whole")
OVERRIDES = (COMMON / "override.j2", RECIPE / "override.j2")
# PyPI's packages whose sources Kolla unpacks in an image.
SOURCES = {
    "glance/glance-base": "glance",
    "placement/placement-base": "openstack-placement",
    "heat/heat-base": "openstack-heat",
    "horizon": "horizon",
    "neutron/neutron-base": "neutron",
    "nova/nova-base": "nova",
}
# The last release with the collection openvswitch.openvswitch, which Kolla takes from Galaxy.
OPENVSWITCH = "ansible", "10.7.0"
PLUGINS = (
    *("horizon", "placement/placement-base", "neutron/neutron-base", "neutron/neutron-server"),
    *("nova/nova-base", "nova/nova-compute"),
)


class WholeImages(ImportedImages):
    """Those of the default all-in-one, except fluentd and ProxySQL, which neither Debian nor PyPI has."""

    place = "whole-images"
    requirements, constraints = RECIPE / "requirements.txt", RECIPE / "constraints.txt"
    collections = (*ImportedImages.collections, "community/rabbitmq")
    dockerfiles: Mapping[str, str] = {
        **{name: name for name in ("base", "cron", "keepalived", "memcached", "mariadb-server", "rabbitmq")},
        **{name: name for name in ("kolla-toolbox", "openstack-base")},
        "haproxy": "haproxy/haproxy",
        **{
            name: f"{service}/{name}"
            for service, names in {
                "keystone": ("keystone-base", "keystone", "keystone-fernet", "keystone-ssh"),
                "glance": ("glance-base", "glance-api"),
                "placement": ("placement-base", "placement-api"),
                "openvswitch": ("openvswitch-base", "openvswitch-db-server", "openvswitch-vswitchd"),
                "neutron": (
                    *("neutron-base", "neutron-server", "neutron-openvswitch-agent"),
                    *("neutron-dhcp-agent", "neutron-l3-agent", "neutron-metadata-agent"),
                ),
                "nova": (
                    *("nova-base", "nova-api", "nova-conductor", "nova-scheduler", "nova-novncproxy"),
                    *("nova-compute", "nova-ssh", "nova-libvirt"),
                ),
                "heat": ("heat-base", "heat-api", "heat-api-cfn", "heat-engine"),
            }.items()
            for name in names
        },
        "horizon": "horizon",
    }

    def __init__(self, cache: Path, say: Say) -> None:
        super().__init__(cache, say)
        files = (Path(__file__), *OVERRIDES, RECIPE / "repos.yaml")
        self._kolla += hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]

    def _make_kolla(self, directory: Path) -> None:
        self._say("making Debian's and Kolla's images (about 20 minutes)")
        there = self._there()
        if self._debian not in there:
            self._make_debian(directory / "debian")
        contexts = self._render(directory / "kolla")
        for name, place in self.dockerfiles.items():
            if self.kolla(name) not in there:
                self._say(f"making Kolla's {name}")
                self.build(contexts / place, self.kolla(name))

    def _render(self, directory: Path) -> Path:
        contexts = render(
            kolla_build(self.store.parent, self._say),
            directory,
            [
                "--docker-healthchecks",
                *(f"--template-override={path}" for path in OVERRIDES),
                *(f"^{name}$" for name in self.dockerfiles),
            ],
            base_image="localhost/debian",
            base_tag=self._kolla,
            namespace="localhost/kolla",
            tag=self._kolla,
            repos_yaml=RECIPE / "repos.yaml",
        )
        self._complete(contexts)
        return contexts

    def _complete(self, contexts: Path) -> None:
        super()._complete(contexts)
        for place in PLUGINS:
            shutil.copy(contexts / "openstack-base" / "plugins-archive", contexts / place)
        pinned = dict(line.split("==") for line in self.constraints.read_text().splitlines())
        for place, package in SOURCES.items():
            source = self._download(package, pinned[package], "--no-binary", package)
            shutil.copy(source, contexts / place / f"{place.rpartition('/')[2]}-archive")
        with zipfile.ZipFile(self._download(*OPENVSWITCH)) as wheel:
            names = (each for each in wheel.namelist() if each.startswith("ansible_collections/openvswitch/"))
            wheel.extractall(contexts, names)
        collections = contexts / self.dockerfiles["kolla-toolbox"] / "collections"
        shutil.copytree(contexts / "ansible_collections", collections, dirs_exist_ok=True)

    def _download(self, package: str, version: str, *options: str) -> Path:
        """A package's file from PyPI, which is kept."""
        place = self.store.parent / "whole-sources" / f"{package}-{version}"
        if not place.exists():
            words = ("download", "--no-deps", *options, "--dest", f"{place}.new", f"{package}=={version}")
            run((python_for_keystone(), *PIP, *words))
            Path(f"{place}.new").rename(place)
        (found,) = place.iterdir()
        return found
