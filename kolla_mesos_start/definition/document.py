"""A definition as JSON: its bytes become a Document, and its objects are read key by key.

What a key means is decided in `keys`. Nothing is raised while a definition is read: issues are collected,
and the caller raises once.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from kolla_mesos_start.definition.strings import DAEMON, SHOWN, Text, labelled, sublabel, unusable
from kolla_mesos_start.errors import BadDefinition, Issue
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, TypeVar

    from kolla_mesos_start.definition.strings import Form, Render

    D = TypeVar("D")
    Table = Mapping[str, tuple[Any, ...]]

_DIGITS = 300
"""The longest number that is read, in characters."""
MAX_NUMBER = 1_000_000_000
"""The largest number that a definition may hold; in seconds 31 years, which every clock can add."""

_BY_TEMPLATE = ", but its template rendered to something else"
_INTEGER = r"\s*-?[0-9]{1,18}\s*"
_SECONDS = r"\s*-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?\s*"
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}
# The messages of the JSON parser, by their beginnings, in plainer words.
_PLAIN = {
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
        plain = next((plain for begin, plain in _PLAIN.items() if error.msg.startswith(begin)), error.msg)
        what = f"bad JSON: {plain}, line {error.lineno} column {error.colno}"
        raise BadDefinition([Issue(what, line=error.lineno)]) from error
    except RecursionError as error:
        raise BadDefinition(["bad JSON: nested too deep"]) from error
    if issues:
        labels = {id(value): label for label, value in _walk(root)}
        raise BadDefinition([Issue(what, labels.get(id(value), "definition")) for value, what in issues])
    if not isinstance(root, dict):
        raise BadDefinition([f"expected a JSON object, found {json_type(root)}"])
    return Document(root)


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


class WrittenNumber(float):
    """A number that knows its text: the version 3.10 is not 3.1."""

    def __init__(self, text: str) -> None:
        self.text = text


def _finite(literal: str) -> int | float | None:
    """The number, or None for NaN, an infinity, or too many characters."""
    if len(literal) > _DIGITS:  # int() refuses long text since Python 3.11, and is slow before.
        return None
    if literal.lstrip("-").isdigit():
        return int(literal)
    value = WrittenNumber(literal)
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


class Reading:
    """One pass over a definition: renders templates and collects issues."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self.issues: list[Issue] = []

    def report(self, label: str, what: str) -> None:
        self.issues.append(Issue(what, label))

    def report_result(self, label: str, what: str) -> None:
        """The result of the template at `label` is wrong. It is not shown, because it may hold a secret."""
        self.issues.append(Issue(what + _BY_TEMPLATE, label, by_template=True))

    def rendered(self, text: Text) -> str:
        return self._render(text) if text.is_template else text.text

    def resolve(self, text: Text, form: Form) -> str:
        """`text` rendered; reports an issue if the result does not have the form."""
        value = self.rendered(text)
        reason = unusable(value) or form(value)
        if reason:
            (self.report_result if text.is_template else self.report)(text.label, reason)
        return value

    def integer(self, label: str, value: object) -> int | None:
        """A whole number, or text that is one; a template is rendered at once. None for anything else."""
        if isinstance(value, str):
            value = self.rendered(Text(label, value))
            return int(value.strip()) if re.fullmatch(_INTEGER, value) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def check(self, text: Text, form: Form) -> None:
        """Report an issue if `text` does not have the form; a template is checked when it is rendered."""
        reason = unusable(text.text) or (None if text.is_template else form(text.text))
        if reason:
            self.report(text.label, reason)

    def check_name(self, label: str, name: str, form: Form) -> None:
        """Report an issue if a key that names something does not have the form."""
        reason = unusable(name) or form(name)
        if reason:
            self.report(label, reason)


