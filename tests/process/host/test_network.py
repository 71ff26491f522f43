"""The host's addresses, in network namespaces with real interfaces."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from kolla_mesos_start.errors import NoAddress
from kolla_mesos_start.host import netlink, network
from kolla_mesos_start.settings import parse
from tests.conftest import LogLines

PROGRAM = """
import json, sys
from kolla_mesos_start.host import network
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.settings import parse

settings = parse(json.loads(sys.argv[2]))
try:
    print(json.dumps({"value": eval(sys.argv[1])}))
except AgentError as error:
    print(json.dumps({"error": type(error).__name__, "reason": error.reason}))
"""


ENVIRON = {"KOLLA_ZK_HOSTS": "zk", "KOLLA_APP_ID": "/cloud/infra/x/y", "KOLLA_HOSTNAME": "node"}
ROOT = pathlib.Path(__file__).parents[3]


def in_namespace(setup: str, expression: str, **environ: str) -> Any:
    """The value of a Python expression on a host whose network `setup` makes; an AgentError is raised here.

    The namespace has the loopback interface, up, and goes with the process.
    """
    # Without root the test becomes root in a user namespace.
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    inner = f'ip link set lo up\n{setup}\nexec "$0" -c "$1" "$2" "$3"'
    command = ["unshare", "--net", *root, "sh", "-euc", inner, sys.executable, PROGRAM]
    arguments = [expression, json.dumps({**ENVIRON, **environ})]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    outcome = json.loads(done.stdout)
    if "error" in outcome:
        raise Refused(outcome["error"], outcome["reason"])
    return outcome["value"]


class Refused(Exception):
    """An AgentError of the other process: the name of its class, and its reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


def link(name: str, *addresses: str) -> str:
    """The commands that make an interface; a second one, `<name>p`, has no address."""
    lines = [f"ip link add {name} type veth peer name {name}p", f"ip link set {name} addrgenmode none up"]
    lines += [f"ip address add {one} dev {name}" + (" nodad" if ":" in one else "") for one in addresses]
    return "\n".join(lines)


TWO = "\n".join((link("eth0", "192.0.2.7/24"), link("eth1", "10.0.0.7/24", "10.0.0.8/24", "fd00::7/64")))
VIA_ETH0 = f"{TWO}\nip route add default via 192.0.2.1"
VIA_ETH1 = f"{TWO}\nip -6 route add default via fd00::1"
IPV6_ONLY = f"{link('eth0', 'fe80::5/64', 'fd00::5/64')}\nip -6 route add default via fd00::1"


# -- which interface


class Choice(NamedTuple):
    """A network, and the interface and address that the agent has on it by default."""

    name: str
    setup: str
    interface: str
    address: str


CHOICES = [
    Choice("an IPv4 default route", VIA_ETH0, "eth0", "192.0.2.7"),
    Choice("an IPv6 default route alone", VIA_ETH1, "eth1", "10.0.0.7"),
    Choice("IPv6 only", IPV6_ONLY, "eth0", "fd00::5"),
    Choice(
        "IPv4's goes before IPv6's", f"{VIA_ETH1}\nip route add default via 192.0.2.1", "eth0", "192.0.2.7"
    ),
    Choice(
        "the lowest metric",
        f"{TWO}\nip route add default via 192.0.2.1 metric 200\nip route add default via 10.0.0.1 metric 50",
        "eth1",
        "10.0.0.7",
    ),
    Choice(
        "the lowest IPv6 metric, which is written in hexadecimal",
        f"{TWO}\nip address add fd01::7/64 dev eth0 nodad\n"
        "ip -6 route add default via fd00::1 metric 256\nip -6 route add default via fd01::1 metric 159",
        "eth0",
        "192.0.2.7",
    ),
    Choice(
        "half the world and a refusal are no default route",
        f"{TWO}\nip route add default via 10.0.0.1\nip route add 0.0.0.0/1 via 192.0.2.1\n"
        "ip -6 route add unreachable default metric 1",
        "eth1",
        "10.0.0.7",
    ),
    Choice(
        "a refusal is no default route",
        f"{link('eth1', '10.0.0.7/24')}\n"
        "ip route add unreachable default\nip -6 route add unreachable default",
        "eth1",
        "10.0.0.7",
    ),
    Choice("no default route, one interface", link("eth1", "10.0.0.7/24"), "eth1", "10.0.0.7"),
    Choice("loopback only", "", "lo", "127.0.0.1"),
]


