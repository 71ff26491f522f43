"""What is known before a recording: the hosts, their addresses, and the passwords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kolla_mesos_start.kolla_ansible import lift, stand_ins
from kolla_mesos_start.kolla_ansible.facts import HostFacts
from kolla_mesos_start.kolla_ansible.lift import OwnNames
from kolla_mesos_start.kolla_ansible.stand_ins import StandIns


@dataclass(frozen=True)
class Site:
    """The hosts' facts by their names, virtual addresses by their variables, and passwords.yml."""

    facts: Mapping[str, HostFacts]
    virtual: Mapping[str, str]
    passwords: Mapping[str, object]

    def stand_ins(self, run: int) -> StandIns:
        """The stand-ins of one of the two recordings."""
        return stand_ins.make(run, self.passwords, self.facts, self.virtual)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The variable of each address. A virtual address that is a host's own is the host's."""
        found = {address: name for name, address in self.virtual.items()}
        for host, each in self.facts.items():
            for number, (interface, address) in enumerate(each.interfaces.items()):
                variable = lift.variable("address", host, *([interface] if number else []))
                while variable in found.values():  # Another host's, whose name has other punctuation.
                    variable += "_"
                found[address] = variable
        return found

    @cached_property
    def own(self) -> Mapping[str, OwnNames]:
        """The names of each host for itself."""
        return {
            host: OwnNames(
                {name: self.names[address] for name, address in _own_addresses(each).items()}, each.hostname
            )
            for host, each in self.facts.items()
        }

    @cached_property
    def own_values(self) -> Mapping[str, Mapping[str, str]]:
        """The values of these names."""
        return {
            host: {**_own_addresses(each), lift.OWN_HOSTNAME: each.hostname, lift.OWN_HOST: host}
            for host, each in self.facts.items()
        }


def _own_addresses(facts: HostFacts) -> Mapping[str, str]:
    return {
        lift.variable(lift.OWN_ADDRESS, *([interface] if number else [])): address
        for number, (interface, address) in enumerate(facts.interfaces.items())
    }
