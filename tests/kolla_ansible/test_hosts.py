"""One template for the texts of all hosts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.facts import HostFacts
from kolla_mesos_start.kolla_ansible.lift import OWN_HOST, OWN_HOSTNAME, OwnNames
from kolla_mesos_start.kolla_ansible.site import Site
from kolla_mesos_start.render.context import file_text
from kolla_mesos_start.render.sandbox import Sandbox

OWN = {f"ctl-{n}": OwnNames({"own_address": f"address_ctl_{n}"}, f"ctl-{n}") for n in (1, 2)}
ADDRESSES = {f"address_ctl_{n}": f"192.0.2.{n}" for n in (1, 2)}


def mark(expression: str) -> str:
    return f"{lift.BEGIN}{expression}{lift.END}"


@pytest.mark.parametrize(
    "texts, template",
    [
        ({"ctl-1": "same\n", "ctl-2": "same\n"}, "same\n"),
        (
            {f"ctl-{n}": f"bind {mark(f'address_ctl_{n}')}\nall {mark('address_ctl_1')}\n" for n in (1, 2)},
            "bind {{ own_address }}\nall {{ address_ctl_1 }}\n",
        ),
        ({f"ctl-{n}": f"host = ctl-{n}.site\n" for n in (1, 2)}, "host = {{ own_hostname }}.site\n"),
        ({"ctl-1": "workers = 5", "ctl-2": "workers = 8"}, "workers = {{ file_1 }}"),
        (dict.fromkeys(("ctl-1", "ctl-2"), f"workers = {mark('#5')}"), "workers = {{ file_1 }}"),
        ({"ctl-1": f"workers = {mark('#5')}"}, "workers = {{ file_1 }}"),
        ({"ctl-1": f"workers = {mark('#5')}", "ctl-2": "workers = 1"}, "workers = {{ file_1 }}"),
    ],
)
def test_what_differs_becomes_a_variable(texts: Mapping[str, str], template: str) -> None:
    merged = lift.merge("file", texts, OWN)
    assert lift.template(merged.text) == template
    assert not merged.is_branched


@pytest.mark.parametrize(
    "texts",
    [
        {"ctl-1": "a\n", "ctl-2": "a\nb\n"},
        {"ctl-1": f"a {mark('address_ctl_2')}\n", "ctl-2": "a b\n"},
        {"ctl-1": "", "ctl-2": f"{mark('address_ctl_1')} and more"},
        {"ctl-1": "workers = 5\n", "ctl-2": "workers = 8\n"},
        {"ctl-1": f"workers = {mark('#5')}\n", "ctl-2": f"workers = {mark('#5')}\n"},
        {"ctl-1": f"workers = {mark('#5')}\n", "ctl-2": f"a = {mark('#5')}\nworkers = {mark('#5')}\n"},
        {f"ctl-{n}": f"{mark(f'address_ctl_{n}')} ctl-{n} {n}" for n in (1, 2)},
    ],
)
def test_each_host_gets_its_own_text(texts: Mapping[str, str]) -> None:
    merged = lift.merge("file", texts, OWN)
    for host, text in texts.items():
        own = {
            OWN_HOST: host,
            OWN_HOSTNAME: host,
            "own_address": ADDRESSES[f"address_{host.replace('-', '_')}"],
        }
        values = {**ADDRESSES, **own, **merged.values.get(host, {})}
        template = file_text("a", lift.template(merged.text).encode())
        assert template
        rendered = Sandbox().render(template, values)
        text = lift.SIZED_MARK.sub(r"\1", text)
        assert rendered == lift.MARK.sub(lambda found: ADDRESSES[found[1]], text)


@pytest.mark.parametrize("other", ["cmp2_eth1", "cmp1_eth1"])
def test_an_address_that_other_hosts_do_not_have_is_a_hosts_own(other: str) -> None:
    """Such as that of an interface of the computes. A host's name is a part of the variable's."""
    addresses = {"ctl1": ["own_address"], "cmp1": ["own_address", "own_address_eth1"]}
    addresses["cmp2"] = addresses["cmp1"]
    own = {
        host: OwnNames({each: each.replace("own_address", f"address_{host}") for each in names}, host)
        for host, names in addresses.items()
    }
    texts = {"cmp1": mark("address_cmp1_eth1"), "cmp2": mark(f"address_{other}")}
    merged = lift.merge("file", texts, own)
    if other == "cmp2_eth1":
        assert lift.template(merged.text) == "{{ own_address_eth1 }}"
    else:
        assert lift.template(merged.text) == "{{ address_cmp1_eth1 }}"


def test_hosts_with_similar_names_have_different_variables() -> None:
    found = {
        host: HostFacts(host, {"interfaces": ["eth0"], "eth0": {"ipv4": {"address": f"192.0.2.{number}"}}})
        for number, host in enumerate(("ctl-1", "ctl_1", "ctl.1"))
    }
    names = Site(found, {}, {}).names
    assert list(names.values()) == ["address_ctl_1", "address_ctl_1_", "address_ctl_1__"]


def test_a_host_name_in_the_name_of_a_variable_is_no_host_name() -> None:
    own = {host: OwnNames({"own_address": f"address_{host}"}, host) for host in ("cmp1", "cmp2")}
    texts = {host: f"{mark(f'address_{host}_eth1')} a" for host in own}
    merged = lift.merge("file", texts, own)
    assert lift.template(merged.text) == (
        '{% if own_host in ["cmp1"] %}{{ address_cmp1_eth1 }} a'
        '{% elif own_host in ["cmp2"] %}{{ address_cmp2_eth1 }} a{% endif %}'
    )
