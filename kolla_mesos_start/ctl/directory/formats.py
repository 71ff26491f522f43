"""Reads an operator's YAML or JSON: a definition as JSON, or variables as texts.

This module has the common part and the pitfalls of JSON; `strict_yaml` has those of YAML. It knows no key
of a definition. The value of a variable is its text as written.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from kolla_mesos_start.errors import BadDefinition, BadUsage, Issue
from kolla_mesos_start.files.paths import read_descriptor

SUFFIXES = (".yml", ".yaml", ".json")
# What sops adds to YAML, JSON and dotenv files.
_SOPS = re.compile(rb"""\b(sops_)?mac["']?\s*[:=]\s*["']?ENC\[AES256_GCM""")


def is_file(stem: str, path: Path) -> bool:
    """Whether it is a file with this name in one of the formats."""
    return path.stem == stem and path.suffix in SUFFIXES


def check_link(path: Path, root: Path) -> None:
    """Raise BadUsage for a link that leads out of the directory `root`."""
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(os.path.realpath(root)):
        raise BadUsage(f"{path} is a link to {target}, outside of {root}: put a copy in its place")


def read(path: Path) -> bytes:
    """The content of a file. Raises BadDefinition if it can't be read."""
    try:
        data = read_descriptor(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except IsADirectoryError as error:
        raise BadDefinition(["a directory: expected a file"]) from error
    except FileNotFoundError as error:
        raise BadDefinition(["a link to a missing file"]) from error
    except OSError as error:
        raise BadDefinition([f"can't be read: {error.strerror}"]) from error
    if data.startswith(b"$ANSIBLE_VAULT"):
        decrypt = f"decrypt a copy: ansible-vault decrypt --output COPY {path.name}"
        raise BadDefinition([f"ansible-vault has encrypted it: {decrypt}"])
    if _SOPS.search(data):
        decrypt = f"decrypt a copy: sops decrypt {path.name} >COPY"
        raise BadDefinition([f"sops has encrypted it: {decrypt}"])
    return data


def definition(path: Path) -> bytes:
    """The JSON of a definition. A `.json` file is taken byte for byte, so that errors keep their line.

    Raises BadDefinition for YAML that can't be read, or that JSON can't express.
    """
    data = read(path)
    if path.suffix == ".json":
        return data
    content = _yaml(data, numbers=True)
    if content is None:
        raise BadDefinition(["empty: expected `commands`, `service`, or both"])
    try:
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        # A tag like !!binary, half of a surrogate pair.
        raise BadDefinition(["it contains something that JSON can't express"]) from error
    except RecursionError as error:
        raise BadDefinition(["nested too deep"]) from error


def document(data: bytes) -> object:
    """The content of YAML with the plain words of JSON. Raises BadDefinition."""
    return _yaml(data, numbers=True)


def values(path: Path) -> Mapping[str, object]:
    """A mapping of names to texts, or to such mappings. Raises BadDefinition.

    The caller refuses lists, which can't be values of variables.
    """
    data = read(path)
    content = _json(data) if path.suffix == ".json" else _yaml(data)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadDefinition(["expected a mapping of names to values"])
    return content


def appended(data: bytes, more: Mapping[str, str]) -> bytes:
    """The YAML with more values at its end, otherwise unchanged. BadDefinition if that is not possible."""
    before = _yaml(data) or {}
    twice = [name for name in more if isinstance(before, dict) and name in before]
    if twice:
        raise BadDefinition([f"another run has just added {twice[0]} to it: start this one again"])
    from kolla_mesos_start.ctl.directory import strict_yaml

    text = data if data.endswith(b"\n") else data + b"\n"
    text += strict_yaml.lines(more)
    # After a mapping in braces, for example, or the dots at the end of a document.
    if not _is(text, before, more):
        raise BadDefinition(["nothing can be added to it: expected `name: value` in lines, and no braces"])
    return text


def _is(text: bytes, before: object, more: Mapping[str, str]) -> bool:
    try:
        return isinstance(before, dict) and _yaml(text) == {**before, **more}
    except BadDefinition:
        return False


class TextPlace(NamedTuple):
    """The line of a value's key, or of an item of a list, and the line on which its text begins."""

    line: int
    text: int


def places(data: bytes) -> Mapping[str, TextPlace]:
    """The place of each value of a document by its label; empty if the document can't be read."""
    try:
        from kolla_mesos_start.ctl.directory import strict_yaml
    except ModuleNotFoundError:
        return {}  # JSON needs no PyYAML.
    return {label: TextPlace(*lines) for label, *lines in strict_yaml.places(data)}


def dumped(documents: Iterable[object]) -> str:
    """YAML for people to read, each document after a line of dashes."""
    return str(_strict_yaml().dump(documents))


def _yaml(data: bytes, *, numbers: bool = False) -> object:
    return _strict_yaml().load(data, numbers=numbers)


def _strict_yaml() -> ModuleType:
    try:
        from kolla_mesos_start.ctl.directory import strict_yaml
    except ModuleNotFoundError as error:
        # Not needed for JSON.
        raise BadUsage("YAML needs PyYAML; run: pip install 'kolla_mesos_start[operator]'") from error
    return strict_yaml


def _json(data: bytes) -> object:
    try:
        # Numbers stay as written: the version 1.10 is not 1.1.
        return json.loads(
            data, object_pairs_hook=_mapping, parse_int=str, parse_float=str, parse_constant=str
        )
    except json.JSONDecodeError as error:
        what = f"bad JSON: {error.msg}, line {error.lineno} column {error.colno}"
        raise BadDefinition([Issue(what, line=error.lineno)]) from error
    except UnicodeDecodeError as error:
        raise BadDefinition(["bad JSON: not UTF-8 text"]) from error
    except RecursionError as error:
        raise BadDefinition(["bad JSON: nested too deep"]) from error


def _mapping(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise BadDefinition([f"the key {key!r} occurs more than once" for key in twice])
    return dict(pairs)


def text(value: object) -> str | None:
    """The value of a variable as text; None for a list or a mapping."""
    if value is None:
        return ""
    if isinstance(value, bool):  # of JSON; from YAML it comes as text
        return "true" if value else "false"
    return value if isinstance(value, str) else None
