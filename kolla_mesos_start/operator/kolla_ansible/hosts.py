"""Makes one template of the texts that several hosts have, and values for each host where they differ.

What lives here: lifted texts (`lift`), one for each host. A host's own address and name become the variables
`own_address` and `own_hostname`. A word that differs otherwise becomes a variable of the service. Texts that
differ in more than words become branches of one template, by `own_host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kolla_mesos_start.operator.kolla_ansible import lift

OWN_ADDRESS, OWN_HOSTNAME, OWN_HOST = "own_address", "own_hostname", "own_host"
# A mark, a word as host names have it, or one other character.
TOKEN = re.compile(rf"{lift.BEGIN}[^{lift.END}]*{lift.END}|[A-Za-z0-9_-]+|.", re.DOTALL)


@dataclass(frozen=True)
class OwnNames:
    """What a host calls itself: the variables of its addresses by their own names, and its host name."""

    addresses: Mapping[str, str]
    hostname: str


@dataclass(frozen=True)
class Merged:
    """A lifted text for all hosts. `values` are each host's variables in it, except its own names."""

    text: str
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_branched: bool = False


def merge(name: str, texts: Mapping[str, str], own: Mapping[str, OwnNames]) -> Merged:
    """One text for the hosts. `name` begins the names of its variables."""
    if len(set(texts.values())) == 1:
        return Merged(next(iter(texts.values())))
    tokens = {host: TOKEN.findall(text) for host, text in texts.items()}
    if len({len(found) for found in tokens.values()}) > 1:
        return Merged(_branched(texts), is_branched=True)
    parts: list[str] = []
    values: dict[str, dict[str, str]] = {host: {} for host in texts}
    for column in zip(*tokens.values()):
        words = dict(zip(texts, column))
        if len(set(column)) == 1:
            parts.append(column[0])
        elif (common := _own(words, own)) is not None:
            parts.append(common)
        elif any(lift.BEGIN in word or not word.strip() for word in column):
            return Merged(_branched(texts), is_branched=True)
        else:
            variable = lift.variable(name, str(1 + len(next(iter(values.values())))))
            parts.append(f"{lift.BEGIN}{variable}{lift.END}")
            for host, word in words.items():
                values[host][variable] = word
    return Merged("".join(parts), values if any(values.values()) else {})


def _own(words: Mapping[str, str], own: Mapping[str, OwnNames]) -> str | None:
    """The word with a variable of the host's own in place of what differs; None if something else differs."""
    first = next(iter(own.values()))
    for variable in first.addresses:
        marks = {host: f"{lift.BEGIN}{own[host].addresses.get(variable)}" for host in words}
        found = {word.replace(marks[host], f"{lift.BEGIN}{variable}") for host, word in words.items()}
        if len(found) == 1:
            return found.pop()
    mark = f"{lift.BEGIN}{OWN_HOSTNAME}{lift.END}"
    found = {word.replace(own[host].hostname, mark) for host, word in words.items()}
    return found.pop() if len(found) == 1 else None


def _branched(texts: Mapping[str, str]) -> str:
    """A template with one branch for each different text. Its marks are statements."""
    by_text: dict[str, list[str]] = {}
    for host, text in texts.items():
        by_text.setdefault(text, []).append(host)
    parts: list[str] = []
    for text, hosts in by_text.items():
        condition = f"{'elif' if parts else 'if'} {OWN_HOST} in {_listed(hosts)}"
        parts.append(f"{lift.BEGIN}{lift.STATEMENT}{condition}{lift.END}{text}")
    return "".join(parts) + f"{lift.BEGIN}{lift.STATEMENT}endif{lift.END}"


def _listed(hosts: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{host}"' for host in hosts) + "]"
