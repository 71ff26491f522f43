"""What the znodes of a deployment mean, and which of them a directory no longer has."""

from __future__ import annotations

from collections.abc import Set

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import Deployment, Service, Values
from kolla_mesos_start.ctl.zk import published

NODES = {
    "variables": b"",
    "variables/region": b"one",
    "variables/empty": b"",
    "a": b"",
    "a/db": b"{}",
    "a/db/variables": b"",
    "a/db/variables/size": b"3",
    "a/db/variables/web1": b"",
    "a/db/variables/web1/size": b"5",
    "a/db/files": b"",
    "a/db/files/conf": b"x",
    "old": b"{}",
    "old/variables": b"",
    "old/variables/x": b"1",
    "old/below": b"{}",
    "by-others/variables/y": b"1",
}


def service(name: str, own: dict[str, bytes] | None = None, **files: bytes) -> Service:
    return Service(name, "", b"{}", Values(own or {}, {}), files)


def test_znodes_become_a_directory() -> None:
    """A host is the parent of values, and not a value."""
    found = published.deployment(NODES)
    services = {each.name: each for each in found.services}
    assert found.variables == {"region": b"one", "empty": b""}
    assert services["a/db"].variables == ({"size": b"3"}, {"web1": {"size": b"5"}})
    assert services["a/db"].files == {"conf": b"x"}
    values = {node: data for node, data in NODES.items() if data and node not in directory.definitions(found)}
    assert values.items() <= directory.nodes(found).items()


def test_a_directory_is_merged_with_what_is_published() -> None:
    """A path without a definition is not a service, unless the directory defines it."""
    own = Deployment({"region": b"two"}, [service("a/db", {"more": b"m"}), service("by-others")], ())
    found = published.merged(own, published.deployment(NODES))
    services = {each.name: each for each in found.services}
    assert found.variables == {"region": b"two", "empty": b""}
    assert services["a/db"].variables == ({"size": b"3", "more": b"m"}, {"web1": {"size": b"5"}})
    assert services["by-others"].variables.own == {"y": b"1"}
    assert services.keys() == {"a/db", "old", "old/below", "by-others"}
    alone = published.merged(own._replace(services=()), published.deployment(NODES))
    assert {each.name for each in alone.services} == {"a/db", "old", "old/below"}


@pytest.mark.parametrize(
    ("gone", "removed", "emptied"),
    [
        (
            set(),
            {"a/db/variables/web1/size", "a/db/variables/web1", "a/db/files/conf", "variables/region"},
            set(),
        ),
        ({"old/below"}, {"old/below"}, set()),
        ({"old"}, {"old/variables/x", "old/variables"}, {"old"}),
        ({"old", "old/below"}, {"old/variables/x", "old/variables", "old/below", "old"}, set()),
    ],
)
def test_znodes_that_are_not_in_the_directory_are_removed(
    gone: Set[str], removed: set[str], emptied: set[str]
) -> None:
    """Children before their parents; nothing that others have published."""
    own = Deployment({"empty": b""}, [service("a/db", {"size": b"3"})], ())
    found = published.removals(NODES, own, gone)
    assert removed <= set(found.removed)
    assert set(found.emptied) == emptied
    assert not [node for node in found.removed if node.startswith("by-others")]
    assert gone or set(found.removed) == removed
    for node in found.removed:
        assert not [
            each for each in found.removed[found.removed.index(node) :] if each.startswith(f"{node}/")
        ]
