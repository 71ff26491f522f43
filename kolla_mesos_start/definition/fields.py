"""Reads the JSON objects of a definition key by key: types, ranges, and the early templates.

What a key means is decided in `schema`. Nothing is raised while a definition is read: issues are
collected, and the caller raises once.
"""

from __future__ import annotations

import re

from kolla_mesos_start.definition.document import json_type
from kolla_mesos_start.definition.forms import unusable
from kolla_mesos_start.definition.texts import SHOWN, Text, sublabel
from kolla_mesos_start.errors import Issue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    from kolla_mesos_start.definition.forms import Form
    from kolla_mesos_start.definition.texts import Render

    D = TypeVar("D")
    Table = Mapping[str, tuple[Any, ...]]


MAX_NUMBER = 1_000_000_000
"""The largest number that a definition may hold; in seconds 31 years, which every clock can add."""

_BY_TEMPLATE = ", but its template rendered to something else"
_INTEGER = r"\s*-?[0-9]{1,18}\s*"
_SECONDS = r"\s*-?[0-9]{1,18}(\.[0-9]{1,18})?\s*"
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


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
