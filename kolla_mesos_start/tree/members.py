"""Validates the facts that other containers have registered. Pure.

Templates write them into config files: no value may break a line of such a file, or an agent that reads it.
Messages name the field, and never show its value.
"""

from __future__ import annotations

import json
import re
import socket
from functools import lru_cache

from kolla_mesos_start.host.network import FACTS_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kolla_mesos_start.zookeeper.view import Znode

    Facts = dict[str, Any]

SIZE_LIMIT = FACTS_LIMIT  # bytes of JSON
DEPTH_LIMIT = 8  # of lists and objects in a fact; an interface has three
NAME_LIMIT = 64  # characters of a field's name in a message
NO_SESSION = "no session owns it, as in a copied tree: `kolla_mesos_ctl reset` removes it"

_HOST_NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ZONE = re.compile("[A-Za-z0-9_.@~+-]{1,15}")  # the interface of a link-local address


class InvalidFacts(Exception):
    """Invalid facts: which field, and what was expected."""


def why_left_out(znode: Znode, read: Callable[[bytes], object]) -> str:
    """Why what a container has registered counts for nothing; empty if it counts. `read` decodes it."""
    return _problem(read, znode.data) if znode.stat.ephemeralOwner else NO_SESSION


@lru_cache(maxsize=256)  # A waiting command is judged again for each of its members.
def _problem(read: Callable[[bytes], object], data: bytes) -> str:
    try:
        read(data)
    except InvalidFacts as invalid:
        return str(invalid)
    return ""


def member(data: bytes, private_interface: str = "") -> Facts:
    """The facts of a member of a party.

    kolla-mesos wrote no `private_address`: then it is the address of the interface `private_interface`, else
    that of the member's own `api_interface`. Without `address`, that is the private one.
    """
    facts = _facts(data, ("ansible_hostname", "api_interface"))
    public = facts.get(f"ansible_{facts['api_interface']}")
    if not isinstance(public, dict):
        raise InvalidFacts("api_interface: expected an interface among the facts")
    interfaces = (facts.get(f"ansible_{private_interface}", {}), public)
    addresses = [one["ipv4"]["address"] for one in interfaces if "ipv4" in one]
    if "private_address" not in facts and not addresses:
        raise InvalidFacts("private_address: missing")
    private = facts.get("private_address", next(iter(addresses), None))
    return {"private_address": private, "address": private, **facts}


def instance(data: bytes) -> Facts:
    """What a ready instance of a daemon has registered."""
    return _facts(data, ("host", "address", "ports", "service"))


def _facts(data: bytes, required: Sequence[str]) -> Facts:
    if len(data) > SIZE_LIMIT:
        raise InvalidFacts(f"it has more than {SIZE_LIMIT} bytes")
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise InvalidFacts("it is not a JSON object")
    for field, value in facts.items():
        if not _is_text(field):
            raise InvalidFacts("the name of a field: expected printable text")
        fits, expected = FIELDS.get(field, INTERFACE if field.startswith("ansible_") else OTHER)
        if not fits(value):
            raise InvalidFacts(f"{field[:NAME_LIMIT]}: expected {expected}")
    for field in required:
        if field not in facts:
            raise InvalidFacts(f"{field}: missing")
    return facts


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and value != ""


def _is_ip(value: Any, family: int) -> bool:
    if not _is_text(value):
        return False
    address, percent, zone = value.partition("%")
    if percent and (family != socket.AF_INET6 or not _ZONE.fullmatch(zone)):
        return False
    try:
        socket.inet_pton(family, address)
    except OSError:
        return False
    return True


def _is_address(value: Any) -> bool:
    return _is_ip(value, socket.AF_INET) or _is_ip(value, socket.AF_INET6)


def _is_host(value: Any) -> bool:
    """As KOLLA_ADDRESS: text of only digits and dots must be a valid address."""
    is_name = _is_text(value) and value.strip("0123456789.") and _HOST_NAME.fullmatch(value)
    return bool(is_name) or _is_address(value)


def _are_ports(value: Any) -> bool:
    return isinstance(value, list) and all(type(port) is int and 0 < port < 65536 for port in value)


def _is_interface(value: Any) -> bool:
    if not isinstance(value, dict) or not _is_plain(value):
        return False
    ipv4, ipv6 = value.get("ipv4"), value.get("ipv6", [])
    return ("ipv4" not in value or _has_address(ipv4, socket.AF_INET)) and (
        isinstance(ipv6, list) and all(_has_address(one, socket.AF_INET6) for one in ipv6)
    )


def _has_address(value: Any, family: int) -> bool:
    return isinstance(value, dict) and _is_ip(value.get("address"), family)


def _is_plain(value: Any, depth: int = DEPTH_LIMIT) -> bool:
    """Whether all texts in it are printable, and it is not nested deeper than `depth`."""
    if isinstance(value, str):
        return value.isprintable()
    if not isinstance(value, (dict, list)):
        return True
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return depth > 0 and all(_is_plain(part, depth - 1) for part in parts)


# What a field holds: whether a value fits, and what is expected.
TEXT = _is_text, "printable text"
INTERFACE = _is_interface, "the addresses of an interface"
OTHER = _is_plain, f"printable texts, not nested deeper than {DEPTH_LIMIT}"
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "ansible_hostname": TEXT,
    "api_interface": TEXT,
    "private_interface": TEXT,
    "host": TEXT,
    "service": TEXT,
    "since": TEXT,
    "generation": (lambda value: value is None or _is_text(value), "printable text or null"),
    "address": (_is_host, "an IP address or a host name"),
    "private_address": (_is_address, "an IP address"),
    "ports": (_are_ports, "a list of ports"),
}
