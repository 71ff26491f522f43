"""The bill of materials is one by CycloneDX's own schema, and names all that a container gets."""

from __future__ import annotations

import json
import subprocess
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kolla_mesos_start import __version__
from tests import CHECKOUT
from tests.rules.test_house import NEEDED
from tests.support import pins


def test_the_bill_of_materials_names_all_that_a_container_gets() -> None:
    """Version, licence, purl and hashes of each; by the one command that CONTRIBUTING.rst gives."""
    argv = (sys.executable, "-m", "tests.support.materials")
    text = subprocess.run(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["component"]["version"] == __version__
    components = {each["name"]: each for each in bill["components"]}
    assert components.keys() == {*NEEDED, "markupsafe"}
    for pin in pins.read(pins.AGENT):
        if pin.name != pins.BUILDS and pin.is_for_this_python:
            found = components[pin.name]
            assert found["version"] == pin.version
            assert found["purl"] == f"pkg:pypi/{pin.name}@{pin.version}"
            assert {each["content"] for each in found["hashes"]} == set(pin.hashes)
            (licence,) = found["licenses"]
            assert licence["license"]["id"] in ("Apache-2.0", "BSD-3-Clause", "MIT")
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert len(needs["kolla_mesos_start"]) == len(NEEDED)
    assert needs[components["jinja2"]["bom-ref"]] == [components["markupsafe"]["bom-ref"]]