@pytest.mark.parametrize("choice", CHOICES, ids=[choice.name for choice in CHOICES])
def test_the_default_is_the_default_routes_interface(choice: Choice) -> None:
    """Without any variable set, an agent registers the address that others reach it at."""
    functions = "network._default_interface(network.interfaces()), network.get_ip_address(settings)"
    assert in_namespace(choice.setup, functions) == [choice.interface, choice.address]


def test_a_named_interface_goes_before_the_default_routes() -> None:
    """Private and public are independent; a template's interface is one more."""
    functions = (
        "network.facts(settings)['private_interface'], network.facts(settings)['api_interface'], "
        "network.get_ip_address(settings), network.get_ip_address(settings, 'eth0'), "
        "network.get_ip_address(settings, 'eth1')"
    )
    assert in_namespace(VIA_ETH0, functions, KOLLA_PRIVATE_INTERFACE="eth1") == [
        *("eth1", "eth0"),
        *("10.0.0.7", "192.0.2.7", "10.0.0.7"),
    ]


def test_the_registered_address_is_not_the_one_to_bind_to() -> None:
    """KOLLA_ADDRESS may be the address of the node: no process in this container can bind to it."""
    functions = "network.get_ip_address(settings), network.facts(settings)['address']"
    assert in_namespace(VIA_ETH0, functions, KOLLA_ADDRESS="203.0.113.9") == ["192.0.2.7", "203.0.113.9"]


def test_two_wrong_interfaces_are_reported_at_once() -> None:
    """One failure, one list."""
    with pytest.raises(Refused) as caught:
        in_namespace(
            TWO, "network.facts(settings)", KOLLA_PRIVATE_INTERFACE="a", KOLLA_PUBLIC_INTERFACE="eth0p"
        )
    assert caught.value.reason.startswith("environment: 2 issues: KOLLA_PRIVATE_INTERFACE=a: no such")
    assert (
        "KOLLA_PUBLIC_INTERFACE=eth0p: the interface has no address, expected one of eth0, eth1, lo"
        in caught.value.reason
    )


@pytest.mark.parametrize(
    ("setup", "expected"), [(TWO, "expected one of eth0, eth1, lo"), ("ip link set lo down", "there is none")]
)
def test_without_a_default_route_the_operator_has_to_choose(setup: str, expected: str) -> None:
    """A wrong guess would be registered, and others would connect to it."""
    with pytest.raises(Refused) as caught:
        in_namespace(
            f"{setup}\nip address flush dev lo" if "down" in setup else setup, "network.facts(settings)"
        )
    assert caught.value.kind == NoAddress.__name__
    assert caught.value.reason.startswith(
        "environment: 1 issue: KOLLA_PRIVATE_INTERFACE, KOLLA_PUBLIC_INTERFACE"
    )
    assert expected in caught.value.reason


@pytest.mark.parametrize("interface", ["ens3", "eth0p", ""])
def test_the_message_about_a_templates_interface_does_not_show_its_name(interface: str) -> None:
    """The name may be the value of a variable."""
    with pytest.raises(Refused) as caught:
        in_namespace(TWO, f"network.get_ip_address(settings, {interface!r})")
    assert caught.value.kind == NoAddress.__name__
    assert "expected one of eth0, " in caught.value.reason
    assert "ens3" not in caught.value.reason


# -- addresses


