"""Which services depend on another one."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.validate.uses import dependents
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.keys import build
from kolla_mesos_start.tree.znodes import Znodes

DAEMON = b'{"service": {"daemon": {"command": "x"}}}'


def waits(dependency: str) -> bytes:
    return b'{"commands": {"a": {"command": "x", "dependencies": [%s]}}}' % dependency.encode()


def found(**more: bytes) -> list[str]:
    """Those of infra/db; the names of znodes have __ for /."""
    nodes = {"infra": b"", "infra/db": waits('"db/daemon"'), "infra/other": DAEMON}
    nodes.update({name.replace("__", "/"): data for name, data in more.items()})
    return dependents(nodes, Znodes("", "site", "infra/db", ""), {})


@pytest.mark.parametrize(
    "dependency",
    ['"db/sync"', '{"path": "db/daemon", "scope": "local"}', '{"members": "infra/db"}', '"{{ role }}/sync"'],
)
def test_who_waits_for_a_service_depends_on_it(dependency: str) -> None:
    """For a command, the daemon or its members, also where a variable names it."""
    assert found(shop__web=waits(dependency), shop__web__variables__role=b"db") == ["shop/web"]
    of_host = {"shop__web__variables__role": b"other", "shop__web__variables__h1__role": b"db"}
    assert found(shop__web=waits(dependency), **of_host) == ["shop/web"]


@pytest.mark.parametrize(
    "dependency", ['"other/daemon"', '{"members": "infra/other"}', '{"external": {"tcp": "db:3306"}}']
)
def test_others_do_not(dependency: str) -> None:
    """Nor does the service itself."""
    definition = waits(dependency)
    assert build(load(definition), "shop/web", str)
    assert found(shop__web=definition) == []


@pytest.mark.parametrize("definition", [b"", b"{", b'{"commands": 1}'])
def test_an_unreadable_definition_depends_on_nothing(definition: bytes) -> None:
    assert found(shop__web=definition) == []


def test_a_role_may_have_another_service() -> None:
    """Then only its members are still missing."""
    assert found(b__db=DAEMON, shop__web=waits('"db/sync"')) == []
    assert found(b__db=DAEMON, shop__web=waits('{"members": "infra/db"}')) == ["shop/web"]
