"""What an operator writes as YAML or JSON becomes a definition's JSON, or the text of variables.

What lives here: the two notations and their traps. Nothing here knows a key of a definition.

YAML as people know it turns `yes` into true, `0644` into 420 and `30:15` into 1815. Here a plain
word stands for something else than its text only where JSON writes it so: numbers, `true`,
`false`, `null` (and nothing at all, and `~`, for null). Values of variables are always the text
that is written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from kolla_mesos_start.errors import BadDefinition

SUFFIXES = (".yml", ".yaml", ".json")

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


class _Values(yaml.SafeLoader):
    """Every plain word is its text, but for null; no key may stand twice in a mapping."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_mapping_node(self, anchor: Mapping[str, yaml.Node] | None) -> yaml.MappingNode:
        # Here and not where mappings are constructed: there `<<` has already added its keys.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)  # type: ignore[arg-type]
        names = []
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                hint = "a key has to be text (and a value that begins with {{ in quotes)"
                raise BadDefinition([_placed(hint, key.start_mark)])
            if key.tag == _MERGE:
                continue
            key.tag = _TEXT
            if key.value in names:
                twice = f"the key {key.value!r} is there more than once"
                raise BadDefinition([_placed(twice, key.start_mark)])
            names.append(key.value)
        return node


class _Definition(_Values):
    """Plain words are what JSON makes of them."""


def _resolve(loader: type[yaml.SafeLoader], kind: str, pattern: str, first: str) -> None:
    loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), list(first) or [""])


_resolve(_Values, "merge", r"<<\Z", "<")
_resolve(_Values, "null", r"(~|null|)\Z", "~n")
_resolve(_Values, "null", r"\Z", "")
# add_implicit_resolver gives a subclass its own copy of what its parent has at this moment.
_resolve(_Definition, "bool", r"(true|false)\Z", "tf")
_resolve(_Definition, "int", r"-?(0|[1-9][0-9]*)\Z", "-0123456789")
_resolve(_Definition, "float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z", "-0123456789")


def definition(path: Path) -> bytes:
    """The JSON of a definition. A `.json` file is taken byte for byte: what is wrong keeps its line.

    Raises BadDefinition for YAML that can't be read, or says what JSON can't.
    """
    data = path.read_bytes()
    if path.suffix == ".json":
        return data
    content = _load(data, _Definition)
    try:
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        # A tag like !!binary, an alias of its own parent, half of a surrogate pair.
        raise BadDefinition(["it holds something that JSON has no notation for"]) from error
    except RecursionError as error:
        raise BadDefinition(["nested too deep"]) from error


def values(path: Path) -> Mapping[str, object]:
    """A mapping of names to texts, or to such mappings. Raises BadDefinition.

    A value that is a list, which no variable can be, is left for the caller to refuse.
    """
    data = path.read_bytes()
    content = _json(data) if path.suffix == ".json" else _load(data, _Values)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadDefinition(["expected a mapping of names to values"])
    return content


def _load(data: bytes, loader: type[yaml.SafeLoader]) -> object:
    try:
        return yaml.load(data, loader)  # Both are SafeLoaders.
    except yaml.MarkedYAMLError as error:
        # What yaml quotes may be a value: a password that begins with * looks like an alias.
        problem = re.sub(" ?'.*'", "", error.problem or "it can't be read")
        raise BadDefinition([_placed(problem, error.problem_mark)]) from None
    except yaml.YAMLError as error:
        raise BadDefinition(["bad YAML: not UTF-8 text, or it holds control characters"]) from error
    except RecursionError as error:
        raise BadDefinition(["bad YAML: nested too deep"]) from error


def _placed(problem: str, mark: yaml.Mark | None) -> str:
    return f"bad YAML: {problem}" + (f", line {mark.line + 1} column {mark.column + 1}" if mark else "")


def _json(data: bytes) -> object:
    try:
        # Numbers stay the text that is written: 1.10 is not 1.1 in a version.
        return json.loads(
            data, object_pairs_hook=_mapping, parse_int=str, parse_float=str, parse_constant=str
        )
    except json.JSONDecodeError as error:
        raise BadDefinition([f"bad JSON: {error.msg}, line {error.lineno} column {error.colno}"]) from error
    except UnicodeDecodeError as error:
        raise BadDefinition(["bad JSON: not UTF-8 text"]) from error
    except RecursionError as error:
        raise BadDefinition(["bad JSON: nested too deep"]) from error


def _mapping(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise BadDefinition([f"the key {key!r} is there more than once" for key in twice])
    return dict(pairs)


def text(value: object) -> str | None:
    """The text of a variable's value; None where it can't be one."""
    if value is None:
        return ""
    if isinstance(value, bool):  # Of JSON; in YAML it is text already.
        return "true" if value else "false"
    return value if isinstance(value, str) else None