def test_every_interface_is_known_with_its_addresses() -> None:
    """Also one that is down, or has none."""
    assert in_namespace(TWO, "{name: list(one) for name, one in network.interfaces().items()}") == {
        "lo": ["lo", ["127.0.0.1"], ["::1"], "127.0.0.1"],
        "eth0": ["eth0", ["192.0.2.7"], [], "192.0.2.7"],
        "eth0p": ["eth0p", [], [], None],
        "eth1": ["eth1", ["10.0.0.7", "10.0.0.8"], ["fd00::7"], "10.0.0.7"],
        "eth1p": ["eth1p", [], [], None],
    }


def addresses(*given: str) -> str:
    """The commands that make eth0 with these addresses, each with options of `ip address add`."""
    more = [f"ip address add dev eth0 {one}" for one in given]
    return "\n".join((link("eth0"), *more))


STABLE, STABLE6 = "192.0.2.7/24", "fd00::7/64 nodad"
OLD = "valid_lft 60 preferred_lft 0"  # deprecated
VIA, VIA6 = "ip route add default via 192.0.2.1", "ip -6 route add default via fd00::1"


@pytest.mark.parametrize(
    ("setup", "address"),
    [
        # In the order of the kernel, IPv4 first.
        (addresses(STABLE6, STABLE, "192.0.2.8/24"), "192.0.2.7"),
        (addresses(STABLE6), "fd00::7"),
        # A virtual address is beside the own one, whichever was there first.
        (addresses("192.0.2.9/32", STABLE), "192.0.2.7"),
        (addresses("192.0.2.9/32"), "192.0.2.9"),
        (addresses("10.9.9.9/24 label eth0:vip", STABLE), "192.0.2.7"),
        (addresses("fd00::9/128 nodad", STABLE6), "fd00::7"),
        (addresses(f"10.9.9.9/24 {OLD}", STABLE), "192.0.2.7"),
        # Others can't use these, or not for long.
        (addresses("169.254.3.4/16", STABLE), "192.0.2.7"),
        (addresses("169.254.3.4/16", STABLE6), "fd00::7"),
        (addresses("169.254.3.4/16", "fe80::5/64 nodad"), None),
        (addresses(f"192.0.2.9/24 {OLD}"), None),
        (addresses(f"fd00::9/64 {OLD} nodad", STABLE6), "fd00::7"),
        (addresses("fd00::9/64"), None),  # The kernel still asks whether another host has it.
        (addresses("fe8::1/64 nodad"), "fe8::1"),
        (link("eth0"), None),
        # The preferred source of the default route, or else the kernel's choice for it.
        (f"{addresses('10.0.0.7/24', STABLE)}\n{VIA}", "192.0.2.7"),
        (f"{addresses('10.0.0.7/24', STABLE, '192.0.2.8/24')}\n{VIA} src 192.0.2.8", "192.0.2.8"),
        (f"{addresses('10.0.0.7/24', STABLE, '192.0.2.9/32')}\n{VIA} src 192.0.2.9", "192.0.2.9"),
        (f"{addresses('fd01::7/64 nodad', STABLE6, 'fd00::8/64 nodad')}\n{VIA6} src fd00::7", "fd00::7"),
        # That of another interface is of no use.
        (f"{link('eth1', '10.0.0.7/24')}\n{addresses(STABLE)}\n{VIA} src 10.0.0.7", "192.0.2.7"),
    ],
)
def test_the_address_is_the_stable_one_that_the_kernel_prefers(setup: str, address: str | None) -> None:
    """Not whichever is first."""
    assert in_namespace(setup, "network.interfaces()['eth0'].address") == address


