"""The bytes of a definition become JSON values, checked for syntax but not for meaning."""

from __future__ import annotations

import json
from collections import Counter

from kolla_mesos_start.definition.forms import DAEMON
from kolla_mesos_start.definition.texts import labelled, sublabel
from kolla_mesos_start.errors import BadDefinition, Issue
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DIGITS = 300
"""The longest number that is read, in characters."""


class Document(NamedTuple):
    """A definition as JSON: well-formed, its keys and values not checked yet."""

    root: Mapping[str, object]


def load(data: bytes) -> Document:
    """Parse the JSON of a definition.

    Raises BadDefinition: with line and column for bad syntax, with the label for an object that
    has a key twice and for a number that is NaN, infinite or too long.
    """
    issues: list[tuple[object, str]] = []

    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        whole = dict(pairs)
        if len(whole) < len(pairs):
            times = Counter(key for key, _ in pairs)
            twice = sorted(key for key in times if times[key] > 1)
            issues.extend((whole, f"the key {key!r} is there more than once") for key in twice)
        return whole

    def number(literal: str) -> object:
        value = _finite(literal)
        if value is None:
            value = float("nan")  # A new object each time, so that `_walk` finds its label.
            issues.append((value, f"expected a finite number of at most {_DIGITS} characters"))
        return value

    text = _decode(data)
    try:
        root = json.loads(
            text, object_pairs_hook=mapping, parse_int=number, parse_float=number, parse_constant=number
        )
    except json.JSONDecodeError as error:
        what = f"bad JSON: {_plain(error.msg)}, line {error.lineno} column {error.colno}"
        raise BadDefinition([Issue(what, line=error.lineno)]) from error
    except RecursionError as error:
        raise BadDefinition(["bad JSON: nested too deep"]) from error
    if issues:
        labels = {id(value): label for label, value in _walk(root)}
        raise BadDefinition([Issue(what, labels.get(id(value), "definition")) for value, what in issues])
    if not isinstance(root, dict):
        raise BadDefinition([f"expected a JSON object, found {json_type(root)}"])
    return Document(root)


def _plain(said: str) -> str:
    """The parser's message in plainer words."""
    words = {
        "Expecting property name": "expected a name in double quotes; a comma before } has to go",
        "Illegal trailing comma": "a comma before the closing bracket: remove it",
        "Expecting value": "expected a value; a comma before ] has to go, and text needs double quotes",
        "Expecting ',' delimiter": "expected a comma, or the closing bracket",
        "Expecting ':' delimiter": "expected a ':' after the name",
        "Extra data": "text after the closing bracket of the definition",
        "Unterminated string": "a double quote is not closed",
        "Invalid control character": "a line break, tab or control character in a text: write \\n or \\t",
        "Invalid \\": "an unknown escape after a backslash: write \\\\ for a backslash",
    }
    return next((plain for begin, plain in words.items() if said.startswith(begin)), said)


def digest(document: Document) -> str:
    """A digest of the parts that agents read, without `instances`, which is for launchers."""
    import zlib

    service = document.root.get("service")
    read = (document.root.get("commands"), service.get(DAEMON) if isinstance(service, dict) else None)
    return f"{zlib.crc32(json.dumps(read).encode()):08x}"


def json_type(value: object) -> str:
    """The JSON type of a value, for a message that must not contain the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # Some editors put a byte order mark in front.
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise BadDefinition([Issue(f"not UTF-8 text, line {line} column {column}", line=line)]) from error


def _finite(literal: str) -> int | float | None:
    """The number, or None for NaN, an infinity, or too many characters."""
    if len(literal) > _DIGITS:  # int() refuses long text since Python 3.11, and is slow before.
        return None
    if literal.lstrip("-").isdigit():
        return int(literal)
    value = float(literal)
    return value if abs(value) < float("inf") else None


def _walk(root: object) -> Iterator[tuple[str, object]]:
    """Every value with its label. Without recursion: a document may be as deep as JSON's parser allows."""
    left: list[tuple[str, object]] = [("", root)]
    while left:
        label, value = left.pop()
        yield label or "definition", value
        if isinstance(value, dict):
            left.extend((sublabel(label, key), item) for key, item in value.items())
        elif isinstance(value, list):
            left.extend(labelled(label, value))


def generations(root: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The part of a definition that says which commands have a generation: by the command's name."""
    commands = root.get("commands")
    commands = commands if isinstance(commands, dict) else {}
    return {
        name: {key: command[key] for key in ("run_once", "generation") if key in command}
        for name, command in commands.items()
        if isinstance(command, dict) and command.get("generation") is not None
    }
