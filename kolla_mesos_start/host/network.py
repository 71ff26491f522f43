"""The interfaces, addresses and hostname of this host, and the facts that it registers for others.

The address of an interface is its first IPv4 address, else its first IPv6 address, link-local ones last. Only
`interfaces` imports psutil, which takes a tenth of the agent's start.
"""

from __future__ import annotations

import socket

from kolla_mesos_start.errors import BadEnvironment, CannotRender, listed
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from kolla_mesos_start.settings import Settings

log = Logger(__name__)

FACTS_LIMIT = 16 * 1024  # bytes of JSON: all members of all parties read them

_ROUTE, _ROUTE6 = "/proc/net/route", "/proc/net/ipv6_route"
_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of linux/route.h
_ANYWHERE = "0" * 8
_ANYWHERE6 = "0" * 32


class Interface(NamedTuple):
    """A network interface and its addresses, in order of preference."""

    name: str
    ipv4: Sequence[str]
    ipv6: Sequence[str]  # link-local ones as fe80::1%eth0

    @property
    def address(self) -> str | None:
        return next(iter((*self.ipv4, *self.ipv6)), None)


class Route(NamedTuple):
    """A default route; the one with the lowest metric is in use."""

    metric: int
    interface: str


def interfaces() -> Mapping[str, Interface]:
    """All interfaces of this network namespace by name, also those without an address."""
    import psutil

    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        ipv4 = [one.address for one in addresses if one.family == socket.AF_INET]
        ipv6 = [one.address for one in addresses if one.family == socket.AF_INET6]
        found[name] = Interface(name, tuple(ipv4), tuple(sorted(ipv6, key=_is_link_local)))
    return found


def default_interface() -> str:
    """The interface of the default route, of IPv4 if there is one, else of IPv6.

    Without a default route: the only interface that has an address, loopback not counted. Raises
    BadEnvironment if there are several.
    """
    routes = sorted(_routes()) or sorted(_routes6())
    return routes[0].interface if routes else _only_interface()


def address_of(interface: str) -> str:
    """The address of an interface that a template names. Raises CannotRender if it has none."""
    found = interfaces()
    # The message does not show the name, which may be the value of a variable.
    if interface not in found:
        raise CannotRender(f"no such interface on this host, expected one of {listed(found)}")
    address = found[interface].address
    if address is None:
        raise CannotRender(f"the interface has no address, expected one of {_addressed(found)}")
    return address


def hostname() -> str:
    """The hostname of the operating system, never KOLLA_HOSTNAME."""
    return socket.gethostname()


def get_ip_address(settings: Settings, interface: str | None = None) -> str:
    """The address of `interface` (see `address_of`), or by default the one to bind to; never KOLLA_ADDRESS.

    The default is the address of KOLLA_PRIVATE_INTERFACE, else of the default route's interface. Raises
    BadEnvironment if there is none.
    """
    if interface is None:
        interface = _interface("KOLLA_PRIVATE_INTERFACE", settings.private_interface).name
    return address_of(interface)


def facts(settings: Settings) -> dict[str, Any]:
    """The facts that this host registers in a party: at most FACTS_LIMIT bytes of JSON.

    Each interface with an address is `ansible_<interface>`, as in Ansible: `{"ipv4": {"address"}, "ipv6":
    [{"address"}, ...]}`. If they do not fit, the private and the public one are first, and a warning names
    those left out. Raises BadEnvironment with an issue for each of these two without address.
    """
    private, public = _chosen(settings)
    facts: dict[str, Any] = {
        "ansible_hostname": hostname(),
        "api_interface": public.name,
        "private_interface": private.name,
        "host": settings.host,
        "service": settings.service_name,
        "address": settings.address or private.address,
        "private_address": private.address,
        "ports": list(settings.ports),
    }
    others = (interface for interface in sorted(interfaces().values()) if interface.address)
    _add_interfaces(facts, dict.fromkeys((private, public, *others)))
    return facts


