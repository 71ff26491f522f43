"""What other containers have registered: what is right is read, and what is not is left out."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from kolla_mesos_start.tree.codec import FACTS_LIMIT, Invalid, instance, member

FACTS: dict[str, Any] = {
    "ansible_hostname": "ipv4",
    "api_interface": "eth0",
    "private_interface": "eth1",
    "host": "one",
    "service": "infra/mariadb/mariadb",
    "address": "one.example.org",
    "private_address": "10.0.0.1",
    "ports": [3306],
    "ansible_eth0": {"ipv4": {"address": "192.0.2.1"}, "ipv6": [{"address": "2001:db8::1"}]},
    "ansible_eth1": {"ipv4": {"address": "10.0.0.1"}},
    "ansible_eth2": {"ipv6": [{"address": "fe80::1%eth2"}]},
}
# As kolla-mesos wrote them.
OLD_FACTS = {
    "ansible_hostname": "one",
    "api_interface": "eth0",
    "ansible_eth0": {"ipv4": {"address": "192.0.2.1"}},
    "ansible_eth1": {"ipv4": {"address": "10.0.0.1"}},
}
INSTANCE: dict[str, Any] = {
    "host": "one",
    "address": "10.0.0.1",
    "ports": [5000, 35357],
    "service": "openstack/keystone/keystone-api",
    "since": "2026-11-21T03:30:00Z",
    "generation": None,
}


def encoded(facts: object, **changed: object) -> bytes:
    return json.dumps({**facts, **changed} if isinstance(facts, dict) else facts).encode()


def without(facts: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in facts.items() if field != name}


def nested(depth: int) -> object:
    """A list of lists."""
    return [nested(depth - 1)] if depth else 0


def test_what_an_agent_registers_is_read_as_it_is() -> None:
    """With all that it may add later."""
    more = {"rack": "r1", "weights": {"a": [1, 2.5, True, None]}}
    assert member(encoded(FACTS, **more), "eth1") == {**FACTS, **more}
    assert instance(encoded(INSTANCE)) == INSTANCE
    assert instance(encoded(without(INSTANCE, "generation"), ports=[])) == {
        **without(INSTANCE, "generation"),
        "ports": [],
    }


@pytest.mark.parametrize(
    ("facts", "interface", "address"),
    [
        (OLD_FACTS, "eth1", "10.0.0.1"),
        # Hosts may call their private interface differently.
        (OLD_FACTS, "ens5", "192.0.2.1"),
        (FACTS, "eth0", "10.0.0.1"),
        ({**FACTS, "private_address": "fd00::6"}, "eth1", "fd00::6"),
        ({**FACTS, "private_address": "fe80::1%br-ex.100"}, "eth1", "fe80::1%br-ex.100"),
    ],
)
def test_a_member_has_a_private_address(facts: dict[str, Any], interface: str, address: str) -> None:
    """A member that kolla-mesos registered has that of the private interface, else of its own public one."""
    assert member(encoded(facts), interface)["private_address"] == address


@pytest.mark.parametrize(("facts", "address"), [(FACTS, "one.example.org"), (OLD_FACTS, "10.0.0.1")])
def test_a_member_has_the_address_that_it_registered(facts: dict[str, Any], address: str) -> None:
    """kolla-mesos registered none: then it is the private one."""
    assert member(encoded(facts), "eth1")["address"] == address


BAD_TEXTS = [
    "",
    7,
    None,
    ["a"],
    {"a": "b"},
    True,
    "a\nb",
    "a\rb",
    "a\x1b[2J",
    "a\x00",
    "\x85",
    "\u2028",
    "\ud800",
]
NO_ADDRESS = [
    *BAD_TEXTS,
    *("10.0.0.1\nx = y", "10.0.0.1 ", "10.0.0", "10.0.0.256", "10.0.0.1:80", "[fd00::6]", "fd00::6::1"),
    *("fe80::1%", "fe80::1%a b", "fe80::1%a;b", "10.0.0.1%eth0", "1" * 400),
]
NO_IPV6: list[Any] = ["fd00::6", {}, ["fd00::6"], [{}], [{"address": "10.0.0.1"}]]
BAD: dict[str, list[Any]] = {
    "private_address": [*NO_ADDRESS, "one.example.org"],
    "address": [*NO_ADDRESS, "a b", "a;b", "-a", "a/b", "{{ a }}"],
    **dict.fromkeys(("ansible_hostname", "host", "service", "private_interface"), BAD_TEXTS),
    "api_interface": [*BAD_TEXTS, "eth7", "hostname"],  # It isn't among the facts, or is no interface.
    "ports": ["80", 80, None, {}, ["80"], [True], [0], [65536], [-1], [1.5], [[1]]],
    "ansible_eth0": [None, "up", [], {"ipv4": "192.0.2.1"}, {"ipv4": {}}, {"a": "b\nc"}],
    "ansible_eth2": [
        *({"ipv4": {"address": address}} for address in [*NO_ADDRESS, "fd00::6"]),
        *({"ipv6": addresses} for addresses in NO_IPV6),
    ],
    "strange": ["a\nb", {"a": ["\x1b"]}, {"a\nb": 1}, nested(9), "x" * FACTS_LIMIT],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in BAD for value in BAD[field]])
def test_a_member_with_a_fact_that_does_not_fit_is_left_out(field: str, value: object) -> None:
    """It names the field and what was expected, never what was found: that is a stranger's text."""
    with pytest.raises(Invalid) as caught:
        member(encoded(FACTS, **{field: value}), "eth1")
    message = str(caught.value)
    assert message.isprintable() and len(message) < 200
    if value and "x" * 99 not in str(value):
        assert message.startswith(f"{field}: ")
        assert not isinstance(value, str) or value not in message


