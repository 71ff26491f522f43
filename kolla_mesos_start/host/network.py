"""The interfaces, addresses and hostname of this host, and the facts that it registers for others.

The address of an interface is its stable global one: that from which the kernel sends through the default
route, else the first one, IPv4 before IPv6.
"""

from __future__ import annotations

import socket

from kolla_mesos_start.errors import BadEnvironment, listed
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.codec import FACTS_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from kolla_mesos_start.host.netlink import Address
    from kolla_mesos_start.settings import Settings

log = Logger(__name__)


_ROUTE, _ROUTE6 = "/proc/net/route", "/proc/net/ipv6_route"
_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of linux/route.h
_ANYWHERE = "0" * 8
_ANYWHERE6 = "0" * 32


LOOPBACK = "lo"
# Interfaces that the kernel makes in each network namespace, once a tunnel of their kind is used anywhere.
FALLBACKS = frozenset(
    ("erspan0", "gre0", "gretap0", "ip6_vti0", "ip6gre0", "ip6tnl0", "ip_vti0", "sit0", "tunl0")
)
# To find out from where this host sends by default; no packet is sent.
ANYWHERE, ANYWHERE6, DISCARD = "192.88.99.1", "2001::1", 9


class NoAddress(BadEnvironment):
    """An interface, or its address, is missing; it may still come."""


class Interface(NamedTuple):
    """A network interface, its addresses in order of preference, and the one that others may rely on."""

    name: str
    ipv4: Sequence[str]
    ipv6: Sequence[str]  # link-local ones as fe80::1%eth0
    address: str | None


class Route(NamedTuple):
    """A default route; the one with the lowest metric is in use."""

    metric: int
    interface: str


def interfaces() -> Mapping[str, Interface]:
    """All interfaces of this network namespace by name, also those without an address."""
    from kolla_mesos_start.host import netlink

    found: dict[int, list[netlink.Address]] = {}
    for address in netlink.addresses():
        found.setdefault(address.interface, []).append(address)
    sources = [_source(socket.AF_INET, ANYWHERE), _source(socket.AF_INET6, ANYWHERE6)]
    return {name: _interface(name, found.get(index, ()), sources) for index, name in socket.if_nameindex()}


def _interface(name: str, addresses: Iterable[Address], sources: Collection[str | None]) -> Interface:
    def order(address: Address) -> tuple[bool, ...]:
        return (
            not _is_usable(address),
            address.text not in sources,
            address.text.startswith("127.") or address.text == "::1",  # Loopback may have others.
            address.prefix == (128 if address.is_ipv6 else 32),  # of a virtual router
            address.label not in ("", name),
        )

    ordered = sorted(addresses, key=order)
    usable = [each.text for each in sorted(ordered, key=lambda each: each.is_ipv6) if _is_usable(each)]
    ipv6 = [
        f"{each.text}%{name}" if _is_link_local(each.text) else each.text for each in ordered if each.is_ipv6
    ]
    ipv4 = [each.text for each in ordered if not each.is_ipv6]
    return Interface(name, tuple(ipv4), tuple(ipv6), next(iter(usable), None))


def _is_usable(address: Address) -> bool:
    """Whether it is stable and global: an interface without such an address is not configured yet."""
    from kolla_mesos_start.host.netlink import DAD_FAILED, DEPRECATED, TEMPORARY, TENTATIVE

    unstable = DAD_FAILED | DEPRECATED | TENTATIVE | (TEMPORARY if address.is_ipv6 else 0)
    return not address.flags & unstable and not _is_link_local(address.text)


