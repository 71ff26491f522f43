"""What the change of a variable means to the containers of a service."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.commands.variables import ChangedVariable, set_
from kolla_mesos_start.ctl.directory.directory import Service, Values
from kolla_mesos_start.tree.znodes import Znodes

SERVICE = "shop/web"
PLACES = {
    "deployment": ("variables/x", Znodes("/kolla", "site", "", "")),
    "service": ("shop/web/variables/x", Znodes("/kolla", "site", SERVICE, "")),
    "host": ("shop/web/variables/n1/x", Znodes("/kolla", "site", SERVICE, "n1")),
}
READER = Service(SERVICE, "", b"{}", Values({}, {}), {})
BOTH, FIRST, SECOND = "2 containers on n1, n2", "1 container on n1", "1 container on n2"


def wins(place: str, where: str) -> str:
    return f"shop/web has its own value at /kolla/site/{PLACES[place][0]}, which takes precedence: {where}"


def restart(where: str) -> str:
    return f"restart shop/web to use it: {where}"


@pytest.mark.parametrize(
    ("changed", "other", "expected"),
    [
        ("deployment", "deployment", [restart(BOTH)]),
        ("deployment", "service", [wins("service", BOTH)]),
        ("deployment", "host", [wins("host", FIRST), restart(SECOND)]),
        ("service", "deployment", [restart(BOTH)]),
        ("service", "service", [restart(BOTH)]),
        ("service", "host", [wins("host", FIRST), restart(SECOND)]),
        ("host", "deployment", [restart(FIRST)]),
        ("host", "service", [restart(FIRST)]),
        ("host", "host", [restart(FIRST)]),
    ],
)
def test_the_nearest_value_wins(changed: str, other: str, expected: list[str]) -> None:
    """Whatever is changed, and wherever else a value stands."""
    nodes = {PLACES[place][0]: b"1" for place in (changed, other)}
    change = ChangedVariable(PLACES[changed][1], "x", nodes, (), {SERVICE: ["n1", "n2"]})
    assert list(change.effects(READER, "to use it")) == expected


@pytest.mark.parametrize("other", PLACES)
def test_a_value_for_a_host_without_a_container_reaches_none(other: str) -> None:
    """Nor does another value win there."""
    nodes = {PLACES[other][0]: b"1", "shop/web/variables/nn/x": b"1"}
    change = ChangedVariable(Znodes("/kolla", "site", SERVICE, "nn"), "x", nodes, (), {SERVICE: ["n1"]})
    assert list(change.effects(READER, "to use it")) == [
        "no container of shop/web is on nn now: 1 container on n1"
    ]


def test_the_help_of_set_knows_files_that_follow() -> None:
    """As what it prints: only the rest needs a restart."""
    assert "a daemon with `on_change` refreshes its files without a restart" in set_.description
