"""The interfaces and addresses of this host, and the facts that it registers for others.

The address of an interface is its stable global one: that from which the kernel sends through the default
route, else the first one, IPv4 before IPv6.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket

from kolla_mesos_start.errors import DependenciesNotSatisfied, NoAddress, listed
from kolla_mesos_start.host import netlink
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.codec import FACTS_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    from kolla_mesos_start.host.netlink import Address
    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.settings import Settings

    T = TypeVar("T")

log = Logger(__name__)

SETTLE = 0.1  # seconds; several changes of a network come together

_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of linux/route.h
_ANYWHERE = "0" * 8
LOOPBACK = "lo"
# Interfaces that the kernel makes in each network namespace, once a tunnel of their kind is used anywhere.
FALLBACKS = frozenset(
    ("erspan0", "gre0", "gretap0", "ip6_vti0", "ip6gre0", "ip6tnl0", "ip_vti0", "sit0", "tunl0")
)
# To find out from where this host sends by default; no packet is sent.
ANYWHERE, ANYWHERE6, DISCARD = "192.88.99.1", "2001::1", 9


class Interface(NamedTuple):
    """A network interface, its addresses in order of preference, and the one that others may rely on."""

    name: str
    ipv4: Sequence[str]
    ipv6: Sequence[str]  # link-local ones as fe80::1%eth0
    address: str | None


def interfaces() -> Mapping[str, Interface]:
    """All interfaces of this network namespace by name, also those without an address."""
    found: dict[int, list[Address]] = {}
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
    ipv4 = tuple(each.text for each in ordered if not each.is_ipv6)
    ipv6 = tuple(
        f"{each.text}%{name}" if _is_link_local(each.text) else each.text for each in ordered if each.is_ipv6
    )
    usable = [each.text for each in sorted(ordered, key=lambda each: each.is_ipv6) if _is_usable(each)]
    return Interface(name, ipv4, ipv6, usable[0] if usable else None)


def _is_usable(address: Address) -> bool:
    """Whether it is stable and global: an interface without such an address is not configured yet."""
    unstable = netlink.DAD_FAILED | netlink.DEPRECATED | netlink.TENTATIVE
    if address.is_ipv6:
        unstable |= netlink.TEMPORARY
    return not address.flags & unstable and not _is_link_local(address.text)


def _is_link_local(address: str) -> bool:
    """169.254.0.0/16 or fe80::/10."""
    if ":" in address:
        return int(address.split(":")[0] or "0", 16) & 0xFFC0 == 0xFE80
    return address.startswith("169.254.")


def _source(family: int, destination: str) -> str | None:
    """The address from which this host would send there. Nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as unsent:
            unsent.connect((destination, DISCARD))
            return str(unsent.getsockname()[0])
    except OSError:  # There is no route.
        return None


def hostname() -> str:
    """The hostname of the operating system, never KOLLA_HOSTNAME."""
    return socket.gethostname()


def get_ip_address(settings: Settings, interface: str | None = None) -> str:
    """The address of `interface`, or by default the one to bind to; never KOLLA_ADDRESS.

    The default is the address of KOLLA_PRIVATE_INTERFACE, else of the default route's interface. Raises
    NoAddress if there is none.
    """
    found = interfaces()
    if interface is None:
        return str(_chosen(found, "KOLLA_PRIVATE_INTERFACE", settings.private_interface).address)
    # The message does not show the name, which may be the value of a variable.
    return str(_addressed(found, interface, "the interface that a template names").address)


def facts(settings: Settings) -> dict[str, Any]:
    """The facts that this host registers in a party: at most FACTS_LIMIT bytes of JSON.

    Each interface with an address is `ansible_<interface>`, as in Ansible: `{"ipv4": {"address"}, "ipv6":
    [{"address"}, ...]}`. If they do not fit, the private and the public one are first, and a warning names
    those left out. Raises NoAddress with an issue for each of these two without address.
    """
    found = interfaces()
    chosen: list[Interface] = []
    issues: dict[str, None] = {}  # A set that keeps the order: both may have the same issue.
    for variable, name in (
        ("KOLLA_PRIVATE_INTERFACE", settings.private_interface),
        ("KOLLA_PUBLIC_INTERFACE", settings.public_interface),
    ):
        try:
            chosen.append(_chosen(found, variable, name))
        except NoAddress as error:
            issues.update(dict.fromkeys(error.issues))
    if issues:
        raise NoAddress(list(issues))
    private, public = chosen
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
    size, left_out = len(json.dumps(facts)), []
    others = (each for _, each in sorted(found.items()) if each.ipv4 or each.ipv6)
    for each in dict.fromkeys((private, public, *others)):
        fact: dict[str, Any] = {"ipv4": {"address": each.ipv4[0]}} if each.ipv4 else {}
        if each.ipv6:
            fact["ipv6"] = [{"address": address} for address in each.ipv6]
        named = {f"ansible_{each.name}": fact}
        more = len(json.dumps(named))  # its two braces count for the comma and space between two facts
        if size + more > FACTS_LIMIT:
            left_out.append(each.name)
            continue
        facts.update(named)
        size += more
    if left_out:
        log.warning(
            "%d interfaces are not registered, because the facts of a host may have %d bytes only; "
            "templates can't use them; the first are %s",
            len(left_out),
            FACTS_LIMIT,
            listed(left_out[:5]),
        )
    return facts


