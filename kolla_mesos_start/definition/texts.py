"""The strings of a definition and the labels that say where each one is, and the texts of variables."""

from __future__ import annotations

from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Callable, TypeVar

    T = TypeVar("T")


SHOWN = 80
"""How many characters of a key or a value a message shows."""
_TEMPLATE_MARKS = ("{{", "{%", "{#")


class Text(NamedTuple):
    """A string of a definition, and its label: `commands.db_sync.env.PASSWORD`."""

    label: str
    text: str

    @property
    def is_template(self) -> bool:
        """Whether rendering can change the text."""
        return any(mark in self.text for mark in _TEMPLATE_MARKS)


def value_of(data: bytes) -> bytes:
    """The value of a variable in a file. The newline at the end of a single line is the editor's; a text of
    several lines, such as a key, keeps its own."""
    return data[:-1] if data.find(b"\n") == len(data) - 1 else data


def untidy(value: str) -> str:
    """What the value of a variable has that nobody sees, and a password should not have; or nothing."""
    line = value.rstrip("\n")
    if value.startswith("\ufeff"):
        return "begins with a byte order mark"
    if "\r" in value:
        return f"{'ends with' if line.endswith(chr(13)) else 'has'} a carriage return, as in files of Windows"
    if "\n" in line or not line.strip():
        return ""
    if value != line:
        return "ends with a newline"
    edges = [where for where, blank in (("begins", line[0]), ("ends", line[-1])) if blank.isspace()]
    return f"{' and '.join(edges)} with a blank" if edges else ""


if TYPE_CHECKING:
    Render = Callable[[Text], str]


def rendered_by(read: Callable[[Render], object]) -> tuple[Text, ...]:
    """The templates that `read` renders, found by calling it with a function that changes nothing."""
    texts: list[Text] = []

    def record(text: Text) -> str:
        texts.append(text)
        return text.text

    read(record)
    return tuple(texts)


def sublabel(label: str, key: str) -> str:
    """The label of the value under `key`. A key that is empty or not printable is quoted, a long one cut."""
    shown = key if key and key.isprintable() else repr(key)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return f"{label}.{shown}" if label else shown


def labelled(label: str, items: Iterable[T]) -> Iterator[tuple[str, T]]:
    """The items of a list, each with its label."""
    return ((f"{label}[{index}]", item) for index, item in enumerate(items))
