"""What kolla-ansible knows about each host: from Ansible's cache, or from a file with a line for each host.

    hosts:
      ctl-1: {address: 192.0.2.11, interface: eth0, cpus: 16, memory: 65536}

`memory` is in MiB. Further addresses are `interfaces: {eth1: 198.51.100.11}`, `hostname` is another name than
that of the inventory, and `distribution`, `release` and `version` name another system than Debian 12.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kolla_mesos_start.errors import BadUsage, listed
from kolla_mesos_start.kolla_ansible import given_files

REQUIRED = ("address", "interface", "cpus", "memory")
OPTIONAL = ("interfaces", "hostname", "distribution", "release", "version")
PREFIX = "ansible_"
SMALLEST = {"processor_vcpus": 1, "memtotal_mb": 1024}
# Ansible 2.19 and newer put the number of a format before the names of hosts, and the facts into one text.
CACHED, PAYLOAD = "(s[0-9]+_)?", "__payload__"
LOOPBACK = "127.0.0.1"
EXAMPLE = "hosts: {NAME: {address: 192.0.2.11, interface: eth0, cpus: 16, memory: 65536}}"


@dataclass(frozen=True)
class HostFacts:
    """The facts of a host of the inventory, without `ansible_` before their names."""

    host: str
    values: Mapping[str, Any]

    @property
    def interfaces(self) -> Mapping[str, str]:
        """The IPv4 address of each interface that has one, first that of the default route.

        All hosts have the loopback address, so it is none of these.
        """
        first = (self.values.get("default_ipv4") or {}).get("interface")
        found = {}
        for name in sorted(self.values.get("interfaces", ()), key=lambda name: (name != first, name)):
            address = (self.values.get(fact_name(name)) or {}).get("ipv4", {}).get("address")
            if address and address != LOOPBACK:
                found[name] = address
        return found

    @property
    def name(self) -> str:
        """Its name in the deployment: that of the inventory, if this is the name of one host."""
        return str(self.values.get("nodename", self.hostname)) if is_nameless(self.host) else self.host

    @property
    def hostname(self) -> str:
        """The name that the system has, which may differ from the inventory's."""
        return str(self.values.get("hostname", self.host))

    def as_smallest(self) -> HostFacts:
        """The same host with few CPUs and little memory: numbers that depend on these are smaller."""
        least = {
            name: min(int(self.values[name]), size) for name, size in SMALLEST.items() if name in self.values
        }
        return HostFacts(self.host, {**self.values, **least})

    def with_addresses(self, addresses: Mapping[str, str]) -> HostFacts:
        """The same host with other addresses, by the real ones."""
        return HostFacts(self.host, _replaced(self.values, addresses))


def is_nameless(host: str) -> bool:
    """Whether a host of the inventory is an address, or localhost, as in kolla-ansible's all-in-one."""
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return _is_localhost(host)


def _is_localhost(host: str) -> bool:
    return host.partition(".")[0].lower() == "localhost"


def fact_name(interface: str) -> str:
    """Ansible's name for the facts of an interface; a dot stays, as in bond0.100."""
    return re.sub("[-:]", "_", interface)


def read(path: Path | None, hosts: Sequence[str]) -> Mapping[str, HostFacts]:
    """The facts of these hosts of the inventory, by their names in the deployment.

    BadUsage names the hosts that have none, and those that are one host with two names.
    """
    found = dict(_read(path, hosts)) if path else {}
    missing = [host for host in hosts if host not in found]
    if missing:
        where = f" in {path}" if path else ""
        raise BadUsage(
            f"facts of {', '.join(missing)} are missing{where}: --facts is the directory of Ansible's cache"
            " (`kolla-ansible gather-facts` with fact_caching = jsonfile), or a file with: "
            + EXAMPLE.replace("NAME", missing[0])
        )
    first: dict[str, HostFacts] = {}  # by name and by address
    for each in (found[host] for host in hosts):
        if _is_localhost(each.name):
            raise BadUsage(
                f"the hostname of {each.host} is {each.name}, which is no name for other hosts: change it"
                " (hostnamectl set-hostname NAME), or write another name into the inventory"
            )
        address = (each.values.get("default_ipv4") or {}).get("address", each.name)
        for key in (each.name, address):
            same = first.setdefault(key, each)
            if same is not each:
                raise BadUsage(
                    f"{same.host} and {each.host} of the inventory are one host, {key}: give it the same name"
                    " in all groups"
                )
    return {found[host].name: found[host] for host in hosts}


