"""The differences between a directory and the published znodes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Callable, NamedTuple

from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES
from kolla_mesos_start.ctl.directory.secrecy import is_variable
from kolla_mesos_start.definition.strings import Text

CREATED, UPDATED = "created", "updated"
_OF_A_RUN = ("command", "env", "user")  # what a one-time command does
LONGEST = 200  # characters of a value, or of a line


class Change(NamedTuple):
    """A znode that publishing would create or update; `before` is None if it does not exist."""

    node: str
    before: bytes | None
    after: bytes

    @property
    def kind(self) -> str:
        return UPDATED if self.before else CREATED

    @property
    def is_variable(self) -> bool:
        return is_variable(self.node)


def changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[Change]:
    """The changes, sorted by path."""
    return [
        Change(node, before.get(node), data)
        for node, data in sorted(after.items())
        if before.get(node) != data
    ]


def not_run_again(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    """The one-time commands, as `service: command`, that differ and have the same generation.

    A generation from a template is not compared: its value may have changed with a variable.
    """
    for service, data in sorted(after.items()):
        earlier = _commands(before.get(service, b""))
        for name, command in _commands(data).items():
            old = earlier.get(name)
            if old is None or not command.get("run_once") or _is_new_generation(old, command):
                continue
            if any(old.get(key) != command.get(key) for key in _OF_A_RUN):
                yield f"{service}: {name}"


def run_with_old_values(
    before: Mapping[str, bytes], after: Mapping[str, bytes], texts: Mapping[str, bytes]
) -> Iterator[str]:
    """The one-time commands that use a variable or a file with new content, and have the same generation.

    What they have written elsewhere has the old content, such as a password in a database.
    """
    changed = {each.node for each in changes(before, after) if each.before}
    for service, data in sorted(texts.items()):
        places = (f"{VARIABLES}/", f"{service}/{VARIABLES}/")
        names = {re.escape(node.rpartition("/")[2]) for node in changed if node.startswith(places)}
        uses = re.compile(rf"\b(?:{'|'.join(names)})\b" if names else r"(?!)")
        earlier = _commands(before.get(service, b""))
        for name, command in _commands(data).items():
            old, generation = earlier.get(name), command.get("generation")
            if old is None or not command.get("run_once") or generation != old.get("generation"):
                continue
            files = [f"{service}/{FILES}/{file}" for file in command.get("files") or ()]
            used = (json.dumps(command), *(after.get(file, b"").decode(errors="replace") for file in files))
            is_used = not changed.isdisjoint(files) or any(map(uses.search, used))
            if is_used and not uses.search(str(generation)):
                yield f"{service.rpartition('/')[2]}/{name}"


def _is_new_generation(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    generation = new.get("generation")
    return generation != old.get("generation") or Text("", str(generation)).is_template


def _commands(definition: bytes) -> Mapping[str, Mapping[str, Any]]:
    # A definition that can't be read has no commands here; `validate` reports it.
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        commands = json.loads(definition)["commands"]
        return {name: each for name, each in commands.items() if isinstance(each, dict)}
    return {}


def shortened(text: str, shown: Callable[[str], str] = str) -> str:
    """The text, as `shown` writes it; only its beginning and its length if it is long."""
    more = f"... ({len(text)} characters)" if len(text) > LONGEST else ""
    return f"{shown(text[:LONGEST])}{more}"


def affected(changed: Iterable[str], texts: Mapping[str, bytes]) -> set[str]:
    """The services that the changed nodes concern. `texts` has all templates of each service."""
    services = set()
    for node in changed:
        if node.startswith(f"{VARIABLES}/"):
            name = re.compile(rb"\b%s\b" % re.escape(node.partition("/")[2].encode()))
            services |= {service for service, text in texts.items() if name.search(text)}
        else:
            names = node.split("/")
            services |= texts.keys() & {"/".join(names[:count]) for count in range(1, len(names) + 1)}
    return services
