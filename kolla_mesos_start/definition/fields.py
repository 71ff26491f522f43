"""The JSON border: bytes become a `Document`, and a document is read key by key, each key by its kind.

What lives here: syntax, kinds of values, ranges, templates that are due when a definition is
read, and the collecting of all that is wrong. Never here: what a key means (`graph.py`).
Nothing is raised while a document is read: issues are collected, and the caller raises once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Callable, NamedTuple, TypeVar

from kolla_mesos_start.definition.forms import Form, unusable
from kolla_mesos_start.errors import BadDefinition

D = TypeVar("D")
T = TypeVar("T")

MOST = 1_000_000_000
"""The largest number that a definition may hold; in seconds 31 years, which every clock can add."""

_SHOWN = 80
_DIGITS = 300
BY_TEMPLATE = ", its template gives something else"
_MARKS = ("{{", "{%", "{#")
_WHOLE = r"\s*-?[0-9]{1,18}\s*"
_NUMBER = r"\s*-?[0-9]{1,18}(\.[0-9]{1,18})?\s*"
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


class Document(NamedTuple):
    """A definition as JSON has it: well-formed, not yet understood."""

    root: Mapping[str, object]


class Text(NamedTuple):
    """A string of a definition, and where it stands: `commands.db_sync.env.PASSWORD`."""

    label: str
    text: str

    @property
    def is_template(self) -> bool:
        """Whether rendering can change it; any other text is taken as it is."""
        return any(mark in self.text for mark in _MARKS)


Render = Callable[[Text], str]


def load(data: bytes) -> Document:
    """The JSON of a definition, taken apart. Raises BadDefinition, with line and column for bad syntax."""
    strange: list[tuple[object, str]] = []

    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        whole = dict(pairs)
        if len(whole) < len(pairs):
            times = Counter(key for key, _ in pairs)
            twice = sorted(key for key in times if times[key] > 1)
            strange.extend((whole, f"the key {key!r} is there more than once") for key in twice)
        return whole

    def number(literal: str) -> object:
        value = _finite(literal)
        if value is None:
            value = float("nan")  # Each is an object of its own, so that its place can be found.
            strange.append((value, "expected a number that is finite and of sensible length"))
        return value

    text = _decoded(data)
    try:
        root = json.loads(
            text, object_pairs_hook=mapping, parse_int=number, parse_float=number, parse_constant=number
        )
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").rstrip(": ")
        raise BadDefinition([f"bad JSON: {what}, line {error.lineno} column {error.colno}"]) from error
    except RecursionError as error:
        raise BadDefinition(["bad JSON: nested too deep"]) from error
    if strange:
        labels = {id(value): label for label, value in _walk(root)}
        raise BadDefinition([f"{labels.get(id(value), 'definition')}: {what}" for value, what in strange])
    if not isinstance(root, dict):
        raise BadDefinition([f"expected a JSON object, found {kind(root)}"])
    return Document(root)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # Some editors put a byte order mark in front.
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise BadDefinition([f"not UTF-8 text, line {line} column {column}"]) from error


def _finite(literal: str) -> int | float | None:
    """The number that `literal` stands for; None for NaN, for infinities, and past all use."""
    if len(literal) > _DIGITS:  # Python 3.11 has a limit of its own, 3.9 takes its time.
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
            left.extend((joined(label, key), item) for key, item in value.items())
        elif isinstance(value, list):
            left.extend(labelled(label, value))


def joined(label: str, key: str) -> str:
    """The label of what stands under `key`; a key that would garble a message is quoted."""
    shown = key if key and key.isprintable() else repr(key)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return f"{label}.{shown}" if label else shown


def labelled(label: str, items: Iterable[T]) -> Iterator[tuple[str, T]]:
    """The items of a list, each with its label."""
    return ((f"{label}[{index}]", item) for index, item in enumerate(items))


def kind(value: object) -> str:
    """What JSON calls a value, for a message that must not repeat it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; nearest is 'x'`, to end the message about an unknown name; empty where nothing is known."""
    from difflib import get_close_matches  # Only bad definitions pay for it.

    # Cut, for the effort grows with the square of the length.
    close = get_close_matches(name[:_SHOWN], list(known), n=1, cutoff=0.0)
    return f"; nearest is {close[0]!r}" if close else ""


class Reading:
    """One pass over a document: renders what is due, and remembers everything that is wrong."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self.issues: list[str] = []

    def wrong(self, label: str, what: str) -> None:
        self.issues.append(f"{label}: {what}")

    def rendered(self, text: Text) -> str:
        return self._render(text) if text.is_template else text.text

    def final(self, text: Text, form: Form) -> str:
        """`text` rendered; what `form` has against the outcome becomes an issue."""
        value = self.rendered(text)
        reason = unusable(value) or form(value)
        if reason:
            self.wrong(text.label, f"{reason}{BY_TEMPLATE if text.is_template else ''}")
        return value

    def judge_name(self, label: str, name: str, form: Form) -> None:
        """Make an issue of what is wrong with a key that names something."""
        reason = unusable(name) or form(name)
        if reason:
            self.wrong(label, reason)


class Fields:
    """One JSON object, read key by key. A wrong value leaves an issue behind and reads as the default.

    `known` are the keys that are read, `ignored` those that are left alone, `misplaced` those that
    belong elsewhere, each with the reason; any other key is an issue.
    null is the default where that is None, and an empty list or object where one is expected.
    """

    def __init__(
        self,
        reading: Reading,
        label: str,
        value: object,
        known: Sequence[str],
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
                self.wrong(key, misplaced[key])
            elif key not in known and key not in ignored:
                self.wrong(key, f"unknown key{nearest(key, (*known, *ignored))}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def require(self, key: str, what: str) -> bool:
        """Whether `key` is there; if not, that is an issue, unless the lack of an object was one already."""
        if self._is_object and key not in self._values:
            self.wrong(key, f"is required: {what}")
        return key in self._values

    def at(self, key: str) -> str:
        return joined(self.label, key)

    def wrong(self, key: str, what: str) -> None:
        self.reading.wrong(self.at(key), what)

    def raw(self, key: str) -> object:
        """The value as it stands; None if there is none."""
        return self._values.get(key)

    def mapping(self, key: str) -> Mapping[str, object]:
        return _mapping(self.reading, self.at(key), self.raw(key))

    def items(self, key: str) -> Sequence[object]:
        value = self.raw(key)
        if value is not None and not isinstance(value, list):
            self.wrong(key, f"expected a list{self.found(key)}")
        return value if isinstance(value, list) else ()

    def whole(self, key: str, default: D, least: int = 0, most: int = MOST) -> int | D:
        """A whole number, or text that stands for one."""
        value = self.early(key, default)
        number = int(value) if isinstance(value, str) and re.fullmatch(_WHOLE, value) else value
        if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
            return number
        return self._default(key, default, f"a whole number from {least} to {most}")

    def seconds(self, key: str, default: D, least: float = 0) -> float | D:
        """A number of seconds, or text that stands for one."""
        value = self.early(key, default)
        number = float(value) if isinstance(value, str) and re.fullmatch(_NUMBER, value) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and least <= number <= MOST:
            return float(number)
        return self._default(key, default, f"a number of seconds from {least:g} to {MOST}")

    def flag(self, key: str, default: bool) -> bool:
        """true or false, or text that stands for one of them."""
        value = self.early(key, default)
        flag = as_flag(value)
        return self._default(key, default, "true or false") if flag is None else flag

    def word(self, key: str, default: D, form: Form) -> str | D:
        """A string that is needed when the definition is read, so it is rendered at once."""
        if key not in self._values:
            return default
        value = self.early(key)
        if not isinstance(value, str):
            return self._default(key, default, "text")
        reason = unusable(value) or form(value)
        if reason:
            self.wrong(key, f"{reason}{self.found(key)}")
            return default
        return value

    def late(self, key: str, default: D, form: Form, *, number: bool = False) -> str | D:
        """A string that is rendered when the command's turn comes; judged at once if it is no template.

        With `number` a whole JSON number is as good as its digits.
        """
        if key not in self._values:
            return default
        value = self._values[key]
        if number and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            value = str(value)
        if not isinstance(value, str):
            return self._default(key, default, "text")
        self.judge(Text(self.at(key), value), form)
        return value

    def judge(self, text: Text, form: Form) -> None:
        """Make an issue of what is wrong with `text`, unless only its rendering can tell."""
        reason = unusable(text.text) or (None if text.is_template else form(text.text))
        if reason:
            self.reading.wrong(text.label, reason)

    def early(self, key: str, default: object = None) -> object:
        """The value, rendered if it is a template; `default` if there is none."""
        value = self._values.get(key, default)
        return self.reading.rendered(Text(self.at(key), value)) if isinstance(value, str) else value

    def found(self, key: str) -> str:
        """`, found ...`, to end a message; what a template gave is not repeated, for it may hold a secret."""
        value = self.raw(key)
        if isinstance(value, str):
            return BY_TEMPLATE if Text(key, value).is_template else f", found {value[:_SHOWN]!r}"
        if kind(value) == "a number":
            return f", found {str(value)[:_SHOWN]}"
        return f", found {kind(value)}"

    def _default(self, key: str, default: D, expected: str) -> D:
        if key in self._values and not (self.raw(key) is None and default is None):
            self.wrong(key, f"expected {expected}{self.found(key)}")
        return default


def as_flag(value: object) -> bool | None:
    """The boolean that `value` is, or that its text stands for; None if neither."""
    if isinstance(value, str):
        return _FLAGS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _mapping(reading: Reading, label: str, value: object) -> Mapping[str, object]:
    if value is not None and not isinstance(value, dict):
        reading.wrong(label, f"expected an object, found {kind(value)}")
    return value if isinstance(value, dict) else {}
