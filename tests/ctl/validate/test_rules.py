"""A definition before it is published: what would end its agents is found, what only they know is left."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.ctl.validate.rules import build_graph
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.errors import BadDefinition, CannotRender
from kolla_mesos_start.tree.znodes import Znodes


def can_build(definition: str, **variables: str) -> bool:
    """Whether the graph can be built without an agent."""
    znodes = Znodes("/kolla", "site", "a/db", "web1")
    return build_graph(load(definition.encode()), znodes, variables) is not None


def dependent(count: str) -> str:
    """A definition whose dependency has this count."""
    dependencies = [{"path": "x/daemon", "count": count}]
    return json.dumps({"commands": {"sync": {"command": "true", "dependencies": dependencies}}})


def test_numbers_are_checked_with_the_published_variables() -> None:
    """A count that comes from a variable is right or wrong like one that is written there."""
    assert can_build(dependent("{{ n }}"), n="3")
    with pytest.raises(BadDefinition, match="count"):
        can_build(dependent("{{ n }}"), n="three")


def test_a_variable_that_a_definition_needs_is_missed_before_it_is_published() -> None:
    """And the message says where it was looked for, not that the number is wrong."""
    with pytest.raises(CannotRender, match=r"missing: n .*/kolla/site/a/db/variables/web1/n"):
        can_build(dependent("{{ n }}"))


@pytest.mark.parametrize(
    "count", ["{{ groups['x'] | length }}", "{{ hostvars['10.0.0.1'].n }}", "{{ groups['x'][0] }}"]
)
def test_what_only_an_agent_can_know_is_left_to_it(count: str) -> None:
    """No container runs yet when a deployment is published for the first time."""
    assert not can_build(dependent("{{ " + count + " }}"))


def test_what_is_wrong_beside_an_unknown_number_is_found() -> None:
    """A misspelt key is one wherever the count comes from."""
    with pytest.raises(BadDefinition, match="retrys"):
        can_build(dependent("{{ groups['x'] | length }}").replace('"command"', '"retrys": 1, "command"', 1))