def _is_link_local(address: str) -> bool:
    return int(address.split(":")[0] or "0", 16) & 0xFFC0 == 0xFE80  # fe80::/10


def _routes() -> Iterator[Route]:
    for line in _table(_ROUTE):
        if line[0] == "Iface":
            continue
        interface, destination, flags, metric, mask = line[0], line[1], int(line[3], 16), line[6], line[7]
        if destination == mask == _ANYWHERE and flags & _UP and not flags & _REJECT:
            yield Route(int(metric), interface)


def _routes6() -> Iterator[Route]:
    for destination, length, _, _, _, metric, _, _, flags, interface in _table(_ROUTE6):
        is_default = destination == _ANYWHERE6 and length == "00"
        if is_default and int(flags, 16) & _UP and not int(flags, 16) & _REJECT:
            yield Route(int(metric, 16), interface)


def _table(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="ascii") as lines:
            return [line.split() for line in lines]
    except FileNotFoundError:
        return []  # A kernel without IPv6 has no such file.


def _only_interface() -> str:
    found = interfaces()
    addressed = [one.name for one in found.values() if one.address]
    choice = [name for name in addressed if not _is_loopback(name)] or addressed
    if len(choice) != 1:
        raise BadEnvironment(
            [
                "KOLLA_PRIVATE_INTERFACE, KOLLA_PUBLIC_INTERFACE: set them, as there is no default route: "
                f"expected one of {_addressed(found) or 'the interfaces with an address, but there is none'}"
            ]
        )
    return choice[0]


def _is_loopback(name: str) -> bool:
    return name == "lo"


def _chosen(settings: Settings) -> tuple[Interface, Interface]:
    """The private and the public interface. Raises one BadEnvironment for both."""
    variables = {
        "KOLLA_PRIVATE_INTERFACE": settings.private_interface,
        "KOLLA_PUBLIC_INTERFACE": settings.public_interface,
    }
    chosen: list[Interface] = []
    issues: dict[str, None] = {}  # A set that keeps the order: both may have the same issue.
    for variable, name in variables.items():
        try:
            chosen.append(_interface(variable, name))
        except BadEnvironment as error:
            issues.update(dict.fromkeys(error.issues))
    if issues:
        raise BadEnvironment(list(issues))
    private, public = chosen
    return private, public


def _interface(variable: str, name: str | None) -> Interface:
    """The interface `name`, else that of the default route. Raises BadEnvironment if it has no address."""
    found = interfaces()
    chosen = name or default_interface()
    source = f"{variable}={name}" if name else f"{variable} is not set, the default route is on {chosen}"
    if chosen not in found:
        raise BadEnvironment([f"{source}: no such interface on this host, expected one of {listed(found)}"])
    if found[chosen].address is None:
        raise BadEnvironment([f"{source}: the interface has no address, expected one of {_addressed(found)}"])
    return found[chosen]


def _addressed(found: Mapping[str, Interface]) -> str:
    return listed(one.name for one in found.values() if one.address)


def _add_interfaces(facts: dict[str, Any], ordered: Iterable[Interface]) -> None:
    """Add each interface to `facts` as long as there is room, and warn about the rest."""
    import json

    size = len(json.dumps(facts))
    left_out = []
    for interface in ordered:
        fact = {f"ansible_{interface.name}": _fact(interface)}
        more = len(json.dumps(fact))  # its two braces count for the comma and space between two facts
        if size + more > FACTS_LIMIT:
            left_out.append(interface.name)
            continue
        facts.update(fact)
        size += more
    if left_out:
        log.warning(
            "%d interfaces are not registered, because the facts of a host may have %d bytes only; "
            "templates can't use them; the first are %s",
            len(left_out),
            FACTS_LIMIT,
            listed(left_out[:5]),
        )


def _fact(interface: Interface) -> dict[str, Any]:
    fact: dict[str, Any] = {}
    if interface.ipv4:
        fact["ipv4"] = {"address": interface.ipv4[0]}
    if interface.ipv6:
        fact["ipv6"] = [{"address": address} for address in interface.ipv6]
    return fact
