"""A bill of materials of what Dockerfile.snippet installs, in CycloneDX's JSON.

    .venv/bin/python -m tests.support.materials >bom.json

Versions and hashes are those of etc/requirements, where pip accepts no others; the hashes of a component are
those of its files, one for each Python and processor. Licences are what the packages say themselves. Python
is the image's own. With SOURCE_DATE_EPOCH, its time and serial number are the same in each run.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib import metadata

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kolla_mesos_start import __version__
from tests.support import pins

AGENT = "kolla_mesos_start"
# Of what says it in words of its own, or not in the name of its licence; read in the package's LICENSE.
LICENCES = {"kazoo": "Apache-2.0", "jinja2": "BSD-3-Clause"}


def bill() -> Bom:
    """The agent, and all that it needs."""
    pinned: dict[str, pins.Pin] = {
        canonicalize_name(pin.name): pin for pin in pins.read(pins.AGENT) if pin.is_for_this_python
    }
    agent = Component(
        name=AGENT,
        version=__version__,
        type=ComponentType.APPLICATION,
        bom_ref=AGENT,
        purl=PackageURL("generic", name=AGENT, version=__version__),
        licenses=[LicenseFactory().make_from_string(metadata.metadata(AGENT)["License"])],
    )
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{agent.purl} {seconds}"))
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, timezone.utc)
    bom.metadata.component = agent
    components: dict[str, Component] = {}
    _add(bom, agent, components, pinned)
    return bom


def _add(
    bom: Bom, needing: Component, components: dict[str, Component], pinned: Mapping[str, pins.Pin]
) -> None:
    """Add what a component needs, and what that needs."""
    needed = list(_needs(needing.name))
    for name in needed:
        if name not in components:
            components[name] = _component(pinned[name])
            bom.components.add(components[name])
            _add(bom, components[name], components, pinned)
    bom.register_dependency(needing, [components[name] for name in needed])


def _needs(name: str) -> Iterator[str]:
    """What a package needs as it is, without its extras."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _component(pin: pins.Pin) -> Component:
    assert metadata.version(pin.name) == pin.version, f"{pin.name} is not installed as pinned: run bin/test"
    said = metadata.metadata(pin.name)
    licence = LICENCES.get(pin.name) or said["License-Expression"] or said["License"]
    purl = PackageURL("pypi", name=canonicalize_name(pin.name), version=pin.version)
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.hashes],
    )


def main() -> None:
    print(JsonV1Dot6(bill()).output_as_string(indent=2))


if __name__ == "__main__":
    main()
