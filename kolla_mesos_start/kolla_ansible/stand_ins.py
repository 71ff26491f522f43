"""Values that take the place of passwords and addresses while kolla-ansible is recorded.

A stand-in occurs nowhere else, so each place where it is found is a place of its variable. The real
passwords are never given to ansible.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kolla_mesos_start.ctl.directory import directory, source
from kolla_mesos_start.kolla_ansible.facts import HostFacts

# Networks for benchmarks (RFC 2544): one for each recording.
NETWORKS = ("198.18.0.0/16", "198.19.0.0/16")
VIRTUAL = ("kolla_internal_vip_address", "kolla_external_vip_address")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LENGTH = 40


@dataclass(frozen=True)
class StandIns:
    """What one recording uses.

    `passwords` is the content of its passwords.yml, and `secrets` are the stand-ins by the name of their
    variable. `addresses` are the stand-ins by the real address, `facts` are those of the hosts with them, and
    `overrides` are the variables of kolla-ansible for virtual addresses.
    """

    passwords: Mapping[str, Any]
    secrets: Mapping[str, str]
    addresses: Mapping[str, str]
    facts: Mapping[str, HostFacts]
    overrides: Mapping[str, str] = field(default_factory=dict)


def make(
    run: int, passwords: Mapping[str, Any], facts: Mapping[str, HostFacts], virtual: Mapping[str, str]
) -> StandIns:
    """The stand-ins of recording 0 or 1. `virtual` are the virtual addresses by their variables.

    In recording 1, each host has the smallest size, which shows what depends on it.
    """
    network = ipaddress.IPv4Network(NETWORKS[run])
    real = dict.fromkeys(address for host in facts.values() for address in host.interfaces.values())
    real.update(dict.fromkeys(virtual.values()))
    addresses = {address: str(network[257 + number]) for number, address in enumerate(real)}
    given = {name: _stand_in(run, name, value) for name, value in passwords.items()}
    return StandIns(
        given,
        flattened(given),
        addresses,
        {
            host: (each.as_smallest() if run else each).with_addresses(addresses)
            for host, each in facts.items()
        },
        {name: addresses[address] for name, address in virtual.items()},
    )


def kinds(passwords: Mapping[str, Any]) -> Mapping[str, str]:
    """The kind of each secret for secrets.yml, which the form of the operator's value shows."""
    return {name: _kind(name, value) for name, value in flattened(passwords).items()}


def _kind(name: str, value: str) -> str:
    if UUID.fullmatch(value):
        return directory.UUID
    if _is_fernet(value):
        return directory.FERNET
    is_key = "PRIVATE KEY" in value or value.startswith("ssh-")
    return directory.GIVEN if is_key or name.endswith("_salt") else directory.PASSWORD


def _is_fernet(value: str) -> bool:
    return value.endswith("=") and len(value) == 44


def virtual_addresses(settings: Mapping[str, object]) -> Mapping[str, str]:
    """The virtual addresses that globals.yml sets to an address."""
    found = {name: str(settings[name]) for name in VIRTUAL if settings.get(name)}
    return {name: value for name, value in found.items() if re.fullmatch(r"[0-9.]+", value)}


def flattened(values: Mapping[str, Any]) -> Mapping[str, str]:
    """The values that are set, by the names that `publish --secrets` gives them."""
    return {name: str(value) for name, value in source.flattened(values) if value}


def _stand_in(run: int, name: str, value: Any) -> Any:
    """A value of the same form; none for one that is not set."""
    if isinstance(value, Mapping):
        return {key: _stand_in(run, f"{name}_{key}", each) for key, each in value.items()}
    if not value:
        return None
    text = str(value)
    digest = hashlib.sha256(f"{run} {name}".encode()).digest()
    if UUID.fullmatch(text):
        return str(uuid.UUID(bytes=digest[:16]))
    if _is_fernet(text):
        return base64.urlsafe_b64encode(digest).decode()
    if "PRIVATE KEY" in text:
        return f"-----BEGIN PRIVATE KEY-----\n{digest.hex()}\n-----END PRIVATE KEY-----\n"
    if text.startswith("ssh-"):
        return f"ssh-rsa {digest.hex()}"
    if name.endswith("_salt"):
        return f"{digest.hex()[:21]}."
    return f"Z{digest.hex()}"[:LENGTH]