def _chosen(found: Mapping[str, Interface], variable: str, name: str | None) -> Interface:
    """The interface `name`, else that of the default route. Raises NoAddress if it has no address."""
    chosen = name or _default_interface(found)
    source = f"{variable}={name}" if name else f"{variable} is not set, the default route is on {chosen}"
    return _addressed(found, chosen, source)


def _addressed(found: Mapping[str, Interface], name: str, subject: str) -> Interface:
    """The interface. Raises NoAddress, about `subject`, if it has no address or does not exist."""
    if name not in found:
        raise NoAddress([f"{subject}: no such interface on this host, expected one of {listed(found)}"])
    if found[name].address is None:
        raise NoAddress([f"{subject}: the interface has no address, expected one of {_choices(found)}"])
    return found[name]


def _choices(found: Mapping[str, Interface]) -> str:
    return listed(one.name for one in found.values() if one.address)


def _default_interface(found: Mapping[str, Interface]) -> str:
    """The interface of the default route with the lowest metric, of IPv4 if there is one, else of IPv6.

    Without a default route: the only interface that has an address; loopback only if there is no other
    interface. Raises NoAddress if there are several, or none yet.
    """
    ipv4 = (
        (int(metric), interface, int(flags, 16))
        for interface, destination, _, flags, _, _, metric, mask, *_ in _table("/proc/net/route")[1:]
        if destination == mask == _ANYWHERE
    )
    ipv6 = (
        (int(metric, 16), interface, int(flags, 16))
        for destination, length, _, _, _, metric, _, _, flags, interface in _table("/proc/net/ipv6_route")
        if (destination, length) == (_ANYWHERE * 4, "00")
    )
    for routes in (ipv4, ipv6):
        if usable := [route for route in routes if route[2] & (_UP | _REJECT) == _UP]:
            return min(usable)[1]
    found = {name: each for name, each in found.items() if name not in FALLBACKS}
    others = [each for name, each in found.items() if name != LOOPBACK]
    choice = [each for each in others if each.address] if others else [*found.values()]
    if len(choice) != 1 or not choice[0].address:
        raise NoAddress(
            [
                "KOLLA_PRIVATE_INTERFACE, KOLLA_PUBLIC_INTERFACE: set them, as there is no default route: "
                f"expected one of {_choices(found) or 'the interfaces with an address, but there is none'}"
            ]
        )
    return choice[0].name


def _table(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="ascii") as lines:
            return [line.split() for line in lines]
    except FileNotFoundError:
        return []  # A kernel without IPv6 has no such file.


def when_addressed(
    work: Callable[[], T],
    loop: Loop,
    limit: float | None,
    tell: Callable[[str], object],
    check: Callable[[], object],
) -> T:
    """The result of `work`, tried again after each change of the network as long as it raises NoAddress.

    `tell` is called with each reason, `check` after each event. Raises DependenciesNotSatisfied after `limit`
    seconds.
    """
    begun, due, logged = now(), now(), ""
    events: list[bool] = []
    deadline = math.inf if limit is None else begun + limit

    def note() -> None:
        events.append(True)
        with contextlib.suppress(OSError):  # Nothing more to read; or there were too many messages to keep.
            while kernel.recv(1 << 16):
                pass

    with netlink.changes() as kernel:
        loop.listen(kernel.fileno(), note)
        try:
            while True:
                events.clear()
                try:
                    return work()
                except NoAddress as missing:
                    why = "; ".join(missing.issues)
                if now() >= deadline:
                    raise DependenciesNotSatisfied(f"waited {now() - begun:.0f} s for an address: {why}")
                if why != logged or now() >= due:
                    logged, due = why, now() + PROGRESS_INTERVAL
                    tell(why)
                    log.info("waiting for an address for %.0f s: %s", now() - begun, why)
                loop.wait(lambda: events or check(), min(deadline, due))
                loop.sleep(SETTLE)
        finally:
            loop.ignore(kernel.fileno())
