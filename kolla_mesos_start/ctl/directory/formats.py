"""Reads an operator's YAML or JSON: a definition as JSON, or variables as texts. All YAML is read here.

It knows no key of a definition. The value of a variable is its text as written.

YAML is strict: plain words have their meaning in JSON, and no key occurs twice. Usual YAML turns `yes` into
true, `0644` into 420 and `30:15` into 1815. Here a plain word is its text, except numbers, `true`, `false`
and `null` as in JSON (`~` and an empty value are null too). In a definition `3.10` and `1e3` stay text: JSON
would write `3.1` and `1000.0`. A key is always text.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kolla_mesos_start.definition.strings import is_encrypted, labelled, sublabel
from kolla_mesos_start.errors import BadDefinition, BadUsage, Issue
from kolla_mesos_start.files.paths import read_descriptor

SUFFIXES = (".yml", ".yaml", ".json")
# What sops adds to YAML, JSON and dotenv files.
_SOPS = re.compile(rb"""\b(sops_)?mac["']?\s*[:=]\s*["']?ENC\[AES256_GCM""")

# The total size in characters of all aliases of a document when they are expanded. A znode cannot contain
# more, and nested aliases can have any size.
MOST_BY_ALIASES = 1_000_000

# Errors of yaml for an impossible number of a character or a version.
NUMBERS = (ValueError, OverflowError)

# Our message for each message of PyYAML, by the beginning of its text. {line} is the first line of the
# bracket, the quote or the mapping.
_INDENTED = (
    "the indentation of this line does not fit the mapping or list that begins on line {line}: align it with"
    " the keys or items there"
)
_DEEPER = "this line is indented further than the one above, which already has a value: align the two"
_COLON = "a second ': ' in one line: put a value that contains ': ' in quotes"
_QUOTE_IT = "put the whole value in quotes"
_PLAIN = {
    "expected <block end>, but found '<block mapping start>'": _INDENTED,
    "expected <block end>, but found '<block sequence start>'": _INDENTED,
    "expected <block end>, but found '?'": _INDENTED,
    "expected <block end>, but found '-'": _INDENTED,
    "expected <block end>": f"text after the end of a value: remove it, or {_QUOTE_IT}",
    "mapping values are not allowed here": _COLON,
    "sequence entries are not allowed here": "a list item (- ) after other text: give it its own line",
    "found character '\\t'": "a tab: indent with spaces",
    "found character": f"a value can't begin with %, @ or `: {_QUOTE_IT}",
    "expected the node content": f"a value can't begin with this character: {_QUOTE_IT}",
    "expected ',' or ']'": "the [ of line {line} is not closed, or a comma is missing",
    "expected ',' or '}'": "the { of line {line} is not closed, or a comma is missing",
    "found unexpected end of stream": "the quote that begins on line {line} is not closed",
    "could not find expected ':'": "line {line} lacks a ': ' (a colon and a space) after its key",
    "found undefined alias": f"* at the beginning means an alias, and this one is unknown: {_QUOTE_IT}",
    "expected alphabetic or numeric character": f"& or * at the beginning needs a name: {_QUOTE_IT}",
    "found unknown escape character": "an unknown escape after a backslash: use single quotes, or write \\\\",
    "but found another document": "a second document begins here (---): a file holds one",
    "could not determine a constructor": f"! at the beginning means a tag, which is unknown: {_QUOTE_IT}",
    "expected chomping or indentation indicators": "text after | or >: begin it on the next line",
}

# A text that yaml quotes may be a value, except a token: a password that begins with * looks like an alias.
_QUOTED = re.compile(r" ?'(?P<token><[a-z ]+>|[,:\]}-])?[^']*'| ?\".*\"")
# Text for PyYAML, but a number or a boolean for other readers of YAML: 1e3 and n for kubectl, for example.
_ELSEWHERE = re.compile(r"[-+]?\.?[0-9][-+.:_0-9a-fA-FoOxX]*|[yYnN]")
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


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
    if is_encrypted(data):
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
    content = _yaml(data, _AsWritten)
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
    return _yaml(data, _Definition)


def typed(path: Path) -> Any:
    """The content of a file with the numbers and booleans of JSON. Raises BadDefinition."""
    data = read(path)
    return json.loads(data) if path.suffix == ".json" else _yaml(data, _Definition)


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
    encrypted = [
        str(name) for name, value in _single(content) if is_encrypted(value.encode(errors="replace"))
    ]
    if encrypted:
        raise BadDefinition(
            [f"{name}: ansible-vault has encrypted it: put the decrypted value there" for name in encrypted]
        )
    return content


def _single(content: Mapping[object, object]) -> Iterator[tuple[object, str]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", each) for key, each in _single(value))
        elif isinstance(value, str):
            yield name, value


def appended(data: bytes, more: Mapping[str, str]) -> bytes:
    """The YAML with more values at its end, otherwise unchanged. BadDefinition if that is not possible."""
    before = _yaml(data) or {}
    twice = [name for name in more if isinstance(before, dict) and name in before]
    if twice:
        raise BadDefinition([f"another run has just added {twice[0]} to it: start this one again"])
    text = data if data.endswith(b"\n") else data + b"\n"
    text += yaml.safe_dump(dict(more), allow_unicode=True, width=sys.maxsize, sort_keys=False).encode()
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
        # JSON may be indented with tabs, and YAML may not.
        root = yaml.compose(data.replace(b"\t", b" "), _Values)
    except (yaml.YAMLError, BadDefinition, RecursionError, *NUMBERS):
        return {}
    return dict(_walk(root)) if root is not None else {}


def dumped(documents: Iterable[object]) -> str:
    """YAML for people to read, each document after a line of dashes, its keys in their order."""
    found: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=110, allow_unicode=True
    )
    return found


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


# -- YAML -----------------------------------------------------------------------------------------


class _Values(yaml.SafeLoader):
    """Every plain word is its text, except null; no key may occur twice in a mapping."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.size = self.by_aliases = 0  # of the composed part, in characters, with expanded aliases
        self.sizes: dict[int, int] = {}  # of each complete node, by its id()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # Checked here, because constructing an alias is cheap: it is expanded later.
        mark, is_alias, before = self.peek_event().start_mark, self.check_event(yaml.AliasEvent), self.size  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        assert node is not None
        if not is_alias:
            self.size += 1 + len(node.value)
            self.sizes[id(node)] = self.size - before
            return node
        if id(node) not in self.sizes:
            raise BadDefinition([_placed("an alias inside of its own anchor", mark)])
        self.size += self.sizes[id(node)]
        self.by_aliases += self.sizes[id(node)]
        if self.by_aliases > MOST_BY_ALIASES:
            too_much = f"its expanded aliases have more than {MOST_BY_ALIASES} characters"
            raise BadDefinition([_placed(too_much, mark)])
        return node

    def compose_mapping_node(self, anchor: Mapping[str, yaml.Node] | None) -> yaml.MappingNode:
        # Checked here, because constructing a mapping adds the keys of `<<`.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)  # type: ignore[arg-type]
        names = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                hint = "a key must be text; put a value that begins with {{ in quotes"
                raise BadDefinition([_placed(hint, key.start_mark)])
            if key.tag == _MERGE:
                continue
            key.tag = _TEXT
            if key.value in names:
                twice = f"the key {key.value!r} occurs more than once"
                raise BadDefinition([_placed(twice, key.start_mark)])
            names.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # The errors of yaml for `!!int a` and `!!bool a`.
            raise BadDefinition([_placed("not a value of its tag, or too long", node.start_mark)]) from None


def _encrypted(loader: _Values, node: yaml.Node) -> object:
    what = (
        "a value that ansible-vault has encrypted: write the text that `ansible-vault decrypt` gives for it"
    )
    raise BadDefinition([_placed(what, node.start_mark)])


_Values.add_constructor("!vault", _encrypted)


class _Definition(_Values):
    """Plain words mean what they mean in JSON."""


def _resolve(loader: type[yaml.SafeLoader], kind: str, pattern: str, first: str) -> None:
    loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), list(first) or [""])


_resolve(_Values, "merge", r"<<\Z", "<")
_resolve(_Values, "null", r"(~|null|)\Z", "~n")
_resolve(_Values, "null", r"\Z", "")
# add_implicit_resolver copies the present resolvers of the parent into a subclass.
_resolve(_Definition, "bool", r"(true|false)\Z", "tf")
_resolve(_Definition, "int", r"-?(0|[1-9][0-9]*)\Z", "-0123456789")
_resolve(_Definition, "float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z", "-0123456789")


class _AsWritten(_Definition):
    """A number that JSON would write in another way is its text: the version 3.10 is not 3.1."""


def _number(loader: _AsWritten, node: yaml.ScalarNode) -> object:
    value = json.loads(node.value)
    return value if json.dumps(value) == node.value else node.value


_AsWritten.add_constructor("tag:yaml.org,2002:int", _number)
_AsWritten.add_constructor("tag:yaml.org,2002:float", _number)


def _yaml(data: bytes, loader: type[_Values] = _Values) -> object:
    """The content of the YAML; BadDefinition if it can't be read."""
    try:
        return yaml.load(data, loader)  # A SafeLoader.
    except yaml.MarkedYAMLError as error:
        raise BadDefinition([_placed(_plain(error, data), error.problem_mark)]) from None
    except yaml.YAMLError as error:
        raise BadDefinition(["bad YAML: not UTF-8 text, or it contains control characters"]) from error
    except RecursionError as error:
        raise BadDefinition(["bad YAML: nested too deep"]) from error
    except NUMBERS as error:
        raise BadDefinition(
            ["bad YAML: an impossible number after \\U, or an impossible version after %YAML"]
        ) from error


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml's is fast
    """Writes no aliases, and a text of several lines as a block."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else "'" if _ELSEWHERE.fullmatch(value) else None
    return dumper.represent_scalar(_TEXT, value, style=style)


_Dumper.add_representer(str, _represent)


def _plain(error: yaml.MarkedYAMLError, data: bytes) -> str:
    """The mistake in words for people who do not know how YAML is parsed."""
    problem, mark = error.problem or "it can't be read", error.problem_mark
    text = next((plain for said, plain in _PLAIN.items() if problem.startswith(said)), None)
    if text is None:
        return _QUOTED.sub(_token, problem)
    if text is _COLON and mark:
        before = data.decode("utf-8", "replace").splitlines()[mark.line][: mark.column]
        text = _COLON if ": " in before or "{" in before else _DEEPER
    begins = error.context_mark or mark
    return text.replace("{line}", f"{begins.line + 1 if begins else 1}")


def _token(quoted: re.Match[str]) -> str:
    """The quoted text if it is a token, else an empty text."""
    return quoted[0] if quoted[0] == f" '{quoted['token']}'" else ""


def _walk(root: yaml.Node) -> Iterator[tuple[str, TextPlace]]:
    left = [("", root, root)]
    while left:
        label, key, node = left.pop()
        # The text of a block scalar begins below its | or >.
        is_block = getattr(node, "style", None) in ("|", ">")
        yield label, TextPlace(key.start_mark.line + 1, node.start_mark.line + 1 + is_block)
        if isinstance(node, yaml.MappingNode):
            left += ((sublabel(label, name.value), name, value) for name, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            left += ((below, item, item) for below, item in labelled(label, node.value))


def _placed(problem: str, mark: yaml.Mark | None) -> Issue:
    if mark is None:
        return Issue(f"bad YAML: {problem}")
    line = mark.line + 1
    return Issue(f"bad YAML: {problem}, line {line} column {mark.column + 1}", line=line)
