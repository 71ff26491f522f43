"""Strict YAML: plain words have their meaning in JSON, and no key occurs twice.

Usual YAML turns `yes` into true, `0644` into 420 and `30:15` into 1815. Here a plain word is its
text, except numbers, `true`, `false` and `null` as in JSON (`~` and an empty value are null too). A key is
always text. All use of PyYAML is here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from kolla_mesos_start.definition.strings import labelled, sublabel
from kolla_mesos_start.errors import BadDefinition, Issue

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


def load(data: bytes, *, numbers: bool) -> object:
    """The content of the YAML; BadDefinition if it can't be read.

    `numbers`: plain words may be numbers and booleans, as in JSON; else all are text.
    """
    try:
        return yaml.load(data, _Definition if numbers else _Values)  # A SafeLoader.
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


def lines(values: Mapping[str, str]) -> bytes:
    """A line for each name and value, in quotes if necessary."""
    text: str = yaml.safe_dump(dict(values), allow_unicode=True, width=sys.maxsize, sort_keys=False)
    return text.encode()


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml's is fast
    """Writes no aliases, and a text of several lines as a block."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else "'" if _ELSEWHERE.fullmatch(value) else None
    return dumper.represent_scalar(_TEXT, value, style=style)


_Dumper.add_representer(str, _represent)


def dump(documents: Iterable[object]) -> str:
    """Each document after a line of dashes, its keys in their order."""
    dumped: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=110, allow_unicode=True
    )
    return dumped


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


def places(data: bytes) -> Iterator[tuple[str, int, int]]:
    """The label of each value, the line of its key, and the first line of its text.

    Nothing if the YAML can't be read.
    """
    try:
        # JSON may be indented with tabs, and YAML may not.
        root = yaml.compose(data.replace(b"\t", b" "), _Values)
    except (yaml.YAMLError, BadDefinition, RecursionError, *NUMBERS):
        return
    if root is not None:
        yield from _walk(root)


def _walk(root: yaml.Node) -> Iterator[tuple[str, int, int]]:
    left = [("", root, root)]
    while left:
        label, key, node = left.pop()
        # The text of a block scalar begins below its | or >.
        is_block = getattr(node, "style", None) in ("|", ">")
        yield label, key.start_mark.line + 1, node.start_mark.line + 1 + is_block
        if isinstance(node, yaml.MappingNode):
            left += ((sublabel(label, name.value), name, value) for name, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            left += ((below, item, item) for below, item in labelled(label, node.value))


def _placed(problem: str, mark: yaml.Mark | None) -> Issue:
    if mark is None:
        return Issue(f"bad YAML: {problem}")
    line = mark.line + 1
    return Issue(f"bad YAML: {problem}, line {line} column {mark.column + 1}", line=line)
