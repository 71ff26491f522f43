"""Facts from a file or from Ansible's cache, and the stand-ins for them."""

from __future__ import annotations

import json
import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import facts, stand_ins

FILE = "hosts: {ctl-1: {address: 192.0.2.11, interface: br-ex, cpus: 4, memory: 8192}}\n"
CACHED = {
    "ansible_hostname": "ctl-1",
    "ansible_interfaces": ["lo", "eth0"],
    "ansible_eth0": {"ipv4": {"address": "192.0.2.11"}},
}


def test_a_file_has_a_line_for_each_host(tmp_path: Path) -> None:
    (tmp_path / "facts.yml").write_text(FILE)
    found = facts.read(tmp_path / "facts.yml", ["ctl-1"])["ctl-1"]
    assert found.interfaces == {"br-ex": "192.0.2.11"}
    assert found.values["br_ex"]["ipv4"]["netmask"] == "255.255.255.0"
    assert (found.values["processor_vcpus"], found.values["memtotal_mb"]) == (4, 8192)


@pytest.mark.parametrize(
    "name, content",
    [("ctl-1", CACHED), ("s1_ctl-1", {"__payload__": json.dumps(CACHED)})],
    ids=["old", "new"],
)
def test_a_cache_has_a_file_for_each_host(name: str, content: object, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert facts.read(tmp_path, ["ctl-1"])["ctl-1"].interfaces == {"eth0": "192.0.2.11"}


NAMES = {
    "br-ex": "br_ex",
    "bond0.100": "bond0.100",
    "br-ex.7": "br_ex.7",
    "eth0:1": "eth0_1",
    "eth0_1": "eth0_1",
}


@pytest.mark.parametrize("interface", NAMES)
def test_the_fact_of_an_interface_has_ansibles_name(interface: str, tmp_path: Path) -> None:
    """`-` and `:` become `_`, and a dot stays: in a file of facts and in a cache."""
    (tmp_path / "facts.yml").write_text(FILE.replace("br-ex", f'"{interface}"'))
    listed = facts.read(tmp_path / "facts.yml", ["ctl-1"])["ctl-1"]
    assert listed.values[NAMES[interface]]["ipv4"]["address"] == "192.0.2.11"
    assert list(listed.interfaces.values()) == ["192.0.2.11"]
    cached = {
        "ansible_interfaces": ["lo", interface.replace(":", "_")],
        f"ansible_{NAMES[interface]}": {"ipv4": {"address": "192.0.2.11"}},
    }
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/ctl-1").write_text(json.dumps(cached))
    found = facts.read(tmp_path / "cache", ["ctl-1"])["ctl-1"]
    assert found.interfaces == {interface.replace(":", "_"): "192.0.2.11"}


def test_only_the_last_facts_of_the_hosts_are_read_from_a_cache(tmp_path: Path) -> None:
    """A cache may have facts of other inventories, and those that an older Ansible has written."""
    (tmp_path / "unfinished").write_text("{")
    (tmp_path / "directory").mkdir()
    old = {**CACHED, "ansible_eth0": {"ipv4": {"address": "192.0.2.99"}}}
    for name, content in (
        ("s1_ctl-1", {"__payload__": json.dumps(CACHED)}),
        ("ctl-1", old),
        ("s1_x", CACHED),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    os.utime(tmp_path / "ctl-1", (1, 1))
    assert facts.read(tmp_path, ["ctl-1"])["ctl-1"].interfaces == {"eth0": "192.0.2.11"}
    (tmp_path / "s1_s1_x").write_text(json.dumps({"__payload__": json.dumps(CACHED)}))
    assert list(facts.read(tmp_path, ["s1_x"])) == ["s1_x"]


@pytest.mark.parametrize(
    "settings, why",
    [
        ({}, ""),
        ({"network_interface": "br-ex"}, ""),
        ({"network_interface": "eth9", "api_interface": "br-ex"}, ""),
        ({"network_interface": "{{ elsewhere }}"}, ""),
        (
            {"network_interface": "bond0.100"},
            "ctl-1: its facts have no IPv4 address of bond0.100 .* with an address: br-ex",
        ),
        (
            {"network_interface": "br-ex", "api_interface": "eth1"},
            "ctl-1: its facts have no IPv4 address of eth1 ",
        ),
        ({"network_address_family": "ipv6"}, "ctl-1: the import knows only IPv4"),
        ({"network_address_family": "ipv6", "api_address_family": "ipv4"}, ""),
    ],
)
def test_a_host_without_address_in_the_network_of_the_apis_is_named(
    settings: dict[str, str], why: str, tmp_path: Path
) -> None:
    (tmp_path / "facts.yml").write_text(FILE)
    host = facts.read(tmp_path / "facts.yml", ["ctl-1"])["ctl-1"]
    with pytest.raises(BadUsage, match=why) if why else nullcontext():
        facts.check_network(host, settings)


@pytest.mark.parametrize(
    "distribution, family",
    [("Debian", "Debian"), ("Ubuntu", "Debian"), ("Rocky", "RedHat"), ("AlmaLinux", "RedHat")],
)
def test_a_distribution_has_ansibles_family(distribution: str, family: str, tmp_path: Path) -> None:
    (tmp_path / "facts.yml").write_text(FILE.replace("memory", f"distribution: {distribution}, memory"))
    assert facts.read(tmp_path / "facts.yml", ["ctl-1"])["ctl-1"].values["os_family"] == family


def test_the_first_address_of_a_host_is_that_of_its_default_route(tmp_path: Path) -> None:
    """A cache has the interfaces in any order, with the loopback that each host has."""
    more = {
        "ansible_eth1": {"ipv4": {"address": "198.51.100.11"}},
        "ansible_lo": {"ipv4": {"address": "127.0.0.1"}},
    }
    facts_of = {**CACHED, **more, "ansible_default_ipv4": {"interface": "eth1"}}
    for interfaces in (["lo", "eth0", "eth1"], ["eth1", "eth0", "lo"]):
        (tmp_path / "ctl-1").write_text(json.dumps({**facts_of, "ansible_interfaces": interfaces}))
        found = facts.read(tmp_path, ["ctl-1"])["ctl-1"].interfaces
        assert list(found.items()) == [("eth1", "198.51.100.11"), ("eth0", "192.0.2.11")]


def test_an_address_may_have_the_length_of_its_network(tmp_path: Path) -> None:
    (tmp_path / "facts.yml").write_text(FILE.replace("192.0.2.11", "192.0.2.11/28"))
    found = facts.read(tmp_path / "facts.yml", ["ctl-1"])["ctl-1"]
    assert found.values["br_ex"]["ipv4"]["netmask"] == "255.255.255.240"
    assert found.values["default_ipv4"]["address"] == "192.0.2.11"


@pytest.mark.parametrize(
    "text, why",
    [
        (FILE, "facts of ctl-2 are missing"),
        ("hosts: {ctl-2: {adress: 1}}\n", "ctl-2: unknown key adress .did you mean 'address'"),
        ("hosts: {ctl-2: {address: 192.0.2.12, interface: eth0, cpus: 4}}\n", "ctl-2: memory is missing"),
        ("hosts: {ctl-2: {address: x, interface: eth0, cpus: 4, memory: 1}}\n", "ctl-2: Expected 4 octets"),
        ("ctl-2: {}\n", "expected hosts:"),
        (FILE.replace("ctl-1", "192.0.2.11"), "192.0.2.11: hostname is missing, because"),
        (FILE.replace("memory", "version: 24.10, memory"), "version: expected a text in quotes, found 24.1"),
        (FILE.replace("memory", "hostname: a/b, memory"), "ctl-1: hostname: expected the name of a host"),
    ],
)
def test_a_mistake_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "facts.yml").write_text(text)
    with pytest.raises(BadUsage, match=why):
        facts.read(tmp_path / "facts.yml", ["ctl-2"])


@pytest.mark.parametrize(
    "host, given, name, hostname",
    [
        ("ctl-1.site", "", "ctl-1.site", "ctl-1"),
        ("aio", "hostname: ctl-1", "aio", "ctl-1"),
        ("localhost", "", socket.gethostname(), socket.gethostname().partition(".")[0]),
        ("localhost", "hostname: ctl-1.site", "ctl-1.site", "ctl-1"),
        ("localhost.localdomain", "hostname: ctl-1", "ctl-1", "ctl-1"),
        ("192.0.2.11", "hostname: ctl-1", "ctl-1", "ctl-1"),
        ("2001:db8::11", "hostname: ctl-1", "ctl-1", "ctl-1"),
    ],
)
def test_an_address_or_localhost_is_no_name_of_a_host(
    host: str, given: str, name: str, hostname: str, tmp_path: Path
) -> None:
    text = FILE.replace("ctl-1", f'"{host}"').replace("memory: 8192", f"memory: 8192, {given}")
    (tmp_path / "facts.yml").write_text(text)
    found = facts.read(tmp_path / "facts.yml", [host])
    assert [(each, one.host, one.hostname) for each, one in found.items()] == [(name, host, hostname)]


@pytest.mark.parametrize("host", ["localhost", "192.0.2.11"])
def test_a_cache_has_the_hostname(host: str, tmp_path: Path) -> None:
    (tmp_path / host).write_text(json.dumps({**CACHED, "ansible_nodename": "ctl-1.site"}))
    assert list(facts.read(tmp_path, [host])) == ["ctl-1.site"]
    (tmp_path / host).write_text(json.dumps({**CACHED, "ansible_nodename": "localhost.localdomain"}))
    with pytest.raises(BadUsage, match=f"the hostname of {host} is localhost.localdomain, which is no name"):
        facts.read(tmp_path, [host])


def test_hosts_may_have_the_same_address_on_an_interface_of_their_own(tmp_path: Path) -> None:
    """Such as docker0."""
    for name in ("ctl-1", "ctl-2"):
        more = {"ansible_interfaces": ["docker0"], "ansible_docker0": {"ipv4": {"address": "172.17.0.1"}}}
        (tmp_path / name).write_text(json.dumps({**CACHED, **more, "ansible_nodename": "localhost"}))
    assert list(facts.read(tmp_path, ["ctl-1", "ctl-2"])) == ["ctl-1", "ctl-2"]


LOCALHOST = FILE.replace("ctl-1", "localhost").replace("192.0.2.11", "192.0.2.12").replace("hosts: {", "")


@pytest.mark.parametrize(
    "other, why",
    [
        (LOCALHOST.replace("memory", "hostname: ctl-1, memory"), "ctl-1 and localhost of .* one host, ctl-1"),
        (LOCALHOST.replace("192.0.2.12", "192.0.2.11"), "ctl-1 and localhost of .* one host, 192.0.2.11"),
    ],
)
def test_two_names_of_one_host_are_refused(other: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "facts.yml").write_text(FILE.replace("}}\n", f"}}, {other}"))
    with pytest.raises(BadUsage, match=why):
        facts.read(tmp_path / "facts.yml", ["ctl-1", "localhost"])


def test_no_stand_in_is_a_real_value_or_that_of_the_other_recording(tmp_path: Path) -> None:
    (tmp_path / "facts.yml").write_text(FILE)
    known = facts.read(tmp_path / "facts.yml", ["ctl-1"])
    passwords = {
        "a_password": "s3cret",
        "a_uuid": "6f1b1a5e-3c0f-4f5d-9d5e-0d3b8c6f2a11",
        "a_fernet_key": "B" * 43 + "=",
        "a_key": {"private_key": "-----BEGIN PRIVATE KEY-----\n", "public_key": "ssh-rsa AAAA"},
        "not_set": "",
    }
    assert stand_ins.kinds(passwords) == {
        "a_password": "password",
        "a_uuid": "uuid",
        "a_fernet_key": "fernet",
        "a_key_private_key": "given",
        "a_key_public_key": "given",
    }
    virtual = {"kolla_internal_vip_address": "192.0.2.100"}
    first, second = (stand_ins.make(run, passwords, known, virtual) for run in range(2))
    real = stand_ins.flattened(passwords)
    assert real.keys() == first.secrets.keys() == second.secrets.keys()
    assert len({*real.values(), *first.secrets.values(), *second.secrets.values()}) == 3 * len(real)
    assert first.facts["ctl-1"].interfaces == {"br-ex": "198.18.1.1"}
    sizes = ("processor_vcpus", "memtotal_mb")
    assert [first.facts["ctl-1"].values[name] for name in sizes] == [4, 8192]
    assert [second.facts["ctl-1"].values[name] for name in sizes] == [1, 1024]
    assert second.overrides == {"kolla_internal_vip_address": "198.19.1.2"}
