"""What a definition says of itself, whatever it holds."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.ctl.zk.services import (
    chosen,
    counted_commands,
    follows,
    one_time_commands,
    used_variables,
)
from kolla_mesos_start.errors import BadUsage


def test_counted_commands() -> None:
    definition = b"""{"commands": {"a": {"dependencies": ["x/y", {"path": "db/init", "count": 3}]}},
        "service": {"daemon": {"dependencies": [{"path": "db/sync"}, {"members": "db", "count": 2}]}}}"""
    assert counted_commands(definition) == {"db/init"}


def test_one_time_commands() -> None:
    definition = b"""{"commands": {"a": {"run_once": true}, "b": {"run_once": "host"}, "d": {},
        "c": {"run_once": false}, "e": 5}}"""
    assert one_time_commands("infra/db", definition) == ["db/a", "db/b"]


@pytest.mark.parametrize("definition", [b"", b"\xff", b"[", b"5", b"[" * 100_000, b"[" * 1500 + b"]" * 1500])
def test_an_invalid_definition_has_no_names(definition: bytes) -> None:
    """Also one that is too deep for this Python."""
    assert counted_commands(definition) == used_variables(definition, {}) == frozenset()
    assert one_time_commands("infra/db", definition) == []
    assert not follows(definition)


PUBLISHED = ["shop/web", "web/api", "other/api", "infra/db", "db"]


@pytest.mark.parametrize(
    ("given", "name"), [("shop/web", "shop/web"), ("web", "shop/web"), ("db", "db"), ("infra/db", "infra/db")]
)
def test_a_service_is_found_by_its_name_or_role(given: str, name: str) -> None:
    """The name wins."""
    assert chosen(given, PUBLISHED, "/kolla/site") == name


def test_an_unknown_or_ambiguous_service_is_refused() -> None:
    expected = "/kolla/site has no service 'wbe' .did you mean 'web'. there are: shop/web, "
    with pytest.raises(NotThere, match=expected):
        chosen("wbe", PUBLISHED, "/kolla/site")
    with pytest.raises(BadUsage, match=r"'api' is the role of several services, .*: other/api, web/api$"):
        chosen("api", PUBLISHED, "/kolla/site")