def _source(family: int, destination: str) -> str | None:
    """The address from which this host would send there. Nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as unsent:
            unsent.connect((destination, DISCARD))
            return str(unsent.getsockname()[0])
    except OSError:  # There is no route.
        return None


def default_interface() -> str:
    """The interface of the default route, of IPv4 if there is one, else of IPv6.

    Without a default route: the only interface that has an address; loopback only if there is no other
    interface. Raises NoAddress if there are several, or none yet.
    """
    routes = sorted(_routes()) or sorted(_routes6())
    return routes[0].interface if routes else _only_interface()


def address_of(interface: str) -> str:
    """The address of an interface that a template names. Raises NoAddress if it has none."""
    found = interfaces()
    # The message does not show the name, which may be the value of a variable.
    subject = "the interface that a template names"
    if interface not in found:
        raise NoAddress([f"{subject}: no such interface on this host, expected one of {listed(found)}"])
    address = found[interface].address
    if address is None:
        raise NoAddress([f"{subject}: the interface has no address, expected one of {_addressed(found)}"])
    return address


def hostname() -> str:
    """The hostname of the operating system, never KOLLA_HOSTNAME."""
    return socket.gethostname()


def get_ip_address(settings: Settings, interface: str | None = None) -> str:
    """The address of `interface` (see `address_of`), or by default the one to bind to; never KOLLA_ADDRESS.

    The default is the address of KOLLA_PRIVATE_INTERFACE, else of the default route's interface. Raises
    NoAddress if there is none.
    """
    if interface is None:
        return str(_chosen_as("KOLLA_PRIVATE_INTERFACE", settings.private_interface).address)
    return address_of(interface)


def facts(settings: Settings) -> dict[str, Any]:
    """The facts that this host registers in a party: at most FACTS_LIMIT bytes of JSON.

    Each interface with an address is `ansible_<interface>`, as in Ansible: `{"ipv4": {"address"}, "ipv6":
    [{"address"}, ...]}`. If they do not fit, the private and the public one are first, and a warning names
    those left out. Raises NoAddress with an issue for each of these two without address.
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
    others = (each for _, each in sorted(interfaces().items()) if each.ipv4 or each.ipv6)
    _add_interfaces(facts, dict.fromkeys((private, public, *others)))
    return facts


def _is_link_local(address: str) -> bool:
    """169.254.0.0/16 or fe80::/10."""
    if ":" in address:
        return int(address.split(":")[0] or "0", 16) & 0xFFC0 == 0xFE80
    return address.startswith("169.254.")


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
    found = {name: each for name, each in interfaces().items() if name not in FALLBACKS}
    others = [each for name, each in found.items() if name != LOOPBACK]
    choice = [each for each in others if each.address] if others else [*found.values()]
    if len(choice) != 1 or not choice[0].address:
        raise NoAddress(
            [
                "KOLLA_PRIVATE_INTERFACE, KOLLA_PUBLIC_INTERFACE: set them, as there is no default route: "
                f"expected one of {_addressed(found) or 'the interfaces with an address, but there is none'}"
            ]
        )
    return choice[0].name


def _chosen(settings: Settings) -> tuple[Interface, Interface]:
    """The private and the public interface. Raises one NoAddress for both."""
    variables = {
        "KOLLA_PRIVATE_INTERFACE": settings.private_interface,
        "KOLLA_PUBLIC_INTERFACE": settings.public_interface,
    }
    chosen: list[Interface] = []
    issues: dict[str, None] = {}  # A set that keeps the order: both may have the same issue.
    for variable, name in variables.items():
        try:
            chosen.append(_chosen_as(variable, name))
        except NoAddress as error:
            issues.update(dict.fromkeys(error.issues))
    if issues:
        raise NoAddress(list(issues))
    private, public = chosen
    return private, public


def _chosen_as(variable: str, name: str | None) -> Interface:
    """The interface `name`, else that of the default route. Raises NoAddress if it has no address."""
    found = interfaces()
    chosen = name or default_interface()
    source = f"{variable}={name}" if name else f"{variable} is not set, the default route is on {chosen}"
    if chosen not in found:
        raise NoAddress([f"{source}: no such interface on this host, expected one of {listed(found)}"])
    if found[chosen].address is None:
        raise NoAddress([f"{source}: the interface has no address, expected one of {_addressed(found)}"])
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
