"""The differences between a directory and the published znodes, without secrets. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from difflib import unified_diff
from typing import Any, Callable, NamedTuple

from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.operator.deployment.directory import VARIABLES

HIDDEN = "***"
CREATED, UPDATED = "created", "updated"
_SECRET = re.compile(r"(?i)(pass(word|wd|phrase)?|pwd?|secret|token|credential|cookie|key)s?($|[_-])")
# The text after such a name in a file or a definition, unless it is a template or a path.
_BESIDE = re.compile(
    r"(?i)((?:pass(?:word|wd|phrase)?|pwd?|secret|token|credential|cookie|key)s?[\"']?\s*[:=]\s*[\"']?)"
    r"(?![\"'{/\[\s])([^\s\"',]+)"
)
# Also of each further host, as in transport_url.
_IN_URL = re.compile(r"((?:://|,)[^\s:/@{},]+:)(?![{])[^\s/@]+@")
_PRIVATE_KEY = b"PRIVATE KEY-----"
_OF_A_RUN = ("command", "env", "user")  # what a one-time command does
LONGEST = 200  # characters of a value, or of a line
LEAST_SECRET = 4  # characters: shorter values would be masked everywhere


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


def _is_new_generation(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    generation = new.get("generation")
    return generation != old.get("generation") or Text("", str(generation)).is_template


def _commands(definition: bytes) -> Mapping[str, Mapping[str, Any]]:
    # A definition that can't be read has no commands here; `validate` reports it.
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        commands = json.loads(definition)["commands"]
        return {name: each for name, each in commands.items() if isinstance(each, dict)}
    return {}


def is_variable(node: str) -> bool:
    """Whether the znode holds the value of a variable."""
    return VARIABLES in node.split("/")[:-1]


def is_secret(node: str) -> bool:
    """Whether the name of a variable looks like that of a secret."""
    return bool(_SECRET.search(node.rpartition("/")[2]))


class Mask:
    """Hides the secrets of the given variables in any text, and text that looks like a secret.

    `secrets` are further names of variables with secrets.
    """

    def __init__(self, *variables: Mapping[str, bytes], secrets: Set[str] = frozenset()) -> None:
        self._secrets = secrets
        found = {
            data.decode(errors="replace").strip()
            for nodes in variables
            for node, data in nodes.items()
            if is_variable(node) and self._is_secret(node)
        }
        longest_first = sorted((text for text in found if len(text) >= LEAST_SECRET), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _IN_URL.sub(rf"\1{HIDDEN}@", _BESIDE.sub(rf"\g<1>{HIDDEN}", text))

    def value(self, node: str, data: bytes | None) -> str | None:
        """The value of a variable."""
        if data is None:
            return None
        is_hidden = self._is_secret(node) or _PRIVATE_KEY in data
        return HIDDEN if is_hidden else self.hide(data.decode(errors="replace"))

    def _is_secret(self, node: str) -> bool:
        return is_secret(node) or node.rpartition("/")[2] in self._secrets

    def lines(self, change: Change) -> Iterator[str]:
        """The different lines of a file or a definition, in the format of `diff -u`."""
        if any(_PRIVATE_KEY in (data or b"") for data in (change.before, change.after)):
            yield "a private key, and not shown"
            return
        try:
            before, after = (data.decode().splitlines() for data in (change.before or b"", change.after))
        except UnicodeDecodeError:
            yield "not text, and not shown"
            return
        # Hidden after the comparison: otherwise a line would not differ if only its secret does.
        for line in list(unified_diff(before, after, lineterm="", n=1))[2:]:
            yield self.hide(line)


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
