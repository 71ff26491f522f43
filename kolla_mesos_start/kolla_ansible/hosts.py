"""Makes one template of the texts that several hosts have, and values for each host where they differ.

A host's own address and name in the lifted texts (`lift`) become the variables `own_address` and
`own_hostname`. A word that differs otherwise, or that depends on the size of the host, becomes a variable of
the service. Texts that differ in more than words become branches of one template, by `own_host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kolla_mesos_start.kolla_ansible import lift

OWN_ADDRESS, OWN_HOSTNAME, OWN_HOST = "own_address", "own_hostname", "own_host"


@dataclass(frozen=True)
class OwnNames:
    """A host's names for itself: the variables of its addresses by their own names, and its host name."""

    addresses: Mapping[str, str]
    hostname: str


@dataclass(frozen=True)
class Merged:
    """A lifted text for all hosts. `values` are each host's variables in it, except its own names.

    `sized` are those that depend on the CPUs or the memory of the host.
    """

    text: str
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_branched: bool = False
    sized: Sequence[str] = ()


def merge(name: str, texts: Mapping[str, str], own: Mapping[str, OwnNames]) -> Merged:
    """One text for the hosts. `name` begins the names of its variables."""
    first = next(iter(texts.values()))
    if len(set(texts.values())) == 1 and not lift.SIZED_MARK.search(first):
        return Merged(first)
    tokens = {host: lift.TOKEN.findall(text) for host, text in texts.items()}
    if len({len(found) for found in tokens.values()}) > 1:
        return Merged(_branched(texts), is_branched=True)
    parts: list[str] = []
    values: dict[str, dict[str, str]] = {host: {} for host in texts}
    sized: list[str] = []
    for marked in zip(*tokens.values()):
        column = [lift.SIZED_MARK.sub(r"\1", word) for word in marked]
        is_sized = column != list(marked)
        words = dict(zip(texts, column))
        if len(set(column)) == 1 and not is_sized:
            parts.append(column[0])
        elif not is_sized and (common := _own(words, own)) is not None:
            parts.append(common)
        elif any(lift.BEGIN in word or not word.strip() for word in column):
            return Merged(_branched(texts), is_branched=True)
        else:
            variable = lift.variable(name, str(1 + len(next(iter(values.values())))))
            parts.append(f"{lift.BEGIN}{variable}{lift.END}")
            sized += [variable] if is_sized else []
            for host, word in words.items():
                values[host][variable] = word
    return Merged("".join(parts), values if any(values.values()) else {}, sized=sized)


def _own(words: Mapping[str, str], own: Mapping[str, OwnNames]) -> str | None:
    """The word with a variable of the host's own in place of what differs; None if something else differs.

    Each word is a mark, or has none.
    """
    first = next(iter(words))
    for variable in own[first].addresses:
        names = {host: own[host].addresses.get(variable) for host in words}
        found = {_renamed(word, names[host], variable) for host, word in words.items()}
        if len(found) == 1:
            return found.pop()
    if any(lift.BEGIN in word for word in words.values()):
        return None
    mark = f"{lift.BEGIN}{OWN_HOSTNAME}{lift.END}"
    found = {word.replace(own[host].hostname, mark) for host, word in words.items()}
    return found.pop() if len(found) == 1 else None


def _renamed(word: str, name: str | None, variable: str) -> str:
    is_known = name is not None and lift.BEGIN in word
    return re.sub(rf"\b{name}\b", variable, word) if is_known else word


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
