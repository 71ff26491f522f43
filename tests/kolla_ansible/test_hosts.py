"""One template for the texts of all hosts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.operator.kolla_ansible import hosts, lift
from kolla_mesos_start.operator.kolla_ansible.hosts import OWN_HOST, OWN_HOSTNAME, OwnNames
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
            "bind {{ own_address }}\nall {{ address_ctl_1 }}\n\n",
        ),
        ({f"ctl-{n}": f"host = ctl-{n}.site\n" for n in (1, 2)}, "host = {{ own_hostname }}.site\n\n"),
        ({"ctl-1": "workers = 5", "ctl-2": "workers = 8"}, "workers = {{ file_1 }}"),
        (dict.fromkeys(("ctl-1", "ctl-2"), f"workers = {mark('#5')}"), "workers = {{ file_1 }}"),
        ({"ctl-1": f"workers = {mark('#5')}"}, "workers = {{ file_1 }}"),
        ({"ctl-1": f"workers = {mark('#5')}", "ctl-2": "workers = 1"}, "workers = {{ file_1 }}"),
    ],
)
def test_what_differs_becomes_a_variable(texts: Mapping[str, str], template: str) -> None:
    merged = hosts.merge("file", texts, OWN)
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
    merged = hosts.merge("file", texts, OWN)
    for host, text in texts.items():
        own = {
            OWN_HOST: host,
            OWN_HOSTNAME: host,
            "own_address": ADDRESSES[f"address_{host.replace('-', '_')}"],
        }
        values = {**ADDRESSES, **own, **merged.values.get(host, {})}
        template = lift.template(merged.text)
        rendered = Sandbox().render(Text("file", template), values).text
        text = lift.SIZED_MARK.sub(r"\1", text)
        assert rendered == lift.MARK.sub(lambda found: ADDRESSES[found[1]], text)