class Fields:
    """One JSON object, read key by key. A wrong value is reported as an issue and read as the default.

    `known` are the keys that are read, `ignored` those that have no effect, `misplaced` those that
    belong elsewhere, each with the reason; any other key is an issue.
    null reads as the default if that is None, and as an empty list or object if one is expected.
    """

    def __init__(
        self,
        reading: Reading,
        label: str,
        value: object,
        known: Iterable[str],
        ignored: Sequence[str] = (),
        misplaced: Mapping[str, str] | None = None,
    ) -> None:
        self.reading = reading
        self.label = label
        self._values = _mapping(reading, label, value)
        self._is_object = value is None or isinstance(value, dict)
        misplaced = misplaced or {}
        for key in self._values:
            if key in misplaced:
                self.report(key, misplaced[key])
            elif key not in known and key not in ignored:
                self.report(key, f"unknown key{nearest(key, (*known, *ignored))}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def values(self, table: Table) -> dict[str, Any]:
        """Read each key of a table by its function, which gets the key and the further arguments."""
        return {key: read(self, key, *arguments) for key, (read, *arguments) in table.items()}

    def require(self, key: str, expected: str) -> bool:
        """Whether the object has `key`. A missing key is reported, unless the value is not an object."""
        if self._is_object and key not in self._values:
            self.report(key, f"is required: {expected}")
        return key in self._values

    def label_of(self, key: str) -> str:
        return sublabel(self.label, key)

    def report(self, key: str, issue: str) -> None:
        self.reading.report(self.label_of(key), issue)

    def raw(self, key: str) -> object:
        """The value as the JSON has it, or None."""
        return self._values.get(key)

    def mapping(self, key: str) -> Mapping[str, object]:
        return _mapping(self.reading, self.label_of(key), self.raw(key))

    def nested(self, key: str, known: Iterable[str]) -> Fields:
        """The object that is the value of `key`."""
        return Fields(self.reading, self.label_of(key), self.raw(key), known)

    def items(self, key: str) -> Sequence[object]:
        value = self.raw(key)
        if value is not None and not isinstance(value, list):
            self.unexpected(key, "expected a list")
        return value if isinstance(value, list) else ()

    def integer(self, key: str, default: D, least: int = 0, most: int = MAX_NUMBER) -> int | D:
        """A whole number, or text that is one; a template is rendered at once."""
        number = self.reading.integer(self.label_of(key), self._values.get(key, default))
        if number is not None and least <= number <= most:
            return number
        return self._default(key, default, f"a whole number from {least} to {most}")

    def seconds(self, key: str, default: D, least: float = 0) -> float | D:
        """A number of seconds, or text that is one; a template is rendered at once."""
        value = self.rendered(key, default)
        number = float(value.strip()) if isinstance(value, str) and re.fullmatch(_SECONDS, value) else value
        if (
            isinstance(number, (int, float))
            and not isinstance(number, bool)
            and least <= number <= MAX_NUMBER
        ):
            return float(number)
        return self._default(key, default, f"a number of seconds from {least:g} to {MAX_NUMBER}")

    def boolean(self, key: str, default: bool) -> bool:
        """true or false, or text that is one of them; a template is rendered at once."""
        value = to_boolean(self.rendered(key, default))
        return self._default(key, default, "true or false") if value is None else value

    def early(self, key: str, default: D, form: Form, secret: bool = False) -> str | D:
        """A string that is needed when the definition is read; a template is rendered at once.

        What is `secret` is not shown if it is wrong.
        """
        if key not in self._values:
            return default
        value = self.rendered(key)
        if not isinstance(value, str):
            return self._default(key, default, "text")
        reason = unusable(value) or form(value)
        if reason:
            if secret and not self._is_template(key):
                self.report(key, reason)
            else:
                self.unexpected(key, reason)
            return default
        return value

    def late(self, key: str, default: D, form: Form, number: bool = False) -> str | D:
        """A string that may be a template; it is rendered when the command is about to run.

        With `number` a whole JSON number is read as its digits.
        """
        if key not in self._values:
            return default
        value = self._values[key]
        if number and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            value = str(value)
        if not isinstance(value, str):
            return self._default(key, default, "text")
        self.reading.check(Text(self.label_of(key), value), form)
        return value

    def rendered(self, key: str, default: object = None) -> object:
        """The value, rendered if it is a template, or `default`."""
        value = self._values.get(key, default)
        return self.reading.rendered(Text(self.label_of(key), value)) if isinstance(value, str) else value

    def unexpected(self, key: str, expected: str) -> None:
        """Report what was expected, and what was found."""
        value = self.raw(key)
        if self._is_template(key):
            self.reading.report_result(self.label_of(key), expected)
        elif isinstance(value, str):
            self.report(key, f"{expected}, found {value[:SHOWN]!r}")
        elif json_type(value) == "a number":
            self.report(key, f"{expected}, found {str(value)[:SHOWN]}")
        else:
            self.report(key, f"{expected}, found {json_type(value)}")

    def _is_template(self, key: str) -> bool:
        value = self.raw(key)
        return isinstance(value, str) and Text(key, value).is_template

    def _default(self, key: str, default: D, expected: str) -> D:
        if key in self._values and not (self.raw(key) is None and default is None):
            self.unexpected(key, f"expected {expected}")
        return default


def nearest(name: str, known: Iterable[str]) -> str:
    """`; nearest is 'x'`, to end the message about an unknown name; empty if no name is known."""
    from difflib import get_close_matches  # Only bad definitions need it.

    # Cut, because the effort grows with the square of the length.
    close = get_close_matches(name[:SHOWN], list(known), n=1, cutoff=0.0)
    return f"; nearest is {close[0]!r}" if close else ""


def to_boolean(value: object) -> bool | None:
    """A boolean, or text that is one in jinja2 or YAML; None for anything else."""
    if isinstance(value, str):
        return _BOOLEANS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _mapping(reading: Reading, label: str, value: object) -> Mapping[str, object]:
    if value is not None and not isinstance(value, dict):
        reading.report(label, f"expected an object, found {json_type(value)}")
    return value if isinstance(value, dict) else {}
