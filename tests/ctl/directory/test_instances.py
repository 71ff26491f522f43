"""How many containers of a service are wanted is read in one way by all commands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory.directory import Deployment, Service, Values
from kolla_mesos_start.ctl.directory.launch import wanted_instances, with_instances
from kolla_mesos_start.ctl.up.deployment import plan
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.errors import BadDefinition
from tests.ctl import trees


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({}, 1),
        ({"service": None}, 1),
        ({"service": {"instances": None}}, 1),
        ({"service": {"instances": 3}}, 3),
        ({"service": {"instances": " 0 "}}, 0),
        ({"service": {"instances": -1}}, None),
        ({"service": {"instances": "\u00b2"}}, None),
        ({"service": {"instances": True}}, None),
        ({"service": {"instances": "9" * 5000}}, None),
    ],
)
def test_one_unless_it_says_something_else(definition: dict[str, Any], expected: int | None) -> None:
    assert wanted_instances(definition, lambda text: text.text) == expected


def test_half_of_a_surrogate_pair_stays_in_a_definition() -> None:
    """Where its number of instances is written into it: what reads it then says what is wrong with it."""
    definition = b'{"service": {"daemon": {"command": "\\ud800"}}}'
    with pytest.raises(BadDefinition, match="not UTF-8 text"):
        load(with_instances(definition, 2))


def test_a_template_means_the_same_to_status_and_up() -> None:
    """Both fill in what is published, or will be."""
    definition = trees.definition(instances="{{ replicas }}")  # type: ignore[arg-type]
    found = trees.deployment({"variables/replicas": "3", "web": definition})
    assert found.services["web"].wanted == 3
    service = Service("web", "", json.dumps(definition).encode(), Values({}, {}), {})
    assert len(plan(Deployment({"replicas": b"3"}, [service], ()), [], [])) == 3