def check_network(host: HostFacts, settings: Mapping[str, Any]) -> None:
    """Raise BadUsage if kolla-ansible would not find the host's address in the network of the APIs.

    It would find out only after minutes. All other networks are this one unless a setting names another
    interface. A setting may be a template, which only kolla-ansible can read.
    """
    family, interface = (
        str(settings.get(f"api_{name}") or settings.get(f"network_{name}") or "")
        for name in ("address_family", "interface")
    )
    if family.lower() == "ipv6":
        raise BadUsage(f"{host.host}: the import knows only IPv4, but address_family of its network is ipv6")
    fact = host.values.get(interface.replace("-", "_")) or {}  # as the filter kolla_address looks for it
    if interface and "{" not in interface and not fact.get("ipv4"):
        found = listed(host.interfaces) or "none"
        raise BadUsage(
            f"{host.host}: its facts have no IPv4 address of {interface} (api_interface or"
            f" network_interface); interfaces with an address: {found}"
        )


def _read(path: Path, hosts: Sequence[str]) -> Iterator[tuple[str, HostFacts]]:
    if path.is_dir():
        for host in hosts:
            if files := [
                file for file in path.iterdir() if re.fullmatch(CACHED + re.escape(host), file.name)
            ]:
                yield host, _cached(max(files, key=lambda file: file.stat().st_mtime), host)
    elif path.is_file():
        yield from _listed(path)
    else:
        raise BadUsage(f"--facts {path}: there is no such file or directory")


def _cached(file: Path, host: str) -> HostFacts:
    try:
        content = json.loads(file.read_bytes())
        content = json.loads(content[PAYLOAD]) if PAYLOAD in content else content
        facts = {name[len(PREFIX) :]: value for name, value in content.items() if name.startswith(PREFIX)}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadUsage(f"{file} is no file of Ansible's cache: {error}") from error
    return HostFacts(host, facts)


def _listed(path: Path) -> Iterator[tuple[str, HostFacts]]:
    content = given_files.document(path)
    hosts = content.get("hosts") if isinstance(content, dict) else None
    if not isinstance(hosts, dict):
        raise BadUsage(f"{path}: expected {EXAMPLE}")
    for host, given in hosts.items():
        yield str(host), _made(path, str(host), given)


def _made(path: Path, host: str, given: Any) -> HostFacts:
    if not isinstance(given, dict):
        raise BadUsage(f"{path}: {host}: expected {EXAMPLE}")
    issues = [*given_files.mistakes_in_row(host, given, REQUIRED, OPTIONAL)]
    if issues:
        raise BadUsage(f"{path}: {'; '.join(issues)}")
    others = given.get("interfaces") or {}
    interfaces = {str(given["interface"]): str(given["address"]), **others}
    ipv4 = {name: _ipv4(path, host, str(address)) for name, address in interfaces.items()}
    first = str(given["interface"])
    version = str(given.get("version", "12"))
    hostname = _hostname(path, host, given.get("hostname"))
    values: dict[str, Any] = {
        "architecture": "x86_64",
        "default_ipv4": {"address": ipv4[first]["address"], "interface": first},
        "distribution": given.get("distribution", "Debian"),
        "distribution_major_version": version.partition(".")[0],
        "distribution_release": given.get("release", "bookworm"),
        "distribution_version": version,
        "fqdn": hostname,
        "hostname": hostname.partition(".")[0],
        "interfaces": ["lo", *(name.replace(":", "_") for name in interfaces)],
        "memtotal_mb": given["memory"],
        "nodename": hostname,
        "os_family": "Debian" if given.get("distribution", "Debian") in ("Debian", "Ubuntu") else "RedHat",
        "processor_vcpus": given["cpus"],
        "python": {"executable": "/usr/bin/python3"},
        "service_mgr": "systemd",
        "user_gid": 0,
        "user_id": "root",
        "user_uid": 0,
    }
    for name, each in ipv4.items():
        values[fact_name(name)] = {"device": name, "active": True, "ipv4": each}
    return HostFacts(host, values)


def _hostname(path: Path, host: str, given: object) -> str:
    if given is None:
        if _is_localhost(host):
            return socket.gethostname()
        if is_nameless(host):
            raise BadUsage(f"{path}: {host}: hostname is missing, because the inventory has only an address")
        return host
    return str(given)


def _ipv4(path: Path, host: str, address: str) -> Mapping[str, str]:
    try:
        found = ipaddress.IPv4Interface(address if "/" in address else f"{address}/24")
    except ValueError as error:
        raise BadUsage(f"{path}: {host}: {error}") from error
    network = found.network
    return {
        "address": str(found.ip),
        "netmask": str(network.netmask),
        "network": str(network.network_address),
        "prefix": str(network.prefixlen),
    }


def _replaced(value: Any, addresses: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, addresses) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, addresses) for each in value]
    return addresses.get(value, value) if isinstance(value, str) else value