def test_a_temporary_address_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has one beside each stable address, and prefers it as a source. For IPv4, the flag means
    that it has another one of the same network."""
    given = [
        netlink.Address(1, "2001:db8::1", True, 64, netlink.TEMPORARY, ""),
        netlink.Address(1, "2001:db8::2", True, 64, 0, ""),
        netlink.Address(2, "192.0.2.7", False, 24, netlink.TEMPORARY, "b"),
    ]
    monkeypatch.setattr(netlink, "addresses", lambda: given)
    monkeypatch.setattr(network, "_source", lambda family, destination: "2001:db8::1")
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "a"), (2, "b")])
    found = network.interfaces()
    assert [found["a"].address, found["b"].address] == ["2001:db8::2", "192.0.2.7"]


def test_loopback_is_used_only_where_there_is_nothing_else() -> None:
    """The network of a host that boots is not configured yet: others could not use 127.0.0.1."""
    with pytest.raises(Refused) as caught:
        in_namespace(link("eth0"), "network.facts(settings)")
    assert caught.value.kind == NoAddress.__name__
    # The kernel makes such a one in each namespace, once a tunnel is used anywhere.
    tunnel = "ip link add name sit0 type veth peer name tunl0"
    assert in_namespace(tunnel, "network.facts(settings)['address']") == "127.0.0.1"
    named = in_namespace(
        f"{link('eth0')}\nip address add 10.9.9.9/32 dev lo",
        "network.facts(settings)['address']",
        KOLLA_PRIVATE_INTERFACE="lo",
        KOLLA_PUBLIC_INTERFACE="lo",
    )
    assert named == "10.9.9.9"


# -- facts


def test_facts_are_what_other_members_render_with() -> None:
    """kolla-mesos' keys, and this agent's own."""
    environ = {"KOLLA_PRIVATE_INTERFACE": "eth1", "KOLLA_PORTS": "80,443"}
    facts = in_namespace(VIA_ETH0, "network.facts(settings)", **environ)
    assert facts == {
        "ansible_hostname": socket.gethostname(),
        "api_interface": "eth0",
        "private_interface": "eth1",
        "host": "node",
        "service": "infra/x/y",
        "address": "10.0.0.7",
        "private_address": "10.0.0.7",
        "ports": [80, 443],
        "ansible_eth1": {"ipv4": {"address": "10.0.0.7"}, "ipv6": [{"address": "fd00::7"}]},
        "ansible_eth0": {"ipv4": {"address": "192.0.2.7"}},
        "ansible_lo": {"ipv4": {"address": "127.0.0.1"}, "ipv6": [{"address": "::1"}]},
    }


def test_facts_of_an_ipv6_host_have_no_ipv4() -> None:
    """A template that uses its IPv4 address is refused, because that is missing."""
    facts = in_namespace(IPV6_ONLY, "network.facts(settings)")
    assert facts["ansible_eth0"] == {"ipv6": [{"address": "fd00::5"}, {"address": "fe80::5%eth0"}]}
    assert facts["private_address"] == facts["address"] == "fd00::5"


def with_interfaces(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """Give this host interfaces with an address each."""
    found = {name: network.Interface(name, ("192.0.2.1",), ("2001:db8::1",), "192.0.2.1") for name in names}
    monkeypatch.setattr(network, "interfaces", lambda: found)


def test_facts_are_limited_and_keep_the_private_and_the_public_interface(
    monkeypatch: pytest.MonkeyPatch, log_lines: LogLines
) -> None:
    """All members read them, and a host of containers has hundreds of interfaces."""
    with_interfaces(monkeypatch, [*(f"cali{number:03}" for number in range(500)), "ens1", "ens2"])
    settings = parse({**ENVIRON, "KOLLA_PRIVATE_INTERFACE": "ens2", "KOLLA_PUBLIC_INTERFACE": "ens1"})
    facts = network.facts(settings)
    kept = [key for key in facts if isinstance(facts[key], dict)]
    assert kept[:3] == ["ansible_ens2", "ansible_ens1", "ansible_cali000"]
    assert 16384 - 100 < len(json.dumps(facts).encode()) <= 16384
    (line,) = log_lines()
    assert line.level == "warning"
    assert line.message.startswith(f"{502 - len(kept)} interfaces are not registered, ")


def test_the_hostname_is_the_machines_not_the_agents() -> None:
    """RabbitMQ's and Galera's node names depend on it."""
    assert in_namespace("", "network.hostname(), settings.host") == [socket.gethostname(), "node"]
