"""Decodes the JSON objects that others have written into znodes, and checks each field. Pure.

Templates write facts of other containers into config files: no value may break a line of such a file, or an
agent that reads it. Messages name the field, and never show its value.
"""

from __future__ import annotations

import json
import re
import socket
from functools import lru_cache

from kolla_mesos_start.addresses import is_host, is_ip, is_port
from kolla_mesos_start.log import printable
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from kolla_mesos_start.zookeeper.view import Znode

    Facts = dict[str, Any]

FACTS_LIMIT = 16 * 1024  # bytes of JSON: all members of all parties read them
DEPTH_LIMIT = 8  # of lists and objects in a fact; an interface has three
NAME_LIMIT = 64  # characters of a field's name in a message
NO_SESSION = "no session owns it, as in a copied tree: `kolla_mesos_ctl reset` removes it"

_ZONE = re.compile("[A-Za-z0-9_.@~+-]{1,15}")  # the interface of a link-local address


class Invalid(Exception):
    """Something in a znode is invalid: which field, and what was expected."""


class Field(NamedTuple):
    """A field of a JSON object: whether a value fits, and what is expected."""

    fits: Callable[[Any], bool]
    expected: str = ""
    required: bool = False


def decode(
    data: bytes,
    fields: Mapping[str, Field],
    limit: int,
    others: Callable[[str], Field] | None = None,
) -> dict[str, Any]:
    """These fields of a JSON object of at most `limit` bytes. Raises Invalid.

    Other fields are left out, because a newer agent may write them; with `others`, which returns the rule for
    each of them, they are kept.
    """
    if len(data) > limit:
        raise Invalid(f"it has more than {limit} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid("it is not a JSON object")
    rules = {name: fields.get(name) or (others(name) if others else None) for name in found}
    for name, rule in rules.items():
        if rule and not rule.fits(found[name]):
            raise Invalid(f"{name[:NAME_LIMIT]}: expected {rule.expected}")
    for name, rule in fields.items():
        if rule.required and name not in found:
            raise Invalid(f"{name}: missing")
    return {name: value for name, value in found.items() if rules[name]}


def decode_leniently(data: bytes, limit: int) -> dict[str, Any]:
    """All fields of a JSON object, unchecked; empty if it is none, or has more than `limit` bytes."""
    try:
        return decode(data, {}, limit, lambda name: ANYTHING)
    except Invalid:
        return {}


# -- the mark of the last publication ------------------------------------------------------------------

PUBLICATION, RESTORE = "publication", "restore"
REMEDY = {PUBLICATION: "publish again", RESTORE: "restore again"}
MAX_PUBLICATION = 256 * 1024  # bytes
SHOWN = 5  # services, in a message
MAX_SHOWN = 200  # characters


class PublicationMark(NamedTuple):
    """`what` is PUBLICATION or RESTORE; the times are in ISO 8601, `finished` is None until then.

    `services` are those that it changes, while it has not finished.
    """

    what: str
    by: str
    begun: str
    finished: str | None
    services: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    def __str__(self) -> str:
        return f"{self.what} begun at {self.begun} by {self.by} has not finished"

    @property
    def problem(self) -> str:
        """That it has not finished, and what to do."""
        more = ", ..." if len(self.services) > SHOWN else ""
        names = f" (it has changes of {', '.join(self.services[:SHOWN])}{more})" if self.services else ""
        return f"{self}: {REMEDY[self.what]}{names}"


def unfinished(data: bytes) -> PublicationMark | None:
    """The last publication, if it has not finished."""
    found = decode_leniently(data, MAX_PUBLICATION)
    if found.get("finished", "") is not None:
        return None
    begun, by = (printable(str(found.get(name))[:MAX_SHOWN]) for name in ("begun", "by"))
    services = found.get("services")
    names = services if isinstance(services, list) else []
    what = RESTORE if found.get("what") == RESTORE else PUBLICATION
    return PublicationMark(what, by, begun, None, tuple(printable(str(name)[:MAX_SHOWN]) for name in names))


# -- what containers register ---------------------------------------------------------------------------


def why_left_out(znode: Znode, read: Callable[[bytes], object]) -> str:
    """Why what a container has registered counts for nothing; empty if it counts. `read` decodes it."""
    return _problem(read, znode.data) if znode.stat.ephemeralOwner else NO_SESSION


@lru_cache(maxsize=256)  # A waiting command is judged again for each of its members.
def _problem(read: Callable[[bytes], object], data: bytes) -> str:
    try:
        read(data)
    except Invalid as invalid:
        return str(invalid)
    return ""


def member(data: bytes, private_interface: str = "") -> Facts:
    """The facts of a member of a party.

    kolla-mesos wrote no `private_address`: then it is the address of the interface `private_interface`, else
    that of the member's own `api_interface`. Without `address`, that is the private one.
    """
    facts = decode(data, MEMBER, FACTS_LIMIT, _other)
    public = facts.get(f"ansible_{facts['api_interface']}")
    if not isinstance(public, dict):
        raise Invalid("api_interface: expected an interface among the facts")
    interfaces = (facts.get(f"ansible_{private_interface}", {}), public)
    addresses = [one["ipv4"]["address"] for one in interfaces if "ipv4" in one]
    if "private_address" not in facts and not addresses:
        raise Invalid("private_address: missing")
    private = facts.get("private_address", next(iter(addresses), None))
    return {"private_address": private, "address": private, **facts}


def instance(data: bytes) -> Facts:
    """What a ready instance of a daemon has registered."""
    return decode(data, INSTANCE, FACTS_LIMIT, _other)


def _other(name: str) -> Field:
    if not is_text(name):
        raise Invalid("the name of a field: expected printable text")
    return INTERFACE if name.startswith("ansible_") else OTHER


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and value != ""


def _is_ip(value: Any, family: int) -> bool:
    if not is_text(value):
        return False
    address, percent, zone = value.partition("%")
    if percent and (family != socket.AF_INET6 or not _ZONE.fullmatch(zone)):
        return False
    return is_ip(address, family)


def _is_address(value: Any) -> bool:
    return _is_ip(value, socket.AF_INET) or _is_ip(value, socket.AF_INET6)


def _is_host(value: Any) -> bool:
    """As KOLLA_ADDRESS: text of only digits and dots must be a valid address."""
    return is_text(value) and (is_host(value) or _is_address(value))


def _are_ports(value: Any) -> bool:
    return isinstance(value, list) and all(type(port) is int and is_port(port) for port in value)


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


ANYTHING = Field(lambda value: True)
TEXT = Field(is_text, "printable text")
INTERFACE = Field(_is_interface, "the addresses of an interface")
OTHER = Field(_is_plain, f"printable texts, not nested deeper than {DEPTH_LIMIT}")
FACTS = {
    **dict.fromkeys(("ansible_hostname", "api_interface", "private_interface"), TEXT),
    **dict.fromkeys(("host", "service", "since"), TEXT),
    "generation": Field(lambda value: value is None or is_text(value), "printable text or null"),
    "address": Field(_is_host, "an IP address or a host name"),
    "private_address": Field(_is_address, "an IP address"),
    "ports": Field(_are_ports, "a list of ports"),
}


def _requiring(*names: str) -> dict[str, Field]:
    return {**FACTS, **{name: FACTS[name]._replace(required=True) for name in names}}


MEMBER = _requiring("ansible_hostname", "api_interface")
INSTANCE = _requiring("host", "address", "ports", "service")