@pytest.mark.parametrize("field", ["ansible_hostname", "api_interface", "ansible_eth0"])
def test_a_member_without_what_every_member_has_is_left_out(field: str) -> None:
    """A template that goes through all members would fail because of it."""
    with pytest.raises(Invalid):
        member(encoded(without(FACTS, field)), "eth1")


def test_a_member_without_any_address_is_left_out() -> None:
    """Whatever the service of that member is, others would render an empty address."""
    facts = {**OLD_FACTS, "ansible_eth0": {}, "ansible_eth1": {}}
    with pytest.raises(Invalid, match=r"^private_address: "):
        member(encoded(facts), "eth1")


@pytest.mark.parametrize("field", ["host", "address", "ports", "service"])
@pytest.mark.parametrize("value", [None, "a\nb", {"a": 1}])
def test_an_instance_with_a_value_that_does_not_fit_is_left_out(field: str, value: object) -> None:
    """Also one without it."""
    with pytest.raises(Invalid, match=f"^{field}: "):
        instance(encoded(INSTANCE, **{field: value}))
    with pytest.raises(Invalid, match=f"^{field}: "):
        instance(encoded(without(INSTANCE, field)))


@pytest.mark.parametrize("field", ["since", "generation"])
@pytest.mark.parametrize("value", [7, "a\nb", {"a": 1}])
def test_what_an_instance_may_have_must_fit_too(field: str, value: object) -> None:
    """If it is there."""
    with pytest.raises(Invalid, match=f"^{field}: "):
        instance(encoded(INSTANCE, **{field: value}))


NO_OBJECTS = [
    b"",
    b"no JSON",
    b"\xff",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"[" * 10_000,
    b'{"a":' * 3000,
    b"7" * 10_000,
    b'{"\\ud800": 1}',
    b'{"a\\nb": 1}',
    b"{" + b" " * FACTS_LIMIT + b"}",
]


@pytest.mark.parametrize("data", NO_OBJECTS)
def test_what_is_no_object_is_left_out(data: bytes) -> None:
    """However deep or long it is."""
    for read in (partial(member, private_interface="eth1"), instance):
        with pytest.raises(Invalid) as caught:
            read(data)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 200
