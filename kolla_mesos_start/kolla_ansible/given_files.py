"""Reads the files that the operator gives to an import, and checks their rows.

A file that can't be read is BadUsage with its path. The functions for mistakes return all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.ctl.directory.launch import bad_host
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.errors import BadDefinition, BadUsage


def values(path: Path) -> Mapping[str, object]:
    """A mapping of names to texts, lists, or such mappings."""
    with _named(path):
        return formats.values(path)


def data(path: Path) -> bytes:
    """The bytes of a file."""
    with _named(path):
        return formats.read(path)


def document(path: Path) -> object:
    """The content, with the plain words of JSON."""
    with _named(path):
        return formats.document(formats.read(path))


def mapping(path: Path) -> Mapping[str, Any]:
    """A document that has to be a mapping."""
    found = document(path)
    if not isinstance(found, dict):
        raise BadUsage(f"{path}: expected a mapping")
    return found


@contextmanager
def _named(path: Path) -> Iterator[None]:
    if not path.exists():
        raise BadUsage(f"{path} does not exist")
    try:
        yield
    except BadDefinition as error:
        raise BadUsage(f"{path}: {'; '.join(error.issues)}") from error


# -- rows -----------------------------------------------------------------------------------------


def mistakes_in_row(
    where: str, row: object, required: Sequence[str], optional: Sequence[str]
) -> Iterator[str]:
    """What is wrong in a mapping with these keys."""
    if not isinstance(row, dict):
        yield f"{where}: expected a mapping"
        return
    yield from (f"{where}: {key} is missing" for key in required if key not in row)
    for key, value in row.items():
        if key in (*required, *optional):
            yield from mistakes_in_value(f"{where}: {key}", key, value)
        else:
            yield f"{where}: unknown key {key}{nearest(key, (*required, *optional))}"


def mistakes_in_value(where: str, key: str, value: object) -> Iterator[str]:
    """What is wrong in the value of a key in VALUES; nothing for another key."""
    what = VALUES.get(key)
    if what and not IS_RIGHT[what](value):
        yield f"{where}: expected {what}, found {value!r}"


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


PATTERN, PATTERNS = "a regular expression", "a mapping to regular expressions"
IS_RIGHT: Mapping[str, Callable[[object], bool]] = {
    PATTERN: _is_pattern,
    f"{PATTERN} or null": lambda value: value is None or _is_pattern(value),
    PATTERNS: lambda value: isinstance(value, dict) and all(map(_is_pattern, value.values())),
    "a number": lambda value: type(value) is int,
    "a positive number": lambda value: isinstance(value, int) and value > 0,
    "a mapping of names to addresses": lambda value: value is None or isinstance(value, dict),
    "the name of a host": lambda value: value is None or (isinstance(value, str) and not bad_host(value)),
    "a text in quotes": lambda value: not isinstance(value, float),  # 24.10 would be 24.1
    "a list of numbers": lambda value: isinstance(value, list) and all(type(each) is int for each in value),
}
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("match", "name", "daemon", "step", "steps", "module", "image"), PATTERN),
    **dict.fromkeys(("hard", "common_volumes"), PATTERN),
    **dict.fromkeys(("settings", "same"), PATTERNS),
    **dict.fromkeys(("ports", "statuses"), "a list of numbers"),
    "on": f"{PATTERN} or null",
    **dict.fromkeys(("port", "user"), "a number"),
    **dict.fromkeys(("cpus", "memory"), "a positive number"),
    "interfaces": "a mapping of names to addresses",
    "hostname": "the name of a host",
    "version": "a text in quotes",
}
